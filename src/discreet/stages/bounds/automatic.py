"""Automatic clipping (Bu et al. 2022): every gradient is normalised, so no clipping norm need be found."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from discreet._check import check_positive
from discreet.stages.bounds.clip import one_block, sum_of
from discreet.stages.sensitivity import Blocks, Layout

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class AutomaticClip:
    """Each unit's gradient g becomes norm * g / (||g|| + stability).

    Guarantee: one unit changes the sum by less than `norm` in l2. `stability` keeps small gradients small;
    `norm` only sets the scale of the sum and of the noise with it.
    """

    norm: float = 1.0
    stability: float = 0.01
    needs: ClassVar[str] = "norms"

    def __post_init__(self) -> None:
        check_positive("AutomaticClip's norm", self.norm)
        check_positive("AutomaticClip's stability", self.stability)

    def start(self, layout: Layout) -> None:
        """Nothing changes from step to step."""

    def apply(self, norms: "Mapping[str, Tensor]", state: None) -> "dict[str, Tensor]":
        weights = self.norm / (sum_of(norms).sqrt() + self.stability)
        return dict.fromkeys(norms, weights)

    def contract(self, layout: Layout, state: None) -> Blocks:
        return one_block(layout, self.norm)
