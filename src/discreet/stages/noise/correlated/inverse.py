"""Strategies whose inverse is banded: noise is a sum of the last few draws. C is full, so sampling does not amplify."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from discreet._check import check_int
from discreet.errors import ConfigError
from discreet.stages.noise.correlated.banded import square_root
from discreet.stages.noise.correlated.sensitivity import ONCE, Pattern
from discreet.stages.noise.correlated.toeplitz import ByColumns, Error, checked, cut, divide, unit

Reals = npt.NDArray[np.float64]


@dataclass(frozen=True)
class BandedInverse(ByColumns):
    """C^-1 is Toeplitz with these coefficients, and no others: a step's noise is h_0 z_t + h_1 z_(t-1) + ...

    >>> BandedInverse((1.0, -0.5)).column(4)
    array([1.   , 0.5  , 0.25 , 0.125])
    """

    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficients", checked(self.coefficients))

    def column(self, steps: int) -> Reals:
        return divide(self.coefficients, unit(steps))

    def inverse(self, steps: int) -> Reals:
        return cut(self.coefficients, steps)


def bisr(steps: int, bands: int) -> BandedInverse:
    """The banded inverse square root (Kalinin et al. 2025): the first coefficients of 1, -1/2, -1/8, -1/16, ...

    >>> bisr(100, 4).coefficients
    (1.0, -0.5, -0.125, -0.0625)
    """
    root = np.asarray(square_root(steps, check_int("bands", bands, least=1)).coefficients)
    return BandedInverse((1.0, *np.diff(root).tolist()))


@lru_cache(maxsize=64)
def optimised_inverse(steps: int, bands: int, pattern: Pattern = ONCE, kind: Error = "rms") -> BandedInverse:
    """BandInvMF: the banded inverse with the smallest loss for SGD's prefix sums, for a pattern of participation."""
    from scipy.optimize import minimize

    start = np.asarray(bisr(steps, min(bands, steps)).coefficients[1:])
    if not len(start):
        return BandedInverse((1.0,))

    def objective(tail: Reals) -> float:
        strategy = BandedInverse((1.0, *tail.tolist()))
        with np.errstate(all="ignore"):
            loss = strategy.sensitivity(steps, pattern) * strategy.error(steps, kind=kind)
        return math.log(loss) if math.isfinite(loss) and loss > 0 else 1e6

    first = minimize(objective, start, method="L-BFGS-B", options={"maxiter": 1000, "ftol": 1e-14})
    return BandedInverse(
        (
            1.0,
            *(
                first
                if first.fun < objective(start)
                else minimize(
                    objective, start, method="Nelder-Mead", options={"maxiter": 4000, "xatol": 1e-8, "fatol": 1e-13}
                )
            ).x.tolist(),
        )
    )


def lambda_cgd(steps: int, pattern: Pattern = ONCE, share: float | None = None) -> BandedInverse:
    """DP-lambda-CGD: each step takes back one share of the last step's draw; the best, if none is given."""
    if share is not None:
        if not 0 <= share < 1:
            raise ConfigError(f"the share is {share!r}; it must be from 0 to below 1.")
        return BandedInverse((1.0, -share))
    from scipy.optimize import minimize_scalar

    def objective(logit: float) -> float:
        strategy = BandedInverse((1.0, -1 / (1 + math.exp(-logit))))
        return math.log(strategy.sensitivity(steps, pattern) * strategy.error(steps))

    best = minimize_scalar(objective, bounds=(-6.0, 12.0), method="bounded", options={"xatol": 1e-9})
    return BandedInverse((1.0, -1 / (1 + math.exp(-float(best.x)))))
