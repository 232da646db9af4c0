"""Hyperbolic-secant and logistic noise: smooth laws with exponential tails and a bounded privacy loss."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import expit

from discreet.stages.noise.distribution import NoiseDistribution, Reals

if TYPE_CHECKING:
    from discreet.stages.noise.random import SecureStream


def _log_cosh_ratio(x: Reals, shift: float) -> Reals:
    """log cosh(x) / cosh(x - shift), without cancellation for small shifts."""
    if shift > 0.5:
        size, other = np.abs(x), np.abs(x - shift)
        return size + np.log1p(np.exp(-2 * size)) - other - np.log1p(np.exp(-2 * other))
    return np.log1p(2 * math.sinh(shift / 2) ** 2 + np.tanh(x - shift) * math.sinh(shift))


def _where_ratio(logs: Reals, shift: float) -> Reals:
    """The x at which that logarithm is `logs`: tanh(x - shift) = (e^l - cosh shift) / sinh shift."""
    u = (np.expm1(logs) - 2 * math.sinh(shift / 2) ** 2) / math.sinh(shift)
    return np.arctanh(np.clip(u, -1 + 1e-16, 1 - 1e-16)) + shift


@dataclass(frozen=True)
class Sech(NoiseDistribution):
    """z(x) = sech(pi x / 2) / 2, of variance 1."""

    scale: float | None = None

    fisher = math.pi**2 / 8
    variance = 1.0
    mean_size = 8 * 0.915965594177219 / math.pi**2  # Catalan's constant
    largest_score = math.pi / 2
    far = 500.0

    def log_density(self, x: Reals) -> Reals:
        size = np.abs(math.pi / 2 * x)
        return -size - np.log1p(np.exp(-2 * size))

    def upper(self, x: Reals) -> Reals:
        tail = 2 / math.pi * np.arctan(np.exp(-math.pi / 2 * np.abs(x)))
        return np.where(x >= 0, tail, 1 - tail)

    def score(self, x: Reals) -> Reals:
        return math.pi / 2 * np.tanh(math.pi / 2 * x)

    def loss(self, x: Reals, shift: float) -> Reals:
        return _log_cosh_ratio(math.pi / 2 * x, math.pi / 2 * shift)

    def largest_loss(self, shift: float) -> float:
        return math.pi / 2 * shift

    def where(self, losses: Reals, shift: float) -> Reals:
        return _where_ratio(losses, math.pi / 2 * shift) * 2 / math.pi if shift < 0.5 else super().where(losses, shift)

    def draw(self, count: int, source: "SecureStream") -> Reals:
        return source.signs(count) * (-2 / math.pi) * np.log(np.tan(math.pi / 4 * source.uniforms(count)))


@dataclass(frozen=True)
class Logistic(NoiseDistribution):
    """z(x) = sech(x / 2)^2 / 4."""

    scale: float | None = None

    fisher = 1 / 3
    variance = math.pi**2 / 3
    mean_size = 2 * math.log(2)
    largest_score = 1.0
    far = 750.0

    def log_density(self, x: Reals) -> Reals:
        size = np.abs(x)
        return -size - 2 * np.log1p(np.exp(-size))

    def upper(self, x: Reals) -> Reals:
        return expit(-x)

    def score(self, x: Reals) -> Reals:
        return np.tanh(x / 2)

    def loss(self, x: Reals, shift: float) -> Reals:
        return 2 * _log_cosh_ratio(x / 2, shift / 2)

    def largest_loss(self, shift: float) -> float:
        return shift

    def where(self, losses: Reals, shift: float) -> Reals:
        return 2 * _where_ratio(losses / 2, shift / 2) if shift < 0.5 else super().where(losses, shift)

    def draw(self, count: int, source: "SecureStream") -> Reals:
        u = source.uniforms(count)
        return source.signs(count) * np.log1p(2 * (1 - u) / u)
