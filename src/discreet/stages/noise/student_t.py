"""Student's t noise, and Cauchy's: laws with heavy tails and a bounded privacy loss."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammaln, stdtr

from discreet._check import check_positive
from discreet.errors import ConfigError
from discreet.stages.noise.distribution import NoiseDistribution, Reals

if TYPE_CHECKING:
    from discreet.stages.noise.random import SecureStream


class _HeavyTailed(NoiseDistribution):
    """z(x) proportional to (1 + x^2 / df)^(-(df + 1) / 2)."""

    @property
    @abstractmethod
    def _freedom(self) -> float:
        """Degrees of freedom, df in the formulas."""

    @property
    def fisher(self) -> float:
        return (self._freedom + 1) / (self._freedom + 3)

    @property
    def variance(self) -> float:
        return self._freedom / (self._freedom - 2) if self._freedom > 2 else math.inf

    @property
    def mean_size(self) -> float:
        if self._freedom <= 1:
            return math.inf
        gammas = math.exp(gammaln((self._freedom + 1) / 2) - gammaln(self._freedom / 2))
        return 2 * math.sqrt(self._freedom / math.pi) * gammas / (self._freedom - 1)

    @property
    def largest_score(self) -> float:
        return (self._freedom + 1) / (2 * math.sqrt(self._freedom))

    @property
    def far(self) -> float:
        return 1e12 if self._freedom < 2 else 1e8

    def log_density(self, x: Reals) -> Reals:
        df = self._freedom
        constant = float(gammaln((df + 1) / 2) - gammaln(df / 2)) - 0.5 * math.log(df * math.pi)
        return constant - 0.5 * (df + 1) * np.log1p(x * x / df)

    def upper(self, x: Reals) -> Reals:
        return stdtr(self._freedom, -x)

    def score(self, x: Reals) -> Reals:
        return (self._freedom + 1) * x / (self._freedom + x * x)

    def loss(self, x: Reals, shift: float) -> Reals:
        return -0.5 * (self._freedom + 1) * np.log1p((shift * shift - 2 * x * shift) / (self._freedom + x * x))

    def largest_loss(self, shift: float) -> float:
        return (self._freedom + 1) * math.asinh(shift / (2 * math.sqrt(self._freedom)))

    def masses_above(self, losses: Reals, shift: float) -> tuple[Reals, Reals]:
        """The loss rises and falls again: {loss > l} is an interval for l > 0, and the rest of one for l < 0."""
        most = self.largest_loss(shift)
        size = np.minimum(np.abs(losses), most)
        inside = np.abs(losses) < most
        ratio, more = np.exp(2 * size / (self._freedom + 1)), np.expm1(2 * size / (self._freedom + 1))
        root = np.sqrt(np.maximum(ratio * shift**2 - more**2 * self._freedom, 0))
        with np.errstate(divide="ignore"):
            right = (ratio * shift + root) / more
        left = (ratio * shift**2 + more * self._freedom) / (ratio * shift + root)
        near = np.where(inside, self.upper(left - shift) - self.upper(right - shift), 0.0)
        away = np.where(inside, self.upper(left) - self.upper(right), 0.0)
        at_least = losses >= 0
        return np.where(at_least, near, 1 - away), np.where(at_least, away, 1 - near)

    def profile(self) -> tuple[Reals, Reals]:
        """The score is largest at sqrt(df) and falls on both sides: the best sets are [a, df / a]."""
        start = math.sqrt(self._freedom) * np.concatenate(
            (1 - np.geomspace(1e-6, 1e-2, 2000)[:-1], np.linspace(0.99, 0, 200_000))
        )
        with np.errstate(divide="ignore"):
            end = self._freedom / start
        mass = self.upper(start) - self.upper(end)
        keep = mass > 1e-280
        return mass[keep], (np.exp(self.log_density(start)) - np.exp(self.log_density(end)))[keep]

    def draw(self, count: int, source: "SecureStream") -> Reals:
        """By polar coordinates (Bailey 1994): sqrt(df (u^(-2/df) - 1)) cos(angle) has this law exactly."""
        radius = np.sqrt(self._freedom * np.expm1(-2 / self._freedom * np.log(source.uniforms(count))))
        return radius * np.cos(2 * math.pi * source.uniforms(count))


@dataclass(frozen=True)
class StudentT(_HeavyTailed):
    """Student's t with `df` degrees of freedom: z(x) proportional to (1 + x^2 / df)^(-(df + 1) / 2).

    Below one degree of freedom no Gaussian dominates it as T5 of docs/theory.md says, so that is refused.
    """

    df: float
    scale: float | None = None

    @property
    def _freedom(self) -> float:
        return self.df

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("StudentT's df", self.df)
        if not 1 <= self.df <= 1000:
            raise ConfigError(
                f"StudentT's df is {self.df!r}; it must be from 1 (Cauchy) to 1000: below 1 nothing is proven, "
                "above that use Gaussian noise."
            )


@dataclass(frozen=True)
class Cauchy(_HeavyTailed):
    """z(x) = 1 / (pi (1 + x^2)): Student's t with one degree of freedom. It has neither mean nor variance."""

    scale: float | None = None

    @property
    def _freedom(self) -> float:
        return 1.0
