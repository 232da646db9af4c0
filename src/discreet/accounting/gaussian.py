"""Gaussian differential privacy: the exact curve of a Gaussian query, and noise of any law hidden behind one."""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr, ndtri

from discreet.accounting.events import Law
from discreet.errors import PrivacyError


def delta(mu: float, epsilon: float) -> float:
    """The smallest delta at `epsilon` for a query as hard to tell apart as N(0, 1) and N(mu, 1).

    >>> round(delta(1.0, 0.0), 6)
    0.382925
    """
    if epsilon == 0:
        return math.erf(mu / math.sqrt(8))
    upper, lower = log_ndtr(-epsilon / mu + mu / 2), epsilon + log_ndtr(-epsilon / mu - mu / 2)
    return float(math.exp(upper) * -math.expm1(min(lower - upper, 0.0)) * (1 + 1e-14 / mu))


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


def mu(value: float, target: float) -> float:
    """The hardest query, as N(0, 1) and N(mu, 1) are told apart, whose epsilon at delta = `target` is at most `value`.

    >>> round(mu(3.0, 1e-5), 3)
    0.719
    """
    low, high = 0.0, 1.0
    while epsilon(high, target) <= value:
        low, high = high, high * 2
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon(middle, target) <= value else (low, middle)
    return low


def mixture_epsilon(weights: Sequence[float], mus: Sequence[float], target: float) -> float:
    """The smallest epsilon at which the average of several Gaussian curves is `target` (T7 of docs/theory.md)."""
    parts = [(w, m) for w, m in zip(weights, mus, strict=True) if w > 0 and m > 0]
    missing = 1 - sum(weights)  # mass that was left out counts in full
    target = target * (1 - 1e-9) - max(0.0, missing)
    if target <= 0:
        return math.inf

    def excess(value: float) -> float:
        return sum(w * delta(m, value) for w, m in parts) - target

    if excess(0.0) <= 0:
        return 0.0
    low, high = 0.0, 1.0
    while excess(high) > 0:
        low, high = high, high * 2
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high


@lru_cache(maxsize=64)
def gaussian_rate(law: Law) -> float:
    """rho such that a shift of this noise by tau is at least as well hidden as a shift of N(0, 1) by rho * tau.

    With J(u) the most that a set of mass u can gain by an infinitesimal shift, and g the same for the Gaussian,
    rho = sup J / g. Both are concave and symmetric about 1/2, so on a grid the supremum is at most the largest
    J(u[i+1]) / g(u[i]); below the grid it is at most the largest score / |quantile|. That is what is returned: a
    certificate, not an estimate.

    >>> from discreet.noise import StudentT
    >>> round(gaussian_rate(StudentT(9)) / math.sqrt(StudentT(9).fisher), 4)
    1.0655
    """
    if law.gaussian:
        return 1.0
    largest = law.largest_score
    if not math.isfinite(largest):
        raise PrivacyError(
            f"no Gaussian is proven to dominate {type(law).__name__} noise, whose score is unbounded; use a bound on "
            "every coordinate (an envelope), or another noise."
        )
    mass, gain = law.profile()
    quantile = ndtri(mass)
    gaussian = np.exp(-0.5 * quantile**2) / math.sqrt(2 * math.pi)
    certified = max(float((gain[1:] / gaussian[:-1]).max()), largest / -float(quantile[0]))
    return certified * (1 + 1e-9)
