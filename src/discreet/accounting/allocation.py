"""The privacy loss of an epoch of random allocation: each unit in one of its batches, secretly (C7 and C8).

An epoch of b batches with Gaussian noise of multiplier sigma is dominated by a pair whose likelihood ratio is the mean
of b independent lognormal variables Y, ln Y ~ N(-s^2 / 2, s^2), s = 1 / sigma. Its law is computed, not sampled: each Y
on a grid, b of them by one power in Fourier space. docs/theory-correlated.md has the proofs.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.fft import irfft, rfft
from scipy.special import ndtr, ndtri

from discreet.accounting.pld_grid import Losses, Reals, regrid

_CELLS = 1 << 18
_MOST_CELLS = 1 << 20
_FINE = 0.1  # a cell of one variable, whose mean is 1: more cells are taken until it is no larger


@dataclass(frozen=True, eq=False)
class Epoch:
    """The law of the mean on a grid, from above in convex order, so that both directions are pessimistic (C8).

    `ratios` are the grid, 0 first, and `masses` the law without the unit; `lost` is the mass that left the grid. At
    infinity are `removal` and `addition`, round-off included.
    """

    ratios: Reals
    masses: Reals
    lost: float
    removal: float
    addition: float

    @cached_property
    def deviation(self) -> float:
        """The standard deviation of the loss."""
        p, logs = self.masses[1:] * self.ratios[1:], np.log(self.ratios[1:])
        mean = np.average(logs, weights=p)
        return math.sqrt(np.average((logs - mean) ** 2, weights=p))

    @property
    def span(self) -> float:
        """The width of all losses on the grid."""
        return math.log(len(self.ratios))

    def losses(self, step: float, *, adding: bool) -> Losses:
        """The losses of one direction on a grid, connecting the dots."""
        logs, q = np.log(self.ratios[1:]), self.masses[1:]
        if not adding:
            return regrid(logs, q * self.ratios[1:], min(1.0, self.removal), step)
        # what lies above the grid has a loss of at most that of its last point
        return regrid(np.append(-logs, -logs[-1]), np.append(q, self.lost), min(1.0, self.addition), step)


@lru_cache(maxsize=16)
def epoch(multiplier: float, batches: int, beyond: float) -> Epoch:
    """The likelihood ratio of an epoch.

    Args:
        multiplier: the noise multiplier of each batch.
        batches: how many batches the epoch has.
        beyond: about how much of the mass with the unit may lie above the grid. Any value is sound: it is counted.
    """
    s = 1 / multiplier
    # with the unit one variable has its mean at e^(s^2), and the others deviate a little from 1
    largest = s * float(-ndtri(beyond)) + s * s / 2
    if largest > 600 or s < 1e-6:
        return Epoch(np.array([0.0, 1.0]), np.array([0.0, 1.0]), 0.0, 1.0, 1.0)
    others = math.sqrt(math.expm1(s * s) / batches)
    span = 1 + min(6 * others, math.exp(s * s)) + math.exp(largest) / batches
    cells = _CELLS
    while span * batches / cells > _FINE and cells < _MOST_CELLS:
        cells *= 2
    step = span * batches / (cells - 1)
    one = _shared(s, step, cells)

    law = irfft(rfft(one) ** batches, cells)
    grid = np.arange(cells, dtype=np.longdouble) * (np.longdouble(span) / (cells - 1))
    unit = float(np.finfo(np.longdouble).eps)
    rounding, norm = 4 * math.log2(cells) * unit, float(np.linalg.norm(law.astype(float)))
    error = rounding * (batches * float(np.linalg.norm(one.astype(float))) + norm) + 4 * batches * unit * norm
    law = np.maximum(law, 0)
    lost = max(0.0, float(1 - law.sum()))
    removal = max(0.0, float(1 - (grid * law).sum())) + 2 * error * float(np.linalg.norm(grid.astype(float)))
    addition = float(law[0]) + error * math.sqrt(cells)
    return Epoch(grid.astype(float), law.astype(float), lost, removal, addition)


def _shared(s: float, step: float, cells: int) -> Reals:
    """The lognormal variable on a grid: each cell's mass between its two ends, so that the cell keeps its mean."""
    x = np.arange(cells) * step
    with np.errstate(divide="ignore"):
        logs = np.log(x)
    mass, moment = (_between((logs + sign * s * s / 2) / s) for sign in (1, -1))
    upper = np.clip((moment - x[:-1] * mass) / step, 0, mass)
    one = np.zeros(cells, np.longdouble)
    one[1:] += upper
    one[:-1] += mass - upper
    return one


def _between(z: Reals) -> Reals:
    """Normal masses between points, with full relative accuracy in both tails."""
    below, above = ndtr(z), ndtr(-z)
    return np.where(z[:-1] > 0, above[:-1] - above[1:], below[1:] - below[:-1])
