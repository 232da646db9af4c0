"""From the plan's draws to the chunks that are handed out, one logical batch after the other."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet.distributed.ranks import Shares
from discreet.errors import ConfigError, PrivacyError
from discreet.gradients.forms import squared_norms
from discreet.release.batching import Collate, Draw, parts_of, tensors_of
from discreet.release.collate import side_by_side
from discreet.release.preflight.model_state import contents, digests


@dataclass
class Chunk:
    """A part of one logical batch that has been handed out."""

    step: int
    units: int
    first: bool
    last: bool
    microbatches: npt.NDArray[np.int64] | None = None  # which microbatch each unit belongs to, where there are any
    indices: Draw | None = None  # of its rows
    batch: Any = None  # what was handed out
    leaves: tuple[Any, ...] | None = None  # its parts, the versions of its tensors, and digests
    since: int = 0  # the autograd node that was the newest when it was handed out
    done: bool = False
    doubled: bool = False  # whether its only unit is there twice, and the second counts for nothing
    probed: bool = False  # whether its step is one on which isolation is tested
    beside: bool = False  # whether rows lie side by side in all that the collate function makes

    def part(self, start: int, size: int) -> "Chunk":
        """Some of its rows, as a chunk of their own."""
        assert self.indices is not None
        rows = slice(start, start + size)
        numbers = self.indices[rows]
        first, last = self.first and start == 0, self.last and start + size >= self.units
        mine = None if self.microbatches is None else self.microbatches[rows]
        told: dict[str, Any] = {"since": self.since, "beside": self.side_by_side()}
        return Chunk(self.step, len(numbers), first, last, mine, indices=numbers, **told)

    def note(self, batch: Any, *, digest: bool) -> None:
        """Keep what was handed out, to be compared with what comes back; with digests of its values if asked for."""
        parts = parts_of(batch)
        said = digests(contents({str(i): part for i, part in enumerate(parts)})) if digest else {}
        leaves = []
        for i, part in enumerate(parts):
            leaves.append((part, part._version if isinstance(part, Tensor) else 0, said.get(str(i))))
        self.batch, self.leaves = batch, tuple(leaves)

    def ragged(self) -> bool:
        """Whether rows may lie side by side in what was handed out: it is known, or not as many are there for each."""
        if self.side_by_side():
            return True
        tensors = [leaf for leaf, *_ in self.leaves or () if isinstance(leaf, Tensor)]
        return any(tensor.dim() and len(tensor) % max(1, self.units) for tensor in tensors)

    def side_by_side(self) -> bool:
        """Whether it is known that rows lie side by side in what was handed out."""
        return self.beside or side_by_side(self.batch, self.units)

    def holds(self, batch: Any) -> bool:
        """Whether a batch is what was handed out, not written to since, or one of the same values."""
        assert self.leaves is not None
        if batch is self.batch and type(batch) is tuple and len(batch) == len(self.leaves):  # it has no other parts now
            for part, (leaf, version, digest) in zip(batch, self.leaves, strict=True):
                if part is not leaf or digest is not None or not isinstance(leaf, Tensor) or leaf._version != version:
                    break
            else:
                return True
        leaves = parts_of(batch)
        same = (_same_leaf(leaf, *handed) for leaf, handed in zip(leaves, self.leaves, strict=False))
        return len(leaves) == len(self.leaves) and all(same)


def chunks(
    steps: range,
    draw: Callable[[int], Draw],
    assign: Callable[[int, int], npt.NDArray[np.int64]] | None,
    shares: Shares,
    handed: deque[Chunk],
    *,
    at_most: int | None,
    doubling: bool,
) -> Iterator[Draw]:
    """Each step's draw, in chunks of at most so many rows: the rows that are to be read.

    Args:
        steps: the steps to draw for.
        draw: who takes part in a step.
        assign: which microbatch each of so many units belongs to in a step, if there are any.
        shares: how a draw is split over ranks; all of them have as many chunks.
        handed: where the chunks are put, in order: only rows fit through a loader.
        at_most: the most rows of a chunk.
        doubling: whether a chunk of one unit has it twice: from one alone it cannot be seen where it stands.
    """
    for step in steps:
        indices = draw(step)
        microbatches, most = None if assign is None else assign(len(indices), step), len(indices)
        if shares.size > 1:
            mine, most = shares.split(indices, microbatches)
            indices, microbatches = shares.rows(indices[mine]), None if microbatches is None else microbatches[mine]
        size = max(1, most) if at_most is None else at_most
        starts = range(0, max(1, most), size)  # as many as the rank with the largest share has
        for start in starts:
            part = indices[start : start + size]
            some = None if microbatches is None else microbatches[start : start + size]
            chunk = Chunk(step, len(part), start == 0, start == starts[-1], some, indices=part)
            if doubling and len(part) == 1:
                chunk.units, chunk.doubled, part = 2, True, part.repeat(2)
            handed.append(chunk)
            yield part


class StaticFeatures:
    """Rows that stay as they are, and their squared norms; computed a block at a time, once."""

    def __init__(self, data: Any, collate_fn: Collate | None) -> None:
        tensors = tensors_of(data)
        if tensors is None or collate_fn is not None:
            raise ConfigError("fixed=True is for data in tensors, without a collate_fn; other batches are made anew.")
        self._rows, self._version = tensors[0], tensors[0]._version
        self._norms: Tensor | None = None
        if self._rows.is_floating_point():
            blocks = self._rows.detach().split(max(1, (1 << 24) // max(1, self._rows[0].numel())))
            self._norms = torch.cat([squared_norms(block) for block in blocks])

    def norms(self, chunk: Chunk) -> Tensor | None:
        """Those of a chunk's rows, if there are any, and rows have norms."""
        if self._rows._version != self._version:
            raise PrivacyError(
                "features that were said to be fixed have been written to, so their norms are no longer known; copy "
                "what is to be changed, or leave fixed=True out."
            )
        if self._norms is None or chunk.indices is None or not len(chunk.indices):
            return None
        return self._norms[torch.from_numpy(chunk.indices.repeat(2) if chunk.doubled else chunk.indices)]


def same_values(one: Any, two: Any) -> bool:
    """Whether two batches have the same parts, of the same values."""
    parts, others = parts_of(one), parts_of(two)
    return len(parts) == len(others) and all(_equal_leaf(a, b) for a, b in zip(parts, others, strict=True))


def _same_leaf(given: Any, handed: Any, version: int, digest: Any) -> bool:
    """Whether a part of a batch is what was handed out and not written to since, or a copy of it elsewhere."""
    if isinstance(handed, Tensor) and handed._version != version:
        return False
    if digest is not None and digests(contents({"0": given})).get("0") != digest:
        return False
    return given is handed or _equal_leaf(given, handed)


def _equal_leaf(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        if one.shape != two.shape or one.dtype != two.dtype:
            return False
        one, two = one.detach().cpu(), two.detach().cpu()
        return torch.equal(one, two) or bool(((one == two) | ((one != one) & (two != two))).all())
    try:
        return type(one) is type(two) and bool(np.all(one == two))
    except Exception:
        return False
