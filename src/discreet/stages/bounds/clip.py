"""Flat clipping, the bound of DP-SGD (Abadi et al. 2016)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, ClassVar

from discreet._check import check_positive
from discreet.stages.sensitivity import Block, Blocks, Layout

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Clip:
    """Each unit's gradient g becomes g * min(1, norm / ||g||), over all parameters together.

    Guarantee: one unit changes the sum by at most `norm` in l2.

    | ||g||     | contribution          |
    | --------- | --------------------- |
    | 0         | 0                     |
    | <= norm   | g itself              |
    | > norm    | g, scaled to `norm`   |
    | nan, inf  | 0 (left out earlier)  |
    """

    norm: float
    needs: ClassVar[str] = "norms"

    def __post_init__(self) -> None:
        check_positive("Clip's norm", self.norm)

    def start(self, layout: Layout) -> None:
        """Nothing changes from step to step."""

    def apply(self, norms: "Mapping[str, Tensor]", state: None) -> "dict[str, Tensor]":
        weights = shrink(sum_of(norms), self.norm)
        return dict.fromkeys(norms, weights)

    def contract(self, layout: Layout, state: None) -> Blocks:
        return one_block(layout, self.norm)


def one_block(layout: Layout, norm: float) -> Blocks:
    """All parameters bounded together."""
    return Blocks((Block(layout.names, norm, sum(layout.sizes)),))


def sum_of(norms: "Mapping[str, Tensor]") -> "Tensor":
    """The squared norm over several parameters, per unit: added in one order, however many units there are."""
    return reduce(add, norms.values())


def shrink(squared: "Tensor", norm: float) -> "Tensor":
    """min(1, norm / ||g||) per unit, from squared norms; 1 where the norm is 0."""
    return squared.rsqrt().mul_(norm).clamp_(max=1.0)
