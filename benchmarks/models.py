"""The networks that steps are timed on, and batches of random data for them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Setting:
    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int], Tensor]
    batch: int


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = self.attend(self.first(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, length, width)
        x = x + self.project(mixed)
        return x + self.narrow(F.gelu(self.widen(self.second(x))))


class Transformer(nn.Module):
    def __init__(self, words: int = 10_000, width: int = 256, depth: int = 4, length: int = 128) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, 4) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        # the places are given the batch's dimension, as the other libraries need it
        places = torch.arange(tokens.shape[1]).expand(tokens.shape[0], -1)
        return self.head(self.norm(self.blocks(self.words(tokens) + self.places(places))).mean(1))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 10))


def mnist_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, 3), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10),
    )  # fmt: skip


def alexnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 64, 5, 1, 2), nn.ReLU(), nn.MaxPool2d(2, 2),
        nn.Conv2d(64, 64, 5, 1, 2), nn.ReLU(), nn.MaxPool2d(2, 2),
        nn.Flatten(), nn.Linear(4096, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, 10),
    )  # fmt: skip


def _random(*shape: int) -> Callable[[int], Tensor]:
    return lambda n: torch.randn(n, *shape)


SETTINGS = (
    Setting("MLP 784-1000-10", mlp, _random(784), 600),
    Setting("MNIST CNN", mnist_cnn, _random(1, 28, 28), 256),
    Setting("CIFAR AlexNet", alexnet, _random(3, 32, 32), 128),
    Setting("transformer 4x256, 128 tokens", Transformer, lambda n: torch.randint(10_000, (n, 128)), 32),
)
