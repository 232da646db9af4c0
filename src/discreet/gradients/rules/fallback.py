"""For an op without a rule: its own backward, once a unit."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from discreet.gradients.forms.base import PerExampleGrad, squared_norms
from discreet.gradients.forms.materialized import Materialised
from discreet.gradients.layout import Members, Rows
from discreet.gradients.torch_internals import Node, saved_tensors

_STORE_BYTES = 1 << 28  # gradients that took a backward pass each are stored up to this size


class OneByOne(PerExampleGrad):
    """The op's own backward, run once for each unit with every other unit's rows at zero.

    Exact for any op, as a backward pass is linear in the output's gradient; it costs a batch's backward per unit. The
    gradients are stored between norm and sum, so that an op with a random backward is bounded too.
    """

    reads_parameters = True

    def __init__(
        self, node: Node, number: int, gradients: Mapping[int, Tensor], rows: Mapping[int, Rows | Members], units: int,
        shape: torch.Size, dtype: torch.dtype,
    ) -> None:  # fmt: skip
        self.node, self.number, self.gradients, self.rows = node, number, gradients, rows
        self.units, self.shape, self.dtype = units, shape, dtype
        self._stored: Tensor | None = None

    def held(self) -> Sequence[Tensor]:
        return list(self.gradients.values())

    def _gradient(self, unit: int) -> Tensor:
        run = self.node if callable(self.node) else self.node.apply
        alone = [
            self.rows[i].keep(self.gradients[i], unit, self.units) if i in self.gradients else None
            for i in range(len(self.node._input_metadata))
        ]
        with torch.no_grad():
            result = run(*alone)
        gradient = (result if isinstance(result, tuple) else (result,))[self.number]
        if gradient is None:
            return torch.zeros(self.shape, dtype=self.dtype)
        gradient = gradient.detach()
        gradient = gradient.to_dense() if gradient.layout != torch.strided else gradient
        gradient = gradient.real if gradient.is_complex() and not self.dtype.is_complex else gradient
        return gradient.sum_to_size(self.shape).to(self.dtype)

    def each(self, start: int, stop: int) -> Tensor:
        if self._stored is not None:
            return self._stored[start:stop]
        with finite(self.node):
            return torch.stack([self._gradient(unit) for unit in range(start, stop)])

    def norms(self) -> Tensor:
        if self.units * self.shape.numel() * self.dtype.itemsize <= _STORE_BYTES:
            self._stored = self.each(0, self.units)
            return squared_norms(self._stored)
        return torch.cat([squared_norms(self.each(i, i + 1)) for i in range(self.units)])

    def add_weighted(self, weights: Tensor, out: Tensor) -> None:
        for i, weight in enumerate(weights):
            out.add_(self.each(i, i + 1)[0] * weight)

    def select(self, units: Tensor) -> PerExampleGrad:
        return Materialised(self.each(0, self.units)[units])


@contextmanager
def finite(node: Node) -> Generator[None]:
    """Within, values that the op saved and that are not finite are zero.

    They belong to units that contribute nothing; in a product with another unit's zeros they would spoil that unit.
    """
    tensors = [t for t in saved_tensors(node) if t.is_floating_point() or t.is_complex()]
    spoiled = [(t.data, ~t.data.isfinite()) for t in tensors if not t.data.isfinite().all()]
    before = [t[where] for t, where in spoiled]
    for t, where in spoiled:
        t[where] = 0
    try:
        yield
    finally:
        for (t, where), values in zip(spoiled, before, strict=True):
            t[where] = values
