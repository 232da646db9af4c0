"""Denoising by other distances than Kolmogorov-Smirnov's: 004 says that it tried some, and that KS was best.

Each is a stage of one's own (docs/extending.md): the released sum times its distance from the noise's law.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from torch import Tensor

from discreet.stages.sensitivity import Layout

Kind = Literal["Wasserstein", "Cramér-von Mises", "Kuiper"]


@dataclass(frozen=True)
class DistanceFromNoise:
    """The sum G becomes D * G, where D is how far its coordinates' distribution is from that of the noise.

    Of Cramér-von Mises' statistic the root is taken, so that it is a distance. `rescale` divides by the median under
    noise alone (simulated once with a fixed seed: it is public), so that learning rates keep their meaning.
    """

    kind: Kind
    rescale: bool = False

    def check(self, law: Any) -> None:
        """Every law has a distribution function and quantiles."""

    def start(self, layout: Layout) -> None:
        """Nothing is remembered."""

    def apply(self, released: Any, noise: Any, state: None) -> tuple[dict[str, Tensor], None]:
        noisy = [name for name in released if noise.on(name) > 0]
        values = np.concatenate([released[n].detach().double().numpy().reshape(-1) / noise.on(n) for n in noisy])
        factor = distance_from(values, noise.law, self.kind)
        if self.rescale:
            factor /= _under_noise(self.kind, noise.law, len(values))
        return {n: t.detach() * (factor if n in noisy else 1.0) for n, t in released.items()}, None


def distance_from(values: np.ndarray, law: Any, kind: Kind) -> float:
    """The distance of the values' distribution from the law's; values are in units of its scale.

    >>> from discreet.noise import Gaussian
    >>> from scipy.stats import norm
    >>> middle = norm.ppf((np.arange(1000) + 0.5) / 1000)
    >>> [round(distance_from(middle + 0.5, Gaussian().law, kind), 2) for kind in ("Wasserstein", "Kuiper")]
    [0.5, 0.2]
    """
    ordered, n = np.sort(values), len(values)
    if kind == "Wasserstein":
        return float(np.abs(ordered - _quantiles(law, n)).mean())
    mass = np.asarray(law.cdf(np.clip(ordered, -law.far, law.far)), np.float64)
    at = np.arange(n)
    if kind == "Kuiper":
        return float(((at + 1) / n - mass).max() + (mass - at / n).max())
    return math.sqrt(float(np.square(mass - (at + 0.5) / n).mean()))


@lru_cache(maxsize=4)
def _quantiles(law: Any, n: int) -> np.ndarray:
    """The middles of n equal shares of a law, by interpolation of its distribution function."""
    grid = np.sinh(np.linspace(-np.arcsinh(law.far), np.arcsinh(law.far), 200_001))
    mass, first = np.unique(np.asarray(law.cdf(grid), np.float64), return_index=True)
    return np.interp((np.arange(n) + 0.5) / n, mass, grid[first])


@lru_cache(maxsize=16)
def _under_noise(kind: Kind, law: Any, n: int) -> float:
    """The median distance of n values of the law itself, over 15 draws."""
    random = np.random.default_rng(0)
    quantiles = _quantiles(law, n)
    at = (np.arange(n) + 0.5) / n
    draws = [np.interp(random.random(n), at, quantiles) for _ in range(15)]
    return float(np.median([distance_from(draw, law, kind) for draw in draws]))
