"""The networks that steps are timed on, and batches of random data for them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Build = Callable[[], nn.Module]


@dataclass(frozen=True)
class Variant:
    """The network as one competitor needs it, and what differs, in words, if it is not the same function."""

    build: Build
    note: str = ""


@dataclass(frozen=True)
class Setting:
    name: str
    build: Build
    inputs: Callable[[int], Tensor]
    batch: int
    variants: Mapping[str, Variant] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.name}, {self.batch}"

    def variant(self, competitor: str) -> Variant:
        return self.variants.get(competitor, Variant(self.build))


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
    def __init__(
        self, words: int = 10_000, width: int = 256, depth: int = 4, length: int = 128, heads: int = 4
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        # the places are given the batch's dimension, in memory of their own, as the other libraries need it
        places = torch.arange(tokens.shape[1]).repeat(tokens.shape[0], 1)
        return self.head(self.norm(self.blocks(self.words(tokens) + self.places(places))).mean(1))


class StandardisedConv2d(nn.Conv2d):
    """A convolution whose filters have mean 0 and variance 1 (weight standardisation, arXiv:1903.10520)."""

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(self.weight, (1, 2, 3), correction=0, keepdim=True)
        weight = (self.weight - mean) * torch.rsqrt(variance + 1e-5)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


class WideBlock(nn.Module):
    def __init__(self, before: int, after: int, stride: int, conv: type[nn.Conv2d]) -> None:
        super().__init__()
        self.first, self.second = nn.GroupNorm(16, before), nn.GroupNorm(16, after)
        self.enter = conv(before, after, 3, stride, 1, bias=False)
        self.leave = conv(after, after, 3, 1, 1, bias=False)
        self.skip = conv(before, after, 1, stride, 0, bias=False) if before != after else None

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.first(x))
        kept = x if self.skip is None else self.skip(h)
        return kept + self.leave(F.relu(self.second(self.enter(h))))


class WideResNet(nn.Module):
    """WRN-16-4 with group normalisation, as De et al. (arXiv:2204.13650) train it."""

    def __init__(self, conv: type[nn.Conv2d] = StandardisedConv2d, blocks: int = 2, factor: int = 4) -> None:
        super().__init__()
        self.stem = conv(3, 16, 3, 1, 1, bias=False)
        widths = [16, 16 * factor, 32 * factor, 64 * factor]
        stages = zip(widths, widths[1:], (1, 2, 2), strict=False)
        self.blocks = nn.Sequential(
            *[
                WideBlock(after if i else before, after, 1 if i else stride, conv)
                for before, after, stride in stages
                for i in range(blocks)
            ]
        )
        self.norm, self.head = nn.GroupNorm(16, widths[-1]), nn.Linear(widths[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.norm(self.blocks(self.stem(x)))).mean((2, 3)))


class Recurrent(nn.Module):
    """Words, a recurrent layer, and a head on its last output."""

    def __init__(self, layer: Callable[[int], nn.Module], words: int = 1_000, width: int = 128) -> None:
        super().__init__()
        self.words, self.layer, self.head = nn.Embedding(words, width), layer(width), nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(self.words(tokens))[0][:, -1])


class PlainLSTM(nn.Module):
    """An LSTM of plain operations, one step of time after the other, for what cannot see into nn.LSTM."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inward, self.across = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        inward = self.inward(x)
        hidden = cell = x.new_zeros(x.shape[0], x.shape[2])
        for t in range(x.shape[1]):
            admit, forget, new, emit = (inward[:, t] + self.across(hidden)).chunk(4, -1)
            cell = forget.sigmoid() * cell + admit.sigmoid() * new.tanh()
            hidden = emit.sigmoid() * cell.tanh()
        return (hidden.unsqueeze(1),)


def mlp(hidden: int = 1000) -> nn.Module:
    return nn.Sequential(nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))


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


def logistic() -> nn.Module:
    return nn.Linear(20_000, 10)


def lstm() -> nn.Module:
    return Recurrent(lambda width: nn.LSTM(width, width, batch_first=True))


def opacus_lstm() -> nn.Module:
    from opacus.layers import DPLSTM

    return Recurrent(lambda width: DPLSTM(width, width, batch_first=True))


def normal(*shape: int) -> Callable[[int], Tensor]:
    return lambda n: torch.randn(n, *shape)


def words(count: int, length: int) -> Callable[[int], Tensor]:
    return lambda n: torch.randint(count, (n, length))


# jax's grouped convolutions, which are what all examples at once come to, are over ten times slower on these
MICROBATCH = 4
_FEW = {"jax-privacy": Variant(alexnet, f"microbatches of {MICROBATCH}, which is faster here")}
_PLAIN = Variant(lambda: WideResNet(nn.Conv2d), "convolutions without weight standardisation")
_WIDE = dict.fromkeys(("Opacus hooks", "Opacus ghost", "Opacus ew", "fastDP", "fastDP origin"), _PLAIN)
_DP_LSTM = Variant(opacus_lstm, "DPLSTM")
_LOOP = Variant(lambda: Recurrent(PlainLSTM), "LSTM of plain operations")
_RECURRENT = {f"Opacus {mode}": _DP_LSTM for mode in ("hooks", "ghost", "functorch", "ew")} | {"vmap": _LOOP}

SETTINGS = (
    Setting("MLP 784-32-10", lambda: mlp(32), normal(784), 64),
    Setting("MLP 784-1000-10", mlp, normal(784), 600),
    Setting("MNIST CNN", mnist_cnn, normal(1, 28, 28), 256),
    Setting("MNIST CNN", mnist_cnn, normal(1, 28, 28), 2048),
    Setting("small AlexNet", alexnet, normal(3, 32, 32), 128, _FEW),
    Setting("small AlexNet", alexnet, normal(3, 32, 32), 1024, _FEW),
    Setting("WRN-16-4", WideResNet, normal(3, 32, 32), 64, _WIDE),
    Setting("transformer 4x256, 128 tokens", Transformer, words(10_000, 128), 32),
    Setting("LSTM 128, 64 tokens", lstm, words(1_000, 64), 64, _RECURRENT),
    Setting("logistic 20,000", logistic, normal(20_000), 8192),
)
