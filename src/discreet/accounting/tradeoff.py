"""What a guarantee lets an attacker do: the trade-off curve, and the figures people ask for."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from discreet.errors import ConfigError


@dataclass(frozen=True)
class TradeOff:
    """The errors an attacker must make who tells two neighbouring data sets apart, from points of the delta curve.

    `tradeoff(x)`: whoever accuses the innocent with probability at most x (false positives) misses the guilty with
    probability at least this (false negatives). Every (epsilon, delta) that is proven gives two lines below the true
    curve; the largest of them is proven too.
    """

    points: tuple[tuple[float, float], ...]  # (epsilon, delta)

    def __call__(self, false_positives: float) -> float:
        best = 0.0
        for epsilon, delta in self.points:
            if math.isfinite(epsilon):
                grown = 0.0 if false_positives == 0 else math.exp(min(epsilon + math.log(false_positives), 50.0))
                best = max(best, 1 - delta - grown, math.exp(-epsilon) * (1 - delta - false_positives))
        return best

    def power(self, false_positives: float) -> float:
        """The most true positives at these false positives."""
        return 1 - self(false_positives)

    @property
    def advantage(self) -> float:
        """The most that true positives can exceed false positives by: delta at epsilon 0."""
        return min(1.0, *(math.tanh(e / 2) + (1 - math.tanh(e / 2)) * d for e, d in self.points), 1.0)

    def surprise(self, probability: float) -> float:
        """A privacy loss that is exceeded at most with this probability.

        That is more than the epsilon at delta = probability: a loss above e contributes only 1 - exp(e' - loss) to the
        delta at e'. So P[loss > e] <= delta(e') / (1 - exp(e' - e)) for every e' below e.
        """
        epsilons = [e - math.log1p(-d / probability) for e, d in self.points if d < probability]
        return min(epsilons, default=math.inf)

    def memorisation(self, classes: int) -> float:
        """The most often that a uniformly random label among `classes` can be predicted of its own example (T8)."""
        return self.power(1 / classes)


@dataclass(frozen=True)
class GaussianFit:
    """A trade-off curve beside that of a Gaussian mechanism, mu-GDP: one figure for all of it.

    `mu` is the smallest whose curve allows all that is proven at the points that were computed. Between and beyond them
    the proven curve lies at most `error` below that of `mu`: whoever accuses the innocent with probability x misses the
    guilty with at least Phi(Phi^-1(1 - x) - mu) - error. It lies at most `slack` above it: `mu` says no more than that
    too much.
    """

    mu: float
    error: float
    slack: float


def gaussian_fit(points: tuple[tuple[float, float], ...], cells: int = 40_000) -> GaussianFit:
    """The Gaussian curve beside the curve of proven points (epsilon, delta).

    Both fall, so on a cell [x, y] one is above the other by at most the first at x less the second at y.
    """
    import numpy as np
    from scipy.special import ndtr, ndtri

    finite = [(e, d) for e, d in points if math.isfinite(e) and 0 < d < 1]
    if not finite:
        private = any(d == 0 and e == 0 for e, d in points)
        return GaussianFit(0.0, 0.0, 0.0) if private else GaussianFit(math.inf, 0.0, 0.0)
    mu = max(_mu_above(e, d) for e, d in finite)
    low, high = np.geomspace(1e-15, 0.5, cells // 2), np.geomspace(0.5, 1e-9, cells // 2)
    x = np.concatenate(([0.0], low, 1 - high[1:], [1.0]))
    proven = np.zeros_like(x)
    for e, d in finite:
        proven = np.maximum(proven, np.maximum(1 - d - math.exp(min(e, 700)) * x, math.exp(-e) * (1 - d - x)))
    normal = ndtr(-ndtri(x) - mu)
    error, slack = (float(np.max(one[:-1] - other[1:])) for one, other in ((normal, proven), (proven, normal)))
    return GaussianFit(mu, max(0.0, error) + 1e-12, max(0.0, slack) + 1e-12)


def _mu_above(epsilon: float, delta: float) -> float:
    """The smallest mu whose Gaussian curve is at least `delta` at `epsilon`, from above."""
    from discreet.accounting import gaussian

    low, high = 0.0, 1.0
    while gaussian.delta(high, epsilon) < delta:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian.delta(middle, epsilon) < delta else (low, middle)
    return high


def belief(epsilon: float, prior: float = 0.5) -> float:
    """What an attacker who believed `prior` comes to believe where the privacy loss is `epsilon`.

    >>> round(belief(1.0), 3)
    0.731
    """
    if not 0 < prior < 1:
        raise ConfigError(f"the belief before is {prior!r}; it must be between 0 and 1.")
    odds = epsilon + math.log(prior / (1 - prior))
    return 1 / (1 + math.exp(-odds)) if odds > -700 else 0.0


def deltas_for_curve(delta: float) -> Sequence[float]:
    """The deltas at which a curve is computed: half decades, from near one to below what was asked."""
    lowest = math.floor(2 * math.log10(delta)) - 2
    return sorted({*(10 ** (k / 2) for k in range(lowest, 0)), 0.5, 0.7, delta}, reverse=True)
