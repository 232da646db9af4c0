"""Banded Toeplitz strategies: optimised (McMahan, Xu, Zhang 2024), and cut square roots (Kalinin, Lampert 2024)."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from discreet._check import check_int
from discreet.stages.noise.correlated.toeplitz import SGD, Error, Toeplitz, dense, divide, weights
from discreet.stages.noise.correlated.workload import Workload

Reals = npt.NDArray[np.float64]


def square_root(steps: int, bands: int | None = None, workload: Workload = SGD) -> Toeplitz:
    """The square root of a Toeplitz workload, or its first coefficients: 1, 1/2, 3/8, ... for SGD. Nothing is solved.

    >>> square_root(4).coefficients
    (1.0, 0.5, 0.375, 0.3125)
    """
    count = steps if bands is None else min(steps, check_int("bands", bands, least=1))
    a = workload.coefficients(max(1, count))
    s = np.zeros(len(a))
    s[0] = np.sqrt(a[0])
    for j in range(1, len(a)):
        s[j] = (a[j] - s[1:j] @ s[j - 1 : 0 : -1]) / (2 * s[0])
    return Toeplitz(tuple(s.tolist()))


@lru_cache(maxsize=512)
def optimised_bands(steps: int, bands: int, workload: Workload = SGD, kind: Error = "rms") -> Toeplitz:
    """The Toeplitz strategy with so many bands whose loss is smallest, among those that are positive and never rise.

    Coefficients are products of ratios from 0 to 1: so the sensitivity is exact (C3) and the filter is stable. It is
    the best for any pattern in which participations are at least `bands` apart, as all of them scale alike.
    """
    check_int("steps", steps, least=1)
    check_int("bands", bands, least=1)
    size = min(bands, steps)
    if size == 1:
        return Toeplitz((1.0,))
    from scipy.optimize import minimize

    measure = _Toeplitz(steps, workload, kind) if workload.toeplitz else _General(steps, workload, kind)

    def objective(ratios: Reals) -> tuple[float, Reals]:
        c = np.concatenate(([1.0], np.cumprod(ratios)))
        error, slope = measure(c)
        squared = float(c @ c)
        slope = slope / error + 2 * c / squared
        return float(np.log(error * squared)), np.cumsum((slope * c)[:0:-1])[::-1] / ratios

    start = (2 * np.arange(1, size) - 1) / (2 * np.arange(1, size))
    best = minimize(
        objective,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=[(1e-6, 1.0)] * (size - 1),
        options={"maxiter": 2000, "maxfun": 4000, "ftol": 1e-14, "gtol": 1e-8, "maxcor": 30},
    )
    return Toeplitz((1.0, *np.cumprod(best.x).tolist()))


class _Toeplitz:
    """The squared error of a Toeplitz workload and its slope, by the adjoint: a few passes over the steps."""

    def __init__(self, steps: int, workload: Workload, kind: Error) -> None:
        self._workload, self._weights = workload.coefficients(steps), weights(steps, kind)

    def __call__(self, c: Reals) -> tuple[float, Reals]:
        b = divide(c, self._workload)
        adjoint = divide(c, (2 * self._weights * b)[::-1])[::-1]
        steps = len(b)
        slope = np.array([-float(adjoint[j:] @ b[: steps - j]) for j in range(len(c))])
        return float(b @ (self._weights * b)), slope


class _General:
    """The same of any workload: a quadratic form in the first column of C^-1, made once."""

    def __init__(self, steps: int, workload: Workload, kind: Error) -> None:
        a = workload.matrix(steps)
        if kind == "max":  # of the last step
            a = a[-1:]
        form = a.T @ a / len(a)
        for i in range(steps - 2, -1, -1):  # sums along diagonals, from the end
            form[i, :-1] += form[i + 1, 1:]
        self._form = form

    def __call__(self, c: Reals) -> tuple[float, Reals]:
        steps = len(self._form)
        one = np.zeros(steps)
        one[0] = 1.0
        h = divide(c, one)
        pulled = 2 * self._form @ h
        square = np.convolve(h, h)[:steps]
        slope = np.array([-float(pulled[j:] @ square[: steps - j]) for j in range(len(c))])
        return float(h @ self._form @ h), slope


def matrix_of(strategy: Toeplitz, steps: int, *, normalised: bool = False) -> Reals:
    """C, with all columns of one length where `normalised`: the last ones are cut, and may be made longer for free."""
    c = dense(strategy.column(steps))
    if not normalised:
        return c
    lengths = np.sqrt(np.square(c).sum(0))
    return c / lengths * lengths[0]
