"""The loop for those who do not want to write one: private steps, evaluation, averaging, checkpoints."""

import inspect
import time
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from discreet._check import check_int, check_positive
from discreet.accounting.guarantee import Condition, Guarantee
from discreet.distributed.ranks import refuse
from discreet.errors import ConfigError, PrivacyError
from discreet.gradients.engine import MEMORY
from discreet.ledger import Ledger
from discreet.release.attachment import attach
from discreet.release.batching import length_of
from discreet.release.chunk_size import chunk_that_fits, ran_out
from discreet.release.loss_function import OWN
from discreet.release.session import Session
from discreet.stages.plan import Plan
from discreet.training.augmentation import Images
from discreet.training.checkpoint import load_checkpoint, save_checkpoint

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


class Auditor(Protocol):
    """Who has rows of its own in a run and takes note of its releases; see discreet.audit.witness."""

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


def fit(
    model: nn.Module,
    data: Rows,
    plan: Plan,
    *,
    test: Rows | None = None,
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
    ledger: str | Path | Ledger | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 60.0,
    chunk: int | None = None,
    averaging: float = 0.0,
    augment: Callable[[Tensor], Tensor] | None = None,
    copies: int = 1,
    evaluate_every: float = 1.0,
    evaluate_rows: int = 1000,
    preflight: bool = True,
    memory: float = MEMORY,
    on_begin: Callable[[int, int], None] = lambda done, steps: None,
    on_step: Callable[[int], None] = lambda step: None,
    on_record: Callable[[Record], None] = lambda record: None,
    stop: Callable[[], bool] = lambda: False,
    audit: Auditor | None = None,
    fixed: bool = False,
) -> FitResult:
    """Train a model by a plan, to the end of its steps; the model itself ends up trained.

    - `data` and `test`: a pair of tensors or a map-style Dataset of pairs; `test` must be public, or other data;
    - `loss(outputs, targets)`: one value a row; cross-entropy for whole-number targets, squared error for others;
    - `optimizer`: any of torch's on the model's parameters, SGD with learning rate 0.5 if not given; `schedule` is
      stepped after each release, and for those that a crash has lost (one that needs a metric is refused);
    - `checkpoint`: a file that is written every `checkpoint_every` seconds and at the end; where it exists, the run
      continues from it;
    - `chunk`: rows taken at a time, found by itself if not given; what is released is the same;
    - `memory`: how much a step may take, as a multiple of an ordinary one; more may be faster;
    - `averaging`: the decay of a running average of the weights, which the model has at the end;
    - `augment` changes a batch of inputs at random; with `copies` > 1 so many changed copies of each example are
      averaged before they are bounded;
    - `evaluate_every`: epochs between evaluations, each a record: step, epoch, epsilon so far, seconds, accuracy;
      `evaluate_rows` are evaluated at a time;
    - `stop()` is asked after every release;
    - `audit` puts canaries beside the data, for which the plan must have room (discreet.audit.witness);
    - `fixed` says that nobody writes to the data's tensors (see `private.batches`): a linear first layer is faster.

    Under torchrun every rank calls it with the same arguments, and they train together; the checkpoint is rank 0's to
    write, and where one rank is to stop, all do.

    What is wrong with the arguments is said before anything is counted.
    """
    check_int("copies", copies, least=1)
    if copies > 1 and augment is None:
        raise ConfigError(f"copies is {copies}, but nothing changes them: they would all be the same; give augment=.")
    if chunk is not None:
        check_int("chunk", chunk, least=1)
    if audit is not None:
        refuse("an audit within a run")
    if audit is not None and augment is not None:
        raise ConfigError("a canary's gradient is no changed copy's; audit a run without augment=.")
    length = length_of(data) + (0 if audit is None else audit.count)
    if isinstance(plan, Plan):
        plan.sampling.check_length(length)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5) if optimizer is None else optimizer
    chosen = loss or loss_for(data)
    course = LoopState(
        model,
        chosen,
        optimizer,
        schedule,
        averaging=averaging,
        test=test,
        evaluate_every=evaluate_every,
        evaluate_rows=evaluate_rows,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        on_begin=on_begin,
        on_step=on_step,
        on_record=on_record,
        stop=stop,
        on_save=(lambda: None) if audit is None else audit.save,
    )
    if copies > 1 and plan.mechanism.bound.needs == "outputs":
        raise ConfigError(f"{type(plan.mechanism.bound).__name__} sees each example once; leave copies at 1.")
    declared = None if audit is None else audit.declared.to_dict()
    private = attach(model, plan, ledger, preflight=preflight, audit=declared, memory=memory)
    ranks = private.ranks
    try:
        own = course.begin(private, own=loss is None and (augment is None or type(augment) is Images))
        losses = _Losses(model, chosen, augment, copies, audit, own=own)
        at_most = (
            chunk
            or course.chunk
            or chunk_that_fits(model, torch.as_tensor(_first(data)[0]), copies, plan.sampling.batch_size)
        )
        if not ranks.alone:  # each has its share of a batch, and perhaps of the machine's memory
            mine = -(-at_most // ranks.size) if chunk is None else chunk
            at_most = min(ranks.exchange("how many rows fit", mine))
        rows: Any = data
        if audit is not None:
            rows, at_most = audit.join(data, private.released), min(at_most, audit.at_most)
        stopped = False
        while private.remaining and not stopped:
            for batch in private.batches(rows, at_most=at_most, fixed=fixed):
                try:
                    if audit is not None:
                        audit.note(*batch)
                    complete = private.backward(losses, batch)
                except (RuntimeError, MemoryError) as error:
                    if not ran_out(error) or at_most == 1:
                        raise
                    if not ranks.alone:
                        raise ConfigError(f"{at_most} rows do not fit into a rank's memory; give chunk=.") from error
                    at_most = course.chunk = max(1, min(at_most, len(batch[0])) // 2)
                    if audit is not None:
                        audit.forget()
                    break  # the same batch is taken again in smaller pieces: nothing of it was released
                if complete:
                    if audit is not None:
                        audit.released(private.released - 1)
                    with ranks.reported():
                        stopped = course.released()
                    stopped = any(ranks.exchange("whether to stop", stopped))
                    if stopped:
                        break
        return course.end()
    finally:
        private.detach()


def evaluate(model: nn.Module, data: Rows, loss: Loss | None = None, *, rows: int = 1000) -> Record:
    """The mean loss on held-out data, and the accuracy where classes are predicted; `rows` at a time."""
    loss = loss or loss_for(data)
    device = next(model.parameters()).device
    dataset = TensorDataset(*data) if isinstance(data, tuple) else data
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    total, right, count, guesses = 0.0, 0, 0, 0
    try:
        with torch.no_grad():
            for inputs, targets in DataLoader(dataset, batch_size=rows):
                outputs, targets = model(inputs.to(device)), targets.to(device)
                total += float(loss(outputs, targets).double().sum())
                count += len(targets)
                if not targets.is_floating_point() and outputs.dim() == targets.dim() + 1:
                    right += int((outputs.argmax(1) == targets).sum())
                    guesses += targets.numel()
    finally:
        for module, training in modes:  # a frozen part that was in eval mode stays there
            module.training = training
    if count == 0:
        raise ConfigError("there is no held-out data to evaluate on.")
    return {"loss": total / count} | ({"accuracy": right / guesses} if guesses else {})


def _try_evaluation(model: nn.Module, test: Rows, loss: Loss) -> None:
    """Refuse held-out data that the model or the loss cannot take, before anything is counted."""
    one: Rows = (test[0][:1], test[1][:1]) if isinstance(test, tuple) else Subset(test, [0])
    try:
        evaluate(model, one, loss)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"the held-out data does not fit the model or the loss: {error}") from error


def loss_for(data: Rows) -> Loss:
    """Cross-entropy where targets are whole numbers, squared error where they are not; one value a row."""
    target = data[1] if isinstance(data, tuple) else torch.as_tensor(data[0][1])
    if not target.is_floating_point():
        return lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="none")

    def squared(outputs: Tensor, targets: Tensor) -> Tensor:
        predicted, wanted = outputs.reshape(len(outputs), -1), targets.reshape(len(targets), -1)
        if predicted.shape != wanted.shape:
            raise ConfigError(
                f"the model predicts {predicted.shape[1]} numbers a row, and there are {wanted.shape[1]} targets; give "
                "it as many outputs."
            )
        return (predicted - wanted).square().mean(1)

    return squared


def _first(data: Rows) -> tuple[Tensor, Any]:
    """One example, for its shape and type."""
    return (data[0][0], data[1][0]) if isinstance(data, tuple) else data[0]


class _Losses:
    """One loss an example of a batch: of itself, or the mean over its changed copies."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        augment: Callable[[Tensor], Tensor] | None,
        copies: int,
        audit: Auditor | None,
        *,
        own: bool,
    ) -> None:
        self._model, self._loss, self._augment, self._copies = model, loss, augment, copies
        self._audit, self._device = audit, next(model.parameters()).device
        self.own = OWN if own else None
        self.given = () if own else (loss, augment)  # what may hold something that nobody knows of

    def __call__(self, batch: Any) -> Tensor:
        inputs, targets, *who = batch
        losses = self._each(inputs.to(self._device), targets.to(self._device))
        return losses if self._audit is None else self._audit.losses(who[0].to(self._device), losses)

    def _each(self, x: Tensor, y: Tensor) -> Tensor:
        if self._augment is None:
            return self._loss(self._model(x), y)
        copies, rows = self._copies, len(x) * self._copies
        changed = self._augment(x.repeat_interleave(copies, 0))
        if len(changed) != rows:
            raise ConfigError("augment made more or fewer rows than it got; it must change each and keep their order.")
        return self._of(changed, y.repeat_interleave(copies, 0)).view(len(x), copies).mean(1)

    def _of(self, x: Tensor, y: Tensor) -> Tensor:
        losses = self._loss(self._model(x), y)
        if losses.shape != (len(x),):
            raise PrivacyError(
                "there is not one loss for each changed copy, in one dimension; use reduction='none', and sum or "
                "average over everything but the first dimension."
            )
        return losses


class _Average:
    """A running average of the weights: what is computed from released weights costs nothing."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._parameters = dict(model.named_parameters())
        self._decay, self._count = decay, 0
        self.weights = {n: p.detach().clone() for n, p in self._parameters.items()} if decay else {}

    @torch.no_grad()
    def update(self) -> None:
        if not self._decay:
            return
        self._count += 1
        decay = min(self._decay, (1 + self._count) / (10 + self._count))  # the first weights are soon forgotten
        for name, weight in self.weights.items():
            weight.lerp_(self._parameters[name], 1 - decay)

    @contextmanager
    def used(self) -> Generator[None]:
        """The model has the averaged weights for a moment."""
        own = {n: p.detach().clone() for n, p in self._parameters.items() if n in self.weights}
        self.keep()
        try:
            yield
        finally:
            for name, weight in own.items():
                self._parameters[name].data.copy_(weight)

    def keep(self) -> None:
        """The model has the averaged weights from now on."""
        for name, weight in self.weights.items():
            self._parameters[name].data.copy_(weight)

    def state(self) -> dict[str, Any]:
        return {"count": self._count, "weights": self.weights}

    def restore(self, state: dict[str, Any]) -> None:
        if set(state["weights"]) != set(self.weights):
            raise ConfigError("the checkpoint was made with another averaging; continue with the same.")
        self._count = int(state["count"])
        for name, weight in state["weights"].items():
            self.weights[name].copy_(weight)


class LoopState:
    """What goes on around a run's releases: steps of the optimizer, evaluation, averaging, checkpoints.

    It is made before a plan is attached, and says what is wrong with it before anything is counted.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        schedule: torch.optim.lr_scheduler.LRScheduler | None,
        *,
        averaging: float,
        test: Rows | None,
        evaluate_every: float,
        evaluate_rows: int,
        checkpoint: str | Path | None,
        checkpoint_every: float,
        on_begin: Callable[[int, int], None],
        on_step: Callable[[int], None],
        on_record: Callable[[Record], None],
        stop: Callable[[], bool],
        on_save: Callable[[], None] = lambda: None,
    ) -> None:
        check_positive("evaluate_every", evaluate_every)
        check_int("evaluate_rows", evaluate_rows, least=1)
        check_positive("checkpoint_every", checkpoint_every, zero=True)
        if not 0 <= averaging < 1:
            raise ConfigError(f"averaging is {averaging!r}; it must be from 0 to below 1.")
        own = {id(p) for p in model.parameters()}
        if not any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
            raise ConfigError("the optimizer has none of the model's parameters; make it with model.parameters().")
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ConfigError(
                "LBFGS evaluates the loss several times a step, each one a release; use another optimizer."
            )
        _check_schedule(schedule)
        if test is not None:
            length_of(test)
            _try_evaluation(model, test, loss)
        self._model, self._loss, self._optimizer, self._schedule = model, loss, optimizer, schedule
        self._averaging = averaging
        self._test, self._evaluate_every, self._rows = test, evaluate_every, evaluate_rows
        self._path, self._every = None if checkpoint is None else Path(checkpoint), checkpoint_every
        self._on_begin, self._on_step, self._on_record, self._stop = on_begin, on_step, on_record, stop
        self._on_save = on_save
        self.records: list[Record] = []
        self.lost = 0
        self.chunk: int | None = None  # rows that fit into memory, once more did not
        self.own = True  # whether every step was made by the library's own loop, loss and augmentation
        self._private: Session | None = None

    def begin(self, private: Session, *, own: bool) -> bool:
        """Continue from the checkpoint, if there is one; whether every step was, and will be, the library's `own`."""
        self._private = private
        self._check_length_of_schedule(private.plan.steps)
        self._average = _Average(self._model, self._averaging)
        self._began = self._saved = time.monotonic()
        self._earlier, self._first = 0.0, private.released
        known = private.released == 0 or (self._path is not None and self._path.exists())
        self._resume()
        self.own &= known and own
        self._between = max(1, round(self._evaluate_every * private.plan.sampling.steps_for(1.0)))
        self._on_begin(private.released, private.plan.steps)
        return self.own

    def _check_length_of_schedule(self, steps: int) -> None:
        most = getattr(self._schedule, "total_steps", None)  # of OneCycleLR, which raises afterwards
        if isinstance(most, int) and most < steps:
            raise ConfigError(
                f"schedule is {type(self._schedule).__name__} for {most:,} steps, and the plan has {steps:,}; make it "
                "with total_steps=plan.steps. Nothing was released."
            )

    @property
    def _handle(self) -> Session:
        assert self._private is not None
        return self._private

    def released(self) -> bool:
        """A step was released: take it; whether the run is to stop here."""
        private = self._handle
        self._optimizer.step()
        if self._schedule is not None:
            self._schedule.step()
        self._average.update()
        self._on_step(private.released)
        if private.released % self._between == 0 and private.remaining:
            self._note()
        if time.monotonic() - self._saved >= self._every:
            self._save()
        return self._stop()

    def end(self) -> FitResult:
        """The run is over, or was stopped: measure, save, and say what is proven."""
        private = self._handle
        if not self.records or self.records[-1]["step"] != private.released:
            self._note()
        self._save()
        if not private.remaining:
            self._average.keep()
        proven, finished = private.guarantee(), not private.remaining
        rests_on = tuple(private.rests_on)
        return FitResult(self._model, proven, self.records, finished, self.lost, private.anchor, private.run, rests_on)

    def _note(self) -> None:
        record = self._record()
        if self._test is not None:
            with self._average.used():
                record |= evaluate(self._model, self._test, self._loss, rows=self._rows)
        self.records.append(record)
        if not self._handle.remaining:
            self._save()  # what is told of the end is told of the model that is kept
        self._on_record(record)

    def _resume(self) -> None:
        if self._path is None or not self._path.exists():
            self.lost = self._handle.released
            self._catch_up(self.lost)
            return
        found = load_checkpoint(
            self._path, model=self._model, private=self._handle, optimizer=self._optimizer, schedule=self._schedule
        )
        extra = found.extra
        if not isinstance(extra, dict) or set(extra) != {"records", "average", "seconds", "lost", "own", "chunk"}:
            raise ConfigError(f"{self._path} is no checkpoint of a trained run.")
        self.own, self.chunk = bool(extra["own"]), extra["chunk"]
        self.records, self.lost = list(extra["records"]), int(extra["lost"]) + found.lost
        self._average.restore(extra["average"])
        self._catch_up(found.lost)
        self._earlier, self._first = float(extra["seconds"]), self._handle.released

    def _catch_up(self, lost: int) -> None:
        """The schedule goes by releases: those that were lost count."""
        if self._schedule is None:
            return
        with warnings.catch_warnings():  # that the optimizer made no step of its own for them is known
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
            for _ in range(lost):
                self._schedule.step()

    @property
    def _seconds(self) -> float:
        return self._earlier + time.monotonic() - self._began

    def _record(self) -> Record:
        """Where the run is."""
        private, sampling = self._handle, self._handle.plan.sampling
        passed = max(time.monotonic() - self._began, 1e-9)
        spent, limit, unit = private.spent, private.plan.epsilon, sampling.contract().unit
        return {
            "step": private.released,
            "epoch": sampling.epochs_in(private.released),
            "epsilon": spent,
            **({} if limit is None else {"epsilon_left": max(0.0, limit - spent)}),
            "seconds": round(self._seconds, 3),
            f"{unit}s_per_second": round((private.released - self._first) * sampling.batch_size / passed, 1),
            **_norms(private.learned.get("bound")),
        }

    def _save(self) -> None:
        self._on_save()
        self._saved = time.monotonic()
        if self._path is None:
            return
        extra = {
            "records": self.records,
            "average": self._average.state(),
            "seconds": self._seconds,
            "lost": self.lost,
            "own": self.own,
            "chunk": self.chunk,
        }
        save_checkpoint(
            self._path,
            model=self._model,
            private=self._handle,
            optimizer=self._optimizer,
            schedule=self._schedule,
            extra=extra,
        )
        self._saved = time.monotonic()


def _check_schedule(schedule: Any) -> None:
    """Refuse a schedule that goes by more than the number of releases."""
    if schedule is None:
        return
    for inner in getattr(schedule, "_schedulers", ()):  # of one that is made of others
        _check_schedule(inner)
    step = getattr(schedule, "step", None)
    if not callable(step):
        raise ConfigError(f"schedule is {schedule!r}; give one of torch.optim.lr_scheduler, made for the optimizer.")
    asked = [
        p.name for p in inspect.signature(step).parameters.values() if p.default is p.empty and p.kind not in _REST
    ]
    if asked:
        raise ConfigError(
            f"schedule is {type(schedule).__name__}, whose every step needs {', '.join(asked)}: it goes by something "
            "measured, and here schedules go by the number of releases. Use another, such as CosineAnnealingLR; or "
            "write the loop with private.batches, and step it by what was measured on public data."
        )


_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _norms(state: Any) -> Record:
    """The clipping norms that a bound has learned from noisy answers, by part; nothing of any other bound."""
    if not isinstance(state, dict) or not {"parts", "norms"} <= set(state):
        return {}
    parts = ["all parameters"] if len(state["parts"]) == 1 else [", ".join(names) for names in state["parts"]]
    return {"clipping_norms": dict(zip(parts, state["norms"], strict=True))}


__all__ = ["FitResult", "LoopState", "evaluate", "fit", "loss_for"]
