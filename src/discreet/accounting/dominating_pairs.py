"""The privacy losses of one release, from what its event says: who takes part, and what hides them.

Each release is dominated by a pair of laws for either direction (T1 of docs/theory.md): how likely the outputs are
with the unit and without. A symmetric relation has one pair.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from discreet.accounting import coordinate_pld as product
from discreet.accounting.allocation import Epoch, epoch
from discreet.accounting.events import Event, Law, Magnitudes
from discreet.accounting.numerics import invert
from discreet.accounting.pld_grid import Losses, Reals, mixed_loss, mixture, regrid, split, subsampled, symmetric


@dataclass(frozen=True)
class Pair:
    """One direction of one release: about the deviation and the width of its loss, and the loss on a grid.

    `losses(step, tail)`: what is less likely than `tail` may go to infinity.
    """

    deviation: float
    span: Callable[[float], float]
    losses: Callable[[float, float], Losses]


def pairs_of(event: Event) -> tuple[Pair, ...]:
    """The dominating pairs of an event's release: remove and add, or one if the relation is symmetric; () if unknown.

    The order of the two is the same for every event, so that runs compose direction by direction.
    """
    if event.crowded:
        return _cut(event) if event.group == 1 else ()
    if event.law is not None and event.shifts is not None and _by_coins(event) and _hidden(event.law, event.shifts):
        return _product(event)
    if event.pure:
        return _pure(event.group * event.pure)
    if event.multiplier <= 0 or event.hardening == "exact":
        return ()
    rate, sigma = event.rate, event.multiplier
    if event.scheme == "fixed-size":
        return _fixed_size(rate, sigma / 2) if event.group == 1 else ()
    if event.scheme == "fixed-batches":
        return ()
    if event.scheme == "allocation" and event.batches > 1:
        return _allocation(sigma, event.batches) if event.group == 1 else ()
    if event.adjacency == "replace":
        if event.law is not None:  # three laws at once, of which one Gaussian pair says nothing
            return ()
        coins = {0: 1 - rate, 1: rate}
        return (_mixture(coins, {-j: w for j, w in coins.items()}, sigma),) if event.group == 1 else ()
    if event.group > 1:
        most = min(event.group, int(binom.isf(1e-30, event.group, rate)) + 1)
        coins = {j: float(binom.pmf(j, event.group, rate)) for j in range(most + 1)}  # how many take part
        return _mixture(coins, {0: 1.0}, sigma), _mixture({0: 1.0}, {-j: w for j, w in coins.items()}, sigma)
    spread = deviation(rate, sigma)
    remove = Pair(spread, partial(_span, rate, sigma), partial(remove_losses, rate, sigma))
    if rate == 1:  # reflecting x to 1 - x swaps the two laws
        return remove, remove
    return remove, Pair(spread, partial(_span, rate, sigma), partial(add_losses, rate, sigma))


def _by_coins(event: Event) -> bool:
    """Whether one unit is there or not, by its own coin: the one case in which a pair of laws is all there is."""
    return event.scheme == "poisson" and event.adjacency != "replace" and event.group == 1


def _hidden(law: Law, shifts: Magnitudes) -> bool:
    """Whether there is enough noise for coordinate by coordinate accounting to be worth anything."""
    return math.sqrt(law.fisher) * shifts.norm < 15 and max(shifts.levels) < 30


def deviation(rate: float, sigma: float) -> float:
    """About the standard deviation of one step's privacy loss."""
    inverse = sigma**-2
    rare = rate * (inverse + inverse**2 / 4)
    return math.sqrt(min(rate**2 * math.expm1(inverse), rare) if inverse < 500 else rare)


def _cut(event: Event) -> tuple[Pair, ...]:
    """Draws that a cap cuts: at the usual rate, or at that of the last place, which others do not take."""
    usual, last = pairs_of(event.uncut(event.rate)), pairs_of(event.uncut(event.crowded_rate))
    weight = event.crowded

    def of(one: Pair, other: Pair) -> Pair:
        def losses(step: float, tail: float) -> Losses:
            return mixture(one.losses(step, tail), other.losses(step, tail), weight)

        spread = math.sqrt((1 - weight) * one.deviation**2 + weight * other.deviation**2)
        return Pair(spread, lambda tail: max(one.span(tail), other.span(tail)), losses)

    return tuple(map(of, usual, last))


# --- one unit, Gaussian noise ----------------------------------------------------------------------------------------


def _span(q: float, sigma: float, tail: float) -> float:
    """The width of one step's privacy losses."""
    far = _far(sigma, tail)
    ends = _loss(np.array([-far, far + 1]), q, sigma)
    return float(ends[1] - ends[0])


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
    return split(step, first, mass, excess, below, float(above))


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
    return split(step, first, zero, excess, float(ndtr(-x[0] / sigma)), float(ndtr(x[-1] / sigma)))


def _grid_ends(low: float, high: float, q: float, sigma: float, step: float) -> tuple[int, int]:
    ends = _loss(np.array([low, high]), q, sigma) / step
    return math.floor(ends[0]), math.ceil(ends[1])


# --- several units, or one replaced by another -----------------------------------------------------------------------


def _mixture(p: dict[int, float], q: dict[int, float], sigma: float) -> Pair:
    """P = sum of p[j] N(j, s^2) against Q = sum of q[j] N(j, s^2), no shift of P below one of Q.

    Then the loss grows with x, and a bin of losses is an interval of x, found by bisection.
    """
    low, high = _ends(p, q, sigma, 1e-9)
    x = np.linspace(low, high, 4001)
    density = sum(w * np.exp(-0.5 * ((x - j) / sigma) ** 2) for j, w in p.items())
    losses = _mixture_loss(x, p, q, sigma)
    mean = np.average(losses, weights=density)
    spread = math.sqrt(np.average((losses - mean) ** 2, weights=density))
    return Pair(max(spread, 1e-12), partial(_mixture_span, p, q, sigma), partial(_mixture_losses, p, q, sigma))


def _ends(p: dict[int, float], q: dict[int, float], sigma: float, tail: float) -> tuple[float, float]:
    far = _far(sigma, tail)
    return min(*p, *q) - far, max(*p, *q) + far


def _mixture_loss(x: Reals, p: dict[int, float], q: dict[int, float], sigma: float) -> Reals:
    def log_sum(weights: dict[int, float]) -> Reals:
        terms = [math.log(w) + j * (2 * x - j) / (2 * sigma**2) for j, w in weights.items() if w > 0]
        return np.logaddexp.reduce(terms, axis=0)

    return log_sum(p) - log_sum(q)


def _mixture_span(p: dict[int, float], q: dict[int, float], sigma: float, tail: float) -> float:
    ends = _mixture_loss(np.array(_ends(p, q, sigma, tail)), p, q, sigma)
    return float(ends[1] - ends[0])


def _mixture_losses(p: dict[int, float], q: dict[int, float], sigma: float, step: float, tail: float) -> Losses:
    low, high = _ends(p, q, sigma, tail)
    ends = _mixture_loss(np.array([low, high]), p, q, sigma)
    first, last = math.floor(ends[0] / step), math.ceil(ends[1] / step)
    losses = step * np.arange(first, last + 1)
    table = np.linspace(low - sigma, high + sigma, 20_001)
    x = invert(lambda at: _mixture_loss(at, p, q, sigma), losses, table, tolerance=1e-13)

    def mass(weights: dict[int, float]) -> tuple[Reals, float, float]:
        inside, below, above = np.zeros(len(x) - 1), 0.0, 0.0
        for j, weight in weights.items():
            inside += weight * _between((x[:-1] - j) / sigma, (x[1:] - j) / sigma)
            below += weight * float(ndtr((x[0] - j) / sigma))
            above += weight * float(ndtr((j - x[-1]) / sigma))
        return inside, below, above

    with_unit, below, above = mass(p)
    without, _, _ = mass(q)
    # 1e-15 of the mass goes up a whole bin for what the difference may have lost
    with np.errstate(divide="ignore"):
        matched = np.exp(np.minimum(np.log(without) + losses[:-1], 0.0))  # never more than the mass it is taken from
    excess = with_unit - matched + 1e-15 * with_unit
    left_out = max(0.0, 1 - sum(p.values()))  # chances too small to be listed
    return split(step, first, with_unit, excess, below, above + left_out)


# --- a set of fixed size ---------------------------------------------------------------------------------------------


def _fixed_size(rate: float, sigma: float) -> tuple[Pair]:
    """One record replaced, a set of fixed size drawn without replacement; `sigma` is relative to the replacement.

    The hockey-stick curve at 1 + q (a - 1) is at most q times that of the query at a (Balle, Barthe and Gaboardi 2018),
    which above 1 is the curve of the removal pair at rate q; the relation is symmetric, which gives it below 1.
    """

    def losses(step: float, tail: float) -> Losses:
        return symmetric(remove_losses(rate, sigma, step, tail))

    return (Pair(deviation(rate, sigma), lambda tail: 2 * _span(rate, sigma, tail), losses),)


# --- nothing known but epsilon ---------------------------------------------------------------------------------------


def _pure(epsilon: float) -> tuple[Pair, Pair]:
    """Randomised response, which dominates every mechanism with this epsilon; both directions are alike."""
    true = 1 / (1 + math.exp(-epsilon))
    values, masses = np.array([-epsilon, epsilon]), np.array([1 - true, true])

    def losses(step: float, tail: float) -> Losses:
        return regrid(values, masses, 0.0, step)

    pair = Pair(2 * epsilon * math.sqrt(true * (1 - true)), lambda tail: 2 * epsilon, losses)
    return pair, pair


# --- one batch of an epoch, drawn at random ---------------------------------------------------------------------------


def _allocation(sigma: float, batches: int) -> tuple[Pair, Pair]:
    """Each unit in one batch of an epoch (C7); a thousandth of delta may lie above the grid of its law (C8)."""

    def law(tail: float) -> Epoch:
        return epoch(sigma, batches, 10.0 ** math.floor(math.log10(min(1e-3, 1e3 * tail))))  # one of few

    def losses(adding: bool, step: float, tail: float) -> Losses:
        return law(tail).losses(step, adding=adding)

    def span(tail: float) -> float:
        return law(tail).span

    deviation = law(1e-11).deviation
    return Pair(deviation, span, partial(losses, False)), Pair(deviation, span, partial(losses, True))


# --- any noise, shifts known coordinate by coordinate ----------------------------------------------------------------


def _product(event: Event) -> tuple[Pair, Pair]:
    """Independent noise of any law on every coordinate: the coordinates' losses are composed, then subsampled."""
    assert event.law is not None
    assert event.shifts is not None
    law, shifts = event.law, event.shifts

    def base(tail: float) -> Losses:
        coarse = 10.0 ** (4 * math.floor(math.log10(tail) / 4))  # one of few, so that they are computed once
        return product.losses(law, shifts, coarse)

    narrow = base(1e-16)
    mixed = mixed_loss(narrow.values, event.rate)
    masses = (1 - event.rate) * narrow.masses * np.exp(-narrow.values) + event.rate * narrow.masses
    mean = np.average(mixed, weights=masses)
    spread = max(math.sqrt(np.average((mixed - mean) ** 2, weights=masses)), 1e-12)

    def span(tail: float) -> float:
        ends = mixed_loss(base(tail).values[[0, -1]], event.rate)
        return float(ends[1] - ends[0])

    def one(direction: int, step: float, tail: float) -> Losses:
        return subsampled(base(tail), event.rate, step)[direction]

    remove = Pair(spread, span, partial(one, 0))
    # without sampling, reflecting x to shift - x swaps the two laws, so that both directions are the same
    return remove, (remove if event.rate == 1 else Pair(spread, span, partial(one, 1)))
