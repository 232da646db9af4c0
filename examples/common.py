"""What the examples share: data, a network for it, and the loop."""

import argparse
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

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
    found = discreet.data.load(name)
    assert isinstance(found.train, tuple)
    assert isinstance(found.test, tuple)
    flat = (lambda x: x.flatten(1)) if name == "digits" else (lambda x: x)
    return Data(flat(found.train[0]), found.train[1], flat(found.test[0]), found.test[1])


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


def options(words: str | None) -> argparse.ArgumentParser:
    """The flags that examples share."""
    parser = argparse.ArgumentParser(description=words, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=["digits", "mnist"], default="digits")
    parser.add_argument("--epochs", type=float, default=15)
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--batch-size", type=int, default=256)
    return parser


def machine() -> str:
    """Where and when, to stand beside figures."""
    return f"{os.cpu_count()} cores, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}"
