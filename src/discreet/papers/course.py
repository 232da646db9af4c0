"""One training of a case: private by a plan, or ordinary, on data that has a name."""

import math
import shutil
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet.data import load
from discreet.errors import ConfigError
from discreet.ledger import Ledger
from discreet.papers.experiment import Measured, Place
from discreet.plan import Plan
from discreet.training import OPTIMIZERS, Fitted, evaluate, fit

Pair = tuple[Tensor, Tensor]


@lru_cache(maxsize=4)
def pairs(name: str, limit: int | None = None) -> tuple[Pair, Pair]:
    """The training and the test part of a data set, as tensors."""
    data = load(name) if limit is None else load(name, limit=limit)
    if not isinstance(data.train, tuple) or not isinstance(data.test, tuple):
        raise ConfigError(f"{name} is not held in memory as tensors with a test part.")
    return data.train, data.test


def seeded(make: Callable[[], nn.Module], place: Place) -> nn.Module:
    """A model whose first weights are the seed's."""
    torch.manual_seed(place.seed)
    return make()


def private(
    model: nn.Module,
    train: Pair,
    test: Pair,
    plan: Plan,
    place: Place,
    *,
    optimizer: str = "sgd",
    learning_rate: float = 0.5,
    schedule: Callable[[torch.optim.Optimizer, int], Any] | None = None,
    evaluate_every: float = 1.0,
    preflight: bool = False,
    seen: Pair | None = None,
    **options: Any,
) -> Measured:
    """Train by a plan; `options` are the optimizer's. A case that was killed goes on from its checkpoint, or begins
    anew where more than one step in a hundred is lost: it would be another, shorter training.

    The curve's rows are epoch, accuracy on the test part, the epsilon of the steps so far, and accuracy on `seen`.
    """
    first = {name: value.clone() for name, value in model.state_dict().items()}

    def trained() -> Fitted:
        made = OPTIMIZERS[optimizer](model.parameters(), lr=learning_rate, **options)
        return fit(
            model,
            train,
            plan,
            test=test,
            optimizer=made,
            schedule=None if schedule is None else schedule(made, plan.steps),
            ledger=Ledger(place.folder / "ledger.jsonl", reserve=max(1, plan.steps // 200)),
            checkpoint=place.folder / "checkpoint",
            evaluate_every=evaluate_every,
            evaluate_rows=2000,
            preflight=preflight,
            memory=math.inf,  # the networks are small, and there are many trainings
            on_step=lambda step: place.tell(step, plan.steps),
            on_record=lambda record: record.update(_also(model, seen)),
        )

    fitted = trained()
    if fitted.lost > plan.steps / 100:
        shutil.rmtree(place.folder)
        place.folder.mkdir(parents=True)
        model.load_state_dict(first)
        fitted = trained()
    columns = ("epoch", "accuracy", "epsilon", "seen")
    curve = [[r[c] for c in columns if c in r] for r in fitted.records if "accuracy" in r]
    claims = [c.epsilon for c in fitted.guarantee.claims]
    return {
        "accuracy": curve[-1][1],
        "best": max(row[1] for row in curve),
        "epsilon": fitted.guarantee.epsilon,
        "claimed": claims[0] if claims else None,
        "delta": fitted.guarantee.delta,
        "curve": curve,
    }


def ordinary(
    model: nn.Module,
    train: Pair,
    test: Pair,
    place: Place,
    *,
    epochs: int,
    batch_size: int,
    optimizer: str = "sgd",
    learning_rate: float = 0.1,
    seen: Pair | None = None,
    **options: Any,
) -> Measured:
    """Train without privacy, on shuffled batches; the curve's rows are epoch, accuracy, and accuracy on `seen`."""
    made = OPTIMIZERS[optimizer](model.parameters(), lr=learning_rate, **options)
    x, y = train
    curve: list[list[float]] = []
    for epoch in range(epochs):
        for rows in torch.randperm(len(x)).split(batch_size):
            made.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            made.step()
        curve.append([epoch + 1, evaluate(model, test, rows=2000)["accuracy"], *_also(model, seen).values()])
        place.tell(epoch + 1, epochs)
    return {
        "accuracy": curve[-1][1],
        "best": max(row[1] for row in curve),
        "epsilon": None,
        "claimed": None,
        "curve": curve,
    }


def _also(model: nn.Module, seen: Pair | None) -> dict[str, float]:
    return {} if seen is None else {"seen": evaluate(model, seen, rows=2000)["accuracy"]}
