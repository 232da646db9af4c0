"""Gradients that are there: made by a rule, stored between norm and sum, or the rows of a table that were looked up."""

from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from discreet.gradients.forms.base import (
    CHUNKED,
    GRAM,
    STORED,
    Kernel,
    Measure,
    PerExampleGrad,
    parts,
    row_lengths,
    squared_norms,
)


class Materialised(PerExampleGrad):
    """Gradients that are there already, [units, *shape]: biases, scales, whatever is small.

    `squared` are their squared norms, where they are known.
    """

    def __init__(self, gradients: Tensor, squared: Tensor | None = None) -> None:
        self.gradients, self.units, self._squared = gradients, gradients.shape[0], squared

    def held(self) -> Sequence[Tensor]:
        return (self.gradients,)

    def norms(self) -> Tensor:
        return squared_norms(self.gradients) if self._squared is None else self._squared

    def add_weighted(self, weights: Tensor, out: Tensor) -> None:
        flat = self.gradients if self.gradients.dim() == 2 else self.gradients.reshape(self.units, -1)
        weights = weights if weights.dtype == flat.dtype else weights.to(flat.dtype)
        if out.is_contiguous():
            (out if out.dim() == 1 else out.view(-1)).addmv_(flat.t(), weights)
        else:
            out.add_(torch.mv(flat.t(), weights).view_as(out))

    def each(self, start: int, stop: int) -> Tensor:
        return self.gradients[start:stop]

    def select(self, units: Tensor) -> "Materialised":
        return Materialised(self.gradients[units])

    def joined(self, others: Sequence[PerExampleGrad]) -> "Materialised | None":
        gradients = [other.gradients for other in others if isinstance(other, Materialised)]
        if len(gradients) < len(others):
            return None
        return Materialised(torch.stack([self.gradients, *gradients]).sum(0))


class Stored:
    """Gradients that were made, some units at a time, and wait for the sum."""

    def __init__(self, pieces: list[Tensor]) -> None:
        self.pieces = pieces

    @classmethod
    def made(
        cls, make: Callable[[int, int], Tensor], units: int, unit_bytes: int, measure: Measure
    ) -> "tuple[Stored, Tensor]":
        """All units' gradients, and what was measured of them while they were in the cache."""
        pieces, measured = [], []
        for start, stop in parts(units, unit_bytes):
            piece = make(start, stop)
            measured.append(measure(piece))
            pieces.append(piece)
        return cls(pieces), torch.cat(measured)

    def measured(self, measure: Measure) -> Tensor:
        return torch.cat([measure(piece) for piece in self.pieces])

    def add_weighted(self, weights: Tensor, out: Tensor) -> None:
        for piece, factors in zip(self.pieces, weights.split([len(p) for p in self.pieces]), strict=True):
            out.view(-1).addmv_(piece.flatten(1).t(), factors)

    def each(self, start: int, stop: int) -> Tensor:
        overlapping, first = [], 0
        for piece in self.pieces:
            if first < stop and start < first + len(piece):
                overlapping.append(piece[max(0, start - first) : stop - first])
            first += len(piece)
        return overlapping[0] if len(overlapping) == 1 else torch.cat(overlapping)

    def select(self, units: Tensor) -> Materialised:
        return Materialised(torch.cat(self.pieces)[units])


class StorableGrads(PerExampleGrad):
    """Gradients that are made when they are asked for, some units at a time, and stored if the kernel says so."""

    adds_terms = True
    _stored: Stored | None = None

    def norms(self) -> Tensor:
        if self._stored is None and self._chosen().way == GRAM.way:
            return self._norms_of_grams()
        return self.measured(squared_norms, self._unit_bytes)

    def measured(self, measure: Measure, unit_bytes: int) -> Tensor:
        if self._stored is not None:
            return self._stored.measured(measure)
        if self._chosen().storage != STORED:
            return super().measured(measure, self._unit_bytes)
        self._stored, measured = Stored.made(self._make, self.units, self._unit_bytes, measure)
        self._free()
        return measured

    def lengths(self) -> Tensor | None:
        return self._lengths_of_terms() if self._stored is None else None

    def add_weighted(self, weights: Tensor, out: Tensor) -> None:
        add = self._add_terms if self._stored is None else self._stored.add_weighted
        add(weights, out)

    def each(self, start: int, stop: int) -> Tensor:
        return self._make(start, stop) if self._stored is None else self._stored.each(start, stop)

    def select(self, units: Tensor) -> PerExampleGrad:
        if self._stored is not None:
            return self._stored.select(units)
        selected = self._selected(units)
        selected.kernel = self.kernel
        return selected

    @property
    def chunk_bytes(self) -> int:
        waits = self._stored is None and self.kernel is not None and self.kernel.storage == CHUNKED
        return self._unit_bytes if waits else 0

    @property
    @abstractmethod
    def _unit_bytes(self) -> int:
        """The bytes of one unit's gradient."""

    @abstractmethod
    def _chosen(self) -> Kernel:
        """The kernel that is taken."""

    @abstractmethod
    def _make(self, start: int, stop: int) -> Tensor:
        """The gradients of units start..stop, [n, *shape]."""

    @abstractmethod
    def _free(self) -> None:
        """Let go of what the gradients are made of: they are stored."""

    @abstractmethod
    def _norms_of_grams(self) -> Tensor:
        """Squared norms without making the gradients."""

    @abstractmethod
    def _lengths_of_terms(self) -> Tensor | None:
        """As `lengths`, for gradients that are not stored."""

    @abstractmethod
    def _add_terms(self, weights: Tensor, out: Tensor) -> None:
        """As `add_weighted`, for gradients that are not stored."""

    @abstractmethod
    def _selected(self, units: Tensor) -> PerExampleGrad:
        """As `select`, for gradients that are not stored."""


class Lookups(PerExampleGrad):
    """Gradients of a table of `shape`: row indices[u, r] of unit u's gradient gets gradients[u, r]."""

    adds_terms = True

    def __init__(self, indices: Tensor, gradients: Tensor, shape: torch.Size, padding: int) -> None:
        self.indices, self.shape, self.units = indices, shape, len(indices)
        self._rows, self._width = shape[0], gradients.shape[2]
        self.gradients = gradients if padding < 0 else gradients.masked_fill((indices == padding)[..., None], 0.0)

    def of_shape(self, shape: torch.Size) -> "Lookups":
        """The same for a table whose values have this shape: rows are of its first dimension, or single values."""
        self.shape = shape
        return self

    def held(self) -> Sequence[Tensor]:
        return (self.gradients,)

    def norms(self) -> Tensor:
        if not self.indices.is_cpu:  # without waiting for how many there are: a place for each row of a unit
            rows, order = self.indices.sort(1)
            place = rows.diff(prepend=rows[:, :1]).ne(0).cumsum(1)
            sums = torch.zeros_like(self.gradients)
            values = self.gradients.gather(1, order.unsqueeze(2).expand_as(sums))
            sums.scatter_add_(1, place.unsqueeze(2).expand_as(sums), values)
            return squared_norms(sums.flatten(0, 1)).view(self.units, -1).sum(1)
        offset = torch.arange(self.units, device=self.indices.device)[:, None] * self._rows
        keys, place = torch.unique(self.indices + offset, return_inverse=True)
        sums = self.gradients.new_zeros(len(keys), self._width)
        sums.index_add_(0, place.flatten(), self.gradients.flatten(0, 1))
        squared = self.gradients.new_zeros(self.units)
        return squared.index_add_(0, keys.div(self._rows, rounding_mode="floor"), squared_norms(sums))

    def lengths(self) -> Tensor:
        return row_lengths(self.gradients).sum(1)

    def add_weighted(self, weights: Tensor, out: Tensor) -> None:
        weighted = self.gradients * weights[:, None, None]
        out.view(self._rows, -1).index_add_(0, self.indices.flatten(), weighted.flatten(0, 1))

    def each(self, start: int, stop: int) -> Tensor:
        gradients = self.gradients.new_zeros(stop - start, self._rows, self._width)
        index = self.indices[start:stop, :, None].expand(-1, -1, self._width)
        return gradients.scatter_add_(1, index, self.gradients[start:stop]).view(stop - start, *self.shape)

    def select(self, units: Tensor) -> "Lookups":
        shape = torch.Size((self._rows, self._width))
        return Lookups(self.indices[units], self.gradients[units], shape, -1).of_shape(self.shape)
