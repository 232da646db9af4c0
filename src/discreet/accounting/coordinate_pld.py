"""The privacy loss of independent noise on many coordinates, each shifted by a known amount."""

import math
from functools import lru_cache

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

from discreet.accounting.events import Law, Magnitudes
from discreet.accounting.pld_grid import Losses, split

_FINE = 0.01  # the grid's part in the deviation of the whole loss: inflates its variance by _FINE^2
_MOST_POINTS = 1 << 21
_NOTHING = -200.0  # the logarithm of a part of the spectrum that is left out: a million of them are 1e-80
_ROUND_OFF = 1e-9  # by how much shifts are enlarged for what the masses of bins lose in float64


@lru_cache(maxsize=8)
def losses(law: Law, shifts: Magnitudes, tail: float) -> Losses:
    """The loss of Z + shifts against Z, never smaller than the true one (T2 of docs/theory.md).

    Each level's loss is put on a grid (connect the dots), and the sum over all coordinates is a product of powers in
    Fourier space, in long double. What is cut off, wraps around or is lost to round-off is counted as infinite.
    """
    levels = [(x * (1 + _ROUND_OFF), c) for x, c in zip(shifts.levels, shifts.counts, strict=True) if x > 0 and c > 0]
    count = sum(c for _, c in levels)
    size = math.sqrt(law.fisher * sum(c * x * x for x, c in levels))  # the Gaussian limit's shift
    step = min(_FINE * math.sqrt(6 / count), 4e-4) * size
    low, high = -math.inf, math.inf
    while True:
        parts = [(_one(law, x, step, tail / count), c) for x, c in levels]
        high = _reach(parts, tail, 1)
        low = -_reach(parts, tail, -1)
        if high - low <= _MOST_POINTS * step:
            break
        step = (high - low) / _MOST_POINTS * 1.01
    first = math.floor(low / step)
    points = next_fast_len(math.ceil(high / step) - first + 1, real=True)
    logs = np.zeros(points // 2 + 1, np.clongdouble)
    seen = np.arange(len(logs))  # the frequencies at which something is left: few, where there are many coordinates
    infinity = 0.0
    for part, repeats in sorted(parts, key=lambda p: -p[1] * float(p[0].masses @ p[0].values ** 2)):
        at = (int(part.first) + np.arange(len(part.masses))) % points
        folded = np.bincount(at, part.masses, points).astype(np.longdouble)
        with np.errstate(divide="ignore"):
            logs[seen] += repeats * np.log(rfft(folded)[seen])
        seen = seen[logs[seen].real > _NOTHING]
        infinity += repeats * part.infinity
    spectrum = np.zeros_like(logs)
    spectrum[seen] = np.exp(logs[seen])
    spectrum[~np.isfinite(spectrum)] = 0
    total = np.roll(irfft(spectrum, points), -(first % points))
    error = float(np.finfo(np.longdouble).eps) * math.log2(points) * (1 + count)
    error *= math.sqrt(2) * float(np.linalg.norm(spectrum.astype(complex)))
    error += 2 * points * math.exp(_NOTHING)
    masses = np.maximum(total, 0).astype(float)
    missing = max(0.0, 1 - float(masses.sum()))
    return Losses(step, first, masses, infinity + 2 * tail + error + missing)


def _one(law: Law, shift: float, step: float, tail: float) -> Losses:
    """One coordinate's loss on the grid."""
    most = law.largest_loss(shift)
    bounded = math.isfinite(most)
    if not bounded:
        most = shift * math.sqrt(law.fisher)
        while True:
            shifted, _ = law.masses_above(np.array([most]), shift)
            _, plain = law.masses_above(np.array([-most]), shift)
            if max(float(shifted[0]), 1 - float(plain[0])) <= tail:
                break
            most *= 1.3
            if most > 1e3 * shift * math.sqrt(law.fisher) + 1e6:
                break
    ends = math.ceil(most / step)
    grid = step * np.arange(-ends, ends + 1)
    shifted, plain = law.masses_above(grid, shift)
    if bounded:
        shifted[0] = plain[0] = 1.0
        shifted[-1] = plain[-1] = 0.0
    p, q = np.maximum(shifted[:-1] - shifted[1:], 0), np.maximum(plain[:-1] - plain[1:], 0)
    return split(step, -ends, p, p - q * np.exp(grid[:-1]), 1 - float(shifted[0]), float(shifted[-1]))


def _reach(parts: list[tuple[Losses, int]], tail: float, sign: int) -> float:
    """How far the sum of all losses goes up (or down, for sign -1), but for a mass of `tail` (Chernoff's bound)."""
    best = math.inf
    for tilt in np.geomspace(0.25, 4096, 43):
        log_moment = sum(count * _log_moment(part, sign * tilt) for part, count in parts)
        best = min(best, (log_moment - math.log(tail)) / tilt)
    return best


def _log_moment(losses: Losses, tilt: float) -> float:
    """log E[e^(tilt * loss)], without cancellation where it is near 0."""
    exponents = tilt * losses.values
    if abs(exponents[0]) < 1 and abs(exponents[-1]) < 1:
        return math.log1p(float(losses.masses @ np.expm1(exponents)) - losses.infinity)
    with np.errstate(divide="ignore"):
        exponents = exponents + np.log(losses.masses)
    top = float(exponents.max())
    return top + math.log(float(np.exp(exponents - top).sum()))
