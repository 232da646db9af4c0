"""The steps of a walk through time, and what is walked: the weights, and the states that are left."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from torch import Tensor

Values = TypeVar("Values", Tensor, np.ndarray)


@dataclass(frozen=True)
class Path:
    """The steps of a walk: from the first to the last, or back; at step t only the first `active[t]` rows take part.

    A row that takes no part keeps its state. `order` sorts the rows of a batch so, `back` undoes it (None: no need to).
    """

    active: tuple[int, ...]
    reverse: bool = False
    order: Tensor | None = None
    back: Tensor | None = None

    @property
    def steps(self) -> range:
        count = len(self.active)
        return range(count - 1, -1, -1) if self.reverse else range(count)

    def sort(self, tensor: Tensor, dim: int) -> Tensor:
        return tensor if self.order is None else tensor.index_select(dim, self.order)

    def unsort(self, tensor: Tensor, dim: int) -> Tensor:
        return tensor if self.back is None else tensor.index_select(dim, self.back)

    def rows(self, values: Values) -> list[Values]:
        """The rows that take part, step by step, of values [steps, batch, ...]: views."""
        views = list(values)
        if self.active[0] == self.active[-1]:  # they never grow
            return views
        return [view[:k] for view, k in zip(views, self.active, strict=True)]

    def together(self, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
        """The rows that take part of several tensors, step by step."""
        return list(zip(*map(self.rows, tensors), strict=True))

    def before(self, states: Tensor) -> Tensor:
        """Of the states at all times [steps + 1, ...], those before each step."""
        return states[1:] if self.reverse else states[:-1]

    def after(self, states: Tensor) -> Tensor:
        """Of the states at all times, those after each step."""
        return states[:-1] if self.reverse else states[1:]

    def first(self, states: Tensor) -> Tensor:
        return states[-1] if self.reverse else states[0]

    def last(self, states: Tensor) -> Tensor:
        return states[0] if self.reverse else states[-1]


@dataclass(frozen=True)
class Weights:
    """The parameters of one direction of one layer, in torch's shapes."""

    ih: Tensor
    hh: Tensor
    bias_ih: Tensor | None = None
    bias_hh: Tensor | None = None

    @property
    def fields(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        return self.ih, self.hh, self.bias_ih, self.bias_hh

    @property
    def bias(self) -> Tensor | None:
        """The sum of both biases, where there are any."""
        return None if self.bias_ih is None or self.bias_hh is None else self.bias_ih + self.bias_hh

    def detached(self) -> "Weights":
        """The same as constants."""
        biases = (None if b is None else b.detach() for b in (self.bias_ih, self.bias_hh))
        return Weights(self.ih.detach(), self.hh.detach(), *biases)


@dataclass(frozen=True)
class Walk:
    """What a walk forward has left: the states at all times, the hidden one first, and what a walk back needs.

    `wide` is how many columns the gradient of the pre-activations has.
    """

    states: tuple[Tensor, ...]
    kept: tuple[Tensor, ...]
    wide: int
