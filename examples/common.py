"""What the examples share: data, a network for it, and the loop."""

import gzip
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.progress import track
from torch import Tensor, nn
from torch.nn import functional as F

import discreet


@dataclass(frozen=True)
class Data:
    """Rows to train on and rows to test on."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


def load(name: str) -> Data:
    """Scikit-learn's digits, or MNIST from the folder that DISCREET_DATA names."""
    if name == "digits":
        from sklearn.datasets import load_digits

        x, y = (torch.from_numpy(a) for a in load_digits(return_X_y=True))
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
        x, y = (x[order] / 16).float(), y[order]
        return Data(x[360:], y[360:], x[:360], y[:360])
    folder = Path(os.environ.get("DISCREET_DATA", ".")) / "mnist"
    if not folder.is_dir():
        raise SystemExit(f"{folder} is not there; set DISCREET_DATA to the folder that has mnist/*-ubyte.gz in it.")

    def read(part: str, kind: str) -> Tensor:
        with gzip.open(folder / f"{part}-{kind}-ubyte.gz") as file:
            content = np.frombuffer(file.read(), np.uint8)
        sizes = [int.from_bytes(content[4 + 4 * i : 8 + 4 * i].tobytes(), "big") for i in range(content[3])]
        return torch.from_numpy(content[4 + 4 * len(sizes) :].reshape(sizes).copy())

    def part(name: str) -> tuple[Tensor, Tensor]:
        images = read(name, "images-idx3").float().unsqueeze(1) / 255
        return images, read(name, "labels-idx1").long()

    return Data(*part("train"), *part("t10k"))


def network(data: Data, activation=nn.Tanh) -> nn.Module:
    """The tutorials' convolutional network (26,010 parameters) for MNIST, a small one for digits."""
    torch.manual_seed(0)
    if data.x.dim() == 2:
        return nn.Sequential(nn.Linear(data.x.shape[1], 32), activation(), nn.Linear(32, 10))
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, 3), activation(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), activation(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), activation(), nn.Linear(32, 10),
    )  # fmt: skip


@dataclass(frozen=True)
class Result:
    """How well a run did, what is proven of it, and how long it took."""

    accuracy: float
    guarantee: discreet.Guarantee
    seconds: float


def train(
    model: nn.Module,
    plan: discreet.Plan,
    data: Data,
    optimizer: torch.optim.Optimizer,
    *,
    name: str,
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
    ledger: Path | None = None,
) -> Result:
    """The explicit loop, with a bar on a terminal."""
    started = time.perf_counter()
    private = discreet.attach(model, plan, ledger)
    batches = private.batches((data.x, data.y))
    for x, y in track(batches, f"{name:32}", private.remaining, transient=True, disable=not sys.stdout.isatty()):
        if private.backward(F.cross_entropy(model(x), y, reduction="none")):
            optimizer.step()
            if schedule is not None:
                schedule.step()
    with torch.no_grad():
        right = torch.cat([model(rows).argmax(1) for rows in data.test_x.split(1000)]) == data.test_y
    private.detach()
    return Result(float(right.float().mean()), private.guarantee(), time.perf_counter() - started)


def machine() -> str:
    """Where and when, to stand beside figures."""
    return f"{os.cpu_count()} cores, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}"
