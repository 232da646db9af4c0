"""Noise of any law, hidden behind a Gaussian that is proven to be no better (T5 of docs/theory.md)."""

import math
from functools import lru_cache

import numpy as np
from scipy.special import ndtri

from discreet.accounting.events import Law
from discreet.errors import PrivacyError


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
