"""Steps of networks and batches of any size, of non-private SGD and of discreet, also in chunks."""

from collections.abc import Callable
from typing import Any

import torch
from models import Transformer, mnist_cnn
from torch import Tensor, nn
from torch.nn import functional as F

import discreet
from race.competitors import Step, plan, sgd_on

Network = tuple[nn.Module, Callable[[int], Tensor]]


def cnn() -> Network:
    return mnist_cnn(), lambda n: torch.randn(n, 1, 28, 28)


def mlp(width: int) -> Network:
    model = nn.Sequential(
        nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )  # fmt: skip
    return model, lambda n: torch.randn(n, 784)


def transformer(depth: int, width: int = 128, words: int = 1_000, length: int = 64, heads: int = 4) -> Network:
    model = Transformer(words, width, depth, length, heads)
    return model, lambda n: torch.randint(words, (n, length))


NETWORKS: dict[str, Callable[..., Network]] = {"cnn": cnn, "mlp": mlp, "transformer": transformer}


def parameters(network: str, size: dict[str, Any]) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in NETWORKS[network](**size)[0].parameters())


def step_of(competitor: str, network: str, size: dict[str, Any], batch: int, at_most: int | None = None) -> Step:
    """What a worker calls."""
    torch.manual_seed(0)
    model, inputs = NETWORKS[network](**size)
    x, y = inputs(batch), torch.randint(10, (batch,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if competitor == "SGD":
        return sgd_on(model, x, y, optimizer)
    handle = discreet.attach(model, plan(batch))
    chunks = handle.batches((x, y), at_most=at_most)

    def step() -> None:
        released = False
        while not released:
            inputs, labels = next(chunks)
            released = handle.backward(F.cross_entropy(model(inputs), labels, reduction="none"))
        optimizer.step()
        optimizer.zero_grad()

    return step
