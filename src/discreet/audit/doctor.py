"""What the devices of this machine compute: each example's gradient against autograd, noise against its reference.

Nothing here needs data. What is found names no host, no file and no user, so that it can be sent in.
"""

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet.errors import ConfigError
from discreet.gradients import Engine
from discreet.release.attachment import attach
from discreet.stages.noise.chacha import DeviceStream, draws_there, key_stream, reference
from discreet.stages.presets import dp_sgd

PACKAGES = ("discreet", "torch", "numpy", "scipy", "cryptography")
EXACT, SHORT_EXACT = 1e-9, 1e-3  # what rounding may leave, in float64 and where there is only float32
ALIKE = 1e-4  # how far normal values of a device may be from the CPU's, of the same random bits
_KEY = bytes(range(100, 132))
_BLOCKS = 5_000


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: whether it is as it must be (None: nobody can say), and in words."""

    name: str
    holds: bool | None
    words: str
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Examined:
    """A device, and what was found of it."""

    device: str
    name: str
    checks: Sequence[Check]

    @property
    def holds(self) -> bool:
        """Whether nothing was found that is not as it must be."""
        return all(check.holds is not False for check in self.checks)


@dataclass(frozen=True)
class Report:
    """What was found of a machine."""

    about: Mapping[str, str]
    devices: Sequence[Examined]

    @property
    def holds(self) -> bool:
        """Whether every device that was looked at is as it must be."""
        return all(device.holds for device in self.devices)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        return {"holds": self.holds, **asdict(self)}


def about() -> dict[str, str]:
    """Versions and the kind of machine."""
    found = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    built = [f"{kind} {made}" for kind in ("cuda", "hip", "xpu") if (made := getattr(torch.version, kind, None))]
    return found | {
        "torch built for": ", ".join(built) or "the CPU",
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
    }


def devices() -> list[torch.device]:
    """The CPU, and every accelerator that torch sees."""
    found = [torch.device("cpu")]
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator()
        assert kind is not None
        found += [torch.device(kind.type, index) for index in range(torch.accelerator.device_count())]
    return found


def device_of(text: str) -> torch.device:
    """The device of a name."""
    try:
        device = torch.device(text)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        there = ", ".join(map(str, devices()))
        raise ConfigError(f"there is no device {text!r} here; there is {there}.") from error
    return device


def examine(device: torch.device, seconds: float = 2.0) -> Examined:
    """Look at a device; a check that breaks is one that does not hold.

    Args:
        device: what is looked at.
        seconds: how long each step is timed; 0: no step is.
    """
    looks: list[tuple[str, Callable[[], Check]]] = [
        ("gradients", lambda: exactness(device)),
        ("noise", lambda: noise(device)),
    ]
    if seconds:
        looks.append(("speed", lambda: speed(device, seconds)))
    checks: list[Check] = []
    for name, look in looks:
        try:
            checks.append(look())
        except Exception as error:  # whatever a device cannot do is what this is to find
            checks.append(Check(name, False, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"))
    return Examined(str(device), name_of(device), tuple(checks))


def name_of(device: torch.device) -> str:
    """What a device calls itself."""
    if device.type == "cpu":
        return platform.processor() or platform.machine()
    try:
        return str(torch.get_device_module(device).get_device_name(device))
    except (AttributeError, RuntimeError):
        return device.type


# --- each example's gradient ------------------------------------------------------------------------------------------


class _Sequences(nn.Module):
    """Words, attention over them, a norm, and a linear layer on their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.mix = nn.Embedding(20, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.words(tokens)
        return self.head(self.norm(h + self.mix(h, h, h, need_weights=False)[0]).mean(1))


_EXAMPLES = 6


def _cases(generator: torch.Generator) -> dict[str, tuple[nn.Module, Tensor]]:
    images = nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 4)
    return {
        "linear": (
            nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4)),
            torch.randn(_EXAMPLES, 12, generator=generator),
        ),
        "convolutions": (nn.Sequential(*images), torch.randn(_EXAMPLES, 2, 8, 8, generator=generator)),
        "sequences": (_Sequences(), torch.randint(20, (_EXAMPLES, 7), generator=generator)),
    }


def exactness(device: torch.device) -> Check:
    """Norms and sums of each example's gradient, against autograd one example at a time, on the same device."""
    dtype, allowed = (torch.float32, SHORT_EXACT) if device.type == "mps" else (torch.float64, EXACT)
    worst: dict[str, float] = {}
    for name, (model, inputs) in _cases(torch.Generator().manual_seed(0)).items():
        moved = inputs.to(device, dtype) if inputs.is_floating_point() else inputs.to(device)
        worst[name] = _error(model.to(dtype).to(device), moved)
    holds = all(error <= allowed for error in worst.values())
    found = ", ".join(f"{name} {error:.1e}" for name, error in worst.items())
    return Check("gradients", holds, f"off by {found} of their length; {allowed:.0e} is rounding", worst)


def _error(model: nn.Module, inputs: Tensor) -> float:
    """The largest relative error of a norm or a weighted sum."""
    targets = torch.arange(len(inputs)).remainder(4).to(inputs.device)
    each: list[Tensor] = []
    for i in range(len(inputs)):
        loss = F.cross_entropy(model(inputs[i : i + 1]), targets[i : i + 1])
        own = torch.autograd.grad(loss, list(model.parameters()))
        each.append(torch.cat([g.flatten() for g in own]))
    losses = F.cross_entropy(model(inputs), targets, reduction="none")
    gradients = Engine(model).gradients(losses, len(inputs))
    weights = torch.linspace(0.1, 1.0, len(inputs)).to(losses)
    sums = {name: torch.zeros_like(p).detach() for name, p in model.named_parameters()}
    gradients.add_weighted(dict.fromkeys(sums, weights), sums)
    found = torch.stack(list(gradients.norms().values())).sum(0).sqrt()
    flat = torch.stack(each)
    lengths = flat.norm(dim=1)
    total, expected = torch.cat([g.flatten() for g in sums.values()]), weights @ flat
    errors = (found - lengths).abs() / lengths, ((total - expected).norm() / expected.norm())[None]
    return torch.cat(errors).max().item()


# --- noise ------------------------------------------------------------------------------------------------------------


def noise(device: torch.device) -> Check:
    """The key stream against the cryptography package's, bit for bit, and normal values against the CPU's."""
    if not draws_there(device) and device.type != "cpu":
        return Check("noise", None, "there are no numbers of 64 bits: noise is drawn by the CPU and copied")
    first = (1 << 32) - 17  # so that the count passes the end of 32 bits
    made = key_stream(_KEY, first, _BLOCKS, device).t().contiguous().cpu().numpy().astype("<i4").tobytes()
    same = made == reference(_KEY, first, _BLOCKS)
    here, there = (DeviceStream(_KEY, place) for place in (torch.device("cpu"), device))
    one = here.fill_normal(torch.empty(10_001), 1.0)
    other = there.fill_normal(torch.empty(10_001, device=device), 1.0).cpu()
    apart = (one - other).abs().max().item()
    words = f"{len(made):,} bytes {'are' if same else 'are NOT'} ChaCha20's; normal values {apart:.1e} from the CPU's"
    return Check("noise", same and apart <= ALIKE, words, {"apart": apart})


# --- speed ------------------------------------------------------------------------------------------------------------


def speed(device: torch.device, seconds: float) -> Check:
    """Milliseconds of a training step with privacy and without: they vary with what else the machine does."""
    figures: dict[str, float] = {}
    told: list[str] = []
    for name, make, shape in (("MLP, 600", _mlp, (600, 784)), ("CNN, 256", _cnn, (256, 1, 28, 28))):
        inputs, targets = torch.randn(shape).to(device), torch.randint(10, shape[:1]).to(device)
        plain, private = (
            _milliseconds(make().to(device), (inputs, targets), seconds, private=p) for p in (False, True)
        )
        figures |= {f"{name}, SGD": plain, f"{name}, private": private}
        told.append(f"{name}: {private:.3g} ms, {private / plain:.2f} times SGD")
    return Check("speed", None, "; ".join(told), figures)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 10))


def _cnn() -> nn.Module:
    layers = nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2), nn.ReLU()
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(800, 10))


def _milliseconds(model: nn.Module, data: tuple[Tensor, Tensor], seconds: float, *, private: bool) -> float:
    """The median step, of as many as fit into some seconds after a few that are not counted."""
    device, rows, most = data[0].device, len(data[0]), 2_000
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    plan = dp_sgd(examples=rows, batch_size=rows, steps=most, noise=1.0, delta=1e-5)
    handle = attach(model, plan, seed=0) if private else None
    batches = iter([data] * most if handle is None else handle.batches(data))
    times: list[float] = []
    began = time.perf_counter()
    for number, (x, y) in enumerate(batches):
        start = time.perf_counter()
        losses = F.cross_entropy(model(x), y, reduction="none")
        if handle is None:
            losses.mean().backward()
        else:
            handle.backward(losses)
        optimizer.step()
        optimizer.zero_grad()
        _wait(device)
        if number >= 5:  # after what is found out once
            times.append(time.perf_counter() - start)
        if times and time.perf_counter() - began > seconds:
            break
    if handle is not None:
        handle.detach()
    return 1e3 * statistics.median(times)


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)
