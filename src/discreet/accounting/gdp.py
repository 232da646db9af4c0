"""Gaussian differential privacy: the exact curve of a Gaussian query, in closed form."""

import math

from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr


def delta(mu: float, epsilon: float) -> float:
    """The smallest delta at `epsilon` for a query as hard to tell apart as N(0, 1) and N(mu, 1).

    >>> round(delta(1.0, 0.0), 6)
    0.382925
    """
    if mu == 0:
        return 0.0
    return float(ndtr(-epsilon / mu + mu / 2) - math.exp(min(epsilon + log_ndtr(-epsilon / mu - mu / 2), 0.0)))


def epsilon(mu: float, target: float) -> float:
    """The smallest epsilon at delta = `target`, rounded up by 1e-9 of itself."""
    if delta(mu, 0.0) <= target:
        return 0.0

    def excess(value: float) -> float:
        # log-scale difference: both terms of delta may be far below the smallest float
        upper, lower = log_ndtr(-value / mu + mu / 2), value + log_ndtr(-value / mu - mu / 2)
        gap = -math.expm1(min(lower - upper, 0.0))
        return (upper + math.log(gap) if gap > 0 else -math.inf) - math.log(target)

    high = mu * mu / 2 + mu
    while excess(high) > 0:
        high *= 2
    low = 0.0
    return float(brentq(excess, low, high, xtol=1e-300, rtol=1e-12)) * (1 + 1e-9)
