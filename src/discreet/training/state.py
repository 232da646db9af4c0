"""What goes on around a run's releases: steps of the optimizer, evaluation, averaging, checkpoints."""

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from discreet.accounting.guarantee import Condition, Guarantee
from discreet.errors import ConfigError
from discreet.release.session import Session
from discreet.training.averaging import Average
from discreet.training.callbacks import Callback
from discreet.training.checkpoint import load_checkpoint, save_checkpoint
from discreet.training.evaluation import evaluate, evaluate_fully, try_evaluation
from discreet.training.options import Loss, Record, TrainingOptions


@dataclass
class FitResult:
    """A trained model, what is proven of it, and what was measured on the way."""

    model: nn.Module
    guarantee: Guarantee
    records: list[Record] = field(default_factory=list)
    finished: bool = True  # False where it was stopped before its plan was spent
    lost: int = 0  # steps that a crash had spent, and that are not repeated
    anchor: str = ""  # the hash of the ledger's last line
    run: str = ""  # the run's own name, which every line of its ledger has
    rests_on: tuple[Condition, ...] = ()  # what was tested of the steps, and what was not

    @property
    def accuracy(self) -> float | None:
        """On held-out data, at the end; None without such data, or where a number is predicted."""
        return self.records[-1].get("accuracy") if self.records else None


class LoopState:
    """A run between its releases.

    It is made before a plan is attached, and says what is wrong with it before anything is counted.
    """

    def __init__(
        self, model: nn.Module, loss: Loss, optimizer: torch.optim.Optimizer, options: TrainingOptions
    ) -> None:
        own = {id(p) for p in model.parameters()}
        if not any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
            raise ConfigError("the optimizer has none of the model's parameters; make it with model.parameters().")
        if options.test is not None:
            try_evaluation(model, options.test, loss)
        self._model, self._loss, self._optimizer, self._options = model, loss, optimizer, options
        self._path = None if options.checkpoint is None else Path(options.checkpoint)
        self.records: list[Record] = []
        self.lost = 0
        self.chunk: int | None = None  # rows that fit into memory, once more did not
        self._private: Session | None = None

    def begin(self, private: Session) -> None:
        """Continue from the checkpoint, if there is one."""
        self._private = private
        private.assume(self._model, self._options.assumes)
        self._check_length_of_schedule(private.plan.steps)
        self._average = Average(self._model, self._options.averaging)
        self._began = self._saved = time.monotonic()
        self._earlier, self._first = 0.0, private.released
        self._resume()
        self._between = max(1, round(self._options.evaluate_every * private.plan.sampling.steps_for(1.0)))
        self._options.on_begin(private.released, private.plan.steps)
        for callback in self._callbacks:
            callback.begin(private.released, private.plan.steps)

    def _check_length_of_schedule(self, steps: int) -> None:
        schedule = self._options.schedule
        most = getattr(schedule, "total_steps", None)  # of OneCycleLR, which raises afterwards
        if isinstance(most, int) and most < steps:
            raise ConfigError(
                f"schedule is {type(schedule).__name__} for {most:,} steps, and the plan has {steps:,}; make it "
                "with total_steps=plan.steps. Nothing was released."
            )

    @property
    def _session(self) -> Session:
        assert self._private is not None
        return self._private

    def released(self) -> bool:
        """A step was released: take it; whether the run is to stop here."""
        private, options = self._session, self._options
        self._optimizer.step()
        if options.schedule is not None:
            options.schedule.step()
        self._average.update()
        options.on_step(private.released)
        for callback in self._callbacks:
            callback.step(private.released)
        if private.released % self._between == 0 and private.remaining:
            self._measure()
        if time.monotonic() - self._saved >= options.checkpoint_every:
            self._save()
        return options.stop()

    def end(self) -> FitResult:
        """The run is over, or was stopped: measure, save, and say what is proven."""
        private = self._session
        if not self.records or self.records[-1]["step"] != private.released:
            self._measure()
        self._save()
        finished = not private.remaining
        if finished:
            self._average.keep()
        proven, rests_on = private.guarantee(), tuple(private.rests_on)
        anchor, run = private.anchor, private.run
        result = FitResult(self._model, proven, self.records, finished, self.lost, anchor, run, rests_on)
        for callback in self._callbacks:
            callback.end(result)
        return result

    @property
    def _callbacks(self) -> Sequence[Callback]:
        """Who is told; of several ranks the first tells."""
        return self._options.callbacks if self._session.writes else ()

    def _measure(self) -> None:
        """Add a record of where the run is."""
        options, record = self._options, self._progress()
        if options.test is not None:
            with self._average.used():
                held_out, rows = options.test, options.evaluate_rows
                if self._session.remaining:
                    record |= evaluate(self._model, held_out, self._loss, rows=rows)
                else:
                    record |= evaluate_fully(self._model, held_out, self._loss, rows=rows, about=options.about)
        self.records.append(record)
        if not self._session.remaining:
            self._save()  # what is told of the end is told of the model that is kept
        options.on_record(record)
        for callback in self._callbacks:
            callback.record(dict(record))

    def _resume(self) -> None:
        if self._path is None or not self._path.exists():
            self.lost = self._session.released
            self._catch_up(self.lost)
            return
        restored = load_checkpoint(
            self._path,
            model=self._model,
            private=self._session,
            optimizer=self._optimizer,
            schedule=self._options.schedule,
        )
        extra = restored.extra
        if not isinstance(extra, dict) or set(extra) - {"own"} != {"records", "average", "seconds", "lost", "chunk"}:
            raise ConfigError(f"{self._path} is no checkpoint of a trained run.")
        self.chunk = extra["chunk"]
        self.records, self.lost = list(extra["records"]), int(extra["lost"]) + restored.lost
        self._average.restore(extra["average"])
        self._catch_up(restored.lost)
        self._earlier, self._first = float(extra["seconds"]), self._session.released

    def _catch_up(self, lost: int) -> None:
        """The schedule goes by releases: those that were lost count."""
        if self._options.schedule is None:
            return
        with warnings.catch_warnings():  # that the optimizer made no step of its own for them is known
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
            for _ in range(lost):
                self._options.schedule.step()

    @property
    def _seconds(self) -> float:
        return self._earlier + time.monotonic() - self._began

    def _progress(self) -> Record:
        """Where the run is."""
        private, sampling = self._session, self._session.plan.sampling
        passed = max(time.monotonic() - self._began, 1e-9)
        spent, limit, unit = private.spent, private.plan.epsilon, sampling.contract().unit
        return {
            "step": private.released,
            "epoch": sampling.epochs_in(private.released),
            "epsilon": spent,
            **({} if limit is None else {"epsilon_left": max(0.0, limit - spent)}),
            "seconds": _coarse(self._seconds),
            f"{unit}s_per_second": _coarse((private.released - self._first) * sampling.batch_size / passed),
            **_clipping_norms(private.learned.get("bound")),
        }

    def _save(self) -> None:
        if self._options.audit is not None:
            self._options.audit.save()
        if self._path is not None:
            extra = {
                "records": self.records,
                "average": self._average.state(),
                "seconds": self._seconds,
                "lost": self.lost,
                "chunk": self.chunk,
            }
            save_checkpoint(
                self._path,
                model=self._model,
                private=self._session,
                optimizer=self._optimizer,
                schedule=self._options.schedule,
                extra=extra,
            )
        self._saved = time.monotonic()


def _coarse(value: float) -> float:
    """Two digits of a time or a speed: more of it would tell how large secret batches were.

    >>> _coarse(1234.5), _coarse(0.0123)
    (1200.0, 0.012)
    """
    return float(f"{value:.2g}")


def _clipping_norms(state: Any) -> Record:
    """The clipping norms that a bound has learned from noisy answers, by part; nothing of any other bound."""
    if not isinstance(state, dict) or not {"parts", "norms"} <= set(state):
        return {}
    parts = ["all parameters"] if len(state["parts"]) == 1 else [", ".join(names) for names in state["parts"]]
    return {"clipping_norms": dict(zip(parts, state["norms"], strict=True))}


__all__ = ["FitResult", "LoopState"]
