"""A loss that the library can call: for a batch, for some of its rows, or for one row in a batch of its own."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from discreet.release.batching import Collate
from discreet.release.preflight.model_state import contents, digests

LossFn = Callable[[Any], Tensor]

OWN = object()  # the mark of losses that the library's own loop computes


@dataclass(frozen=True)
class Rows:
    """How rows are read by their number, and how a batch is made of some; what `collate` held before it made any."""

    row: Callable[[int], Any]
    collate: Collate
    data: Sequence[Any] = ()  # the data set that they are read from, and those that it is made of
    held: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, row: Callable[[int], Any], collate: Collate) -> "Rows":
        """Before any batch is made."""
        data, source = [], getattr(row, "__self__", None)
        while source is not None and all(source is not other for other in data):
            data.append(source)
            source = getattr(source, "dataset", None)
        return cls(row, collate, data, digests(contents({"collate": collate}, data)))

    def batch(self, numbers: Iterable[int]) -> Any:
        """The batch of these rows."""
        return self.collate([self.row(int(number)) for number in numbers])


@dataclass(frozen=True)
class LossOfRows:
    """The losses of rows by their number, under the autocast that was on where the loss was handed over."""

    loss_fn: LossFn
    rows: Rows
    autocast: tuple[tuple[str, torch.dtype], ...]

    def of(self, numbers: Iterable[int]) -> Tensor:
        """Those of some rows in a batch."""
        return self.loss_fn(self.rows.batch(numbers))

    def alone(self, number: int) -> Tensor:
        """That of one row in a batch of its own; of two of it, where the model refuses a batch of one."""
        with ExitStack() as stack:
            for device, dtype in self.autocast:
                stack.enter_context(torch.autocast(device, dtype))
            try:
                return self.of([number])
            except (RuntimeError, ValueError):
                return self.of([number, number])[:1]


def autocast_on(devices: Iterable[str]) -> tuple[tuple[str, torch.dtype], ...]:
    """The devices on which autocast is on, and to which type."""
    on = []
    for device in devices:
        if torch.is_autocast_enabled(device):
            on.append((device, torch.get_autocast_dtype(device)))  # noqa: PERF401 - without a function's call
    return tuple(on)


@contextmanager
def without_autocast(devices: Iterable[tuple[str, torch.dtype]]) -> Generator[None]:
    """Within, nothing is cast: norms and sums are taken in full, wherever a backward pass is asked for."""
    with ExitStack() as stack:
        for device, _ in devices:
            stack.enter_context(torch.autocast(device, enabled=False))
        yield
