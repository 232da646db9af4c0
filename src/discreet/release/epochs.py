"""A run's epochs, and batches for a loader of one's own."""

import math
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from discreet._check import check_int
from discreet.release.batching import Collate
from discreet.release.guards import ParameterGuard
from discreet.release.loop import Batches, BatchSampler, Loop
from discreet.release.session import Session
from discreet.stages.plan import Plan


class Epochs:
    """A run's remaining steps, an epoch at a time: as many batches as each example takes part in once, on average."""

    def __init__(self, begin: Callable[[int], Batches], steps: int, left: Callable[[], int]) -> None:
        self._begin, self._steps, self._left = begin, steps, left
        self._count = math.ceil(left() / steps)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Batches]:
        for _ in range(self._count):
            if self._left():
                yield self._begin(self._steps)


class _Drawing(Protocol):
    """A handle that draws batches."""

    plan: Plan
    batches: Callable[..., Batches]

    @property
    def remaining(self) -> int: ...


class Looped(Session):
    """A handle whose batches can be asked for an epoch at a time, or for a loader of one's own."""

    _loop: Loop
    _guard: ParameterGuard

    def epochs(self: _Drawing, data: Any, **options: Any) -> Epochs:
        """The plan's remaining steps in epochs, each an iterable of batches with a `len()`.

        An epoch is as many steps as make an example take part once, on average; the last may be shorter. `options` are
        those of `batches`.

        Args:
            data: as `batches` takes it.
            options: as `batches` takes them.

        Returns:
            The epochs; `len()` of them is how many are left.
        """
        steps = max(1, self.plan.sampling.steps_for(1.0))
        return Epochs(lambda count: self.batches(data, steps=count, **options), steps, lambda: self.remaining)

    def batch_sampler(self, *, steps: int | None = None, ahead: int = 0) -> BatchSampler:
        """A batch sampler for your own DataLoader; give the loader `collate_fn=private.collate(data)` with it.

        Args:
            steps: at most so many steps.
            ahead: how many batches the loader draws before they are used: num_workers times prefetch_factor (2 unless
                you say otherwise). A batch that is skipped is noticed by it.
        """
        self._guard.check()
        return BatchSampler(self._loop, steps, check_int("ahead", ahead, least=0))

    def collate(self, data: Any, collate_fn: Collate | None = None) -> Collate:
        """A collate function for your own DataLoader, for which an empty draw is one padding row.

        Args:
            data: the data set.
            collate_fn: as torch's DataLoader takes it.
        """
        return self._loop.collate(data, collate_fn)
