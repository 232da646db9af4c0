"""Strategies that treat every step alike: C is Toeplitz, given by its first column."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from discreet._check import check_int
from discreet.errors import ConfigError
from discreet.stages.noise.correlated.sensitivity import ONCE, Pattern, of_toeplitz
from discreet.stages.noise.correlated.workload import Workload

Reals = npt.NDArray[np.float64]
Error = Literal["rms", "max"]
SGD = Workload()


class Strategy(Protocol):
    """What every strategy can say of itself."""

    def matrix(self, steps: int) -> Reals: ...
    def sensitivity(self, steps: int, pattern: Pattern = ONCE) -> float: ...
    def error(self, steps: int, workload: Workload = SGD, kind: Error = "rms") -> float: ...


def loss(
    strategy: Strategy, steps: int, pattern: Pattern = ONCE, workload: Workload = SGD, kind: Error = "rms"
) -> float:
    """The error of the workload at noise of one sensitivity: what strategies are compared by.

    "rms" is the root of the mean over steps of the variance, "max" the largest standard deviation.
    """
    return strategy.sensitivity(steps, pattern) * strategy.error(steps, workload, kind)


class ByColumns(ABC):
    """A strategy that treats every step alike: C, and what it amounts to, from the first columns of C and of C^-1."""

    @abstractmethod
    def column(self, steps: int) -> Reals:
        """The first column of C, for so many steps."""

    @abstractmethod
    def inverse(self, steps: int) -> Reals:
        """The first column of C^-1."""

    def matrix(self, steps: int) -> Reals:
        """C."""
        return dense(self.column(steps))

    def sensitivity(self, steps: int, pattern: Pattern = ONCE) -> float:
        """By how much one unit that takes part by this pattern can change C x, in l2."""
        return of_toeplitz(self.column(steps), steps, pattern)

    def error(self, steps: int, workload: Workload = SGD, kind: Error = "rms") -> float:
        """The error of the workload's sums at noise of scale 1: see `loss`."""
        return error_of(self.inverse(steps), workload, kind)


@dataclass(frozen=True)
class Toeplitz(ByColumns):
    """C_ts = c_(t-s): bands, a square root, or any other coefficients. The first is not 0.

    >>> Toeplitz((1.0, 0.5)).matrix(3)
    array([[1. , 0. , 0. ],
           [0.5, 1. , 0. ],
           [0. , 0.5, 1. ]])
    """

    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficients", checked(self.coefficients))

    @property
    def bands(self) -> int:
        """How many diagonals are not zero: noise is remembered for one step less."""
        return len(self.coefficients)

    def column(self, steps: int) -> Reals:
        return cut(self.coefficients, steps)

    def inverse(self, steps: int) -> Reals:
        return divide(self.coefficients, unit(steps))

    def sensitivity(self, steps: int, pattern: Pattern = ONCE) -> float:
        return of_toeplitz(self.coefficients, steps, pattern)


def checked(coefficients: object) -> tuple[float, ...]:
    """Coefficients of a first column as plain numbers, or a ConfigError."""
    if isinstance(coefficients, str) or not hasattr(coefficients, "__iter__"):
        raise ConfigError(f"coefficients are {coefficients!r}; give numbers, as (1.0, 0.5).")
    try:
        numbers = tuple(float(c) for c in coefficients)  # ty: ignore[not-iterable] # it was looked at above
    except (TypeError, ValueError) as error:
        raise ConfigError(f"coefficients are {coefficients!r}; give numbers, as (1.0, 0.5).") from error
    if not numbers or not numbers[0] or not all(math.isfinite(c) and abs(c) <= 1e100 for c in numbers):
        raise ConfigError("coefficients must be finite numbers, of which the first is not 0.")
    return numbers


def unit(steps: int) -> Reals:
    """1, 0, 0, ..."""
    one = np.zeros(steps)
    one[:1] = 1.0
    return one


def cut(coefficients: npt.ArrayLike, steps: int) -> Reals:
    """A sequence of so many, with zeros where there are fewer."""
    c = np.zeros(check_int("steps", steps, least=0))
    given = np.asarray(coefficients, float)[:steps]
    c[: len(given)] = given
    return c


def dense(column: Reals) -> Reals:
    """The lower triangular Toeplitz matrix with this first column."""
    age = np.subtract.outer(np.arange(len(column)), np.arange(len(column)))
    return np.where(age >= 0, column[np.maximum(age, 0)], 0.0)


def divide(coefficients: npt.ArrayLike, by: Reals) -> Reals:
    """T(c)^-1 applied to a sequence: x_t = (y_t - c_1 x_(t-1) - ...) / c_0."""
    from scipy.signal import lfilter

    c = np.asarray(coefficients, float)[: max(1, len(by))]
    return lfilter([1.0], c, by) if len(by) else np.zeros(0)


def error_of(inverse: Reals, workload: Workload = SGD, kind: Error = "rms") -> float:
    """The error of a workload's sums at unit noise, from the first column of C^-1."""
    steps = len(inverse)
    if workload.toeplitz:
        from scipy.signal import fftconvolve

        a = workload.coefficients(steps)
        b = np.cumsum(inverse) if workload == SGD else fftconvolve(inverse, a)[:steps]
        return math.sqrt(float(b @ (b * weights(steps, kind))))
    variances = np.square(workload.matrix(steps) @ dense(inverse)).sum(1)
    return math.sqrt(float(variances.mean() if kind == "rms" else variances.max()))


def weights(steps: int, kind: Error) -> Reals:
    """How often the square of a coefficient of A C^-1 counts: in the mean over steps, or at the last."""
    if kind not in ("rms", "max"):
        raise ConfigError(f"the kind of error is {kind!r}; it must be rms or max.")
    return np.ones(steps) if kind == "max" else (steps - np.arange(steps)) / steps
