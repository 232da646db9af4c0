"""The options of a training run as one frozen value, and what they are made of."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset

from discreet._check import check_int, check_positive
from discreet.errors import ConfigError
from discreet.gradients.engine import MEMORY
from discreet.ledger import Ledger
from discreet.release.batching import length_of
from discreet.training.callbacks import Callback
from discreet.training.callbacks import check as check_callback
from discreet.training.merit import HeldOut

Rows = tuple[Tensor, Tensor] | Dataset[Any]
Loss = Callable[[Tensor, Tensor], Tensor]
Record = dict[str, Any]

OPTIMIZERS: dict[str, Any] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}
_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Auditor(Protocol):
    """Has rows of its own in a run and takes note of its releases; see discreet.audit.witness."""

    @property
    def declared(self) -> Any: ...
    @property
    def count(self) -> int: ...
    @property
    def at_most(self) -> int: ...
    def join(self, data: Rows, released: int) -> Any: ...
    def losses(self, who: Tensor, losses: Tensor) -> Tensor: ...
    def note(self, inputs: Tensor, targets: Tensor, who: Tensor) -> None: ...
    def forget(self) -> None: ...
    def released(self, step: int) -> None: ...
    def save(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How a run is trained, beside its model, data and plan; `discreet.fit` describes each option.

    `about` says what held-out rows are called, for the figures of the end.

    Values that cannot be are refused when the options are made. Those from `chunk` to `fixed` are for central training:
    federated training, whose users take their own batches, ignores them.
    """

    test: Rows | None = None
    loss: Loss | None = None
    optimizer: torch.optim.Optimizer | None = None
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None
    ledger: str | Path | Ledger | None = None
    checkpoint: str | Path | None = None
    checkpoint_every: float = 60.0
    averaging: float = 0.0
    evaluate_every: float = 1.0
    evaluate_rows: int = 1000
    preflight: bool = True
    on_begin: Callable[[int, int], None] = lambda done, steps: None
    on_step: Callable[[int], None] = lambda step: None
    on_record: Callable[[Record], None] = lambda record: None
    stop: Callable[[], bool] = lambda: False
    assumes: Sequence[str] = ()
    chunk: int | None = None
    augment: Callable[[Tensor], Tensor] | None = None
    copies: int = 1
    memory: float = MEMORY
    audit: Auditor | None = None
    fixed: bool = False
    about: HeldOut | None = None
    callbacks: Sequence[Callback] = ()

    def __post_init__(self) -> None:
        for callback in self.callbacks:
            check_callback(callback)
        check_int("copies", self.copies, least=1)
        if self.copies > 1 and self.augment is None:
            raise ConfigError(
                f"copies is {self.copies}, but nothing changes them: they would all be the same; give augment=."
            )
        if self.chunk is not None:
            check_int("chunk", self.chunk, least=1)
        if self.audit is not None and self.augment is not None:
            raise ConfigError("a canary's gradient is no changed copy's; audit a run without augment=.")
        check_positive("evaluate_every", self.evaluate_every)
        check_int("evaluate_rows", self.evaluate_rows, least=1)
        check_positive("checkpoint_every", self.checkpoint_every, zero=True)
        if not 0 <= self.averaging < 1:
            raise ConfigError(f"averaging is {self.averaging!r}; it must be from 0 to below 1.")
        if isinstance(self.optimizer, torch.optim.LBFGS):
            raise ConfigError(
                "LBFGS evaluates the loss several times a step, each one a release; use another optimizer."
            )
        _check_schedule(self.schedule)
        if self.test is not None:
            length_of(self.test)


def _check_schedule(schedule: Any) -> None:
    """Refuse a schedule that goes by more than the number of releases."""
    if schedule is None:
        return
    for inner in getattr(schedule, "_schedulers", ()):  # of one that is made of others
        _check_schedule(inner)
    step = getattr(schedule, "step", None)
    if not callable(step):
        raise ConfigError(f"schedule is {schedule!r}; give one of torch.optim.lr_scheduler, made for the optimizer.")
    needed = [
        p.name for p in inspect.signature(step).parameters.values() if p.default is p.empty and p.kind not in _REST
    ]
    if needed:
        raise ConfigError(
            f"schedule is {type(schedule).__name__}, whose every step needs {', '.join(needed)}: it goes by something "
            "measured, and here schedules go by the number of releases. Use another, such as CosineAnnealingLR; or "
            "write the loop with private.batches, and step it by what was measured on public data."
        )


__all__ = ["OPTIMIZERS", "Auditor", "Loss", "Record", "Rows", "TrainingOptions"]
