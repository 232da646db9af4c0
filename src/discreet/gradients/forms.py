"""One use of a parameter by one op: each unit's gradient, in the cheapest form that answers what is asked.

A use answers three questions, for units 0..n-1 of a batch: `norms()`, the squared norm of each unit's gradient;
`add_weighted(weights, out)`, which adds the sum of weight * gradient to `out`; `each(start, stop)`, the gradients
themselves. `select(units)` is the same use for some of the units only.

Some uses have several ways to answer, its kernels: `kernels()` names them, with what each would cost, and the attribute
`kernel` says which one `norms()` takes. None of them changes what is released.

A gradient may be a sum of long terms that cancel. Where `add_weighted` adds the terms themselves, `lengths()` bounds
their lengths' sum for each unit (None: it adds gradients that were made). Units that nearly cancel must be made, one by
one, and measured and added as they were made: their terms would take the others' digits with them, and what is left of
them would not be what was measured. The engine sees to that.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

PART_BYTES = 1 << 21  # gradients are made in parts of about this size: in the cache, and where activations were freed
TURN_BYTES = 1 << 26  # of the gradients of units that have their turn together: few, and few turns
ROWS_BYTES = 1 << 23  # of rows that have their turn together: the last cache holds them, and turns are few
CACHE_BYTES = 1 << 25  # what is larger comes from memory each time that it is read
SMALL_BYTES = 1 << 16  # a unit's gradient that is no larger is kept, whatever the plan


@dataclass(frozen=True)
class Cost:
    """What a kernel costs for one unit: nanoseconds of norm and sum together, and the bytes of the gradient it keeps.

    One that keeps nothing holds what the gradients are made of.
    """

    time: float
    kept: int = 0


# nanoseconds on one core of a current server, which need to be right only relative to each other
PRODUCT = 0.018  # a multiplication and addition of a matrix product
RESULT = 0.4  # a value of a gradient that a batched product writes
NORM = 0.15  # a value that is squared and summed
SUM = 0.17  # a value of kept gradients that is added to the weighted sum


KEEP, TURNS = "+keep", "+turns"  # ends of kernels' names: what is made is kept for the sum
ROWS = "rows"  # the kernel for one row a unit, where there is a choice


def keeping(way: str, made: float, size: int, itemsize: int) -> dict[str, Cost]:
    """The kernels that keep the gradients they make, of `size` values each, in `made` nanoseconds.

    One makes them while the backward pass goes by, of all units, and frees what they are made of. The other makes them
    when it is over, for a few units at a time: they are measured, weighed, added and dropped before others have their
    turn.
    """
    cost = Cost(made + (NORM + SUM) * size, size * itemsize)
    return {way + KEEP: cost, way + TURNS: cost}


class Use(Protocol):
    """What an op did with a parameter, unit by unit."""

    units: int
    kernel: str | None

    def kernels(self) -> dict[str, Cost]: ...
    def held(self) -> list[Tensor]: ...

    def norms(self) -> Tensor: ...
    def lengths(self) -> Tensor | None: ...
    def add_weighted(self, weights: Tensor, out: Tensor) -> None: ...
    def each(self, start: int, stop: int) -> Tensor: ...
    def select(self, units: Tensor) -> "Use": ...


_SUMMED = (torch.float32, torch.float64, torch.complex64, torch.complex128)


def squared_norms(tensor: Tensor) -> Tensor:
    """Squared norm of each row, [units, ...] to [units], in float32 at least.

    Long rows are summed in blocks of 256 values, which is faster than squaring and keeps float32 accurate to 2e-7.
    """
    flat = tensor if tensor.dim() == 2 else tensor.reshape(tensor.shape[0], -1)
    if flat.dtype not in _SUMMED:
        flat = flat.to(sum_dtype(tensor.dtype))
    blocks = flat.shape[1] // 256
    if blocks < 4:
        return _squared(torch.linalg.vector_norm(flat, dim=1))
    head = _squared(torch.linalg.vector_norm(flat[:, : blocks * 256].unflatten(1, (blocks, 256)), dim=2)).sum(1)
    if blocks * 256 == flat.shape[1]:
        return head
    return head + _squared(torch.linalg.vector_norm(flat[:, blocks * 256 :], dim=1))


def _squared(lengths: Tensor) -> Tensor:
    """Squares, in place: square_ would go through a general power."""
    return lengths.mul_(lengths)


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Sums are taken in a parameter's dtype, or in float32 where that is shorter."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def parts(units: int, bytes_per_unit: int) -> list[tuple[int, int]]:
    """Ranges of units whose gradients together take about PART_BYTES, as many for each thread."""
    return _ranges(units, PART_BYTES // max(1, bytes_per_unit))


def turns(units: int, bytes_per_unit: int) -> list[tuple[int, int]]:
    """The same for TURN_BYTES."""
    return _ranges(units, TURN_BYTES // max(1, bytes_per_unit))


def _ranges(units: int, size: int) -> list[tuple[int, int]]:
    threads = torch.get_num_threads()
    size = min(units, -(-max(1, size) // threads) * threads) or 1
    return [(start, min(units, start + size)) for start in range(0, units, size)]


_SMALL = 1e-14  # lengths below it have squares that float32 cannot hold to full accuracy


def row_lengths(tensor: Tensor) -> Tensor:
    """The length of each row, [units, rows, n] to [units, rows], in float64: also where squares would underflow."""
    found = torch.linalg.vector_norm(tensor, dim=2).double()
    small = found < _SMALL
    if bool(small.any()):
        found[small] = torch.linalg.vector_norm(tensor[small].double(), dim=1)
    return found


class Known:
    """Rows of a batch whose squared norms are known: the same memory, unchanged since it was handed out."""

    def __init__(self, rows: Tensor, norms: Tensor) -> None:
        self._rows, self._version, self._norms = rows, rows._version, norms

    def of(self, tensor: Tensor) -> Tensor | None:
        """The norms of a tensor's rows, if it is the batch itself or another view of all of it."""
        mine = self._rows
        same = (tensor.data_ptr(), tensor.shape[0], tensor.numel()) == (mine.data_ptr(), mine.shape[0], mine.numel())
        if not same or tensor.dtype != mine.dtype or not (tensor.is_contiguous() and mine.is_contiguous()):
            return None
        return self._norms if tensor._version == self._version else None


class InTurns(ABC):
    """A use that can be asked for some of its units alone, one range of them after the other.

    `turn` are the bytes that a unit takes while it has its turn, or 0 for a use that waits for none: then its norms are
    measured at once. The use itself answers for all units, at any time; that only takes longer.
    """

    @property
    @abstractmethod
    def turn(self) -> int: ...

    @abstractmethod
    def narrow(self, start: int, stop: int) -> Use:
        """The same use for units start..stop, whose gradients are made once, for norms and sum."""

    def total(self) -> Tensor | None:
        """What turns have added up without adding it to the sum, if anything."""
        return None


class Single:
    """What uses with one way to answer have in common."""

    kernel: str | None = None

    def kernels(self) -> dict[str, Cost]:
        return {}

    def held(self) -> list[Tensor]:
        """The tensors that stay until the sum is taken: for the plan of memory."""
        return []


class Materialised(Single):
    """Gradients that are there already, [units, *shape]: biases, scales, whatever is small.

    `squared` are their squared norms, where they are known.
    """

    def __init__(self, gradients: Tensor, squared: Tensor | None = None) -> None:
        self.gradients, self.units, self._squared = gradients, gradients.shape[0], squared

    def held(self) -> list[Tensor]:
        return [self.gradients]

    def norms(self) -> Tensor:
        return squared_norms(self.gradients) if self._squared is None else self._squared

    def lengths(self) -> None:
        """What is added was made."""

    def add_weighted(self, weights: Tensor, out: Tensor) -> None:
        flat = self.gradients if self.gradients.dim() == 2 else self.gradients.reshape(self.units, -1)
        if out.is_contiguous():
            (out if out.dim() == 1 else out.view(-1)).addmv_(flat.t(), weights)
        else:
            out.add_(torch.mv(flat.t(), weights).view_as(out))

    def each(self, start: int, stop: int) -> Tensor:
        return self.gradients[start:stop]

    def select(self, units: Tensor) -> "Materialised":
        return Materialised(self.gradients[units])


Measure = Callable[[Tensor], Tensor]  # what is asked of some units' gradients, a row for each


class Kept:
    """Gradients that were made, some units at a time, and wait for the sum."""

    def __init__(self, pieces: list[Tensor]) -> None:
        self.pieces = pieces

    @classmethod
    def made(
        cls, make: Callable[[int, int], Tensor], units: int, bytes_per_unit: int, measure: "Measure"
    ) -> "tuple[Kept, Tensor]":
        """All units' gradients, and what was measured of them while they were in the cache."""
        pieces, found = [], []
        for start, stop in parts(units, bytes_per_unit):
            piece = make(start, stop)
            found.append(measure(piece))
            pieces.append(piece)
        return cls(pieces), torch.cat(found)

    def measured(self, measure: Measure) -> Tensor:
        return torch.cat([measure(piece) for piece in self.pieces])

    def add_weighted(self, weights: Tensor, out: Tensor) -> None:
        for piece, factors in zip(self.pieces, weights.split([len(p) for p in self.pieces]), strict=True):
            out.view(-1).addmv_(piece.flatten(1).t(), factors)

    def each(self, start: int, stop: int) -> Tensor:
        found, first = [], 0
        for piece in self.pieces:
            if first < stop and start < first + len(piece):
                found.append(piece[max(0, start - first) : stop - first])
            first += len(piece)
        return found[0] if len(found) == 1 else torch.cat(found)

    def select(self, units: Tensor) -> Materialised:
        return Materialised(torch.cat(self.pieces)[units])


class OuterProduct(InTurns):
    """Gradients that are one outer product each: left [units, a], right [units, b], gradient [a, b].

    The norm is the product of the two rows' lengths; `known` are those that are known already. Rows that do not fit
    into the cache are read once for norm and sum, if units have their turn (`rows+turns`, and not `rows`).
    """

    kernel: str | None = None

    def __init__(self, left: Tensor, right: Tensor, known: tuple[Tensor | None, Tensor | None] = (None, None)) -> None:
        self.left, self.right, self.units, self._known = left, right, left.shape[0], known

    def transposed(self) -> "OuterProduct":
        return OuterProduct(self.right, self.left, self._known[::-1])

    def alone(self) -> "OuterProducts":
        """The same as a sum of outer products, of which there is one."""
        return OuterProducts(self.left.unsqueeze(1), self.right.unsqueeze(1))

    def held(self) -> list[Tensor]:
        return [self.left, self.right]

    @property
    def _streams(self) -> bool:
        """Whether the rows are more than the cache holds, the longer ones to be measured, and the sum is small."""
        a, b, size = self.left.shape[1], self.right.shape[1], self.left.element_size()
        small, large = 2 * a * b * size <= PART_BYTES, self.units * (a + b) * size > CACHE_BYTES
        return small and large and self._known[0 if a > b else 1] is None

    def kernels(self) -> dict[str, Cost]:
        if not self._streams:
            return {}
        a, b = self.left.shape[1], self.right.shape[1]
        product = PRODUCT * a * b
        return {ROWS: Cost(product + NORM * (a + b)), ROWS + TURNS: Cost(product)}

    @property
    def turn(self) -> int:
        """So much of TURN_BYTES that rows of ROWS_BYTES are together: they are read twice, and stay in the cache."""
        waits = self.kernel == ROWS + TURNS and self._streams
        row = (self.left.shape[1] + self.right.shape[1]) * self.left.element_size()
        return row * TURN_BYTES // ROWS_BYTES if waits else 0

    def narrow(self, start: int, stop: int) -> Use:
        one, other = (None if known is None else known[start:stop] for known in self._known)
        return OuterProduct(self.left[start:stop], self.right[start:stop], (one, other))

    def norms(self) -> Tensor:
        """Squared norms, also where one factor is tiny and the other huge."""
        one = lengths_of(self.left) if self._known[0] is None else self._known[0]
        other = lengths_of(self.right) if self._known[1] is None else self._known[1]
        found = _squared(one * other)
        least = torch.minimum(one, other)
        if not least.min().item() >= _SMALL:
            weak = ~(least >= _SMALL)
            lengths = row_lengths(self.left[weak].unsqueeze(1)) * row_lengths(self.right[weak].unsqueeze(1))
            found[weak] = lengths.square().squeeze(1).to(found.dtype)
        return found

    def lengths(self) -> None:
        """There is one term."""

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


def lengths_of(rows: Tensor) -> Tensor:
    """The length of each row, [units, n] to [units]."""
    return torch.linalg.vector_norm(rows, dim=1) if rows.shape[1] < 1024 else squared_norms(rows).sqrt_()


class OuterProducts(InTurns):
    """Gradients that are sums of outer products: left [units, rows, a], right [units, rows, b], gradient [a, b].

    `shape` is that of the gradient where it has further dimensions of size 1.

    | kernel       | norms                               | sum                     |
    | ------------ | ----------------------------------- | ----------------------- |
    | product      | of gradients made in parts          | one product of all rows |
    | product+keep | of gradients made and kept          | of what was kept        |
    | product+turns| the same, for a few units at a time | of what was kept        |
    | gram         | from two Gram matrices, rows x rows | one product of all rows |

    One row a unit needs none of them: the norm is the product of the rows' norms.
    """

    def __init__(self, left: Tensor, right: Tensor, shape: tuple[int, ...] | None = None) -> None:
        self.left, self.right, self.units = left, right, left.shape[0]
        self.shape = (left.shape[2], right.shape[2]) if shape is None else shape
        self.kernel: str | None = None
        self._kept: Kept | None = None

    def transposed(self) -> "OuterProducts":
        return OuterProducts(self.right, self.left)

    def joined(self, others: "list[OuterProducts]") -> "OuterProducts":
        """All of them as one use: the rows of several calls of a layer count like more rows of one."""
        uses = [self, *others]
        left, right = torch.cat([u.left for u in uses], 1), torch.cat([u.right for u in uses], 1)
        return OuterProducts(left, right, self.shape)

    def held(self) -> list[Tensor]:
        return [self.left, self.right]

    def kernels(self) -> dict[str, Cost]:
        rows, a, b = self.left.shape[1], self.left.shape[2], self.right.shape[2]
        product = PRODUCT * rows * a * b
        if rows == 1:
            return {}
        made = product + RESULT * a * b
        return {
            "product": Cost(made + product + NORM * a * b),
            **keeping("product", made, a * b, self.left.element_size()),
            "gram": Cost((1 + nearly_cancelling(rows)) * product + gram_time(rows, a + b) + 4 * NORM * rows * rows),
        }

    def norms(self) -> Tensor:
        if self._kept is None and self.left.shape[1] == 1:
            return OuterProduct(self.left[:, 0], self.right[:, 0]).norms()
        if self._kept is None and self._chosen() == "gram":
            return gram_norms(self.left, self.right, self._make)
        return self.measured(squared_norms)

    def measured(self, measure: Measure) -> Tensor:
        """What is asked of the gradients, which are made for it, and kept if the kernel says so."""
        if self._kept is not None:
            return self._kept.measured(measure)
        size = self.left.shape[2] * self.right.shape[2] * self.left.element_size()
        if not self._chosen().endswith(KEEP):
            return torch.cat([measure(self._make(i, j)) for i, j in parts(self.units, size)])
        self._kept, found = Kept.made(self._make, self.units, size, measure)
        self.left, self.right = (t.new_empty(self.units, 0, t.shape[2]) for t in (self.left, self.right))  # may go
        return found

    def _chosen(self) -> str:
        """The kernel; one row a unit has no choice."""
        return self.kernel or (leanest(self.kernels()) if self.left.shape[1] > 1 else "product")

    def lengths(self) -> Tensor | None:
        if self._kept is not None or self.left.shape[1] == 1:
            return None
        return (row_lengths(self.left) * row_lengths(self.right)).sum(1)

    def add_weighted(self, weights: Tensor, out: Tensor) -> None:
        out = out.view(self.left.shape[2], self.right.shape[2])
        if self._kept is not None:
            self._kept.add_weighted(weights, out)
            return
        left, right, weights = self.left, self.right, weights.view(-1, 1, 1)
        if left.shape[2] <= right.shape[2]:
            left = left * weights
        else:
            right = right * weights
        out.addmm_(left.flatten(0, 1).t(), right.flatten(0, 1))

    def _make(self, start: int, stop: int) -> Tensor:
        return torch.bmm(self.left[start:stop].mT, self.right[start:stop]).view(-1, *self.shape)

    def each(self, start: int, stop: int) -> Tensor:
        return self._make(start, stop) if self._kept is None else self._kept.each(start, stop)

    @property
    def turn(self) -> int:
        waits = self._kept is None and self.kernel is not None and self.kernel.endswith(TURNS)
        return self.left.shape[2] * self.right.shape[2] * self.left.element_size() if waits else 0

    def narrow(self, start: int, stop: int) -> Use:
        found = OuterProducts(self.left[start:stop], self.right[start:stop], self.shape)
        found.kernel = "product" + KEEP
        return found

    def select(self, units: Tensor) -> "Use":
        if self._kept is not None:
            return self._kept.select(units)
        found = OuterProducts(self.left[units], self.right[units], self.shape)
        found.kernel = self.kernel
        return found


def nearly_cancelling(rows: int) -> float:
    """The part of units that are made all the same by `norms_of_grams`, by guess: of n rows that all point the same way
    on one side (a mean over them was taken) and any way on the other, one in n is left."""
    return min(1.0, _LEFT * rows)


def leanest(kernels: dict[str, Cost]) -> str:
    """The fastest of those that keep nothing; or, where a unit's gradient is small, of all."""
    return min((k for k, cost in kernels.items() if cost.kept <= SMALL_BYTES), key=lambda k: kernels[k].time)


_TINY = 1e-28  # far above what an entry of a Gram matrix loses where squares are too small for float32
_LEFT = 0.05  # of what rounding can do: with less left, a unit is made
_TERMS = 64  # of a product that are added one after the other


def gram_norms(left: Tensor, right: Tensor, make: Callable[[int, int], Tensor]) -> Tensor:
    """For few rows: <G, G> from two Gram matrices, G never made, but for units whose rows nearly cancel."""
    return norms_of_grams(gram(left), gram(right), make)


def gram_time(rows: int, values: int) -> float:
    """Nanoseconds of a unit's Gram matrix."""
    return 1.3 * PRODUCT * rows * rows * values


def gram(rows: Tensor) -> Tensor:
    """The products of a unit's rows, [units, rows, rows], in parts: a long row's small values are not lost one by one.

    An entry is off by at most _TERMS + values / _TERMS roundings of the product of its two rows' lengths.
    """
    first, *rest = rows.split(_TERMS, 2)
    found = first @ first.mT
    for part in rest:
        found.baddbmm_(part, part.mT)
    return found


def norms_of_grams(first: Tensor, second: Tensor, make: Callable[[int, int], Tensor]) -> Tensor:
    """Squared norms of sums of outer products, from the Gram matrices of both sides, [units, rows, rows].

    An entry is off by some roundings of the product of its two rows' lengths (`gram`). So the sum of their products is
    off by at most that many roundings of |x|' |S| |x| + |y|' |F| |y|, with the lengths |x| and |y| of the rows and the
    values |F| and |S| of the matrices without their signs: a unit with little left of it is made. So is one in which
    what is too small for the format on one side could meet enough on the other.
    """
    found = (first * second).flatten(1).sum(1)  # by halves: a dot product would add up one rounding a term
    one, other = first.diagonal(dim1=1, dim2=2), second.diagonal(dim1=1, dim2=2)
    x, y = (squares.clamp(min=0).sqrt() for squares in (one, other))
    rounded = (_form(second.abs(), x) + _form(first.abs(), y)) / 2
    lost = x.sum(1).square() + y.sum(1).square()
    sure = found.isfinite() & (found >= _LEFT * rounded) & (found >= _TINY * lost)
    for u in torch.nonzero(~sure).flatten().tolist():
        found[u] = squared_norms(make(u, u + 1))[0]
    return found


def _form(matrices: Tensor, vectors: Tensor) -> Tensor:
    """v' A v of each matrix, which is lost; faster than a product of a matrix and a vector for each."""
    return matrices.mul_(vectors.unsqueeze(2)).sum(1).mul_(vectors).sum(1)
