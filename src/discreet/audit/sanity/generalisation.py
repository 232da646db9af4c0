"""A public stand-in for the private data (paper 003, figures 1b and 1c): accuracy, and its gap to what was trained on.

Under a guarantee with trade-off curve f an example that was trained on is predicted with probability at most 1 - f(t),
if one that was not is with probability t; so the gap is bounded too. For that they must be alike: all examples are
split anew, at random, in each retraining.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from discreet._check import check_int
from discreet.audit.sanity.setting import Pair, Setting, Tell, quiet
from discreet.audit.sanity.verdict import Retrained, Verdict, margin
from discreet.training.evaluation import evaluate


@dataclass(frozen=True)
class Generalisation(Retrained):
    """Accuracy on held-out data and its gap to the training data, with privacy and without."""

    told: ClassVar[str] = "accuracy_over_epochs"  # by (epoch, accuracy) of the first retraining

    gap: float
    plain_gap: float
    epsilon: float
    delta: float
    data: str


def generalisation(
    setting: Setting,
    train: Pair,
    test: Pair,
    *,
    name: str = "the stand-in",
    runs: int = 1,
    tolerance: float = 0.05,
    level: float = 0.05,
    tell: Tell = quiet,
) -> Generalisation:
    """Train on a random part of a stand-in, and compare what was trained on with what was not.

    Args:
        setting: model, plan and optimizers.
        train: of the stand-in; as many rows are trained on as it has.
        test: of the stand-in.
        name: of the stand-in, for the verdict.
        runs: how many times anew.
        tolerance: how far above chance a plan is too weak.
        level: the chance of a false alarm.
        tell: called as tell(what, done, total) while it goes on.

    Returns:
        The verdict, where "chance" is the accuracy on held-out data: what was trained on is to be known no better.
    """
    check_int("runs", runs, least=1)
    setting = setting.resized(len(train[0]), setting.plan.sampling.epochs_in(setting.plan.steps))
    proven = setting.plan.fit_to(setting.make()).guarantee()
    private, seen = [], []
    for i in range(runs):
        mine, others = _split(train, test)
        private.append(
            setting.train(mine, lambda step, steps, i=i: tell(f"{name}, private {i + 1}", step, steps), others)
        )
        seen.append(float(evaluate(private[-1].model, mine)["accuracy"]))
    mine, others = _split(train, test)
    plain = setting.train_plainly(mine, lambda step, steps: tell(f"{name}, without privacy", step, steps), others)
    seen.append(float(evaluate(plain.model, mine)["accuracy"]))
    held_out = sum(run.accuracy for run in private) / runs
    at_most = min(1.0, held_out + margin(runs, level / 2))  # the other half of the level is the verdict's own
    allowed = proven.tradeoff().power(at_most) if np.isfinite(proven.epsilon) else 1.0
    verdict = Verdict(tuple(seen[:-1]), (), held_out, allowed, tolerance, level)
    gaps = sum(seen[:-1]) / runs - held_out, seen[-1] - plain.accuracy
    return Generalisation(verdict, private[0].course, plain.course, *gaps, proven.epsilon, proven.delta, name)


def _split(train: Pair, test: Pair) -> tuple[Pair, Pair]:
    """All examples, split anew: as many to train on as before."""
    x, y = (torch.cat(both) for both in zip(train, test, strict=True))
    order, count = torch.randperm(len(x)), len(train[0])
    mine, others = order[:count], order[count:]
    return (x[mine], y[mine]), (x[others], y[others])
