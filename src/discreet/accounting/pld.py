"""Privacy-loss distributions of Poisson-subsampled Gaussian queries, composed over a whole run.

One step's privacy loss is put on a grid so that it can only grow (connect the dots), the T-fold sum is one
power in Fourier space, and the sum is taken under an exponential tilt that moves the answer's neighbourhood to
the middle of the distribution: round-off is then relative to delta itself, for any delta and any number of steps.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.fft import irfft, next_fast_len, rfft
from scipy.optimize import minimize_scalar
from scipy.special import ndtr, ndtri

from discreet.contracts import Phase

Reals = npt.NDArray[np.floating[Any]]

_GRID = 0.02  # grid step in units of one step's deviation of the loss: inflates epsilon by less than 0.1 %
_MOST_POINTS = 1 << 19  # a longer grid is coarsened: still an upper bound
_ROUND_OFF = 1e-6  # part of delta set aside for float round-off


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


def epsilon(phases: Sequence[Phase], delta: float) -> float:
    """An upper bound on epsilon at `delta` for phases with rate < 1 or = 1 and multiplier > 0.

    Guarantee: never below the true epsilon of the dominating pairs (T1 of docs/theory.md), both directions; a bound on
    the round-off of the Fourier transforms is added, and a millionth of delta is set aside for that of everything else.
    """
    deviation = math.sqrt(sum(p.steps * _variance(p) for p in phases) / sum(p.steps for p in phases))
    step = _GRID * deviation
    answer = _epsilon_on_grid(phases, delta, step)
    if 0 < answer < 1000 * step:  # few releases: the tail of one step decides, and the bulk's grid is too coarse
        spread = deviation * math.sqrt(sum(p.steps for p in phases))
        answer = min(answer, _epsilon_on_grid(phases, delta, max(answer / 2000, 32 * spread / _MOST_POINTS)))
    return answer


def _variance(phase: Phase) -> float:
    """About the variance of one step's privacy loss."""
    inverse = phase.multiplier**-2
    rare = phase.rate * (inverse + inverse**2 / 4)
    return min(phase.rate**2 * math.expm1(inverse), rare) if inverse < 500 else rare


def _epsilon_on_grid(phases: Sequence[Phase], delta: float, step: float) -> float:
    tail = 1e-6 * delta / sum(p.steps for p in phases)
    for phase in phases:
        step = max(step, _span(phase, tail) / _MOST_POINTS)
    steps = [p.steps for p in phases]
    return max(
        compose([remove_losses(p.rate, p.multiplier, step, tail) for p in phases], steps, delta),
        compose([add_losses(p.rate, p.multiplier, step, tail) for p in phases], steps, delta),
    )


def _span(phase: Phase, tail: float) -> float:
    """The width of one step's privacy losses."""
    far = _far(phase.multiplier, tail)
    top = _loss(np.array([far + 1]), phase.rate, phase.multiplier)[0]
    bottom = _loss(np.array([-far]), phase.rate, phase.multiplier)[0]
    return float(top - bottom)


def _far(sigma: float, tail: float) -> float:
    return float(-ndtri(tail)) * sigma


def _loss(x: Reals, q: float, sigma: float) -> Reals:
    """log of ((1-q) N(0) + q N(1)) / N(0) at x, increasing in x."""
    exponent = (2 * x - 1) / (2 * sigma**2)
    if q == 1:
        return exponent
    return (
        np.logaddexp(math.log1p(-q), math.log(q) + exponent)
        if q > 0.1
        else np.where(
            exponent < 30, np.log1p(q * np.expm1(np.minimum(exponent, 30))), np.logaddexp(0, math.log(q) + exponent)
        )
    )


def _log_ratio(losses: Reals, q: float) -> Reals:
    """log of N(1) / N(0) where the mixture's loss is `losses`; -inf where no point has so small a loss."""
    if q == 1:
        return losses
    with np.errstate(divide="ignore", over="ignore"):
        small = np.log(np.maximum((np.expm1(losses) + q) / q, 0))
        return np.where(losses < 30, small, losses - math.log(q))


def _between(low: Reals, high: Reals) -> Reals:
    """Standard normal mass of the intervals (low, high], with full relative accuracy in both tails."""
    flip = low > 0
    return ndtr(np.where(flip, -low, high)) - ndtr(np.where(flip, -high, low))


def remove_losses(q: float, sigma: float, step: float, tail: float) -> Losses:
    """Losses of P = (1-q) N(0, s^2) + q N(1, s^2) against Q = N(0, s^2), never smaller than the true ones.

    A bin (l, l+h] with masses p and m of P and Q is split between its ends, b = (p - m e^l) / (1 - e^-h) on the
    upper one: both masses are kept, so the split pair dominates. p - m e^l is written as q (Q1 - r Q0), with r the
    density ratio at the lower end, so that nothing cancels when the grid is fine.
    """
    far = _far(sigma, tail)
    first, last = _grid_ends(-far, far + 1, q, sigma, step)
    losses = step * np.arange(first, last + 1)
    log_ratio = _log_ratio(losses, q)
    x = sigma**2 * log_ratio + 0.5
    zero, one = _between(x[:-1] / sigma, x[1:] / sigma), _between((x[:-1] - 1) / sigma, (x[1:] - 1) / sigma)
    mass = (1 - q) * zero + q * one
    with np.errstate(over="ignore"):
        ratio = np.where(losses[:-1] < 30, (np.expm1(losses[:-1]) + q) / q, np.exp(np.minimum(log_ratio[:-1], 700)))
    excess = q * (one - ratio * zero)  # ratio < 0 in the first bin, whose lower end no point reaches
    below = (1 - q) * ndtr(x[0] / sigma) + q * ndtr((x[0] - 1) / sigma)
    above = (1 - q) * ndtr(-x[-1] / sigma) + q * ndtr((1 - x[-1]) / sigma)
    return _split(step, first, mass, excess, below, float(above))


def add_losses(q: float, sigma: float, step: float, tail: float) -> Losses:
    """Losses of P = N(0, s^2) against Q = (1-q) N(0, s^2) + q N(1, s^2), never smaller than the true ones."""
    far = _far(sigma, tail)
    low, high = _grid_ends(-far, far, q, sigma, step)
    first, last = -high, -low
    losses = step * np.arange(first, last + 1)  # increasing in the loss, decreasing in x
    log_ratio = _log_ratio(-losses, q)
    x = sigma**2 * log_ratio + 0.5
    zero, one = _between(x[1:] / sigma, x[:-1] / sigma), _between((x[1:] - 1) / sigma, (x[:-1] - 1) / sigma)
    log_mixture = -losses[:-1]
    excess = q * (np.exp(log_ratio[:-1] - log_mixture) * zero - np.exp(-log_mixture) * one)
    return _split(step, first, zero, excess, float(ndtr(-x[0] / sigma)), float(ndtr(x[-1] / sigma)))


def _grid_ends(low: float, high: float, q: float, sigma: float, step: float) -> tuple[int, int]:
    ends = _loss(np.array([low, high]), q, sigma) / step
    return math.floor(ends[0]), math.ceil(ends[1])


def _split(step: float, first: int, mass: Reals, excess: Reals, below: float, above: float) -> Losses:
    """Share each bin's mass between its two ends; what lies below goes up to the first point, above to infinity."""
    upper = np.clip(excess / -math.expm1(-step), 0, mass)
    masses = np.zeros(len(mass) + 1)
    masses[1:] += upper
    masses[:-1] += mass - upper
    masses[0] += below
    return Losses(step, first, masses, above)


def compose(parts: Sequence[Losses], steps: Sequence[int], delta: float) -> float:
    """Epsilon at `delta` of the sum of steps[i] independent losses of each parts[i] (all on one grid)."""
    grid = parts[0].step
    infinity = -math.expm1(sum(t * math.log1p(-min(p.infinity, 1.0)) for p, t in zip(parts, steps, strict=True)))
    allowed = delta * (1 - _ROUND_OFF) - infinity
    if allowed <= 0:
        return math.inf
    coarse = [_coarsen(p) for p in parts]
    best, ceiling = _chernoff(coarse, steps, allowed)
    parts = [_raise_low(p, -ceiling) for p in parts]
    coarse = [_coarsen(p) for p in parts]
    tilt = _mild_tilt(coarse, steps, best, ceiling, allowed)
    tilted = [_tilt(p, tilt) for p in parts]
    log_total = sum(t * k.log_total for k, t in zip(tilted, steps, strict=True))
    mean = sum(t * k.mean for k, t in zip(tilted, steps, strict=True))
    deviation = math.sqrt(sum(t * k.variance for k, t in zip(tilted, steps, strict=True)))
    least = sum(t * int(p.first) for p, t in zip(parts, steps, strict=True))
    most = sum(t * (int(p.first) + len(p.masses) - 1) for p, t in zip(parts, steps, strict=True))

    reach = deviation
    while True:  # widen the window until what lies above it is a negligible part of delta
        high = min(most, math.ceil((ceiling + reach) / grid))
        beyond = 0.0 if high == most else _mass_above(coarse, steps, grid * high, tilt)
        if beyond <= 1e-6 * allowed:
            break
        reach *= 1.5
    left = 6.0 * deviation
    while True:  # what lies below the window wraps around to its top, which only adds to delta: keep it small
        low = max(least, math.floor((min(mean, ceiling) - left) / grid))
        wrapped = _mass_below(coarse, steps, grid * low, tilt, log_total) * math.exp(log_total - tilt * ceiling / 2)
        if low == least or wrapped <= 1e-5 * allowed:
            break
        left *= 1.5
    if high - low > 16 * _MOST_POINTS:  # too long to be worth it: another bound will do
        return math.inf
    size = next_fast_len(high - low + 1, real=True)
    values = grid * (low + np.arange(size))
    # the mass at a value is its tilted mass * exp(log_total - tilt * value); in units of the delta that is allowed:
    with np.errstate(over="ignore"):
        scales = np.exp(log_total - tilt * values - math.log(allowed - beyond))
    answer = math.inf
    for precision in (np.float64, np.longdouble):
        total, error = _sum(parts, tilted, steps, size, precision)
        with np.errstate(over="ignore", invalid="ignore"):
            rolled = np.roll(total, -(low % size))
            masses = np.where(rolled > 0, rolled * scales, 0.0)
        answer = min(answer, _solve(values, masses, error * scales))
        at = 0 if math.isinf(answer) else min(size - 1, max(0, int((answer - values[0]) / grid)))
        if math.isfinite(answer) and error * scales[at] < 1e-3:
            break
    return answer


def _sum(
    parts: Sequence[Losses], tilted: "Sequence[_Tilted]", steps: Sequence[int], size: int, precision: type[Any]
) -> tuple[Reals, float]:
    """The tilted distribution of the sum of all steps' losses, modulo `size`, and a bound on its error over all points.

    A coefficient's error is some roundings and grows with the power; all points' errors together are at most its norm.
    """
    spectrum = np.ones(size // 2 + 1, np.result_type(precision, np.complex64))
    for losses, kept, count in zip(parts, tilted, steps, strict=True):
        folded = np.bincount((int(losses.first) + np.arange(len(kept.masses))) % size, kept.masses, minlength=size)
        one = rfft(folded.astype(precision))
        spectrum *= np.abs(one) ** count * np.exp(1j * (count * np.angle(one)))
    error = (
        float(np.finfo(precision).eps)
        * math.log2(size)
        * (1 + sum(steps))
        * float(np.linalg.norm(spectrum.astype(complex)))
    )
    return np.maximum(irfft(spectrum, size), 0).astype(float), error


def _solve(values: Reals, masses: Reals, errors: Reals) -> float:
    """The epsilon at which delta is 1.

    delta is the sum over values above epsilon of mass * (1 - e^(epsilon - value)), plus its error. Every term is
    positive, so nothing cancels; between two points delta is a straight line in e^epsilon.
    """

    def delta(i: int) -> float:
        with np.errstate(over="ignore", invalid="ignore"):
            found = float(masses[i + 1 :] @ -np.expm1(values[i] - values[i + 1 :])) + float(errors[i])
        return math.inf if math.isnan(found) else found

    low, high = -1, len(values) - 1
    if delta(high) > 1:
        return math.inf
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if delta(middle) <= 1 else (middle, high)
    if low < 0 or math.isinf(delta(low)):
        return max(0.0, float(values[high]))
    above, below = delta(low), delta(high)
    share = (above - 1) / (above - below)
    gap = float(values[high] - values[low])
    return max(0.0, float(values[high]) + math.log(share + (1 - share) * math.exp(-gap)))


@dataclass(frozen=True)
class _Tilted:
    masses: Reals
    log_total: float
    mean: float
    variance: float


def _tilt(losses: Losses, tilt: float) -> _Tilted:
    """The distribution with masses p(l) e^(tilt l) / E[e^(tilt l)], and its first moments."""
    values = losses.values
    with np.errstate(divide="ignore"):
        logs = np.log(losses.masses) + tilt * values
    top = float(logs.max())
    masses = np.exp(logs - top)
    total = float(masses.sum())
    masses /= total
    mean = float(masses @ values)
    return _Tilted(masses, top + math.log(total), mean, float(masses @ (values - mean) ** 2))


def _log_moment(parts: Sequence[Losses], steps: Sequence[int], tilt: float) -> float:
    """log E[e^(tilt * loss)] of the whole run."""
    return sum(count * _tilt(losses, tilt).log_total for losses, count in zip(parts, steps, strict=True))


def _raise_low(losses: Losses, least: float) -> Losses:
    """The same with losses below `least` raised to it: a rare great gain counts for no more than a small one."""
    below = math.ceil(least / losses.step) - int(losses.first)
    if below <= 0:
        return losses
    masses = losses.masses[below:].copy()
    masses[0] += losses.masses[:below].sum()
    return Losses(losses.step, losses.first + below, masses, losses.infinity)


def _coarsen(losses: Losses) -> Losses:
    """A distribution on a few thousand points with the same mean and no smaller exponential moment.

    Each mass is shared between two coarse points so that its mean stays; e^(tilt * loss) is convex.
    """
    group = len(losses.masses) // 4096 + 1
    i = np.arange(len(losses.masses))
    upper = losses.masses * (i % group) / group
    masses = np.zeros(len(i) // group + 2)
    np.add.at(masses, i // group, losses.masses - upper)
    np.add.at(masses, i // group + 1, upper)
    return Losses(losses.step * group, losses.first / group, masses, losses.infinity)


def _chernoff(parts: Sequence[Losses], steps: Sequence[int], delta: float) -> tuple[float, float]:
    """The tilt whose exponential-moment bound on epsilon is smallest, and that bound."""

    def bound(log_tilt: float) -> float:
        tilt = math.exp(log_tilt)
        return (_log_moment(parts, steps, tilt) - math.log(delta)) / tilt

    found = _minimum(bound, -7.0, max(-6.0, -math.log(parts[0].step)))
    return math.exp(found[0]), found[1]


def _mild_tilt(parts: Sequence[Losses], steps: Sequence[int], best: float, ceiling: float, delta: float) -> float:
    """The smallest tilt under which round-off is a negligible part of delta (a strong one makes tails heavy)."""
    for part in np.linspace(0, 1, 41):
        if _log_moment(parts, steps, part * best) - part * best * ceiling <= math.log(delta) + 11:
            return float(part * best)
    return best


def _mass_above(parts: Sequence[Losses], steps: Sequence[int], value: float, tilt: float) -> float:
    """An upper bound on the mass above `value`, as it counts when it wraps around under the tilt."""

    def bound(log_extra: float) -> float:
        extra = math.exp(log_extra)
        return _log_moment(parts, steps, tilt + extra) - extra * value

    return math.exp(min(0.0, _minimum(bound, -7.0, max(-6.0, -math.log(parts[0].step)))[1]))


def _mass_below(parts: Sequence[Losses], steps: Sequence[int], value: float, tilt: float, log_total: float) -> float:
    """An upper bound on the tilted mass below `value`."""

    def bound(log_less: float) -> float:
        less = math.exp(log_less)
        return _log_moment(parts, steps, tilt - less) - log_total + less * value

    return math.exp(min(0.0, _minimum(bound, -7.0, max(-6.0, -math.log(parts[0].step)))[1]))


def _minimum(function: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    found = minimize_scalar(function, bounds=(low, high), method="bounded", options={"xatol": 1e-2})
    return float(found.x), float(found.fun)
