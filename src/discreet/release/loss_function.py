"""A loss that the library can call: for a batch, for some of its rows, or for one row in a batch of its own."""

import math
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from discreet.errors import PrivacyError
from discreet.release.batching import Collate

LossFn = Callable[[Any], Tensor]

OWN = object()  # the mark of losses that the library's own loop computes


@dataclass(frozen=True)
class Rows:
    """How rows are read by their number, and how a batch is made of some."""

    row: Callable[[int], Any]
    collate: Collate

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


def check_losses(losses: Tensor, rows: int) -> None:
    """Raise unless there is one loss for each row."""
    if not isinstance(losses, Tensor) or losses.shape != (rows,) or not losses.is_floating_point():
        raise PrivacyError(  # without the number of rows: how many were drawn is private
            f"the losses {_in_words(losses)}; one loss for each row of the batch is needed. Use reduction='none', "
            "and sum or average over everything but the first dimension."
        )


def _in_words(losses: Any) -> str:
    """What is wrong with losses, without a size."""
    if not isinstance(losses, Tensor):
        return f"are {type(losses).__name__} and no tensor"
    if not losses.is_floating_point():
        return f"are {losses.dtype}"
    if losses.dim() == 1:
        return "have shape (n,), and n is not the number of rows"
    return f"have {losses.dim()} dimensions" if losses.dim() else "have shape ()"


def finite(losses: Tensor) -> Tensor | None:
    """Which losses are finite, or None: all of them."""
    return None if math.isfinite(losses.sum().item()) else losses.isfinite()
