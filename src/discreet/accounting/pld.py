"""Privacy-loss distributions, composed over a whole run.

One step's privacy loss is put on a grid so that it can only grow (connect the dots), the T-fold sum is one
power in Fourier space, and the sum is taken under an exponential tilt that moves the answer's neighbourhood to
the middle of the distribution: round-off is then relative to delta itself, for any delta and any number of steps.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.optimize import minimize_scalar

from discreet.accounting.dominating_pairs import Pair, pairs_of
from discreet.accounting.events import Event
from discreet.accounting.pld_grid import Losses, Reals

_GRID = 0.02  # grid step in units of one step's deviation of the loss: inflates epsilon by less than 0.1 %
_MOST_POINTS = 1 << 19  # a longer grid is coarsened: still an upper bound
_ROUND_OFF = 1e-6  # part of delta set aside for float round-off


def epsilon(events: Sequence[Event], delta: float) -> float:
    """An upper bound on epsilon at `delta`; infinite where a release's losses are not known.

    Guarantee: never below the true epsilon of the dominating pairs (T1 of docs/theory.md), both directions; a bound on
    the round-off of the Fourier transforms is added, and a millionth of delta is set aside for that of everything else.
    """
    directions = _directions([pairs_of(p) for p in events])
    steps = [p.steps for p in events]
    return max((_epsilon(pairs, steps, delta) for pairs in directions), default=math.inf)


def curve(events: Sequence[Event], epsilons: Sequence[float], targets: Sequence[float]) -> list[float] | None:
    """Upper bounds on delta at each epsilon, sharp around the target deltas; None where losses are not known."""
    steps = [p.steps for p in events]
    deltas = np.zeros(len(epsilons))
    directions = _directions([pairs_of(p) for p in events])
    for pairs in directions:
        best = np.ones(len(epsilons))
        for target in targets:
            step = _GRID * math.sqrt(_variance(pairs, steps) / sum(steps))
            for composed in compositions(_parts(pairs, steps, target, step), steps, target):
                best = np.minimum(best, [composed.delta(e) for e in epsilons])
                break
        deltas = np.maximum(deltas, best)
    return [float(d) for d in deltas] if directions else None


def _directions(releases: Sequence[tuple[Pair, ...]]) -> list[list[Pair]]:
    """All releases' pairs, direction by direction; none if some release's pair is not known."""
    if any(not pairs for pairs in releases):
        return []
    if all(len(pairs) == 1 for pairs in releases):  # a symmetric relation
        return [[pairs[0] for pairs in releases]]
    return [[pairs[0] for pairs in releases], [pairs[-1] for pairs in releases]]


def _epsilon(pairs: Sequence[Pair], steps: Sequence[int], delta: float) -> float:
    variance = _variance(pairs, steps)
    step = _GRID * math.sqrt(variance / sum(steps))
    answer = compose(_parts(pairs, steps, delta, step), steps, delta)
    if 0 < answer < 1000 * step:  # few releases: the tail of one step decides, and the bulk's grid is too coarse
        finer = max(answer / 2000, 32 * math.sqrt(variance) / _MOST_POINTS)
        answer = min(answer, compose(_parts(pairs, steps, delta, finer), steps, delta))
    return answer


def _variance(pairs: Sequence[Pair], steps: Sequence[int]) -> float:
    """About the variance of the whole run's loss."""
    return sum(t * p.deviation**2 for p, t in zip(pairs, steps, strict=True))


def _parts(pairs: Sequence[Pair], steps: Sequence[int], delta: float, step: float) -> list[Losses]:
    """Each release's losses on one grid, of this step or a coarser one if that would be too long."""
    tail = 1e-6 * delta / sum(steps)
    step = max(step, *(p.span(tail) / _MOST_POINTS for p in pairs))
    return [p.losses(step, tail) for p in pairs]


@dataclass(frozen=True)
class Composed:
    """The summed losses of a run around the answer at one target delta.

    `masses` and `errors` are in units of `allowed`, the part of the target that is left for them.
    """

    values: Reals
    masses: Reals
    errors: Reals
    target: float
    allowed: float

    def delta(self, epsilon: float) -> float:
        """An upper bound on delta at `epsilon`: sharp near the target, true everywhere."""
        above = int(np.searchsorted(self.values, epsilon, side="right"))
        with np.errstate(over="ignore", invalid="ignore"):
            found = float(self.masses[above:] @ -np.expm1(epsilon - self.values[above:]))
            found += float(self.errors[max(0, above - 1)])
        # above the last value nothing is left; below the first, all mass counts
        total = found * self.allowed + (self.target - self.allowed)
        return 1.0 if math.isnan(total) else min(1.0, total)


def compose(parts: Sequence[Losses], steps: Sequence[int], delta: float) -> float:
    """Epsilon at `delta` of the sum of steps[i] independent losses of each parts[i] (all on one grid)."""
    answer = math.inf
    for composed in compositions(parts, steps, delta):
        answer = min(answer, _solve(composed.values, composed.masses, composed.errors))
        values = composed.values
        grid = parts[0].step
        at = 0 if math.isinf(answer) else min(len(values) - 1, max(0, int((answer - values[0]) / grid)))
        if math.isfinite(answer) and composed.errors[at] < 1e-3:
            break
    return answer


def compositions(parts: Sequence[Losses], steps: Sequence[int], delta: float) -> Iterator[Composed]:
    """The composed losses, with float64 first and then with more digits, should they be needed."""
    grid = parts[0].step
    if any(p.infinity >= 1 for p in parts):
        return
    infinity = -math.expm1(sum(t * math.log1p(-min(p.infinity, 1.0)) for p, t in zip(parts, steps, strict=True)))
    allowed = delta * (1 - _ROUND_OFF) - infinity
    if allowed <= 0:
        return
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

    reach = max(deviation, grid)
    while True:  # widen the window until what lies above it is a negligible part of delta
        high = min(most, math.ceil((ceiling + reach) / grid))
        beyond = 0.0 if high == most else _mass_above(coarse, steps, grid * high, tilt)
        if beyond <= 1e-6 * allowed:
            break
        reach *= 1.5
    left = max(6.0 * deviation, grid)
    while True:  # what lies below the window wraps around to its top, which only adds to delta: keep it small
        low = max(least, math.floor((min(mean, ceiling) - left) / grid))
        wrapped = _mass_below(coarse, steps, grid * low, tilt, log_total) * math.exp(
            min(700.0, log_total - tilt * ceiling / 2)
        )
        if low == least or wrapped <= 1e-5 * allowed:
            break
        left *= 1.5
    if high - low > 16 * _MOST_POINTS:  # too long to be worth it: another bound will do
        return
    size = next_fast_len(high - low + 1, real=True)
    values = grid * (low + np.arange(size))
    # the mass at a value is its tilted mass * exp(log_total - tilt * value); in units of the delta that is allowed:
    with np.errstate(over="ignore"):
        scales = np.exp(log_total - tilt * values - math.log(allowed - beyond))
    for precision in (np.float64, np.longdouble):
        total, error = _sum(parts, tilted, steps, size, precision)
        with np.errstate(over="ignore", invalid="ignore"):
            rolled = np.roll(total, -(low % size))
            masses = np.where(rolled > 0, rolled * scales, 0.0)
        yield Composed(values, masses, error * scales, delta, allowed - beyond)


def _sum(
    parts: Sequence[Losses], tilted: "Sequence[_Tilted]", steps: Sequence[int], size: int, precision: type[Any]
) -> tuple[Reals, float]:
    """The tilted distribution of the sum of all steps' losses, modulo `size`, and a bound on its error over all points.

    A coefficient's error is some roundings and grows with the power; all points' errors together are at most its norm.
    """
    logs = np.zeros(size // 2 + 1, np.result_type(precision, np.complex64))
    for losses, kept, count in zip(parts, tilted, steps, strict=True):
        folded = np.bincount((int(losses.first) + np.arange(len(kept.masses))) % size, kept.masses, minlength=size)
        with np.errstate(divide="ignore", invalid="ignore"):
            logs += count * np.log(rfft(folded.astype(precision)))
    logs[np.isnan(logs)] = -math.inf
    spectrum = np.exp(logs)
    norm = math.sqrt(2) * float(np.linalg.norm(spectrum.astype(complex)))  # of both halves
    error = float(np.finfo(precision).eps) * math.log2(size) * (1 + sum(steps)) * norm
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

    last = len(values) - 1
    if delta(last) > 1:
        return math.inf
    # about where it is, by sums that may cancel; then, around it, for certain
    with np.errstate(over="ignore", invalid="ignore"):
        above = np.append(masses[1:], 0.0)[::-1]
        shrunk = np.cumsum(above * np.exp(-np.append(values[1:], 0.0)[::-1]))[::-1] * np.exp(values)
        rough = np.cumsum(above)[::-1] - shrunk + errors
    guess = int(np.argmax(rough <= 1)) if np.any(rough <= 1) else last
    low, high, reach = guess, guess, 2
    while low >= 0 and delta(low) <= 1:
        low, reach = max(-1, low - reach), 2 * reach
    while delta(high) > 1:
        high, reach = min(last, high + reach), 2 * reach
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
class _Few:
    """A distribution on a few thousand points of a fine grid, dense around 0: enough for exponential moments."""

    step: float  # of the fine grid
    values: Reals
    masses: Reals


@dataclass(frozen=True)
class _Tilted:
    masses: Reals
    log_total: float
    mean: float
    variance: float


def _tilt(losses: Losses | _Few, tilt: float) -> _Tilted:
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


def _log_moment(parts: Sequence[_Few], steps: Sequence[int], tilt: float) -> float:
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


def _coarsen(losses: Losses) -> _Few:
    """Few points with the same mean and no smaller exponential moment.

    Each mass is shared between two points so that its mean stays; e^(tilt * loss) is convex.
    """
    last = len(losses.masses) - 1
    zero = min(max(-int(losses.first), 0), last)
    offsets = np.concatenate((np.arange(1024), np.geomspace(1024, last + 1024, 1024).astype(int)))
    places = np.unique(np.clip(np.concatenate((np.array([0, last]), zero - offsets, zero + offsets)), 0, last)).astype(
        int
    )
    i = np.arange(last + 1)
    after = np.clip(np.searchsorted(places, i, side="right"), 1, max(1, len(places) - 1))
    if len(places) == 1:
        return _Few(losses.step, losses.values, losses.masses)
    upper = losses.masses * (i - places[after - 1]) / (places[after] - places[after - 1])
    masses = np.zeros(len(places))
    masses += np.bincount(after - 1, losses.masses - upper, len(places)) + np.bincount(after, upper, len(places))
    return _Few(losses.step, losses.values[places], masses)


def _chernoff(parts: Sequence[_Few], steps: Sequence[int], delta: float) -> tuple[float, float]:
    """The tilt whose exponential-moment bound on epsilon is smallest, and that bound."""

    def bound(log_tilt: float) -> float:
        tilt = math.exp(log_tilt)
        return (_log_moment(parts, steps, tilt) - math.log(delta)) / tilt

    found = _minimum(bound, -7.0, max(-6.0, -math.log(parts[0].step)))
    return math.exp(found[0]), found[1]


def _mild_tilt(parts: Sequence[_Few], steps: Sequence[int], best: float, ceiling: float, delta: float) -> float:
    """The smallest tilt under which round-off is a negligible part of delta (a strong one makes tails heavy)."""
    for part in np.linspace(0, 1, 41):
        if _log_moment(parts, steps, part * best) - part * best * ceiling <= math.log(delta) + 11:
            return float(part * best)
    return best


def _mass_above(parts: Sequence[_Few], steps: Sequence[int], value: float, tilt: float) -> float:
    """An upper bound on the mass above `value`, as it counts when it wraps around under the tilt."""

    def bound(log_extra: float) -> float:
        extra = math.exp(log_extra)
        return _log_moment(parts, steps, tilt + extra) - extra * value

    return math.exp(min(0.0, _minimum(bound, -7.0, max(-6.0, -math.log(parts[0].step)))[1]))


def _mass_below(parts: Sequence[_Few], steps: Sequence[int], value: float, tilt: float, log_total: float) -> float:
    """An upper bound on the tilted mass below `value`."""

    def bound(log_less: float) -> float:
        less = math.exp(log_less)
        return _log_moment(parts, steps, tilt - less) - log_total + less * value

    return math.exp(min(0.0, _minimum(bound, -7.0, max(-6.0, -math.log(parts[0].step)))[1]))


def _minimum(function: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    best = minimize_scalar(function, bounds=(low, high), method="bounded", options={"xatol": 1e-2})
    return float(best.x), float(best.fun)
