"""Laplace noise, and the sum of two: laws with exponential tails and a bounded privacy loss."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import exp1

from discreet.stages.noise.distribution import NoiseDistribution, Reals

if TYPE_CHECKING:
    from discreet.stages.noise.random import SecureStream


@dataclass(frozen=True)
class Laplace(NoiseDistribution):
    """z(x) = exp(-|x|) / 2."""

    scale: float | None = None

    fisher = 1.0
    variance = 2.0
    mean_size = 1.0
    largest_score = 1.0
    far = 750.0

    def log_density(self, x: Reals) -> Reals:
        return -np.abs(x) - math.log(2)

    def upper(self, x: Reals) -> Reals:
        tail = np.exp(-np.abs(x)) / 2
        return np.where(x >= 0, tail, 1 - tail)

    def score(self, x: Reals) -> Reals:
        return np.sign(x)

    def loss(self, x: Reals, shift: float) -> Reals:
        return np.clip(2 * x - shift, -shift, shift)

    def largest_loss(self, shift: float) -> float:
        return shift

    def where(self, losses: Reals, shift: float) -> Reals:
        return np.clip((losses + shift) / 2, 0, shift)

    def draw(self, count: int, source: "SecureStream") -> Reals:
        return source.signs(count) * -np.log(source.uniforms(count))


@dataclass(frozen=True)
class VarianceGamma(NoiseDistribution):
    """z(x) = (1 + |x|) exp(-|x|) / 4: the sum of two independent Laplace values (lambda = 2)."""

    scale: float | None = None

    fisher = 0.5 * math.e * float(exp1(1.0))
    variance = 4.0
    mean_size = 1.5
    largest_score = 1.0
    far = 1e9  # its loss creeps up to the largest as 1 / x: bisection must reach far

    def log_density(self, x: Reals) -> Reals:
        size = np.abs(x)
        return np.log1p(size) - size - math.log(4)

    def upper(self, x: Reals) -> Reals:
        size = np.minimum(np.abs(x), self.far)
        tail = (2 + size) * np.exp(-size) / 4
        return np.where(x >= 0, tail, 1 - tail)

    def score(self, x: Reals) -> Reals:
        return x / (1 + np.abs(x))

    def loss(self, x: Reals, shift: float) -> Reals:
        change = np.clip(shift - 2 * x, -shift, shift)  # |x - shift| - |x|
        return np.log1p(change / (1 + np.abs(x))) - change

    def largest_loss(self, shift: float) -> float:
        return shift

    def draw(self, count: int, source: "SecureStream") -> Reals:
        values = source.signs(2 * count) * -np.log(source.uniforms(2 * count))
        return values[:count] + values[count:]
