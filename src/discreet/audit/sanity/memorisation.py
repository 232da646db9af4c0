"""Random labels on random noise (paper 003, figure 1a): whoever predicts them of what was trained on has memorised.

Labels are drawn independently of the images, so nothing but memory tells them. Under a guarantee with trade-off curve f
an example's random label among K is predicted with probability at most 1 - f(1/K) (T8). Beside the examples that are
trained on stand as many that are left out, each by a fair coin: whether the model tells them apart is the one-run test.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch.nn import functional as F

from discreet._check import check_int
from discreet.audit.guessing import count_correct, guess
from discreet.audit.one_run import OneRun
from discreet.audit.sanity.setting import Pair, Setting, Tell, Trained, known, quiet
from discreet.audit.sanity.verdict import Retrained, Verdict
from discreet.stages.sampling import Poisson

_GUESSED = 20  # one in so many is said to have been in, and one to have been out


@dataclass(frozen=True)
class Memorisation(Retrained):
    """What was memorised of random labels, with privacy and without, over epochs and at the end."""

    told: ClassVar[str] = "accuracy_over_epochs"  # by (epoch, accuracy) of the first retraining

    epsilon: float
    delta: float
    examples: int
    noise: float


def memorisation(
    setting: Setting,
    *,
    runs: int = 3,
    tolerance: float = 0.05,
    level: float = 0.05,
    plain: Sequence[Trained] | None = None,
    tell: Tell = quiet,
) -> Memorisation:
    """Train on noise with random labels, and compare with chance and with the guarantee's ceiling.

    Args:
        setting: model, plan and optimizers.
        runs: how many times anew.
        tolerance: how far above chance a plan is too weak.
        level: the chance of a false alarm.
        plain: runs without privacy that were made before; one is made if none are given.
        tell: called as tell(what, done, total) while it goes on.
    """
    check_int("runs", runs, least=1)
    examples = known(setting.plan.sampling)
    proven = setting.plan.fit_to(setting.make()).guarantee()
    private, single = [], []
    for i in range(runs):
        coins, rows = _made_up(setting, examples)
        members = (rows[0][coins], rows[1][coins])
        outcome = setting.train(members, lambda step, steps, i=i: tell(f"noise, private {i + 1}", step, steps))
        private.append(outcome)
        if not bool(coins.all()):
            share = level / 2 / runs  # of the verdict's level
            single.append(_tell_apart(outcome, rows, coins.numpy(), proven.epsilon, proven.delta, share))
    if plain is None:
        plain = [plain_run(setting, tell)]
    verdict = Verdict(
        private=tuple(run.accuracy for run in private),
        plain=tuple(run.accuracy for run in plain),
        chance=1 / setting.classes,
        ceiling=proven.tradeoff().memorisation(setting.classes) if np.isfinite(proven.epsilon) else 1.0,
        tolerance=tolerance,
        level=level,
        single=tuple(single),
    )
    noise = setting.plan.mechanism.noise.scale or 0.0
    courses = private[0].course, plain[0].course
    return Memorisation(verdict, *courses, proven.epsilon, proven.delta, examples, noise)


def plain_run(setting: Setting, tell: Tell = quiet) -> Trained:
    """Train without privacy on noise with random labels."""
    examples = known(setting.plan.sampling)
    _, (x, y) = _made_up(setting, examples)
    rows = x[:examples], y[:examples]
    return setting.train_plainly(rows, lambda step, steps: tell("noise, without privacy", step, steps))


def _made_up(setting: Setting, examples: int) -> tuple[torch.Tensor, Pair]:
    """Noise with random labels, and which of it is trained on: each by a coin, or all where the sampler needs a
    fixed number."""
    by_coins = isinstance(setting.plan.sampling, Poisson)
    count = 2 * examples if by_coins else examples
    coins = torch.rand(count) < 0.5 if by_coins else torch.ones(count, dtype=torch.bool)
    return coins, (torch.randn(count, *setting.shape), torch.randint(setting.classes, (count,)))


@torch.no_grad()
def _tell_apart(outcome: Trained, rows: Pair, coins: Any, epsilon: float, delta: float, level: float) -> OneRun:
    """Guess who was in by the loss: a number of guesses that was fixed before anything was seen."""
    x, y = rows
    outcome.model.eval()
    losses = torch.cat([F.cross_entropy(outcome.model(x[i : i + 500]), y[i : i + 500], reduction="none")
                        for i in range(0, len(x), 500)])  # fmt: skip
    outcome.model.train()
    each = len(x) // _GUESSED
    guesses = guess(-losses.double().nan_to_num(0.0).numpy(), each, each)
    return OneRun(len(x), 2 * each, count_correct(guesses, coins), epsilon, delta, level)
