"""Membership inference: how well an attacker tells a model's training examples from others, by a score for each.

The scores: the loss alone; LiRA (Carlini et al. 2022), with shadow models that were trained with an example and without
it, or without it alone; RMIA (Zarifzadeh et al. 2024), by comparison with other examples. What comes out is an attack's
success, never a guarantee: a better attack may find more.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, log_ndtr, logsumexp, ndtri
from scipy.stats import rankdata

from discreet._check import check_positive
from discreet.audit.one_run import check_level
from discreet.errors import ConfigError

Reals = npt.NDArray[np.float64]
Coins = npt.NDArray[np.bool_]
FALSE_POSITIVES = (0.001, 0.01)


class Power(Protocol):
    """What a guarantee's trade-off curve has: the most true positives at given false ones."""

    def power(self, false_positives: float) -> float: ...


@dataclass(frozen=True)
class Point:
    """One place on the curve: `true_positives` at a threshold that at most `false_positives` of non-members reach.

    `low` and `high` hold the true positives of that threshold with the stated confidence; `reached` is the share of
    non-members that do reach it, and `most` what that is at most. `allowed` is what a guarantee leaves at `most`.
    """

    false_positives: float
    true_positives: float
    low: float
    high: float
    reached: float
    most: float
    allowed: float | None = None

    @property
    def disproves(self) -> bool:
        """Whether even the lowest true positives are more than is allowed at the highest false ones."""
        return self.allowed is not None and self.low > self.allowed


@dataclass(frozen=True)
class Attack:
    """What an attack by membership achieved: the area under its curve, and its points at few false positives.

    The intervals treat examples as independent. Those of one model are not quite, so a point that disproves a guarantee
    is a reason to look, and the tests of one_run and many_run are the proof.
    """

    name: str
    members: int
    others: int
    auc: float
    low: float
    high: float
    points: tuple[Point, ...]
    level: float

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values, for a run folder's audit.json."""
        points = [
            {
                "false_positives": p.reached,
                "true_positives": p.true_positives,
                "label": f"{self.name} at {100 * p.false_positives:g} % false positives",
            }
            for p in self.points
        ]
        figures = {"attack": self.name, "auc": self.auc, "auc_low": self.low, "auc_high": self.high}
        return figures | {"members": self.members, "others": self.others, "level": self.level, "points": points}


def judge(
    name: str,
    scores: npt.ArrayLike,
    members: npt.ArrayLike,
    *,
    tradeoff: Power | None = None,
    false_positives: Sequence[float] = FALSE_POSITIVES,
    level: float = 0.05,
) -> Attack:
    """How good an attack's scores are, beside what a guarantee's trade-off curve allows.

    Args:
        name: the attack's.
        scores: one for each example, higher for likelier members.
        members: whether each was in the training.
        tradeoff: the guarantee's curve, if there is one to compare with.
        false_positives: rates at which true positives are told.
        level: of the intervals.

    Returns:
        The area under the curve with its interval, and a point for each rate.

    >>> random = np.random.default_rng(0)
    >>> members = np.arange(4000) < 2000
    >>> attack = judge("noise", random.standard_normal(4000) + members, members)
    >>> round(attack.auc, 3), round(attack.low, 3), round(attack.high, 3)  # Phi(1 / sqrt(2)) = 0.760
    (0.756, 0.741, 0.77)
    """
    check_level(level)
    values, coins = np.asarray(scores, np.float64), np.asarray(members, np.bool_)
    if values.ndim != 1 or values.shape != coins.shape or np.isnan(values).any():
        raise ConfigError(
            "an attack has one score for each example, a number, and says of each whether it is a member."
        )
    inside, outside = values[coins], values[~coins]
    if len(inside) < 2 or len(outside) < 2:
        raise ConfigError(
            f"{len(inside)} members and {len(outside)} others; an attack is judged by two of each at least."
        )
    area, low, high = auc(inside, outside, level)
    points = tuple(_point(inside, outside, rate, tradeoff, level) for rate in false_positives)
    return Attack(name, len(inside), len(outside), area, low, high, points, level)


def roc(scores: npt.ArrayLike, members: npt.ArrayLike) -> tuple[Reals, Reals]:
    """False and true positives at every threshold, from none to all: the curve.

    >>> [values.tolist() for values in roc([3.0, 2.0, 1.0], [True, False, True])]
    [[0.0, 0.0, 1.0, 1.0], [0.0, 0.5, 0.5, 1.0]]
    """
    values, coins = np.asarray(scores, np.float64), np.asarray(members, np.bool_)
    order = np.argsort(-values, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(values[order])), len(values) - 1)  # equal scores pass together
    true, false = np.cumsum(coins[order])[ends], np.cumsum(~coins[order])[ends]
    return np.append(0.0, false / max(1, (~coins).sum())), np.append(0.0, true / max(1, coins.sum()))


def auc(inside: Reals, outside: Reals, level: float = 0.05) -> tuple[float, float, float]:
    """The chance that a member scores higher than another, ties counting half, with DeLong's interval.

    The interval is on the logit scale, where it is nearer to normal and stays within (0, 1). Where all pairs agree
    there is no variance to be seen, and it is the exact one of min(m, n) pairs that have nothing in common.
    """
    m, n = len(inside), len(outside)
    both = rankdata(np.concatenate((inside, outside)))
    beaten = (both[:m] - rankdata(inside)) / n  # the share of others that each member beats
    beating = 1 - (both[m:] - rankdata(outside)) / m
    area = float(beaten.mean())
    variance = float(beaten.var(ddof=1) / m + beating.var(ddof=1) / n)
    if variance == 0:
        edge = float(betaincinv(1, min(m, n), 1 - level / 2))
        return area, max(0.0, area - edge), min(1.0, area + edge)
    logit, spread = math.log(area / (1 - area)), math.sqrt(variance) / (area * (1 - area))
    reach = float(-ndtri(level / 2)) * spread
    return area, 1 / (1 + math.exp(reach - logit)), 1 / (1 + math.exp(-reach - logit))


def _point(inside: Reals, outside: Reals, rate: float, tradeoff: Power | None, level: float) -> Point:
    check_positive("false_positives", rate)
    # the threshold is chosen by non-members alone, so members' own interval at it is exact
    ranked = np.sort(outside)[::-1]
    threshold = ranked[min(int(rate * len(ranked)), len(ranked) - 1)]
    right, reached = int((inside > threshold).sum()), int((outside > threshold).sum())
    low, high = interval(right, len(inside), level)
    most = interval(reached, len(outside), level)[1]
    allowed = None if tradeoff is None else tradeoff.power(most)
    return Point(rate, right / len(inside), low, high, reached / len(outside), most, allowed)


def interval(count: int, total: int, level: float) -> tuple[float, float]:
    """Clopper and Pearson's interval for a probability: each end is wrong with chance level / 2 at most.

    >>> [round(end, 4) for end in interval(5, 100, 0.05)]
    [0.0164, 0.1128]
    """
    low = 0.0 if count == 0 else float(betaincinv(count, total - count + 1, level / 2))
    high = 1.0 if count == total else float(betaincinv(count + 1, total - count, 1 - level / 2))
    return low, high


# --- scores ----------------------------------------------------------------------------------------------------------


def by_loss(losses: npt.ArrayLike) -> Reals:
    """The lower the loss, the likelier a member."""
    return -np.asarray(losses, np.float64)


def confidence(logits: npt.ArrayLike, labels: npt.ArrayLike) -> Reals:
    """log p - log(1 - p) of the right label's probability p, from logits [..., classes]: nearly normal over models.

    >>> float(confidence([[2.0, 0.0]], [0])[0])
    2.0
    """
    values, right = np.asarray(logits, np.float64), np.asarray(labels)
    chosen = np.take_along_axis(values, np.broadcast_to(right, values.shape[:-1])[..., None], -1)[..., 0]
    others = np.where(np.arange(values.shape[-1]) == right[..., None], -np.inf, values)
    return chosen - logsumexp(others, axis=-1)


def lira(target: npt.ArrayLike, shadows: npt.ArrayLike, inside: npt.ArrayLike, *, shared: bool = True) -> Reals:
    """The online likelihood ratio: log N(phi; in) - log N(phi; out), with both laws from shadow models.

    Args:
        target: the attacked model's confidence in each example.
        shadows: the shadow models' confidences, [models, examples].
        inside: of the same shape, whether the example was in that model's training.
        shared: take one variance for all examples, which is better below some 64 shadow models.

    Returns:
        A score for each example, higher for likelier members.
    """
    phi, values, coins = _shadows(target, shadows, inside)
    laws = [_normal(values, chosen, shared) for chosen in (coins, ~coins)]
    log_likelihoods = [-0.5 * np.square((phi - mean) / std) - np.log(std) for mean, std in laws]
    return log_likelihoods[0] - log_likelihoods[1]


def lira_offline(target: npt.ArrayLike, shadows: npt.ArrayLike, *, shared: bool = True) -> Reals:
    """The one-sided test by models that never saw the example: log of the chance under them of less confidence."""
    phi, values, coins = _shadows(target, shadows, np.zeros_like(np.asarray(shadows), np.bool_))
    mean, std = _normal(values, ~coins, shared)
    return log_ndtr((phi - mean) / std)


def _shadows(target: npt.ArrayLike, shadows: npt.ArrayLike, inside: npt.ArrayLike) -> tuple[Reals, Reals, Coins]:
    phi, values, coins = np.asarray(target, np.float64), np.asarray(shadows, np.float64), np.asarray(inside, np.bool_)
    if values.ndim != 2 or values.shape != coins.shape or phi.shape != values.shape[1:]:
        raise ConfigError(
            f"shadow models' confidences have shape {values.shape}, their members {coins.shape} and the target "
            f"{phi.shape}; they must be [models, examples] twice and [examples]."
        )
    return phi, values, coins


def _normal(values: Reals, chosen: Coins, shared: bool) -> tuple[Reals, Reals]:
    """Mean and standard deviation of each example's chosen values."""
    counts = chosen.sum(0)
    if counts.min() < 2:
        raise ConfigError(
            f"an example has {counts.min()} shadow models of one kind; each needs two with it and two without it."
        )
    means = np.where(chosen, values, 0.0).sum(0) / counts
    squares = np.square(np.where(chosen, values - means, 0.0)).sum(0)
    variance = np.full_like(means, squares.sum() / (counts - 1).sum()) if shared else squares / (counts - 1)
    return means, np.sqrt(np.maximum(variance, 1e-12))


def rmia(
    target: npt.ArrayLike,
    reference: npt.ArrayLike,
    population_target: npt.ArrayLike,
    population_reference: npt.ArrayLike,
    *,
    gamma: float = 1.0,
    offline: float | None = None,
) -> Reals:
    """The share of a population z that an example x dominates: LR(x, z) = (p(x | model) / p(x)) / (p(z | model) / p(z))
    is at least `gamma`.

    Args:
        target: log-probabilities of the right label by the attacked model, [examples].
        reference: the same by reference models, [models, examples]; p is the mean over them.
        population_target: log-probabilities by the attacked model, [population].
        population_reference: the same by reference models, [models, population].
        gamma: by how much a ratio has to dominate.
        offline: the factor a of models that never saw x, by which p(x) = ((1 + a) p_out(x) + 1 - a) / 2; None if half
            of them saw it.

    Returns:
        A score for each example, higher for likelier members.
    """
    check_positive("gamma", gamma)
    ratios = [
        np.asarray(seen, np.float64) - _mean_probability(np.asarray(others, np.float64), factor)
        for seen, others, factor in ((target, reference, offline), (population_target, population_reference, None))
    ]
    ranked = np.sort(ratios[1])
    if len(ranked) == 0:
        raise ConfigError("RMIA compares with a population of other examples; give at least one.")
    return np.searchsorted(ranked, ratios[0] - math.log(gamma), side="right") / len(ranked)


def _mean_probability(logs: Reals, offline: float | None) -> Reals:
    if logs.ndim != 2 or len(logs) == 0:
        raise ConfigError(
            f"reference models' log-probabilities have shape {logs.shape}; they must be [models, examples]."
        )
    mean = logsumexp(logs, axis=0) - math.log(len(logs))
    return mean if offline is None else np.log(((1 + offline) * np.exp(mean) + 1 - offline) / 2)


def halves(examples: int, models: int, *, seed: int = 0) -> Coins:
    """Who is in the training of which shadow model, [models, examples]: each example in exactly half of the models."""
    if models < 2 or models % 2:
        raise ConfigError(f"{models} shadow models cannot have each example in half of them; take an even number.")
    random = np.random.default_rng(seed)
    return np.argsort(random.random((models, examples)), axis=0) < models // 2
