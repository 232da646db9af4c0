"""One training step of each library on a fixed batch: a function from a setting to a step.

A competitor says with Missing that its library is not there, and with Cannot that it cannot train this network.
"""

import inspect
import math
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from models import MICROBATCH, SETTINGS, Setting
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import discreet

Step = Callable[[], Any]
RATE, CLIP, NOISE = 0.01, 1.0, 1.0


class Missing(Exception):
    """A library, or a feature of one, is not installed."""


class Cannot(Exception):
    """A library cannot train this network."""


def prepare(setting: Setting, library: str = ""):
    torch.manual_seed(0)
    model = setting.variant(library).build()
    if library == "discreet":
        model = converted(model)
    x, y = setting.inputs(setting.batch), torch.randint(10, (setting.batch,))
    return model, x, y, torch.optim.SGD(model.parameters(), lr=RATE)


def sgd(setting: Setting) -> Step:
    return sgd_on(*prepare(setting))


def sgd_on(model: nn.Module, x: Tensor, y: Tensor, optimizer: torch.optim.Optimizer) -> Step:
    def step() -> None:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def sgd_twice(setting: Setting) -> Step:
    """Two passes over each graph: the memory that a look at a batch takes before its gradients are made."""
    model, x, y, optimizer = prepare(setting)
    parameters = list(model.parameters())

    def step() -> None:
        loss = F.cross_entropy(model(x), y)
        torch.autograd.grad(loss, parameters, retain_graph=True)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def private(setting: Setting, **options: Any) -> Step:
    """Draws, counts and adds noise as always; the batch is the one that all have, as every example is drawn."""
    model, x, y, optimizer = prepare(setting, "discreet")
    handle = discreet.attach(model, plan(setting.batch), **supported(options))
    handle.collate(TensorDataset(x, y))
    draws = iter(handle.batch_sampler())

    def step() -> None:
        next(draws)
        handle.backward(F.cross_entropy(model(x), y, reduction="none"))
        optimizer.step()
        optimizer.zero_grad()

    return step


def private_fixed(setting: Setting) -> Step:
    """The same with features that are said to be fixed: the norms of their rows are computed once."""
    model, x, y, optimizer = prepare(setting, "discreet")
    if not x.is_floating_point() or x.dim() != 2:
        raise Cannot("its first layer is not linear in fixed features")
    handle = discreet.attach(model, plan(setting.batch))
    return private_on(model, optimizer, handle, handle.batches((x, y), fixed=True))


def private_on(
    model: nn.Module, optimizer: torch.optim.Optimizer, handle: discreet.Private, batches: Iterator[Any]
) -> Step:
    def step() -> None:
        inputs, labels = next(batches)
        handle.backward(F.cross_entropy(model(inputs), labels, reduction="none"))
        optimizer.step()
        optimizer.zero_grad()

    return step


def plan(batch: int) -> discreet.Plan:
    return discreet.methods.dp_sgd(examples=batch, batch_size=batch, steps=10**6, noise=NOISE, delta=1e-5, norm=CLIP)


def converted(model: nn.Module) -> nn.Module:
    """The model with layers of ours for what torch hides, where this version has them."""
    convert = getattr(discreet.nn, "convert", None)
    return model if convert is None else convert(model)


def supported(options: dict[str, Any]) -> dict[str, Any]:
    for name in options.keys() - inspect.signature(discreet.attach).parameters.keys():
        raise Missing(f"not in this version of discreet: attach(..., {name}=)")
    return options


def opacus(setting: Setting, mode: str) -> Step:
    engine = needed("opacus").PrivacyEngine()
    model, x, y, optimizer = prepare(setting, f"Opacus {mode}")
    criterion: Any = nn.CrossEntropyLoss()
    made = engine.make_private(
        module=model, optimizer=optimizer, criterion=criterion, noise_multiplier=NOISE, max_grad_norm=CLIP,
        data_loader=DataLoader(TensorDataset(x, y), batch_size=setting.batch), poisson_sampling=False,
        grad_sample_mode=mode,
    )  # fmt: skip
    model, optimizer = made[0], made[1]
    if mode == "ghost":
        criterion = made[2]

    def step() -> None:
        criterion(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def vmapped(setting: Setting) -> Step:
    """Per-example gradients by torch.func, clipped and summed by hand, with torch's own noise."""
    model, x, y, optimizer = prepare(setting, "vmap")
    parameters = dict(model.named_parameters())

    def loss(parameters, x, y):
        return F.cross_entropy(torch.func.functional_call(model, parameters, (x.unsqueeze(0),)), y.unsqueeze(0))

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))

    @torch.no_grad()
    def step() -> None:
        gradients = each({name: p.detach() for name, p in parameters.items()}, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
        factors = (CLIP / (norms + 1e-6)).clamp(max=1)
        for name, p in parameters.items():
            p.grad = torch.tensordot(factors, gradients.pop(name), 1)
            p.grad.add_(torch.normal(0.0, NOISE * CLIP, p.shape)).div_(setting.batch)
        optimizer.step()
        optimizer.zero_grad()

    return step


def jax_privacy(setting: Setting) -> Step:
    jax, optax, library = needed("jax"), needed("optax"), needed("jax_privacy")
    from race.networks_in_jax import NETWORKS

    network = NETWORKS[setting.name]
    model, x, y, _ = prepare(setting)
    parameters = {name: jax.numpy.array(p.detach().numpy()) for name, p in model.named_parameters()}
    data = jax.numpy.array(x.numpy()), jax.numpy.array(y.numpy())

    def loss(parameters, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(network(parameters, x), y).mean()

    size = MICROBATCH if setting.variant("jax-privacy").note else None
    clipped = library.clipped_grad(
        loss, l2_clip_norm=CLIP, batch_argnums=(1, 2), normalize_by=setting.batch, microbatch_size=size
    )
    noise = library.noise_addition.gaussian_privatizer(stddev=NOISE * clipped.sensitivity(), prng_key=jax.random.key(0))
    chain = optax.chain(noise, optax.sgd(RATE))

    def update(parameters, state, x, y):
        updates, state = chain.update(clipped(parameters, x, y), state)
        return optax.apply_updates(parameters, updates), state

    state = chain.init(parameters)
    compiled = jax.jit(update, donate_argnums=(0, 1)).lower(parameters, state, *data).compile()
    held = [parameters, state]
    del model, x, y

    def step() -> None:
        held[:] = jax.block_until_ready(compiled(*held, *data))

    return step


def fast_dp(setting: Setting, path: str | None, *, origin: bool = False) -> Step:
    """A checkout of awslabs/fast-differential-privacy, used as its README does; `origin` is its ghost differentiation,
    in which torch computes the gradients of the first layer's bias only, and none that are thrown away."""
    if path is None:
        raise Missing("no checkout was given (--fastdp PATH)")
    if not (Path(path) / "fastDP").is_dir():
        raise Missing(f"there is no folder fastDP in {path}")
    sys.path.insert(0, path)
    model, x, y, optimizer = prepare(setting, "fastDP")
    first = next(m for m in model.modules() if next(m.parameters(recurse=False), None) is not None)
    head = first.weight if getattr(first, "bias", None) is None else first.bias
    names = [name for name, p in model.named_parameters() if p is head]
    engine = needed("fastDP").PrivacyEngine(
        model, batch_size=setting.batch, sample_size=setting.batch, epochs=1, noise_multiplier=NOISE,
        max_grad_norm=CLIP, clipping_fn="Abadi", clipping_mode="MixOpt", clipping_style="all-layer",
        origin_params=names if origin else None,
    )  # fmt: skip
    engine.attach(optimizer)
    every = {name for name, _ in model.named_parameters()}

    def step() -> None:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        dropped = every - {name for name, _ in engine.named_params}  # it leaves out what it has no rule for
        if dropped:
            raise Cannot(f"it does not train {', '.join(sorted(dropped))}")

    return step


def needed(library: str) -> Any:
    try:
        return import_module(library)
    except ModuleNotFoundError as error:
        raise Missing(f"{error.name} is not installed") from error


COMPETITORS: dict[str, Callable[[Setting, str | None], Step]] = {
    "SGD": lambda setting, _: sgd(setting),
    "SGD twice": lambda setting, _: sgd_twice(setting),
    "discreet": lambda setting, _: private(setting),
    "discreet keep": lambda setting, _: private(setting, memory=math.inf),
    "discreet fixed": lambda setting, _: private_fixed(setting),
    "Opacus hooks": lambda setting, _: opacus(setting, "hooks"),
    "Opacus ghost": lambda setting, _: opacus(setting, "ghost"),
    "Opacus functorch": lambda setting, _: opacus(setting, "functorch"),
    "Opacus ew": lambda setting, _: opacus(setting, "ew"),
    "vmap": lambda setting, _: vmapped(setting),
    "jax-privacy": lambda setting, _: jax_privacy(setting),
    "fastDP": fast_dp,
    "fastDP origin": lambda setting, path: fast_dp(setting, path, origin=True),
}


def step_of(competitor: str, title: str, batch: int | None = None, fastdp: str | None = None) -> Step:
    """What a worker calls: a step of this competitor on the setting of this title, or on a smaller batch of it."""
    setting = next(s for s in SETTINGS if s.title == title)
    if batch is not None:
        setting = Setting(setting.name, setting.build, setting.inputs, batch, setting.variants)
    return COMPETITORS[competitor](setting, fastdp)


def note_of(competitor: str, title: str) -> str:
    setting = next(s for s in SETTINGS if s.title == title)
    return setting.variant(competitor).note
