"""What a member of the zoo is: a name, whether it is sound, why, and how it is made. This knows nothing of discreet."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Loss = Callable[[nn.Module, Any], Tensor]


@dataclass
class Case:
    """One training run to be: a fresh model, its data and its loss.

    `data` is a tuple of tensors or a map-style data set. `loss(model, batch)` gives one value for each row; what a user
    does in the loop, it does, and what a user keeps in the loop is in its closure. `augment` changes the inputs, a
    batch's first part; `look(batch)` is what the loop does with a batch before it asks for its loss;
    `after_step(model)` runs when the weights have been updated. `steps` is the most that a run has. `double` is whether
    all of it runs in float64.
    """

    model: nn.Module
    data: Any
    loss: Loss
    collate_fn: Callable[[list[Any]], Any] | None = None
    batch_size: int = 8
    augment: Callable[[Tensor], Tensor] | None = None
    look: Callable[[Any], None] | None = None
    after_step: Callable[[nn.Module], None] | None = None
    steps: int | None = None
    double: bool = True

    def losses(self, model: nn.Module, batch: Any) -> Tensor:
        """One loss a row, of a batch as it was collated."""
        if self.augment is not None:
            batch = (self.augment(batch[0]), *batch[1:])
        return self.loss(model, batch)


@dataclass(frozen=True)
class Member:
    """`why` says in a sentence why it mixes or carries state, or why it is sound. The caller of `make` seeds torch.

    `often` are arguments of `make` under which what is rare is not: brute force, which takes a few small batches, sees
    the same mixing there. The library is given the rare one.
    """

    name: str
    sound: bool
    why: str
    theme: str
    make: Callable[..., Case]
    often: Mapping[str, Any] = field(default_factory=dict, hash=False)


REGISTERED: list[Member] = []


def mixing(why: str, **often: Any) -> Callable[[Callable[..., Case]], Callable[..., Case]]:
    """Register a function that makes a Case in which examples are mixed or carried over."""
    return _registering(why, often, sound=False)


def sound(why: str, **often: Any) -> Callable[[Callable[..., Case]], Callable[..., Case]]:
    """Register a function that makes a Case in which each example's gradient is its own."""
    return _registering(why, often, sound=True)


def _registering(
    why: str, often: Mapping[str, Any], *, sound: bool
) -> Callable[[Callable[..., Case]], Callable[..., Case]]:
    def register(make: Callable[..., Case]) -> Callable[..., Case]:
        theme = make.__module__.rpartition(".")[2]
        REGISTERED.append(Member(make.__name__.replace("_", " "), sound, why, theme, make, often))
        return make

    return register


# --- data ------------------------------------------------------------------------------------------------------------
# The first rows are far from the others, so that what they do to them is large. No size is 6, 7 or a multiple of them:
# the oracle's batches have so many rows.

WIDTH, CLASSES, WORDS = 5, 3, 11


def table(rows: int = 48, width: int = WIDTH) -> tuple[Tensor, Tensor]:
    """Rows of numbers with a class each."""
    x = torch.randn(rows, width)
    x[:3] *= 4
    return x, torch.arange(rows) % CLASSES


def values(rows: int = 48, width: int = WIDTH) -> tuple[Tensor, Tensor]:
    """Rows of numbers with a number each."""
    x, _ = table(rows, width)
    return x, x.sum(1).sin() + 0.1 * torch.randn(rows)


def images(rows: int = 48, channels: int = 1, size: int = 8) -> tuple[Tensor, Tensor]:
    """Small images with a class each."""
    x = torch.randn(rows, channels, size, size)
    x[:3] *= 3
    return x, torch.arange(rows) % CLASSES


def sentences(rows: int = 48, length: int = 5) -> tuple[Tensor, Tensor]:
    """Sequences of words of one length, with a class each; 0 is no word."""
    return torch.randint(1, WORDS, (rows, length)), torch.arange(rows) % CLASSES


def ragged(rows: int = 48, longest: int = 9) -> list[tuple[Tensor, int]]:
    """Sequences of words of many lengths, with a class each; the first are the longest."""
    lengths = [longest, longest - 1, longest - 2, *(2 + i % 3 for i in range(rows - 3))]
    return [(torch.randint(1, WORDS, (length,)), i % CLASSES) for i, length in enumerate(lengths)]


def to_longest(rows: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """Pad with zeros to the longest row of the batch."""
    words = nn.utils.rnn.pad_sequence([w for w, _ in rows], batch_first=True)
    return words, torch.tensor([y for _, y in rows])


def to_fixed(rows: list[tuple[Tensor, int]], length: int = 9) -> tuple[Tensor, Tensor]:
    """Pad with zeros to one length for all batches."""
    return torch.stack([F.pad(w, (0, length - len(w))) for w, _ in rows]), torch.tensor([y for _, y in rows])


# --- models and losses -----------------------------------------------------------------------------------------------


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


def squared(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return (model(x).squeeze(-1) - y) ** 2


def stack(*middle: nn.Module, width: int = 8, out: int = CLASSES) -> nn.Sequential:
    """A linear layer, what is given, and a head."""
    return nn.Sequential(nn.Linear(WIDTH, width), *middle, nn.Linear(width, out))


def classifier(*middle: nn.Module) -> Case:
    """The rows of `table` by cross-entropy on such a stack."""
    return Case(stack(*middle), table(), cross_entropy)


def table_case(model: nn.Module, loss: Loss = cross_entropy, **rest: Any) -> Case:
    return Case(model, table(), loss, **rest)


class Lambda(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)
