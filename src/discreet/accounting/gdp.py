"""Gaussian differential privacy: the exact curve of a Gaussian query, in closed form."""

import math

from scipy.special import log_ndtr, ndtr


def delta(mu: float, epsilon: float) -> float:
    """The smallest delta at `epsilon` for a query as hard to tell apart as N(0, 1) and N(mu, 1).

    >>> round(delta(1.0, 0.0), 6)
    0.382925
    """
    if epsilon == 0:
        return math.erf(mu / math.sqrt(8))
    return float(ndtr(-epsilon / mu + mu / 2) - math.exp(min(epsilon + log_ndtr(-epsilon / mu - mu / 2), 0.0)))


def epsilon(mu: float, target: float) -> float:
    """The smallest epsilon at delta = `target`, rounded up by what the arithmetic may have lost."""
    if delta(mu, 0.0) <= target:
        return 0.0
    if mu > 1e100:
        return math.inf

    def excess(value: float) -> float:
        # log-scale difference: both terms of delta may be far below the smallest float
        upper, lower = log_ndtr(-value / mu + mu / 2), value + log_ndtr(-value / mu - mu / 2)
        gap = -math.expm1(min(lower - upper, 0.0))
        return (upper + math.log(gap) if gap > 0 else -math.inf) - math.log(target)

    low, high = 0.0, mu * mu / 2 + mu
    while excess(high) > 0:
        low, high = high, high * 2
    for _ in range(200):  # bisection, always on the safe side
        middle = (low + high) / 2
        if high - low <= 1e-12 * high or middle in (low, high):
            break
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high * (1 + 1e-9 + 1e-15 / mu)
