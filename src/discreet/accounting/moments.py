"""Log-moments of the privacy loss of shifted noise, from which Rényi divergences of any number of coordinates follow.

lambda_k(tau) = log E[(z(x - tau) / z(x))^k] with x drawn from z. For independent coordinates they add up.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from discreet.accounting.events import Law, Magnitudes

Reals = npt.NDArray[np.floating[Any]]

MOST = 128  # the largest order
_ORDERS = np.arange(MOST + 1)
_ROUND_OFF = 1e-9  # relative, for the quadrature
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)


@lru_cache(maxsize=4096)
def log_moments(law: Law, shift: float) -> Reals:
    """lambda_0 .. lambda_MOST for one coordinate; infinite where a moment is not finite or was not found."""
    if law.gaussian:
        return _ORDERS * (_ORDERS - 1) / 2 * shift**2
    if shift > _LAST:
        return np.where(_ORDERS < 2, 0.0, math.inf)
    return _by_quadrature(law, [shift])[0]


def _by_quadrature(law: Law, shifts: Sequence[float]) -> Reals:
    """A row of log-moments for each shift.

    E[e^(k l)] - 1 is the mean of g_k = e^(k l) - 1 - k (e^l - 1), as E[e^l] = 1: it is positive everywhere, and
    g_(k+1) = e^l g_k + k (e^l - 1)^2, so that nothing cancels however small the shift is.
    """
    points = [_nodes(law, shift, 3 + int(4 * max(shifts))) for shift in shifts]
    losses = np.stack([law.loss(x, shift) for (x, _), shift in zip(points, shifts, strict=True)])
    density = np.stack([weights * np.exp(law.log_density(x)) for x, weights in points])
    means = np.zeros((MOST + 1, len(points)))
    with np.errstate(over="ignore", invalid="ignore"):
        ratio, squared = np.exp(losses), np.expm1(losses) ** 2
        gain = np.zeros_like(losses)
        for order in range(2, MOST + 1):
            gain *= ratio
            gain += (order - 1) * squared
            terms = density * gain
            moments = terms.sum(1)
            edge = np.maximum(terms[:, : len(_NODES)].sum(1), terms[:, -len(_NODES) :].sum(1))
            # mass beyond the nodes, or overflow: not known, and neither is any higher order
            unknown = ~(edge <= _ROUND_OFF * moments) | np.isinf(means[order - 1])
            means[order] = np.where(unknown, math.inf, moments)
    return np.log1p(means.T * (1 + _ROUND_OFF))


def _nodes(law: Law, shift: float, inner: int) -> tuple[Reals, Reals]:
    """Composite Gauss-Legendre points on panels that grow geometrically away from 0 and from the shift."""
    away = np.geomspace(2e-3, law.far, 56)
    edges = np.concatenate((-away[::-1], np.linspace(0.0, shift, inner), shift + away))
    half = np.diff(edges)[:, None] / 2
    return (edges[:-1, None] + half * (_NODES + 1)).ravel(), (half * _WEIGHTS).ravel()


def of_product(law: Law, shifts: Magnitudes) -> Reals:
    """The log-moments of a whole vector: the sum over its coordinates, level by level."""
    total = np.zeros(MOST + 1)
    for shift, count in zip(shifts.levels, shifts.counts, strict=True):
        if shift > 0:
            total = total + count * log_moments(law, float(shift))
    return total


def of_ball(law: Law, norm: float) -> Reals:
    """An upper bound on the log-moments of any shift of l2 norm at most `norm` (T4' of docs/theory.md).

    lambda_k(tau) <= R_k k (k - 1) / 2 I tau^2 for every tau up to `norm`, which adds up over coordinates.
    """
    with np.errstate(invalid="ignore"):
        bound = inflation(law, float(norm)) * _ORDERS * (_ORDERS - 1) / 2 * law.fisher * norm**2
    return np.where(_ORDERS < 2, 0.0, bound)


_FIRST = 1e-4  # up to this shift by a bound on the Hellinger distance, above it on a grid
_RATIO = 1.005
_LAST = 20.0  # beyond it there is so little noise that T5 serves as well
_BLOCK = 32


def inflation(law: Law, norm: float) -> Reals:
    """R_k for each order: how far lambda_k exceeds its limit for small shifts, at most, for shifts up to `norm`."""
    if law.gaussian:
        return np.ones(MOST + 1)
    if not math.isfinite(law.largest_loss(norm)) or norm > _LAST:
        return np.full(MOST + 1, math.inf)
    intervals = max(0, math.ceil(math.log(norm / _FIRST) / math.log(_RATIO)))
    worst = _by_hellinger(law, _FIRST)
    for block in range(math.ceil(intervals / _BLOCK)):
        worst = np.maximum(worst, _on_grid(law, block)[: intervals - block * _BLOCK].max(0))
    return worst


@lru_cache(maxsize=4096)
def _on_grid(law: Law, block: int) -> Reals:
    """R_k on each interval of one block of the grid.

    lambda_k grows with the shift (T2), so its value at an interval's upper end bounds it on the whole interval.
    """
    grid = _FIRST * _RATIO ** np.arange(block * _BLOCK, (block + 1) * _BLOCK + 1)
    limits = np.where(_ORDERS > 1, _ORDERS * (_ORDERS - 1) / 2 * law.fisher, math.inf)
    return _by_quadrature(law, [float(x) for x in grid[1:]]) / (limits * grid[:-1, None] ** 2)


@lru_cache(maxsize=64)
def _by_hellinger(law: Law, shift: float) -> Reals:
    """R_k for shifts up to `shift`.

    E[g_k] <= c_k E[(e^(l/2) - 1)^2] with c_k the largest ratio g_k(l) / (e^(l/2) - 1)^2 over the possible losses, and
    that mean, the squared Hellinger distance, is at most I tau^2 / 4. With y = e^(l/2) the ratio is (1 + y)^2 times
    sum over j < k of j y^(2 (k - 1 - j)): it grows with the loss, so the largest loss gives c_k.
    """
    y = math.exp(law.largest_loss(shift) / 2)
    ratio, worst = 0.0, np.ones(MOST + 1)
    for order in range(2, MOST + 1):
        ratio = y * y * ratio + (order - 1)
        worst[order] = (1 + y) ** 2 * ratio / 4 / (order * (order - 1) / 2)  # log(1 + x) <= x
    return worst
