"""The distinguishing game, played many times: how well a statistic tells two neighbouring data sets apart.

Half of the games choose a threshold, the other half measure the errors there, so that the choice costs nothing.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, ndtri

from discreet.audit.curves import Curve
from discreet.audit.one_run import check_level
from discreet.errors import ConfigError

Reals = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Errors:
    """What a test's errors are at most, both at once with confidence 1 - level.

    `false_positives` is how often the unit is said to be there and is not, `false_negatives` the other way round.
    """

    false_positives: float
    false_negatives: float
    level: float

    def epsilon(self, delta: float) -> float:
        """What epsilon is at least: (epsilon, delta) allows no test with 1 - b > e^epsilon a + delta, nor with a and b
        exchanged."""
        a, b = self.false_positives, self.false_negatives
        bounds = [math.log((1 - y - delta) / x) for x, y in ((a, b), (b, a)) if 1 - y - delta > 0]
        return max(0.0, *bounds, 0.0)

    @property
    def mu(self) -> float:
        """What mu is at least, if the mechanism is mu-GDP at all: Phi^-1(1 - a) - Phi^-1(b)."""
        return max(0.0, float(-ndtri(self.false_positives) - ndtri(self.false_negatives)))

    def refute(self, curve: Curve) -> bool:
        """Whether the errors are smaller than a trade-off curve allows."""
        return self.false_negatives < curve(self.false_positives)


def epsilon_lower_bound(absent: npt.ArrayLike, present: npt.ArrayLike, delta: float, level: float = 0.05) -> float:
    """What epsilon is at least at `delta`, with confidence 1 - level, from a statistic's values in both worlds.

    Args:
        absent: values of a statistic in games without the unit.
        present: values in games with it.
        delta: of the claim.
        level: the chance that a true claim is rejected.

    >>> games = np.random.default_rng(0).standard_normal((2, 20_000))
    >>> round(epsilon_lower_bound(games[0], games[1] + 1.0, 1e-5), 2)  # 4.38 is the truth, 20,000 games see less
    2.25
    """
    if not 0 <= delta < 1:
        raise ConfigError(f"delta is {delta!r}; it must be from 0 to below 1.")

    def worth(a: Reals, b: Reals) -> Reals:
        return np.log(np.maximum(1 - delta - b, 1e-300) / a).clip(min=np.log(np.maximum(1 - delta - a, 1e-300) / b))

    return _measured(absent, present, level, worth).epsilon(delta)


def mu_lower_bound(absent: npt.ArrayLike, present: npt.ArrayLike, level: float = 0.05) -> float:
    """The mechanism is not mu-GDP for any smaller mu, with confidence 1 - level.

    It is a lower bound on epsilon only on the condition that the true curve is Gaussian, as that of the Gaussian
    mechanism is: `gdp.epsilon(mu, delta)` then.

    >>> games = np.random.default_rng(0).standard_normal((2, 20_000))
    >>> round(mu_lower_bound(games[0], games[1] + 1.0), 2)
    0.93
    """
    return _measured(absent, present, level, lambda a, b: -ndtri(a) - ndtri(b)).mu


def refutes(curve: Curve, absent: npt.ArrayLike, present: npt.ArrayLike, level: float = 0.05) -> bool:
    """Whether a claimed trade-off curve is disproved: `guarantee.tradeoff()`, or a GaussianCurve."""
    grid = np.geomspace(1e-6, 1, 65)  # to choose a threshold by, which need not be exact
    values = [curve(float(x)) for x in grid]
    return _measured(absent, present, level, lambda a, b: np.interp(a, grid, values) - b).refute(curve)


def clopper_pearson(count: npt.ArrayLike, total: int, level: float) -> Reals:
    """What a probability is at most, with confidence 1 - level, if `count` of `total` trials succeeded.

    >>> round(float(clopper_pearson(0, 100, 0.05)), 4)
    0.0295
    """
    counts = np.asarray(count, np.float64)
    return np.where(counts < total, betaincinv(counts + 1, np.maximum(total - counts, 0.5), 1 - level), 1.0)


def _measured(
    absent: npt.ArrayLike, present: npt.ArrayLike, level: float, worth: Callable[[Reals, Reals], Reals]
) -> Errors:
    """The errors on the second half of the games, at the threshold that is worth most on the first half."""
    check_level(level)
    worlds = [_values(absent), _values(present)]
    first, second = ([values[k::2] for values in worlds] for k in (0, 1))
    candidates = []
    for sign in (1.0, -1.0):
        out, inside = (np.sort(sign * values) for values in first)
        thresholds = np.unique(np.concatenate((out, inside)))
        if len(thresholds) > _MOST:
            thresholds = thresholds[np.linspace(0, len(thresholds) - 1, _MOST).astype(np.intp)]
        false, missed = len(out) - np.searchsorted(out, thresholds), np.searchsorted(inside, thresholds)
        share = level / 2 / len(thresholds)  # holds for all of them at once: the best is not one that was lucky
        bounds = clopper_pearson(false, len(out), share), clopper_pearson(missed, len(inside), share)
        worths = worth(*bounds)
        best = int(np.argmax(worths))
        candidates.append((float(worths[best]), sign, float(thresholds[best])))
    _, sign, threshold = max(candidates)
    out, inside = (sign * values for values in second)
    false_positives = clopper_pearson(int((out >= threshold).sum()), len(out), level / 2)
    false_negatives = clopper_pearson(int((inside < threshold).sum()), len(inside), level / 2)
    return Errors(float(false_positives), float(false_negatives), level)


_MOST = 512  # thresholds that are tried


def _values(sample: npt.ArrayLike) -> Reals:
    """The values as numbers; what is no number is larger than any, as it stands out."""
    values = np.asarray(sample, np.float64)
    if values.ndim != 1 or len(values) < 2:
        raise ConfigError("a sample is a row of at least two values, one for each game.")
    return np.where(np.isnan(values), np.inf, values)
