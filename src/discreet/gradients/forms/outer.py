"""Gradients that are outer products of a layer's input and its output's gradient, or sums of them."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from discreet.gradients.forms import base
from discreet.gradients.forms.base import (
    CHUNKED,
    GRAM,
    NORM_TIME,
    PRODUCT,
    PRODUCT_TIME,
    RESULT_TIME,
    ROWS,
    SHORT,
    STORED,
    Cost,
    Kernel,
    PerExampleGrad,
    cheapest_unstored,
    row_lengths,
    squared_norms,
    storing_kernels,
)
from discreet.gradients.forms.materialized import StorableGrads

_CHUNKED_ROWS = Kernel(ROWS.way, CHUNKED)
_STORED_PRODUCT = Kernel(PRODUCT.way, STORED)


def lengths_of(rows: Tensor) -> Tensor:
    """The length of each row, [units, n] to [units]."""
    return torch.linalg.vector_norm(rows, dim=1) if rows.shape[1] < 1024 else squared_norms(rows).sqrt_()


class OuterProduct(PerExampleGrad):
    """Gradients that are one outer product each: left [units, a], right [units, b], gradient [a, b].

    The norm is the product of the two rows' lengths; `known` are those that are known already. Rows that do not fit
    into the cache are read once for norm and sum, if they wait for chunks (`rows+chunked`, and not `rows`).
    """

    def __init__(self, left: Tensor, right: Tensor, known: tuple[Tensor | None, Tensor | None] = (None, None)) -> None:
        self.left, self.right, self.units, self._known = left, right, left.shape[0], known

    def transposed(self) -> "OuterProduct":
        return OuterProduct(self.right, self.left, self._known[::-1])

    def as_term(self) -> "OuterProducts":
        """The same as a sum of outer products, of which there is one."""
        return OuterProducts(self.left.unsqueeze(1), self.right.unsqueeze(1))

    def held(self) -> Sequence[Tensor]:
        return self.left, self.right

    @property
    def _streams(self) -> bool:
        """Whether the rows are more than the cache holds, the longer ones to be measured, and the sum is small."""
        a, b, size = self.left.shape[1], self.right.shape[1], self.left.element_size()
        small, large = 2 * a * b * size <= base.PART_BYTES, self.units * (a + b) * size > base.CACHE_BYTES
        return small and large and self._known[0 if a > b else 1] is None

    def kernels(self) -> dict[Kernel, Cost]:
        if not self._streams:
            return {}
        a, b = self.left.shape[1], self.right.shape[1]
        product = PRODUCT_TIME * a * b
        return {ROWS: Cost(product + NORM_TIME * (a + b)), _CHUNKED_ROWS: Cost(product)}

    @property
    def chunk_bytes(self) -> int:
        """So much of CHUNK_BYTES that rows of ROWS_BYTES are together: they are read twice, and stay in the cache."""
        waits = self.kernel == _CHUNKED_ROWS and self._streams
        row = (self.left.shape[1] + self.right.shape[1]) * self.left.element_size()
        return row * base.CHUNK_BYTES // base.ROWS_BYTES if waits else 0

    def narrow(self, start: int, stop: int) -> "OuterProduct":
        one, other = (None if known is None else known[start:stop] for known in self._known)
        return OuterProduct(self.left[start:stop], self.right[start:stop], (one, other))

    def norms(self) -> Tensor:
        """Squared norms, also where one factor is tiny and the other huge."""
        one, other = self._known
        one = lengths_of(self.left) if one is None else one
        other = lengths_of(self.right) if other is None else other
        norms = one * other
        norms.mul_(norms)  # square_ would go through a general power
        least = torch.minimum(one, other)
        if not least.is_cpu:  # without waiting for what is there
            lengths = row_lengths(self.left.unsqueeze(1)) * row_lengths(self.right.unsqueeze(1))
            return torch.where(least >= SHORT, norms, lengths.square().squeeze(1).to(norms.dtype))
        if not least.min().item() >= SHORT:
            short = ~(least >= SHORT)
            lengths = row_lengths(self.left[short].unsqueeze(1)) * row_lengths(self.right[short].unsqueeze(1))
            norms[short] = lengths.square().squeeze(1).to(norms.dtype)
        return norms

    def add_weighted(self, weights: Tensor, out: Tensor) -> None:
        left, right, weights = self.left, self.right, weights.unsqueeze(1)
        if left.shape[1] <= right.shape[1]:
            left = left * weights
        else:
            right = right * weights
        out.addmm_(left.t(), right)

    def each(self, start: int, stop: int) -> Tensor:
        return self.left[start:stop].unsqueeze(2) * self.right[start:stop].unsqueeze(1)

    def select(self, units: Tensor) -> "OuterProduct":
        return OuterProduct(self.left[units], self.right[units])


class OuterProducts(StorableGrads):
    """Gradients that are sums of outer products: left [units, rows, a], right [units, rows, b], gradient [a, b].

    `shape` is that of the gradient where it has further dimensions of size 1.

    | kernel          | norms                               | sum                     |
    | --------------- | ----------------------------------- | ----------------------- |
    | product         | of gradients made in parts          | one product of all rows |
    | product+keep    | of gradients made and stored        | of what was stored      |
    | product+chunked | the same, for a few units at a time | of what was stored      |
    | gram            | from two Gram matrices, rows x rows | one product of all rows |

    One row a unit needs none of them: the norm is the product of the rows' norms.
    """

    def __init__(self, left: Tensor, right: Tensor, shape: tuple[int, ...] | None = None) -> None:
        self.left, self.right, self.units = left, right, left.shape[0]
        self.shape = (left.shape[2], right.shape[2]) if shape is None else shape

    def transposed(self) -> "OuterProducts":
        return OuterProducts(self.right, self.left)

    def joined(self, others: Sequence[PerExampleGrad]) -> "OuterProducts | None":
        """All of them as one: the rows of several calls of a layer count like more rows of one."""
        products = [self, *(other for other in others if isinstance(other, OuterProducts))]
        if len(products) <= len(others):
            return None
        left, right = torch.cat([p.left for p in products], 1), torch.cat([p.right for p in products], 1)
        return OuterProducts(left, right, self.shape)

    def held(self) -> Sequence[Tensor]:
        return self.left, self.right

    def kernels(self) -> dict[Kernel, Cost]:
        rows, a, b = self.left.shape[1], self.left.shape[2], self.right.shape[2]
        product = PRODUCT_TIME * rows * a * b
        if rows == 1:
            return {}
        materialised = product + RESULT_TIME * a * b
        grams = gram_time(rows, a + b) + 4 * NORM_TIME * rows * rows
        return {
            PRODUCT: Cost(materialised + product + NORM_TIME * a * b),
            **storing_kernels(PRODUCT.way, materialised, a * b, self.left.element_size()),
            GRAM: Cost((1 + nearly_cancelling(rows)) * product + grams),
        }

    def norms(self) -> Tensor:
        if self._stored is None and self.left.shape[1] == 1:
            return OuterProduct(self.left[:, 0], self.right[:, 0]).norms()
        return super().norms()

    def narrow(self, start: int, stop: int) -> "OuterProducts":
        chunk = OuterProducts(self.left[start:stop], self.right[start:stop], self.shape)
        chunk.kernel = _STORED_PRODUCT
        return chunk

    @property
    def _unit_bytes(self) -> int:
        return self.left.shape[2] * self.right.shape[2] * self.left.element_size()

    def _chosen(self) -> Kernel:
        """The kernel; one row a unit has no choice."""
        return self.kernel or (cheapest_unstored(self.kernels()) if self.left.shape[1] > 1 else PRODUCT)

    def _make(self, start: int, stop: int) -> Tensor:
        return torch.bmm(self.left[start:stop].mT, self.right[start:stop]).view(stop - start, *self.shape)

    def _free(self) -> None:
        self.left, self.right = (t.new_empty(self.units, 0, t.shape[2]) for t in (self.left, self.right))

    def _norms_of_grams(self) -> Tensor:
        return gram_norms(self.left, self.right, self._make)

    def _lengths_of_terms(self) -> Tensor | None:
        return None if self.left.shape[1] == 1 else (row_lengths(self.left) * row_lengths(self.right)).sum(1)

    def _add_terms(self, weights: Tensor, out: Tensor) -> None:
        out = out.view(self.left.shape[2], self.right.shape[2])
        left, right, weights = self.left, self.right, weights.view(-1, 1, 1)
        if left.shape[2] <= right.shape[2]:
            left = left * weights
        else:
            right = right * weights
        out.addmm_(left.flatten(0, 1).t(), right.flatten(0, 1))

    def _selected(self, units: Tensor) -> "OuterProducts":
        return OuterProducts(self.left[units], self.right[units], self.shape)


# --- Gram matrices ----------------------------------------------------------------------------------------------------

_TINY = 1e-28  # far above what an entry of a Gram matrix loses where squares are too small for float32
_LEFT = 0.05  # of what rounding can do: with less left, a unit is made
_TERMS = 64  # of a product that are added one after the other


def nearly_cancelling(rows: int) -> float:
    """The part of units that are made all the same by `norms_of_grams`, by guess: of n rows that all point the same way
    on one side (a mean over them was taken) and any way on the other, one in n is left."""
    return min(1.0, _LEFT * rows)


def gram_norms(left: Tensor, right: Tensor, make: Callable[[int, int], Tensor]) -> Tensor:
    """For few rows: <G, G> from two Gram matrices, G never made, but for units whose rows nearly cancel."""
    return norms_of_grams(gram(left), gram(right), make)


def gram_time(rows: int, values: int) -> float:
    """Nanoseconds of a unit's Gram matrix."""
    return 1.3 * PRODUCT_TIME * rows * rows * values


def gram(rows: Tensor) -> Tensor:
    """The products of a unit's rows, [units, rows, rows], in parts: a long row's small values are not lost one by one.

    An entry is off by at most _TERMS + values / _TERMS roundings of the product of its two rows' lengths.
    """
    first, *rest = rows.split(_TERMS, 2)
    products = first @ first.mT
    for part in rest:
        products.baddbmm_(part, part.mT)
    return products


def norms_of_grams(first: Tensor, second: Tensor, make: Callable[[int, int], Tensor]) -> Tensor:
    """Squared norms of sums of outer products, from the Gram matrices of both sides, [units, rows, rows].

    An entry is off by some roundings of the product of its two rows' lengths (`gram`). So the sum of their products is
    off by at most that many roundings of |x|' |S| |x| + |y|' |F| |y|, with the lengths |x| and |y| of the rows and the
    values |F| and |S| of the matrices without their signs: a unit with little left of it is made. So is one in which
    what is too small for the format on one side could meet enough on the other.
    """
    norms = (first * second).flatten(1).sum(1)  # by halves: a dot product would add up one rounding a term
    one, other = first.diagonal(dim1=1, dim2=2), second.diagonal(dim1=1, dim2=2)
    x, y = (squares.clamp(min=0).sqrt() for squares in (one, other))
    rounded = (_form(second.abs(), x) + _form(first.abs(), y)) / 2
    lost = x.sum(1).square() + y.sum(1).square()
    sure = norms.isfinite() & (norms >= _LEFT * rounded) & (norms >= _TINY * lost)
    if not sure.is_cpu:  # without waiting for which they are: `UnitGradients` makes what is nan
        return torch.where(sure, norms, torch.nan)
    for u in torch.nonzero(~sure).flatten().tolist():
        norms[u] = squared_norms(make(u, u + 1))[0]
    return norms


def _form(matrices: Tensor, vectors: Tensor) -> Tensor:
    """v' A v of each matrix, which is lost; faster than a product of a matrix and a vector for each."""
    return matrices.mul_(vectors.unsqueeze(2)).sum(1).mul_(vectors).sum(1)
