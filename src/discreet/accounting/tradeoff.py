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
        found = [e - math.log1p(-d / probability) for e, d in self.points if d < probability]
        return min(found, default=math.inf)

    def memorisation(self, classes: int) -> float:
        """The most often that a uniformly random label among `classes` can be predicted of its own example (T8)."""
        return self.power(1 / classes)


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
