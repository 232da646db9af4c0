"""The loop of federated training: rounds, evaluation, checkpoints, as `discreet.fit` has them for central training."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from discreet.errors import ConfigError
from discreet.federated.engines import Kind, engine_for
from discreet.federated.local import Local, Loss
from discreet.federated.rounds import Rounds, checked_weights
from discreet.ledger import Ledger
from discreet.stages.plan import Plan
from discreet.training.evaluation import loss_for
from discreet.training.options import Record, Rows, TrainingOptions
from discreet.training.state import FitResult, LoopState


def fit(
    model: nn.Module,
    users: Sequence[tuple[Tensor, Tensor]],
    plan: Plan,
    *,
    local: Local | None = None,
    test: Rows | None = None,
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
    weights: Sequence[float] | Tensor | None = None,
    denominator: float | None = None,
    engine: Kind = "auto",
    ledger: str | Path | Ledger | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 60.0,
    averaging: float = 0.0,
    evaluate_every: float = 1.0,
    evaluate_rows: int = 1000,
    preflight: bool = True,
    seed: int | None = None,
    on_begin: Callable[[int, int], None] = lambda done, steps: None,
    on_step: Callable[[int], None] = lambda step: None,
    on_record: Callable[[Record], None] = lambda record: None,
    stop: Callable[[], bool] = lambda: False,
) -> FitResult:
    """Train a model on users' data by a plan whose units are users, to the end of its rounds.

    Args:
        model: is trained in place.
        users: for each user a pair of tensors, inputs and targets (`Users` makes them); they may differ in length.
        plan: its units are users.
        local: what a user does with the model.
        test: rows to evaluate on.
        loss: one value a row; by default it is chosen by the targets.
        optimizer: the server's. By default it is SGD with learning rate 1, which is FedAvg; any other of torch's, with
            momentum or adaptive, costs nothing more.
        schedule: stepped after each release, and for those that a crash has lost.
        weights: for each user a number from 0 to 1 that the bounded update is multiplied by.
        denominator: with weights, the public total weight of a round, which sums are divided by; by default the number
            of users in a round.
        engine: "vectorised" trains all users of a round in one pass, "loop" one after the other, "auto" the first where
            it makes the same updates.
        ledger: the file that counts what is released.
        checkpoint: a file with the run's state; where it exists, the run continues from it.
        checkpoint_every: seconds between two writes of it.
        averaging: the decay of a running average of the weights, which the model has at the end; 0 for none.
        evaluate_every: rounds between evaluations, in units of passes over the users: 1 is as many rounds as take each
            user once on average.
        evaluate_rows: rows at a time.
        preflight: whether the model is checked first.
        seed: makes draws and noise reproducible, for tests; the guarantee then says that it is broken.
        on_begin: called with the rounds that were done before, and all.
        on_step: called after each round.
        on_record: called with each evaluation.
        stop: asked after each round whether to stop.

    Returns:
        The model's guarantee, and what was measured.

    Raises:
        ConfigError: for what is wrong with the arguments, before anything is counted.
    """
    options = TrainingOptions(
        test=test, loss=loss, optimizer=optimizer, schedule=schedule, ledger=ledger, checkpoint=checkpoint,
        checkpoint_every=checkpoint_every, averaging=averaging, evaluate_every=evaluate_every,
        evaluate_rows=evaluate_rows, preflight=preflight, on_begin=on_begin, on_step=on_step, on_record=on_record,
        stop=stop,
    )  # fmt: skip
    return train_rounds(
        model, users, plan, options, local=local, weights=weights, denominator=denominator, engine=engine, seed=seed
    )


def train_rounds(
    model: nn.Module,
    users: Sequence[tuple[Tensor, Tensor]],
    plan: Plan,
    options: TrainingOptions,
    *,
    local: Local | None = None,
    weights: Sequence[float] | Tensor | None = None,
    denominator: float | None = None,
    engine: Kind = "auto",
    seed: int | None = None,
) -> FitResult:
    """`fit`, with the options of its loop as one value."""
    if not len(users):
        raise ConfigError("there are no users to train on.")
    if isinstance(plan, Plan):
        plan.sampling.check_length(len(users))
    shares = None if weights is None else checked_weights(weights, len(users))
    local = Local() if local is None else local
    example = _example(users)
    loss = options.loss or loss_for((example[0][None], example[1][None]))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0) if options.optimizer is None else options.optimizer
    state = LoopState(model, loss, optimizer, options)
    work = engine_for(engine, model, local, loss, example)
    rounds = Rounds(
        model, plan, options.ledger, denominator=denominator, preflight=options.preflight, seed=seed, engine=work
    )
    try:
        state.begin(rounds)
        while rounds.remaining:
            cohort = rounds.draw(len(users))
            if cohort:
                rounds.train([users[user] for user in cohort], cohort, None if shares is None else shares[cohort])
            rounds.release()
            if state.released():
                break
        return state.end()
    finally:
        rounds.detach()


def _example(users: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """One record, for its shape and type; all users' must be alike, or one's would change how others' are read."""
    first: tuple[Tensor, Tensor] | None = None
    for x, y in users:
        if len(x) != len(y):
            raise ConfigError("a user has inputs and targets of different lengths; one target a record.")
        if not len(x):
            continue
        first = (x[0], y[0]) if first is None else first
        if any(
            (a.shape[1:], a.dtype, a.device) != (b.shape, b.dtype, b.device) for a, b in zip((x, y), first, strict=True)
        ):
            raise ConfigError("users' records differ in shape, type or device; they must all be alike.")
    if first is None:
        raise ConfigError("no user has any records.")
    return first
