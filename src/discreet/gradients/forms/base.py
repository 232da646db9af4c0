"""What a form of one parameter's per-example gradients answers, and what its kernels cost.

A form answers three questions, for units 0..n-1 of a batch: `norms()`, the squared norm of each unit's gradient;
`add_weighted(weights, out)`, which adds the sum of weight * gradient to `out`; `each(start, stop)`, the gradients
themselves. `select(units)` is the same form for some of the units only.

Some forms have several ways to answer, their kernels: `kernels()` names them, with what each would cost, and the
attribute `kernel` says which one `norms()` takes. None of them changes what is released.

A gradient may be a sum of long terms that cancel. Where `add_weighted` adds the terms themselves, `lengths()` bounds
the sum of their lengths for each unit (None: it adds gradients that were made). Units that nearly cancel must be made,
one by one, and measured and added as they were made: their terms would take the others' digits with them, and what is
left of them would not be what was measured. `UnitGradients` sees to that.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

PART_BYTES = 1 << 21  # gradients are made in parts of about this size: in the cache, and where activations were freed
CHUNK_BYTES = 1 << 26  # of the gradients of a chunk of units: few units, and few chunks
ROWS_BYTES = 1 << 23  # of the rows of a chunk of units: the last cache holds them, and chunks are few
CACHE_BYTES = 1 << 25  # what is larger comes from memory each time that it is read
SMALL_BYTES = 1 << 16  # a unit's gradient that is no larger is stored, whatever the plan

# --- kernels ----------------------------------------------------------------------------------------------------------

STORED, CHUNKED = "keep", "chunked"  # of all units at once, while the pass goes by; of a chunk of units, after it
_OLD_NAMES = {"turns": CHUNKED}


@dataclass(frozen=True)
class Kernel:
    """How a form makes gradients, and whether it stores them for the sum ("product", "product+keep").

    `storage` is STORED, CHUNKED, or empty: then norms are taken and the gradients dropped.
    """

    way: str
    storage: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """The kernel that is written so."""
        way, _, storage = text.partition("+")
        return cls(way, _OLD_NAMES.get(storage, storage))

    def __str__(self) -> str:
        return f"{self.way}+{self.storage}" if self.storage else self.way


PRODUCT, GRAM, ROWS = Kernel("product"), Kernel("gram"), Kernel("rows")  # rows: one a unit, where there is a choice


@dataclass(frozen=True)
class Cost:
    """What a kernel costs for one unit: nanoseconds of norm and sum together, and the bytes of the gradient it stores.

    One that stores nothing holds what the gradients are made of.
    """

    time: float
    stored: int = 0


# nanoseconds on one core of a current server, which need to be right only relative to each other
PRODUCT_TIME = 0.018  # a multiplication and addition of a matrix product
RESULT_TIME = 0.4  # a value of a gradient that a batched product writes
NORM_TIME = 0.15  # a value that is squared and summed
SUM_TIME = 0.17  # a value of stored gradients that is added to the weighted sum


def storing_kernels(way: str, made: float, size: int, itemsize: int) -> dict[Kernel, Cost]:
    """The kernels that store the gradients they make, of `size` values each, in `made` nanoseconds.

    One makes those of all units while the backward pass goes by, and frees what they are made of. The other makes them
    when the pass is over, for a chunk of units at a time: they are measured, weighted, added and dropped before the
    next chunk's are made.
    """
    cost = Cost(made + (NORM_TIME + SUM_TIME) * size, size * itemsize)
    return {Kernel(way, STORED): cost, Kernel(way, CHUNKED): cost}


def cheapest_unstored(kernels: dict[Kernel, Cost]) -> Kernel:
    """The fastest of those that store nothing; or, where a unit's gradient is small, of all."""
    return min((k for k, cost in kernels.items() if cost.stored <= SMALL_BYTES), key=lambda k: kernels[k].time)


# --- forms ------------------------------------------------------------------------------------------------------------

Measure = Callable[[Tensor], Tensor]  # what is asked of some units' gradients, a row for each


class PerExampleGrad(ABC):
    """Each unit's gradient of one parameter."""

    units: int
    kernel: Kernel | None = None
    adds_terms: ClassVar[bool] = False  # whether `lengths` may say something

    @abstractmethod
    def norms(self) -> Tensor:
        """The squared norm of each unit's gradient."""

    @abstractmethod
    def add_weighted(self, weights: Tensor, out: Tensor) -> None:
        """Add the sum over units of weight * gradient to `out`."""

    @abstractmethod
    def each(self, start: int, stop: int) -> Tensor:
        """The gradients of units start..stop."""

    @abstractmethod
    def select(self, units: Tensor) -> "PerExampleGrad":
        """The same for some of the units."""

    def lengths(self) -> Tensor | None:
        """For each unit the sum of the lengths of the terms that `add_weighted` adds; None if it adds gradients."""
        return None

    def kernels(self) -> dict[Kernel, Cost]:
        """The ways there are to answer, if there are several."""
        return {}

    def held(self) -> Sequence[Tensor]:
        """The tensors that stay until the sum is taken: for the plan of memory."""
        return ()

    def measured(self, measure: Measure, unit_bytes: int) -> Tensor:
        """What is asked of all gradients, some at a time; a form that knows no better takes one for `unit_bytes`."""
        return torch.cat([measure(self.each(start, stop)) for start, stop in parts(self.units, unit_bytes)])

    def transposed(self) -> "PerExampleGrad | None":
        """The gradients of the transposed matrix, where there is a form for them."""
        return None

    def as_term(self) -> "PerExampleGrad":
        """The form to be added to others of the same parameter."""
        return self

    def joined(self, others: "Sequence[PerExampleGrad]") -> "PerExampleGrad | None":
        """This and others, of the same parameter, as one form; None where there is none for their sum."""
        return None

    @property
    def chunk_bytes(self) -> int:
        """What a unit takes while its chunk is there; 0 for a form that waits for no chunks: it is measured at once."""
        return 0

    @property
    def reads_parameters(self) -> bool:
        """Whether something is asked of autograd that needs the values of parameters."""
        return False

    def narrow(self, start: int, stop: int) -> "PerExampleGrad":
        """A chunk: the form of units start..stop, whose gradients are made once, for norms and sum.

        The whole form answers for all units, at any time; that only takes longer.
        """
        raise TypeError(f"{type(self).__name__} is not taken in chunks.")

    def take_total(self) -> Tensor | None:
        """What chunks have added up without adding it to the sum, if anything."""
        return None


# --- sums -------------------------------------------------------------------------------------------------------------

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
        return squared(torch.linalg.vector_norm(flat, dim=1))
    head = squared(torch.linalg.vector_norm(flat[:, : blocks * 256].unflatten(1, (blocks, 256)), dim=2)).sum(1)
    if blocks * 256 == flat.shape[1]:
        return head
    return head + squared(torch.linalg.vector_norm(flat[:, blocks * 256 :], dim=1))


def squared(lengths: Tensor) -> Tensor:
    """Squares, in place: square_ would go through a general power."""
    return lengths.mul_(lengths)


_DOUBLE = (torch.float64, torch.complex128)


def sum_dtype(dtype: torch.dtype, made: torch.dtype | None = None) -> torch.dtype:
    """Sums are taken in a parameter's dtype, or in float32 where that is shorter; of pairs of these, if it is complex.

    If something was `made` of the parameter, it is that which decides whether they are complex.
    """
    double = dtype in _DOUBLE
    if (dtype if made is None else made).is_complex:
        return torch.complex128 if double else torch.complex64
    return torch.float64 if double else torch.float32


def parts(units: int, unit_bytes: int) -> list[tuple[int, int]]:
    """Ranges of units whose gradients together take about PART_BYTES, as many for each thread."""
    return _ranges(units, PART_BYTES // max(1, unit_bytes))


def chunks(units: int, unit_bytes: int) -> list[tuple[int, int]]:
    """The same for CHUNK_BYTES."""
    return _ranges(units, CHUNK_BYTES // max(1, unit_bytes))


def _ranges(units: int, size: int) -> list[tuple[int, int]]:
    threads = torch.get_num_threads()
    size = min(units, -(-max(1, size) // threads) * threads) or 1
    return [(start, min(units, start + size)) for start in range(0, units, size)]


SHORT = 1e-14  # lengths below it have squares that float32 cannot hold to full accuracy


def row_lengths(tensor: Tensor) -> Tensor:
    """The length of each row, [units, rows, n] to [units, rows], in float64: also where squares would underflow."""
    if not tensor.is_cpu:  # without waiting for whether any is short
        most = tensor.abs().amax(2, keepdim=True).double().clamp(min=torch.finfo(torch.float64).tiny)
        return torch.linalg.vector_norm(tensor / most, dim=2) * most.squeeze(2)
    lengths = torch.linalg.vector_norm(tensor, dim=2).double()
    short = lengths < SHORT
    if bool(short.any()):
        lengths[short] = torch.linalg.vector_norm(tensor[short].double(), dim=1)
    return lengths


class KnownNorms:
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
