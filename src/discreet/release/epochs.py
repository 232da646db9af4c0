"""A run's epochs."""

import math
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from discreet.release.loop import Batches
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
    """A handle whose batches can be asked for an epoch at a time."""

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
