"""Steps on MNIST that draw and load their own batches: all that an epoch costs, or its loader alone.

Each step returns how many examples it fed, so that draws of unequal size are counted as what they are.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from models import mnist_cnn
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import discreet
from discreet.distributed.ranks import Shares
from discreet.errors import ConfigError
from discreet.release.batching import as_tensors, load
from race.competitors import CLIP, NOISE, RATE, Step, needed

EXAMPLES, BATCH = 60_000, 256
STEPS = round(EXAMPLES / BATCH)
Data = tuple[Tensor, Tensor]


def images() -> tuple[Data, str]:
    """MNIST where it is (DISCREET_DATA, the cache), or random images of its shape; and which of them."""
    try:
        return as_tensors(discreet.data.load("mnist", download=False).train), "MNIST"
    except (ConfigError, OSError):
        return (torch.rand(EXAMPLES, 1, 28, 28), torch.randint(10, (EXAMPLES,))), "random images of MNIST's shape"


def forever(loader: Any) -> Iterator[Data]:
    while True:
        yield from loader


def shuffled(data: Data) -> Iterator[Data]:
    """What the fastest plain loop does: a permutation, and one index a batch."""
    x, y = data
    while True:
        for rows in torch.randperm(len(x)).split(BATCH):
            yield x[rows], y[rows]


def learner():
    torch.manual_seed(0)
    model = mnist_cnn()
    return model, torch.optim.SGD(model.parameters(), lr=RATE)


def sgd(batches: Callable[[Data], Iterator[Data]]) -> Step:
    model, optimizer = learner()
    drawn = batches(images()[0])

    def step() -> int:
        x, y = next(drawn)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        return len(x)

    return step


def attached(model: nn.Module, data: Data):
    plan = discreet.methods.dp_sgd(examples=len(data[0]), batch_size=BATCH, steps=10**6, noise=NOISE, norm=CLIP)
    return discreet.attach(model, plan)


def private() -> Step:
    model, optimizer = learner()
    data, _ = images()
    handle = attached(model, data)
    drawn = handle.batches(data)

    def step() -> int:
        x, y = next(drawn)
        handle.backward(F.cross_entropy(model(x), y, reduction="none"))
        optimizer.step()
        optimizer.zero_grad()
        return len(x)

    return step


def opacus(mode: str) -> Step:
    model, optimizer = learner()
    criterion: Any = nn.CrossEntropyLoss()
    made = needed("opacus").PrivacyEngine().make_private(
        module=model, optimizer=optimizer, criterion=criterion, noise_multiplier=NOISE, max_grad_norm=CLIP,
        data_loader=DataLoader(TensorDataset(*images()[0]), batch_size=BATCH), grad_sample_mode=mode,
    )  # fmt: skip
    model, optimizer, drawn = made[0], made[1], forever(made[-1])
    if mode == "ghost":
        criterion = made[2]

    def step() -> int:
        x, y = next(drawn)
        criterion(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        return len(x)

    return step


def loader_alone() -> Step:
    """The library's draws and its loading, as `batches` does both, without a model."""
    data, _ = images()
    handle = attached(nn.Linear(1, 1), data)
    loaded = load(data, handle._loop._draw(Shares(0, 1, len(data[0])), None, None, deque()))
    return lambda: len(next(loaded)[0])


def opacus_loader_alone() -> Step:
    loader = needed("opacus").data_loader.DPDataLoader
    data = TensorDataset(*images()[0])
    drawn = forever(loader.from_data_loader(DataLoader(data, batch_size=BATCH)))
    return lambda: len(next(drawn)[0])


def torch_loader(data: Data) -> Iterator[Data]:
    return forever(DataLoader(TensorDataset(*data), batch_size=BATCH, shuffle=True))


def batches_alone(batches: Callable[[Data], Iterator[Data]]) -> Step:
    drawn = batches(images()[0])
    return lambda: len(next(drawn)[0])


WHOLE: dict[str, Callable[[], Step]] = {
    "SGD, tensors": lambda: sgd(shuffled),
    "SGD, DataLoader": lambda: sgd(torch_loader),
    "discreet": private,
    "Opacus hooks": lambda: opacus("hooks"),
    "Opacus ghost": lambda: opacus("ghost"),
}
LOADERS: dict[str, Callable[[], Step]] = {
    "shuffled tensors": lambda: batches_alone(shuffled),
    "DataLoader": lambda: batches_alone(torch_loader),
    "discreet": loader_alone,
    "Opacus": opacus_loader_alone,
}


def step_of(kind: str, competitor: str) -> Step:
    """What a worker calls."""
    return (WHOLE if kind == "whole" else LOADERS)[competitor]()
