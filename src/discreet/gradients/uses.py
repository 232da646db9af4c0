"""One use of a parameter by one op: each unit's gradient, in the cheapest form that answers what is asked.

A use answers three questions, for units 0..n-1 of a batch: `norms()`, the squared norm of each unit's gradient;
`add_weighted(weights, out)`, which adds the sum of weight * gradient to `out`; `each(start, stop)`, the gradients
themselves. `select(units)` is the same use for some of the units only.

A gradient may be a sum of long terms that cancel. Where `add_weighted` adds the terms themselves, `lengths()` bounds
their lengths' sum for each unit (None: it adds gradients that were made). Units that nearly cancel must be made, one by
one, and measured and added as they were made: their terms would take the others' digits with them, and what is left of
them would not be what was measured. The engine sees to that.
"""

import math
from typing import Protocol

import torch
from torch import Tensor

KEEP_BYTES = 1 << 28  # per-unit gradients of one parameter up to this size are kept between norm and sum
PART_BYTES = 1 << 24  # larger ones are made in parts of about this size


class Use(Protocol):
    """What an op did with a parameter, unit by unit."""

    units: int

    def norms(self) -> Tensor: ...
    def lengths(self) -> Tensor | None: ...
    def add_weighted(self, weights: Tensor, out: Tensor) -> None: ...
    def each(self, start: int, stop: int) -> Tensor: ...
    def select(self, units: Tensor) -> "Use": ...


def squared_norms(tensor: Tensor) -> Tensor:
    """Squared norm of each row, [units, ...] to [units], in float32 at least.

    Blocks of 256 values are summed on their own, which is faster than squaring and keeps float32 accurate to 2e-7.
    """
    flat = tensor.reshape(len(tensor), -1)
    flat = flat if flat.is_complex() else flat.to(sum_dtype(tensor.dtype))
    blocks = flat.shape[1] // 256
    if blocks < 2:
        return torch.linalg.vector_norm(flat, dim=1).square_()
    head = torch.linalg.vector_norm(flat[:, : blocks * 256].unflatten(1, (blocks, 256)), dim=2).square_().sum(1)
    if blocks * 256 == flat.shape[1]:
        return head
    return head + torch.linalg.vector_norm(flat[:, blocks * 256 :], dim=1).square_()


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Sums are taken in a parameter's dtype, or in float32 where that is shorter."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def parts(units: int, bytes_per_unit: int) -> list[tuple[int, int]]:
    """Ranges of units whose gradients together take about PART_BYTES."""
    size = max(1, min(units, PART_BYTES // max(1, bytes_per_unit)))
    return [(start, min(units, start + size)) for start in range(0, units, size)]


class Workspace:
    """Memory that kept gradients are made in, step after step: fresh pages cost as much as the arithmetic.

    What it hands out is valid until `restart`, which the engine calls for each batch.
    """

    def __init__(self) -> None:
        self._rooms: list[Tensor] = []
        self._next = 0

    def restart(self) -> None:
        self._next = 0

    def take(self, *shape: int, like: Tensor) -> Tensor:
        """A tensor of this shape; the same memory as in the last batch where it is large enough."""
        size, i = math.prod(shape), self._next
        self._next += 1
        if i == len(self._rooms):
            self._rooms.append(like.new_empty(0))
        if self._rooms[i].numel() < size or (self._rooms[i].dtype, self._rooms[i].device) != (like.dtype, like.device):
            self._rooms[i] = like.new_empty(size + size // 8)  # the size of a batch varies from draw to draw
        return self._rooms[i][:size].view(shape)


_SMALL = 1e-14  # lengths below it have squares that float32 cannot hold to full accuracy


def row_lengths(tensor: Tensor) -> Tensor:
    """The length of each row, [units, rows, n] to [units, rows], in float64: also where squares would underflow."""
    found = torch.linalg.vector_norm(tensor, dim=2).double()
    small = found < _SMALL
    if bool(small.any()):
        found[small] = torch.linalg.vector_norm(tensor[small].double(), dim=1)
    return found


def _products(left: Tensor, right: Tensor) -> Tensor:
    """Squared norms of outer products of one row each, also where one factor is tiny and the other huge."""
    one, other = squared_norms(left), squared_norms(right)
    found = one * other
    weak = torch.minimum(one, other) < _SMALL**2
    if bool(weak.any()):
        lengths = row_lengths(left[weak]) * row_lengths(right[weak])
        found[weak] = lengths.square().squeeze(1).to(found.dtype)
    return found


class Materialised:
    """Gradients that are there already, [units, *shape]: biases, scales, whatever is small."""

    def __init__(self, gradients: Tensor) -> None:
        self.gradients, self.units = gradients, len(gradients)

    def norms(self) -> Tensor:
        return squared_norms(self.gradients)

    def lengths(self) -> None:
        """What is added was made."""

    def add_weighted(self, weights: Tensor, out: Tensor) -> None:
        flat = self.gradients.reshape(self.units, -1)
        if out.is_contiguous():
            out.view(-1).addmv_(flat.t(), weights)
        else:
            out.add_(torch.mv(flat.t(), weights).view_as(out))

    def each(self, start: int, stop: int) -> Tensor:
        return self.gradients[start:stop]

    def select(self, units: Tensor) -> "Materialised":
        return Materialised(self.gradients[units])


class OuterProducts:
    """Gradients that are sums of outer products: left [units, rows, a], right [units, rows, b], gradient [a, b].

    `shape` is that of the gradient where it has further dimensions of size 1.
    """

    def __init__(
        self, left: Tensor, right: Tensor, shape: tuple[int, ...] | None = None, workspace: Workspace | None = None
    ) -> None:
        self.left, self.right, self.units = left, right, len(left)
        self.workspace = Workspace() if workspace is None else workspace
        self.shape = (left.shape[2], right.shape[2]) if shape is None else shape
        self._kept: Tensor | None = None

    def transposed(self) -> "OuterProducts":
        return OuterProducts(self.right, self.left, workspace=self.workspace)

    def joined(self, others: "list[OuterProducts]") -> "OuterProducts":
        """All of them as one use: the rows of several calls of a layer count like more rows of one."""
        uses = [self, *others]
        left, right = torch.cat([u.left for u in uses], 1), torch.cat([u.right for u in uses], 1)
        return OuterProducts(left, right, self.shape, self.workspace)

    def norms(self) -> Tensor:
        left, right = self.left, self.right
        units, rows, a, b = *left.shape, right.shape[2]
        if rows == 1:
            return _products(left, right)
        if rows * rows * (a + b) < 16 * a * b:
            return self._gram_norms()
        if units * a * b * left.element_size() <= KEEP_BYTES:
            self._kept = torch.bmm(left.mT, right, out=self.workspace.take(units, a, b, like=left))
            return squared_norms(self._kept)
        pieces = [squared_norms(self.each(i, j)) for i, j in parts(units, a * b * left.element_size())]
        return torch.cat(pieces)

    def lengths(self) -> Tensor | None:
        if self._kept is not None or self.left.shape[1] == 1:
            return None
        return (row_lengths(self.left) * row_lengths(self.right)).sum(1)

    def _gram_norms(self) -> Tensor:
        """For few rows: <G, G> from two Gram matrices, G never made, but for units whose rows nearly cancel."""
        left, right = self.left @ self.left.mT, self.right @ self.right.mT
        found = torch.einsum("urs,urs->u", left, right)
        lengths = (left.diagonal(dim1=1, dim2=2) * right.diagonal(dim1=1, dim2=2)).clamp(min=0).sqrt().sum(1)
        for u in torch.nonzero(found < 0.02 * lengths.square()).flatten().tolist():  # rounding would show
            found[u] = squared_norms(self.each(u, u + 1))[0]
        return found

    def add_weighted(self, weights: Tensor, out: Tensor) -> None:
        out = out.view(self.left.shape[2], self.right.shape[2])
        if self._kept is not None:
            out.view(-1).addmv_(self._kept.flatten(1).t(), weights)
            return
        left, right = self.left, self.right
        if left.shape[2] <= right.shape[2]:
            left = left * weights[:, None, None]
        else:
            right = right * weights[:, None, None]
        out.addmm_(left.flatten(0, 1).t(), right.flatten(0, 1))

    def each(self, start: int, stop: int) -> Tensor:
        return torch.bmm(self.left[start:stop].mT, self.right[start:stop]).view(-1, *self.shape)

    def select(self, units: Tensor) -> "OuterProducts":
        return OuterProducts(self.left[units], self.right[units], self.shape)
