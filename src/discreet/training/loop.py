"""The loop for those who do not want to write one."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from discreet.distributed.ranks import refuse
from discreet.errors import ConfigError, PrivacyError
from discreet.gradients.engine import MEMORY
from discreet.ledger import Ledger
from discreet.release.attachment import attach
from discreet.release.batching import length_of
from discreet.release.chunk_size import chunk_that_fits, ran_out
from discreet.release.loss_function import OWN
from discreet.release.private import Private
from discreet.stages.plan import Plan
from discreet.training.augmentation import Images
from discreet.training.callbacks import Callback
from discreet.training.evaluation import loss_for
from discreet.training.options import Auditor, Loss, Record, Rows, TrainingOptions
from discreet.training.state import FitResult, LoopState


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
    assumes: Sequence[str] = (),
    callbacks: Sequence[Callback] = (),
) -> FitResult:
    """Train a model by a plan, to the end of its steps; the model itself ends up trained.

    Under torchrun every rank calls it with the same arguments, and they train together; the checkpoint is rank 0's to
    write, and where one rank is to stop, all do. What is wrong with the arguments is said before anything is counted.

    Args:
        model: is trained in place.
        data: a pair of tensors, or a map-style Dataset of pairs.
        plan: what is released, and how often.
        test: held-out data, like `data`; it must be public, or not the same data.
        loss: `loss(outputs, targets)`, one value a row; cross-entropy for whole-number targets, squared error for
            others if not given.
        optimizer: any of torch's on the model's parameters; SGD with learning rate 0.5 if not given.
        schedule: is stepped after each release, and for those that a crash has lost; one that needs a metric is
            refused.
        ledger: where releases are counted: a file, a `Ledger`, or memory if not given.
        checkpoint: a file that is written every `checkpoint_every` seconds and at the end; where it exists, the run
            continues from it.
        checkpoint_every: seconds.
        chunk: rows taken at a time, found by itself if not given; what is released is the same.
        averaging: the decay of a running average of the weights, which the model has at the end.
        augment: changes a batch of inputs at random.
        copies: so many changed copies of each example are averaged before they are bounded.
        evaluate_every: epochs between evaluations, each a record: step, epoch, epsilon so far, seconds, accuracy.
        evaluate_rows: rows evaluated at a time.
        preflight: whether the first batch is probed for what would break the guarantee.
        memory: how much a step may take, as a multiple of an ordinary one; more may be faster.
        on_begin: is told how many steps were released before, and how many there are in all.
        on_step: is told the number of every released step.
        on_record: is told every record.
        stop: is asked after every release.
        audit: puts canaries beside the data, for which the plan must have room (discreet.audit.witness).
        fixed: whether nobody writes to the data's tensors (see `private.batches`): a linear first layer is faster.
        assumes: conditions of the guarantee that are assumed beside, in words.
        callbacks: are told how it goes, as trackers of experiments want it (`discreet.training.Callback`).

    Returns:
        The model, what is proven of it, and its records.

    Raises:
        ConfigError: an argument is wrong, or does not go with another.
        PrivacyError: a loss mixes examples, or the ledger was changed.
        BudgetExhausted: the ledger's cap has no room.
    """
    options = TrainingOptions(
        test=test, loss=loss, optimizer=optimizer, schedule=schedule, ledger=ledger, checkpoint=checkpoint,
        checkpoint_every=checkpoint_every, averaging=averaging, evaluate_every=evaluate_every,
        evaluate_rows=evaluate_rows, preflight=preflight, on_begin=on_begin, on_step=on_step, on_record=on_record,
        stop=stop, chunk=chunk, augment=augment, copies=copies, memory=memory, audit=audit, fixed=fixed,
        assumes=assumes, callbacks=callbacks,
    )  # fmt: skip
    return train_loop(model, data, plan, options)


def train_loop(model: nn.Module, data: Rows, plan: Plan, options: TrainingOptions) -> FitResult:
    """`fit`, with its options as one value."""
    audit = options.audit
    if audit is not None:
        refuse("an audit within a run")
    if isinstance(plan, Plan):
        plan.sampling.check_length(length_of(data) + (0 if audit is None else audit.count))
    loss = options.loss or loss_for(data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5) if options.optimizer is None else options.optimizer
    state = LoopState(model, loss, optimizer, options)
    if options.copies > 1 and plan.mechanism.bound.needs == "outputs":
        raise ConfigError(f"{type(plan.mechanism.bound).__name__} sees each example once; leave copies at 1.")
    declared = None if audit is None else audit.declared.to_dict()
    private = attach(model, plan, options.ledger, preflight=options.preflight, audit=declared, memory=options.memory)
    try:
        augment = options.augment
        state.begin(private)
        own = options.loss is None and (augment is None or type(augment) is Images)
        losses = _BatchLosses(model, loss, options, own=own)
        rows, at_most = data, _chunk(private, model, data, state.chunk, options)
        if audit is not None:
            rows, at_most = audit.join(data, private.released), min(at_most, audit.at_most)
        stopped = False
        while private.remaining and not stopped:
            for batch in private.batches(rows, at_most=at_most, fixed=options.fixed):
                try:
                    if audit is not None:
                        audit.note(*batch)
                    complete = private.backward(losses, batch)
                except (RuntimeError, MemoryError) as error:
                    if not ran_out(error) or at_most == 1:
                        raise
                    if not private.ranks.alone:
                        raise ConfigError(f"{at_most} rows do not fit into a rank's memory; give chunk=.") from error
                    at_most = state.chunk = max(1, min(at_most, len(batch[0])) // 2)
                    if audit is not None:
                        audit.forget()
                    break  # the same batch is taken again in smaller pieces: nothing of it was released
                if complete:
                    if audit is not None:
                        audit.released(private.released - 1)
                    with private.ranks.reported():
                        stopped = state.released()
                    stopped = any(private.ranks.exchange("whether to stop", stopped))
                    if stopped:
                        break
        return state.end()
    finally:
        private.detach()


def _chunk(private: Private, model: nn.Module, data: Rows, last: int | None, options: TrainingOptions) -> int:
    """How many rows are taken at a time: as many as was said, as fitted last time, or as will fit."""
    at_most = last if options.chunk is None else options.chunk
    if at_most is None:
        first = data[0][0]  # one example's inputs: the first of a tensor's rows, or of a dataset's first pair
        at_most = chunk_that_fits(model, torch.as_tensor(first), options.copies, private.plan.sampling.batch_size)
    if private.ranks.alone:
        return at_most
    # each rank has its share of a batch, and perhaps of the machine's memory
    mine = -(-at_most // private.ranks.size) if options.chunk is None else options.chunk
    return min(private.ranks.exchange("how many rows fit", mine))


class _BatchLosses:
    """One loss an example of a batch: of itself, or the mean over its changed copies."""

    def __init__(self, model: nn.Module, loss: Loss, options: TrainingOptions, *, own: bool) -> None:
        self._model, self._loss, self._options = model, loss, options
        self._device = next(model.parameters()).device
        self.own = OWN if own else None
        self.given = () if own else (loss, options.augment)  # what may hold something that nobody knows of

    def __call__(self, batch: Any) -> Tensor:
        inputs, targets, *who = batch
        losses = self._each(inputs.to(self._device), targets.to(self._device))
        audit = self._options.audit
        return losses if audit is None else audit.losses(who[0].to(self._device), losses)

    def _each(self, x: Tensor, y: Tensor) -> Tensor:
        augment, copies = self._options.augment, self._options.copies
        if augment is None:
            return self._loss(self._model(x), y)
        changed = augment(x.repeat_interleave(copies, 0))
        if len(changed) != len(x) * copies:
            raise ConfigError("augment made more or fewer rows than it got; it must change each and keep their order.")
        return self._of_copies(changed, y.repeat_interleave(copies, 0)).view(len(x), copies).mean(1)

    def _of_copies(self, x: Tensor, y: Tensor) -> Tensor:
        losses = self._loss(self._model(x), y)
        if losses.shape != (len(x),):
            raise PrivacyError(
                "there is not one loss for each changed copy, in one dimension; use reduction='none', and sum or "
                "average over everything but the first dimension."
            )
        return losses


__all__ = ["FitResult", "fit", "train_loop"]
