"""Gaussian noise, the law of DP-SGD."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from scipy.special import ndtr

from discreet._check import check_positive
from discreet.errors import ConfigError
from discreet.stages.noise.distribution import NoiseDistribution, Reals

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.stages.noise.random import SecureStream


class Normal(NoiseDistribution):
    """The law of normal noise; who derives from it says how much there is, and what it has to do with earlier noise."""

    gaussian = True
    fisher = 1.0
    variance = 1.0
    mean_size = math.sqrt(2 / math.pi)
    far = 38.0

    def log_density(self, x: Reals) -> Reals:
        return -0.5 * (x * x + math.log(2 * math.pi))

    def upper(self, x: Reals) -> Reals:
        return ndtr(-x)

    def score(self, x: Reals) -> Reals:
        return x

    def loss(self, x: Reals, shift: float) -> Reals:
        return shift * (x - shift / 2)

    def where(self, losses: Reals, shift: float) -> Reals:
        return losses / shift + shift / 2

    def draw(self, count: int, source: "SecureStream") -> Reals:
        return source.normals(count).numpy()

    def sample(self, out: "Tensor", scale: float, source: "SecureStream") -> None:
        source.fill_normal(out, scale)


@dataclass(frozen=True)
class Gaussian(Normal):
    """Independent normal noise on every coordinate of the bounded sum.

    `Gaussian(multiplier)` is relative to what one unit may change: the effective multiplier of T6 of docs/theory.md,
    whatever the blocks. `Gaussian(std=s)` is an absolute standard deviation on the sum. `Gaussian()` is
    to be solved by `calibrate`. `Gaussian(0)` adds nothing, and proves nothing.
    """

    multiplier: float | None = None
    std: float | None = None

    def __post_init__(self) -> None:
        if self.multiplier is not None and self.std is not None:
            raise ConfigError(
                f"Gaussian(multiplier={self.multiplier!r}, std={self.std!r}) says the noise twice; give one of them."
            )
        if self.multiplier is not None:
            check_positive("Gaussian's multiplier", self.multiplier, zero=True)
        if self.std is not None:
            check_positive("Gaussian's std", self.std, zero=True)

    @property
    def scale(self) -> float | None:
        """The multiplier: the scale of every family is in units of the sensitivity."""
        return self.multiplier

    @property
    def absolute(self) -> float | None:
        return self.std

    def scaled(self, scale: float) -> Self:
        return type(self)(scale)
