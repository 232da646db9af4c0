"""A loop over a plan's batches: one at a time owns the logical batch that is open."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from discreet._check import check_int
from discreet.distributed.data_digest import SameRows
from discreet.distributed.ranks import Ranks, Shares
from discreet.errors import ConfigError, PrivacyError
from discreet.gradients import Engine
from discreet.gradients.forms import KnownNorms
from discreet.gradients.graph import now
from discreet.release.batching import Collate, Draw, PaddedCollate, length_of, load, reader
from discreet.release.collate import side_by_side
from discreet.release.draws import Chunk, StaticFeatures, chunks
from discreet.release.loss_function import Rows
from discreet.release.microbatches import Microbatches
from discreet.release.private_sum import PrivateSum

_END = object()  # of the batches
NOTHING: AbstractContextManager[None] = nullcontext()


class Batches(Iterator[Any]):
    """What a loop hands out, each once; `len()` is how many logical batches it began with.

    Where batches are handed out in chunks, nobody knows how many there will be: `len()` is then a TypeError, as it is
    of an iterator.
    """

    def __init__(self, batches: Iterator[Any], count: int | None) -> None:
        self._batches, self._count = batches, count

    def __next__(self) -> Any:
        return next(self._batches)

    def __len__(self) -> int:
        if self._count is None:
            raise TypeError("batches that are handed out in chunks (at_most) have no length that is known")
        return self._count


class Loop:
    """Draws the plan's remaining steps, hands their rows out, and knows which chunk is open.

    Args:
        total: the plan at work: it draws who takes part.
        ranks: the processes that train together.
        microbatches: where units are put together a few at a time, if they are.
        doubling: whether a chunk of one unit has it twice.
        check: raises unless the plan is still attached, in this process.
        opened: is told of each chunk that is handed out, and of its batch where that is known.
        forget: forgets whatever was summed.
    """

    def __init__(
        self,
        total: PrivateSum,
        ranks: Ranks,
        microbatches: Microbatches | None,
        engine: Engine,
        *,
        doubling: bool,
        check: Callable[[], None],
        opened: Callable[[Chunk, Any], None],
        forget: Callable[[], None],
    ) -> None:
        self._total, self._ranks, self._microbatches, self._engine = total, ranks, microbatches, engine
        self._doubling, self._check, self._opened, self._forget = doubling, check, opened, forget
        self.open: deque[Chunk] = deque()  # chunks that have been handed out and are not done
        self._iteration, self.count = 0, 0
        self._same_rows = SameRows(ranks)
        self._source: Any = None  # the data a loader of one's own reads, once its collate is made
        self._beside = False  # whether that lays rows side by side
        self.rows: Rows | None = None  # how the data is read
        self.since = now()  # the autograd node that was the newest when the last chunk was done

    # --- which chunk is open -----------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether a chunk has been handed out and is not done."""
        return bool(self.open)

    def current(self) -> Chunk:
        """The chunk whose losses are due."""
        if not self.open:
            self._check()
            raise PrivacyError(
                "there is no open batch: each batch takes one private.backward(losses), and batches come from "
                "private.batches(data)."
            )
        return self.open[0]

    def begin(self) -> int:
        """Forget whatever batch was open: one iteration at a time owns the logical batch."""
        self._iteration += 1
        self.open.clear()
        self._forget()
        return self._iteration

    def reopen(self, chunk: Chunk) -> None:
        """Have this chunk open in place of all others: it, or a part of it, is taken again."""
        self.open.clear()
        self.open.append(chunk)
        self._opened(chunk, None)

    def pieces(self, chunk: Chunk, size: int) -> Iterator[tuple[Chunk, Any]]:
        """A chunk a few rows at a time, each read again."""
        assert self.rows is not None
        self._engine.known_norms = None
        for start in range(0, chunk.units, size):
            piece = chunk.part(start, size)
            assert piece.indices is not None
            self.reopen(piece)
            yield piece, self.rows.batch(piece.indices)
        chunk.done = True

    def done(self, chunk: Chunk) -> None:
        """A chunk's examples are added."""
        chunk.done = True
        self.open.popleft()
        self.since = now()

    # --- drawing and handing out -------------------------------------------------------------------------------------

    def batches(
        self,
        data: Any,
        steps: int | None,
        at_most: int | None,
        collate_fn: Collate | None,
        *,
        fixed: bool,
        sharded: bool,
        **options: Any,
    ) -> Batches:
        """See Private.batches."""
        with self._ranks.reported():
            shares = self._shares(length_of(data), sharded)
            self._total.plan.sampling.check_length(shares.length)
        self._announce(shares.length, steps, at_most, None if sharded else data)
        features = StaticFeatures(data, collate_fn) if fixed else None
        handed: deque[Chunk] = deque()
        draws = self._draw(shares, steps, at_most, handed)
        self.rows = Rows.of(*reader(data, collate_fn))
        loaded = load(data, draws, collate_fn=collate_fn, fixed=fixed, **options)
        left = self._total.remaining if steps is None else min(self._total.remaining, steps)
        return Batches(self._hand_out(loaded, handed, features, self.begin()), None if at_most is not None else left)

    def collate(self, data: Any, collate_fn: Collate | None) -> Collate:
        """A collate function for a loader of one's own, for which an empty draw is one padding row."""
        self._total.plan.sampling.check_length(length_of(data))
        self._source = data
        self.rows = Rows.of(*reader(data, collate_fn))
        made = PaddedCollate(collate_fn or torch.utils.data.default_collate, data[0])
        self._beside = side_by_side(made.padding, 0)
        return made

    def lists(self, steps: int | None, ahead: int) -> Iterator[list[int]]:
        """Lists of indices, for a loader of one's own; see BatchSampler."""
        if self._source is None:
            raise ConfigError(
                "a draw may be empty, of which a DataLoader makes no batch; give it "
                "collate_fn=private.collate(dataset) beside batch_sampler=private.batch_sampler()."
            )
        iteration = self.begin()
        self.since = now()
        shares = self._shares(length_of(self._source), sharded=False)
        self._announce(shares.length, steps, None, self._source)
        handed: deque[Chunk] = deque()
        drawn = self._draw(shares, steps, None, handed)
        while True:
            self._check()
            if iteration != self._iteration:
                raise PrivacyError("this loop was replaced by a later one; use the later one.")
            if len(self.open) > ahead:
                self.begin()
                raise PrivacyError(
                    "a batch was drawn, but private.backward(losses) was not called for it before the next was asked "
                    "for; call it for every batch. If the loader has workers that draw ahead, say how far: "
                    "private.batch_sampler(ahead=num_workers * prefetch_factor)."
                )
            indices = next(drawn, None)
            if indices is None:
                return
            chunk = handed.popleft()
            chunk.since, chunk.beside = self.since, self._beside
            self.open.append(chunk)
            self._opened(chunk, None)
            rows: list[int] = indices.tolist()
            yield rows

    def _shares(self, length: int, sharded: bool) -> Shares:
        """How draws from data of this length (of this rank's own, if `sharded`) are split over the ranks."""
        if not sharded:
            return Shares(self._ranks.rank, self._ranks.size, length)
        if self._microbatches is not None:
            raise ConfigError(
                "microbatches are made of any examples, and with sharded=True an example stays with the rank that has "
                "it; leave one of the two out."
            )
        return Shares(self._ranks.rank, self._ranks.size, *self._ranks.exchange("counting the data", length))

    def _announce(self, length: int, steps: int | None, at_most: int | None, data: Any) -> None:
        """A loop begins, on all ranks alike and from the same `data`; None: each has a part of its own."""
        self.count += 1
        if not self._ranks.alone:
            counted = {"number of examples": length, "steps": steps, "at_most": at_most, "loop": self.count}
            self._ranks.agree("private.batches", counted)
            self._total.rows = "parts" if data is None else self._same_rows.compare(data)

    def _draw(self, shares: Shares, steps: int | None, at_most: int | None, handed: deque[Chunk]) -> Iterator[Draw]:
        """The rows of each chunk to be read; the chunks themselves are put into `handed`."""
        left, first = self._total.remaining, self._total.released
        left = left if steps is None else min(left, check_int("steps", steps, least=0))
        if at_most is not None:
            check_int("at_most", at_most, least=1)
        draw, assign = partial(self._total.draw, shares.length), self._microbatch_of if self._microbatches else None
        planned = range(first, first + left)
        return chunks(planned, draw, assign, shares, handed, at_most=at_most, doubling=self._doubling)

    def _microbatch_of(self, units: int, step: int) -> npt.NDArray[Any]:
        """A secret, uniformly random microbatch for each unit of a draw, each independently."""
        assert self._microbatches is not None
        return self._total.root.stream("microbatches", step).below(self._microbatches.count, units)

    def _hand_out(
        self, loaded: Iterator[Any], handed: deque[Chunk], features: StaticFeatures | None, iteration: int
    ) -> Iterator[Any]:
        while True:
            with NOTHING if self._ranks.alone else self._ranks.reported():
                batch: Any = next(loaded, _END)
            if batch is _END:
                return
            if iteration != self._iteration:
                raise PrivacyError(
                    "this loop was given up: an error ended its batch, or it was replaced by a later call of batches()."
                )
            self._check()
            chunk = handed.popleft()
            norms = None if features is None else features.norms(chunk)
            chunk.since = now()
            self.open.clear()
            self.open.append(chunk)
            self._opened(chunk, batch)
            if norms is not None:
                self._engine.known_norms = KnownNorms(batch if isinstance(batch, Tensor) else batch[0], norms)
            try:
                yield batch
            finally:
                self._engine.known_norms = None
            if iteration == self._iteration and not chunk.done:
                self.begin()
                with self._ranks.reported():
                    raise PrivacyError(
                        f"the batch of step {chunk.step} was handed out, but private.backward(losses) was not called "
                        "for it; call it for every batch, or break out of the loop."
                    )


class BatchSampler:
    """Lists of indices for torch's DataLoader, drawn by the plan's sampler: the remaining steps, once."""

    def __init__(self, loop: Loop, steps: int | None, ahead: int) -> None:
        self._loop, self._steps, self._ahead = loop, steps, ahead

    def __iter__(self) -> Iterator[list[int]]:
        return self._loop.lists(self._steps, self._ahead)
