"""BLT, buffered linear Toeplitz strategies (Dvijotham et al. 2024): a few decaying buffers, for runs of any length."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from discreet._check import check_int
from discreet.errors import ConfigError
from discreet.stages.noise.correlated.sensitivity import ONCE, Pattern
from discreet.stages.noise.correlated.toeplitz import ByColumns, Error, checked, weights

Reals = npt.NDArray[np.float64]


@dataclass(frozen=True)
class BLT(ByColumns):
    """c_0 = 1 and c_j = sum over buffers i of weight_i * decay_i^(j-1).

    >>> BLT(decay=(0.5,), weight=(0.25,)).column(4)
    array([1.    , 0.25  , 0.125 , 0.0625])
    """

    decay: tuple[float, ...]
    weight: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("decay", "weight"):
            given = getattr(self, name)
            object.__setattr__(self, name, checked((1.0, *given))[1:] if hasattr(given, "__iter__") else checked(given))
        if len(self.decay) != len(self.weight):
            raise ConfigError(f"there are {len(self.decay)} decays and {len(self.weight)} weights; one a buffer.")
        if not all(0 <= decay < 1 for decay in self.decay):
            raise ConfigError(f"decays are {self.decay!r}; they must be from 0 to below 1.")

    def column(self, steps: int) -> Reals:
        return _column(np.asarray(self.decay), np.asarray(self.weight), steps)

    def inverse(self, steps: int) -> Reals:
        """The first column of C^-1: x_t = z_t - sum of weight_i s_i, and s_i = decay_i s_i + x_t."""
        decay, weight = np.asarray(self.decay), np.asarray(self.weight)
        values, vectors = np.linalg.eig(np.diag(decay) - np.outer(np.ones(len(decay)), weight))
        if len(decay) and np.linalg.cond(vectors) < 1e6:
            weights_of_inverse = -weight @ vectors * np.linalg.solve(vectors, np.ones(len(decay)))
            return np.real(_column(values, weights_of_inverse, steps))
        state, out = np.zeros(len(decay)), np.zeros(steps)
        for t in range(steps):
            out[t] = (t == 0) - weight @ state
            state = decay * state + out[t]
        return out


def _column(decay: npt.NDArray[Any], weight: npt.NDArray[Any], steps: int) -> npt.NDArray[Any]:
    powers = np.asarray(decay)[:, None] ** np.arange(max(0, steps - 1))
    return np.concatenate(([1.0], np.asarray(weight) @ powers))[:steps]


@lru_cache(maxsize=64)
def optimised_blt(steps: int, buffers: int, pattern: Pattern = ONCE, kind: Error = "rms") -> BLT:
    """The BLT of so many buffers with the smallest loss for SGD's prefix sums.

    The decays of C and of C^-1 interlace; they are the running products of numbers between 0 and 1, so that nothing
    can leave the region in which the weights are positive and both filters are stable.
    """
    check_int("steps", steps, least=1)
    check_int("buffers", buffers, least=1, most=20)
    if pattern.times(steps) >= steps:  # who takes part in every step gains nothing
        return BLT((0.0,) * buffers, (0.0,) * buffers)
    from scipy.optimize import minimize

    measure = _Measure(steps, pattern, kind)

    def objective(logits: Reals) -> float:
        both = _interlaced(logits)
        return math.inf if both is None else math.log(measure(*both))

    best: tuple[float, Reals] = (math.inf, np.zeros(2 * buffers))
    for spacing in (0.5, 0.7, 0.85, 1.0, 1.15, 1.4):
        farthest = 0.7 ** (1 / spacing)
        away = np.geomspace(min((1 / steps) ** min(1.0, spacing), farthest / 3), farthest, 2 * buffers)
        decays = 1 - np.clip(away, 1e-9, 0.95)
        ratios = np.concatenate((decays[:1], decays[1:] / decays[:-1]))
        start = np.log(ratios / (1 - ratios))
        with np.errstate(all="ignore"):
            local = minimize(objective, start, method="L-BFGS-B", options={"maxiter": 300, "ftol": 1e-12})
        if local.fun < best[0]:
            best = float(local.fun), local.x
    with np.errstate(all="ignore"):
        last = minimize(
            objective,
            best[1],
            method="Nelder-Mead",
            options={"maxiter": 2000 * buffers, "maxfev": 2000 * buffers, "xatol": 1e-9, "fatol": 1e-15},
        )
    both = _interlaced(last.x)
    assert both is not None
    decay, weight = both[0], _weights(*both)
    return BLT(tuple(decay.tolist()), tuple(weight.tolist()))


def _interlaced(logits: Reals) -> tuple[Reals, Reals] | None:
    """The decays of C and of its inverse; None where two of them are too close."""
    decays = np.cumprod(1 / (1 + np.exp(-logits)))
    gaps = np.diff(np.concatenate(([1.0], decays, [0.0])))
    if not np.all(np.isfinite(decays)) or np.any(-gaps < 1e-7):
        return None
    return decays[0::2], decays[1::2]


def _weights(own: Reals, other: Reals) -> Reals:
    """The weights of the strategy with these decays, whose inverse has the others."""
    between = own[:, None] - own
    np.fill_diagonal(between, 1.0)
    return np.prod(own[:, None] - other, axis=1) / np.prod(between, axis=1)


class _Measure:
    """The squared loss in closed form: geometric series in place of sums over the steps."""

    def __init__(self, steps: int, pattern: Pattern, kind: Error) -> None:
        self._steps, self._kind, self._apart = steps, kind, pattern.separation
        self._times = pattern.times(steps)
        if self._times <= 1:
            self._apart, self._times = steps, 1
        weights(1, kind)  # that it is known

    def __call__(self, decay: Reals, inverse: Reals) -> float:
        return self._squared(decay, _weights(decay, inverse)) * self._error(inverse, _weights(inverse, decay))

    def _squared(self, decay: Reals, weight: Reals) -> float:
        """The squared sensitivity: the steps come in stretches of `apart`, each begun by a participation."""
        stretches, apart = np.arange(-(-self._steps // self._apart)), self._apart
        youngest = np.maximum(0, stretches - self._times + 1)  # ages of participations, in stretches
        count = np.minimum(stretches + 1, self._times)
        log = np.log(decay)[:, None]
        one = -np.expm1(apart * log)
        # within a stretch, buffer i's part is weight_i decay_i^(place - 1) times the sum of decay_i^(apart age)
        sums = weight[:, None] * np.exp(youngest * apart * log) * -np.expm1(count * apart * log) / one
        lengths = np.full(len(stretches), apart - 1)
        lengths[-1] = self._steps - 1 - stretches[-1] * apart
        inner = _geometric((decay[:, None] * decay)[:, :, None], lengths)
        # where it begins, a participation of age 0 counts 1, and one of another age decay^(apart age - 1)
        since = np.maximum(1, youngest)
        later = np.exp((since * apart - 1) * log) * -np.expm1((stretches - since + 1) * apart * log) / one
        begins = (youngest == 0) + (weight[:, None] * later).sum(0)
        return float((sums[:, None] * sums * inner).sum() + np.square(begins).sum())

    def _error(self, decay: Reals, weight: Reals) -> float:
        """The squared error of prefix sums: coefficient j of A C^-1 is `limit - sum of part_i decay_i^j`."""
        part = weight / (1 - decay)
        limit = 1 + part.sum()
        series = self._series
        pairs = series(decay[:, None] * decay)
        return float(limit**2 * series(np.ones(1))[0] - 2 * limit * part @ series(decay) + part @ pairs @ part)

    def _series(self, ratio: Reals) -> Reals:
        """The sum over steps of w_j ratio^j."""
        n, short = self._steps, 1 - ratio
        near = n * short < 1e-4
        safe = np.where(near, 0.5, short)
        whole = -np.expm1(n * np.log1p(-np.where(safe < 1, safe, 0.5))) / safe
        whole = np.where(safe < 1, whole, 1.0)
        if self._kind == "max":
            return np.where(near, n - short * n * (n - 1) / 2, whole)
        mean = (n - (1 - safe) * whole) / safe / n
        return np.where(near, (n + 1) / 2 - short * (n * n - 1) / 6, mean)


def _geometric(ratio: Reals, count: npt.NDArray[np.integer]) -> Reals:
    """1 + r + ... + r^(count - 1)."""
    return -np.expm1(count * np.log(ratio)) / (1 - ratio)
