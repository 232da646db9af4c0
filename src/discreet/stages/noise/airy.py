"""Airy-squared noise: of all laws that hide a small shift equally well, the one with the smallest mean size."""

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import brentq
from scipy.special import ai_zeros, airy

from discreet.stages.noise.distribution import NoiseDistribution, Reals

if TYPE_CHECKING:
    from discreet.stages.noise.random import SecureStream

_START = float(ai_zeros(1)[1][0])  # the first zero of Ai', where the law has its smooth top
_TOP = float(airy(_START)[0])
_NORM = 2 * -_START * _TOP**2


@dataclass(frozen=True)
class AirySquared(NoiseDistribution):
    """z(x) proportional to Ai(|x| - 1.0188)^2, with tails like exp(-4/3 |x|^1.5).

    It minimises E|x| at given Fisher information, by 0.8 % against the Gaussian: the best there is (docs/noises.md).
    """

    scale: float | None = None

    fisher = -4 * _START / 3
    variance = 8 * _START**2 / 15 + 1 / (-5 * _START)
    mean_size = -2 * _START / 3
    far = 60.0

    def log_density(self, x: Reals) -> Reals:
        return 2 * _log_ai(np.abs(x) + _START) - math.log(_NORM)

    def upper(self, x: Reals) -> Reals:
        t = np.minimum(np.abs(x), self.far) + _START
        value, slope, _, _ = airy(t)
        tail = (slope**2 - t * value**2) / _NORM
        return np.where(x >= 0, tail, 1 - tail)

    def score(self, x: Reals) -> Reals:
        value, slope, _, _ = airy(np.minimum(np.abs(x), self.far) + _START)
        return -2 * np.sign(x) * slope / value

    def loss(self, x: Reals, shift: float) -> Reals:
        return 2 * (_log_ai(np.abs(x - shift) + _START) - _log_ai(np.abs(x) + _START))

    def draw(self, count: int, source: "SecureStream") -> Reals:
        """By rejection from an exponential hat that touches the density: exact."""
        rate, log_top = _hat()
        out = np.empty(0)
        while len(out) < count:
            tries = int((count - len(out)) * 1.5) + 16
            size = -np.log(source.uniforms(tries)) / rate
            accept = np.log(source.uniforms(tries)) <= 2 * _log_ai(size + _START) + rate * size - log_top
            out = np.concatenate((out, size[accept]))
        return source.signs(count) * out[:count]


def _log_ai(t: Reals) -> Reals:
    """log Ai(t) for t from the first zero of Ai' upwards; far out by the series for large t."""
    near = np.log(airy(np.minimum(t, 60.0))[0])
    power = 2 / 3 * np.maximum(t, 60.0) ** 1.5
    far = -power - math.log(2 * math.sqrt(math.pi)) - np.log(np.maximum(t, 60.0)) / 4 + np.log1p(-5 / (72 * power))
    return np.where(t < 60, near, far)


@cache
def _hat() -> tuple[float, float]:
    """The rate of the exponential above the density that is accepted most often, and log of its height."""
    law = AirySquared()

    def height(rate: float) -> float:
        touch = brentq(lambda x: float(law.score(np.array(x))) - rate, 1e-9, 50)
        return 2 * float(_log_ai(np.array(touch + _START))) + rate * touch

    rates = np.linspace(0.5, 3, 51)
    best = min(rates, key=lambda r: height(float(r)) - math.log(float(r)))
    return float(best), height(float(best)) + 1e-12
