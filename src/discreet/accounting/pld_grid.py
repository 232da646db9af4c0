"""Privacy losses on a grid: a distribution that can be composed, and the ways to put one there without losing any."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Losses:
    """A privacy-loss distribution on the grid `step * (first + i)`, with the mass at infinity beside it."""

    step: float
    first: float  # a whole number, but on a coarsened grid
    masses: Reals
    infinity: float

    @property
    def values(self) -> Reals:
        return self.step * (self.first + np.arange(len(self.masses)))


def split(step: float, first: int, mass: Reals, excess: Reals, below: float, above: float) -> Losses:
    """Connect the dots: share each bin's mass between its two ends, so that both of the pair's masses are kept.

    A bin (l, l + h] with masses p and m of P and Q has `excess` p - m e^l; excess / (1 - e^-h) of p goes to the upper
    end, the rest to the lower one. What lies below the grid goes up to its first point, what lies above to infinity.
    """
    upper = np.clip(excess / -math.expm1(-step), 0, mass)
    masses = np.zeros(len(mass) + 1)
    masses[1:] += upper
    masses[:-1] += mass - upper
    masses[0] += below
    return Losses(step, first, masses, above)


def regrid(values: Reals, masses: Reals, infinity: float, step: float) -> Losses:
    """Point masses at any losses, each shared between its two neighbours on the grid (connect the dots)."""
    lower = np.floor(values / step)
    first = int(lower.min())
    place = lower.astype(np.int64) - first
    upper = masses * np.expm1(step * lower - values) / math.expm1(-step)
    upper = np.clip(upper, 0, masses)
    size = int(place.max()) + 2
    masses_there = np.bincount(place, masses - upper, size).astype(float) + np.bincount(place + 1, upper, size)
    return Losses(step, first, masses_there, infinity)


def mixture(one: Losses, other: Losses, weight: float) -> Losses:
    """The losses of one mechanism, or with probability `weight` of another, on the same grid: which it was is seen."""
    first = int(min(one.first, other.first))
    masses = np.zeros(int(max(one.first + len(one.masses), other.first + len(other.masses))) - first)
    for losses, share in ((one, 1 - weight), (other, weight)):
        start = int(losses.first) - first
        masses[start : start + len(losses.masses)] += share * losses.masses
    return Losses(one.step, first, masses, (1 - weight) * one.infinity + weight * other.infinity)


def mixed_loss(losses: Reals, rate: float) -> Reals:
    """log(1 - q + q e^l)."""
    low = np.log1p(rate * np.expm1(np.minimum(losses, 0))) if rate < 1 else losses
    return np.where(losses > 0, losses + np.log(rate + (1 - rate) * np.exp(-np.abs(losses))), low)


def subsampled(base: Losses, rate: float, step: float) -> tuple[Losses, Losses]:
    """Both directions of a query of which this is the loss, each unit taking part by a coin of probability `rate`.

    With base pair (P, Q): remove is ((1 - q) Q + q P, Q), add is (Q, (1 - q) Q + q P); the loss l of the base becomes
    log(1 - q + q e^l) in the first and minus that in the second.
    """
    losses, p = base.values, base.masses
    q = p * np.exp(-losses)
    outside = max(0.0, 1.0 - float(q.sum()))  # mass of Q where P has none
    mixed = mixed_loss(losses, rate)
    if rate < 1:
        mixed = np.append(mixed, math.log1p(-rate))
        p, q = np.append(p, 0.0), np.append(q, outside)
    remove = regrid(mixed, (1 - rate) * q + rate * p, rate * base.infinity, step)
    add = regrid(-mixed, q, 0.0 if rate < 1 else outside, step)
    return remove, add


def symmetric(remove: Losses) -> Losses:
    """The losses of a symmetric relation whose hockey-stick curve above 1 is that of `remove`.

    Losses above 0 are kept, those below 0 mirror them (mass e^-l at -l), and what is left is put at 0.
    """
    start = max(0, 1 - int(remove.first))
    first = int(remove.first) + start  # of the losses above 0
    positive = np.concatenate((np.zeros(first - 1), remove.masses[start:]))  # at step, 2 step, ...
    values = remove.step * np.arange(1, len(positive) + 1)
    negative = positive * np.exp(-values)
    middle = max(0.0, 1.0 - float(positive.sum() + negative.sum()) - remove.infinity)
    masses = np.concatenate((negative[::-1], [middle], positive))
    return Losses(remove.step, -len(positive), masses, remove.infinity)
