"""What stages say of themselves: frozen values, no torch, no behaviour beyond arithmetic."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """The trainable parameters of a model, in order: their names and shapes."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(math.prod(shape) for shape in self.shapes)


@dataclass(frozen=True)
class Block:
    """A group of parameters that is bounded together: one unit moves its sum by at most `norm` in l2."""

    members: tuple[str, ...]
    norm: float
    size: int


@dataclass(frozen=True)
class Blocks:
    """What one unit may change: each block by at most its norm, all blocks at once.

    Guarantee: for sums over batches that differ in one unit, block l moves by at most `blocks[l].norm`
    in l2, so the whole moves by at most `norm` = sqrt(sum of squares).
    """

    blocks: tuple[Block, ...]

    @property
    def norm(self) -> float:
        return math.hypot(*(block.norm for block in self.blocks))


def effective_multiplier(contract: Blocks, scales: tuple[float, ...]) -> float:
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


@dataclass(frozen=True)
class Participation:
    """Who takes part in a step: each unit independently with probability `rate` (Poisson sampling).

    `adjacency` is the relation under which the sampler is analysed: "zero-out" where the number of
    units is public, "add-remove" where it is secret. Both have the same epsilon (T1 of docs/theory.md).
    """

    rate: float
    adjacency: str
    unit: str


@dataclass(frozen=True)
class Phase:
    """`steps` releases of one Gaussian query of effective noise `multiplier`, subsampled at `rate`."""

    rate: float
    multiplier: float
    steps: int
