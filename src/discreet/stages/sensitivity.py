"""What one unit may change: the contracts that bounds state, and accounting reads. Frozen values, no torch."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import ClassVar, Protocol

from discreet.accounting.events import Magnitudes


@dataclass(frozen=True)
class Layout:
    """The trainable parameters of a model, in order: their names and shapes."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(math.prod(shape) for shape in self.shapes)

    @cached_property
    def columns(self) -> dict[str, tuple[int, int]]:
        """Where each parameter begins and ends in a row that has all of them side by side."""
        ends = list(accumulate(self.sizes))
        return {name: (end - size, end) for name, size, end in zip(self.names, self.sizes, ends, strict=True)}


@dataclass(frozen=True)
class Block:
    """A group of parameters that is bounded together: one unit moves its sum by at most `norm` in l2.

    A bound may also ask something of the batch (how long its gradients are): that is a block too, whose members are
    names of its own, and `share` is the part of the budget 1 / multiplier^2 that is set aside for it.
    """

    members: tuple[str, ...]
    norm: float
    size: int
    share: float = 0.0


class Contract(Protocol):
    """What one unit may change, in the only words that accounting knows.

    `blocks` are l2 balls: block l of the sum moves by at most `blocks[l].norm`. `magnitudes`, where there are any,
    bound every coordinate: some permutation of the coordinates is at most this large, one by one. `premises` are
    what the figures rest on beyond the bound itself.
    """

    @property
    def blocks(self) -> tuple[Block, ...]: ...
    @property
    def magnitudes(self) -> "Magnitudes | None": ...
    @property
    def premises(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Blocks:
    """Balls in l2, one or several: each block moves by at most its norm, all blocks at once.

    Guarantee: for sums over batches that differ in one unit, block l moves by at most `blocks[l].norm`
    in l2, so the whole moves by at most `norm` = sqrt(sum of squares).
    """

    blocks: tuple[Block, ...]
    premises: tuple[str, ...] = ()
    magnitudes: ClassVar[None] = None

    @property
    def norm(self) -> float:
        return norm_of(self)


@dataclass(frozen=True)
class Box:
    """Every coordinate of the `members` moves by at most `limit`; so in l2 by at most limit * sqrt(size)."""

    members: tuple[str, ...]
    limit: float
    size: int
    premises: tuple[str, ...] = ()

    @property
    def blocks(self) -> tuple[Block, ...]:
        return (Block(self.members, self.limit * math.sqrt(self.size), self.size),)

    @property
    def magnitudes(self) -> Magnitudes:
        return Magnitudes((self.limit,), (self.size,))


@dataclass(frozen=True)
class Envelope:
    """The coordinates' magnitudes, sorted, are at most the envelope's; which coordinate is which is free.

    `norm` is the most all of them move in l2, where that is less than the envelope's own.
    """

    members: tuple[str, ...]
    magnitudes: Magnitudes
    premises: tuple[str, ...] = ()
    norm: float = math.inf

    @property
    def blocks(self) -> tuple[Block, ...]:
        norm = min(self.norm, self.magnitudes.norm)
        return (Block(self.members, norm, sum(self.magnitudes.counts)),)


@dataclass(frozen=True)
class Certificate:
    """Balls that hold by the shape of a network, its enforced weights and inputs, and its loss: no gradient is cut."""

    blocks: tuple[Block, ...]
    premises: tuple[str, ...]
    magnitudes: ClassVar[None] = None


def norm_of(contract: Contract) -> float:
    """The most one unit may move the whole sum of gradients, in l2."""
    return math.hypot(*(block.norm for block in contract.blocks if not block.share))


def asked(contract: Contract) -> tuple[Block, ...]:
    """What a bound asks of the batch beside its gradients."""
    return tuple(block for block in contract.blocks if block.share)


GRID = 2.0**-20  # of a block's norm: what contributions are rounded to where arithmetic is exact


def rounded(contract: Contract) -> Blocks:
    """What changes where contributions are rounded to the grid: by half a step a coordinate more."""
    blocks = (replace(b, norm=b.norm * (1 + GRID * math.sqrt(b.size) / 2)) for b in contract.blocks)
    return Blocks(tuple(blocks), contract.premises)


def doubled(contract: Contract) -> Blocks:
    """What changes where a unit can turn one bounded vector into any other: twice as much (microbatches)."""
    return Blocks(tuple(replace(b, norm=2 * b.norm) for b in contract.blocks), contract.premises)


def effective_multiplier(contract: Contract, scales: tuple[float, ...]) -> float:
    """The noise multiplier of several Gaussian queries on one batch (T6 of docs/theory.md).

    1 / multiplier^2 = sum over blocks of norm_l^2 / scale_l^2; the blocks share one sampling coin,
    so this one query is subsampled once.

    >>> effective_multiplier(Blocks((Block(("a",), 3.0, 1), Block(("b",), 4.0, 1))), (10.0, 10.0))
    2.0
    """
    if any(scale == 0 for scale in scales):
        return 0.0
    ratios = (block.norm / scale for block, scale in zip(contract.blocks, scales, strict=True))
    return 1 / math.hypot(*ratios)
