"""The filters C^-1 at work on a stream of noise: elementwise, so that shards and shares of noise need nothing else."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence

import torch
from torch import Tensor


class Memory(ABC):
    """Some rows of numbers for each coordinate of each buffer, in the dtype of its noise (float32 at least).

    Rows are kept for the stretches in which a buffer's noise first came; later it may come in other pieces.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._kept: dict[Hashable, list[tuple[int, Tensor]]] = {}

    def filter(self, drawn: Tensor, key: Hashable, first: int) -> None:
        """Turn fresh noise of unit scale into this step's, in place."""
        for noise, rows in self._stretches(drawn, self._kept.setdefault(key, []), first):
            self._step(noise, rows)

    def _stretches(self, drawn: Tensor, kept: list[tuple[int, Tensor]], first: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The parts of a piece, each with its rows."""
        stop, known = first + len(drawn), 0
        for start, rows in kept:
            known = start + rows.shape[1]
            a, b = max(first, start), min(stop, known)
            if a < b:
                yield drawn[a - first : b - first], rows[:, a - start : b - start]
        if stop > known:  # seen for the first time, in order from 0
            if first > known:
                raise ValueError(f"noise from {first} on came before what is from {known} on.")
            at = max(first, known)
            kept.append((at, drawn.new_zeros(self._rows, stop - at)))
            yield drawn[at - first :], kept[-1][1]

    @abstractmethod
    def _step(self, noise: Tensor, rows: Tensor) -> None:
        """Filter a part, and remember it."""

    @abstractmethod
    def advance(self) -> None:
        """The step's noise is complete."""


class BandMemory(Memory):
    """x_t = (scale z_t - c_1 x_(t-1) - c_2 x_(t-2) - ...) / c_0, with the last x in a ring.

    Args:
        coefficients: c, of two bands or more.
        scale: what fresh noise is multiplied by: the length of C's columns, so that noise is in units of it.
    """

    def __init__(self, coefficients: Sequence[float], scale: float) -> None:
        super().__init__(len(coefficients) - 1)
        self._first, self._scale = coefficients[0], scale
        self._tail = torch.tensor(coefficients[1:], dtype=torch.float64) / coefficients[0]
        self._turn = 0  # which row is the oldest, and the next to be written
        self._weights: dict[torch.dtype, Tensor] = {}

    def _step(self, noise: Tensor, rows: Tensor) -> None:
        if noise.dtype not in self._weights:  # of each row, by its age: 1 in the row before the turn
            ages = (self._turn - torch.arange(self._rows) - 1) % self._rows
            self._weights[noise.dtype] = self._tail[ages].to(noise.dtype)
        noise.mul_(self._scale / self._first)
        noise.addmv_(rows.t(), self._weights[noise.dtype], alpha=-1)
        rows[self._turn].copy_(noise)

    def advance(self) -> None:
        self._turn = (self._turn + 1) % self._rows
        self._weights.clear()


class BufferMemory(Memory):
    """x_t = scale z_t - sum of weight_i s_i, and then s_i = decay_i s_i + x_t.

    Args:
        decay: of each buffer.
        weight: of each buffer.
        scale: what fresh noise is multiplied by: the length of C's columns.
    """

    def __init__(self, decay: Sequence[float], weight: Sequence[float], scale: float) -> None:
        super().__init__(len(decay))
        self._scale = scale
        self._decay = torch.tensor(decay, dtype=torch.float64)
        self._weight = torch.tensor(weight, dtype=torch.float64)

    def _step(self, noise: Tensor, rows: Tensor) -> None:
        noise.mul_(self._scale)
        noise.addmv_(rows.t(), self._weight.to(noise.dtype), alpha=-1)
        rows.mul_(self._decay.to(noise.dtype)[:, None]).add_(noise)

    def advance(self) -> None:
        pass
