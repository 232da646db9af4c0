"""One training of a case: private by a plan, or ordinary, on data that has a name."""

import math
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet import ConfigError, Plan
from discreet.accounting import cost
from discreet.accounting.events import Event
from discreet.data import load
from discreet.papers.experiment import Measured, Place
from discreet.training import evaluate, fit

Pair = tuple[Tensor, Tensor]
OPTIMIZERS: dict[str, Any] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}
SAVED_EVERY = 45.0  # seconds between checkpoints: what a kill can cost


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
    beside: Sequence[Event] = (),
    chunk: int | None = None,
    **options: Any,
) -> Measured:
    """Train by a plan; `options` are the optimizer's, and `beside` is what else was released of the data.

    A case that was killed goes on from its checkpoint, and takes the steps after it again. A real run never does that:
    what it has released is spent, and its ledger is on disk. Here the data is public, the steps after the checkpoint
    are shown to nobody, and what is measured is a training of exactly the plan's steps.

    The curve's rows are epoch, accuracy on the test part, the epsilon of the steps so far, and accuracy on `seen`.
    """
    chosen = OPTIMIZERS[optimizer](model.parameters(), lr=learning_rate, **options)
    fitted = fit(
        model,
        train,
        plan,
        test=test,
        optimizer=chosen,
        schedule=None if schedule is None else schedule(chosen, plan.steps),
        checkpoint=place.folder / "checkpoint",
        checkpoint_every=SAVED_EVERY,
        evaluate_every=evaluate_every,
        evaluate_rows=2000,
        preflight=preflight,
        chunk=chunk,
        memory=math.inf,  # the networks are small, and there are many trainings
        on_step=lambda step: place.tell(step, plan.steps),
        on_record=lambda record: record.update(_also(model, seen)),
    )
    columns = ("epoch", "accuracy", "epsilon", "seen")
    curve = [[r[c] for c in columns if c in r] for r in fitted.records if "accuracy" in r]
    claims = [c.epsilon for c in fitted.guarantee.claims]
    return {
        "accuracy": curve[-1][1],
        "best": max(row[1] for row in curve),
        "epsilon": cost([plan.event(), *beside], plan.delta).epsilon if beside else fitted.guarantee.epsilon,
        "claimed": claims[0] if claims else None,
        "delta": fitted.guarantee.delta,
        "curve": curve,
        **size_of_run(model, train, plan.sampling.epochs_in(plan.steps), plan.steps),
    }


def size_of_run(model: nn.Module, train: Pair, epochs: float, steps: int) -> dict[str, float]:
    """How large a training was: what is set beside the paper's own size."""
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return {"epochs": epochs, "steps": steps, "examples": len(train[0]), "parameters": parameters}


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
    """Train without privacy, on shuffled batches; the curve's rows are epoch, accuracy, and accuracy on `seen`.

    A case that was killed goes on from its checkpoint.
    """
    chosen = OPTIMIZERS[optimizer](model.parameters(), lr=learning_rate, **options)
    x, y = train
    curve: list[list[float]] = []
    left, done, total, saved = torch.randperm(0), 0, epochs * -(-len(x) // batch_size), time.monotonic()
    checkpoint = place.folder / "checkpoint.pt"
    if checkpoint.is_file():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        chosen.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        left, done, curve = state["left"], state["done"], state["curve"]
    while done < total:
        left = left if len(left) else torch.randperm(len(x))
        rows, left = left[:batch_size], left[batch_size:]
        chosen.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        chosen.step()
        done += 1
        if not len(left):
            epoch = len(curve) + 1
            curve.append([epoch, evaluate(model, test, rows=2000)["accuracy"], *_also(model, seen).values()])
        place.tell(done, total)
        if time.monotonic() - saved > SAVED_EVERY:
            state = {"model": model.state_dict(), "optimizer": chosen.state_dict(), "random": torch.get_rng_state()}
            keep(checkpoint, state | {"left": left, "done": done, "curve": curve})
            saved = time.monotonic()
    return {
        "accuracy": curve[-1][1],
        "best": max(row[1] for row in curve),
        "epsilon": None,
        "claimed": None,
        "curve": curve,
        **size_of_run(model, train, epochs, total),
    }


def keep(path: Path, state: dict[str, Any]) -> None:
    """Write a state of plain values and tensors, whole or not at all."""
    scratch = path.with_name(f".{path.name}")
    torch.save(state, scratch)
    scratch.replace(path)


def _also(model: nn.Module, seen: Pair | None) -> dict[str, float]:
    return {} if seen is None else {"seen": evaluate(model, seen, rows=2000)["accuracy"]}
