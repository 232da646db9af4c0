"""The tanh filter (Amian 2020): as published, coordinate by coordinate, and in three forms that bound a norm."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from discreet._check import check_int, check_positive
from discreet.accounting.events import Claimed, Event
from discreet.errors import ConfigError
from discreet.stages.bounds.clip import one_block, shrink, sum_of
from discreet.stages.sensitivity import Blocks, Box, Contract, Layout

if TYPE_CHECKING:
    from torch import Tensor, nn

_LEAST = 1e-15  # squares of norms below it underflow in float32


class OfSize:
    """What bounds of single coordinates share: a field `size`, the number of parameters, on which all depends."""

    @property
    def layout(self: Any) -> Layout | None:
        """A layout of the size this bound was made for."""
        return None if self.size is None else Layout(("parameters",), ((self.size,),))

    def fit_to(self: Any, model: "nn.Module") -> Any:
        """The same for a model's number of parameters."""
        return replace(self, size=sum(p.numel() for p in model.parameters() if p.requires_grad))


@dataclass(frozen=True)
class Tanh(OfSize):
    """Each coordinate of each unit's gradient becomes c * tanh(g / k); with `clip`, the result is clipped to that norm.

    `c` is the range of the output and `k` widens the range of gradients that is not saturated. As the paper has it
    (`clip` None) only the coordinates are bounded: with n parameters one unit changes the sum by up to c * sqrt(n).

    Guarantee: one unit changes each coordinate by less than c, and all of them by at most `clip` in l2 where it is
    given, by less than c * sqrt(n) where not. `size` is n, where it is known before the model is.
    """

    c: float = 1.0
    k: float = 1.0
    clip: float | None = None
    size: int | None = None
    needs: ClassVar[str] = "elements"

    def __post_init__(self) -> None:
        check_positive("Tanh's c", self.c)
        check_positive("Tanh's k", self.k)
        if self.clip is not None:
            check_positive("Tanh's clip", self.clip)
        if self.size is not None:
            check_int("Tanh's size", self.size, least=1)

    def start(self, layout: Layout) -> None:
        """Nothing changes from step to step."""

    def apply(self, rows: "Tensor", state: None) -> "Tensor":
        filtered = rows.div_(self.k).tanh_().mul_(self.c)
        return filtered if self.clip is None else clipped(filtered, self.clip)

    def contract(self, layout: Layout, state: None) -> Contract:
        check_size(self.size, layout, "Tanh")
        if self.clip is not None:
            return one_block(layout, self.clip)
        return Box(layout.names, self.c, sum(layout.sizes))

    def claims(self, event: Event, contract: Contract, scales: tuple[float, ...]) -> tuple[Claimed, ...]:
        """The paper's: the filter keeps norms near 1, so accounting is DP-SGD's."""
        if self.clip is not None:
            return ()
        norm = contract.blocks[0].norm
        reason = f"tanh bounds each coordinate, not the norm: one example can change the sum by {norm:.4g}, not by 1"
        accounted = replace(event, multiplier=scales[0], scheme="poisson")
        return (Claimed("Amian 2020: private as DP-SGD with the same noise", (accounted,), "false", reason),)


@dataclass(frozen=True)
class ScaledTanh:
    """Each coordinate becomes norm / sqrt(n) * tanh(g / k): the paper's filter at its honest price.

    Guarantee: one unit changes the sum by less than `norm` in l2, and each coordinate by less than norm / sqrt(n).
    """

    norm: float = 1.0
    k: float = 1.0
    needs: ClassVar[str] = "elements"

    def __post_init__(self) -> None:
        check_positive("ScaledTanh's norm", self.norm)
        check_positive("ScaledTanh's k", self.k)

    def start(self, layout: Layout) -> None:
        """Nothing changes from step to step."""

    def apply(self, rows: "Tensor", state: None) -> "Tensor":
        return rows.div_(self.k).tanh_().mul_(self.norm / math.sqrt(rows.shape[1]))

    def contract(self, layout: Layout, state: None) -> Box:
        size = sum(layout.sizes)
        return Box(layout.names, self.norm / math.sqrt(size), size)


@dataclass(frozen=True)
class RadialTanh:
    """Each unit's gradient g becomes norm * tanh(||g|| / k) * g / ||g||: a clip with soft edges.

    Directions and the order of norms stay. `k` is the norm at which it bends; by default it is `norm`, so that small
    gradients pass unchanged.

    Guarantee: one unit changes the sum by at most `norm` in l2.
    """

    norm: float = 1.0
    k: float | None = None
    needs: ClassVar[str] = "norms"

    def __post_init__(self) -> None:
        check_positive("RadialTanh's norm", self.norm)
        if self.k is not None:
            check_positive("RadialTanh's k", self.k)
        bend = self.norm if self.k is None else self.k
        if bend < _LEAST:
            raise ConfigError(f"RadialTanh bends at {bend:g}; below {_LEAST:g} norms cannot be told from zero.")

    def start(self, layout: Layout) -> None:
        """Nothing changes from step to step."""

    def apply(self, norms: "Mapping[str, Tensor]", state: None) -> "dict[str, Tensor]":
        k = self.norm if self.k is None else self.k
        length = sum_of(norms).sqrt() / k
        slope = (length.tanh() / length).nan_to_num(1.0)  # 0 / 0 at a gradient of zero, where the slope is 1
        return dict.fromkeys(norms, slope * (self.norm / k))

    def contract(self, layout: Layout, state: None) -> Blocks:
        return one_block(layout, self.norm)


def clipped(rows: "Tensor", norm: float) -> "Tensor":
    """Rows scaled down to a norm, in place."""
    return rows.mul_(shrink(rows.square().sum(1, keepdim=True), norm))


def check_size(size: int | None, layout: Layout, name: str) -> None:
    """Refuse a model of another size than was said."""
    if size is not None and sum(layout.sizes) != size:
        raise ConfigError(
            f"{name} was made for {size:,} parameters, and the model has {sum(layout.sizes):,}, which changes what is "
            "proven; use plan.fit_to(model), and read its guarantee."
        )
