"""Rényi accounting: divergences add up over steps, and convert to (epsilon, delta) at the end."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, logsumexp

from discreet.accounting import moments
from discreet.accounting.events import Event

Reals = npt.NDArray[np.floating[Any]]

FRACTIONS = (*(1 + x / 100 for x in range(1, 50)), *(1 + x / 10 for x in range(5, 100) if x % 10))
WHOLE = (*range(2, 65), *range(68, 257, 4), 320, 384, 512, 768, 1024, 2048, 4096, 8192, 16384)
ORDERS = tuple(sorted(FRACTIONS + WHOLE))


def improved(divergences: Reals, orders: Sequence[float], delta: float) -> float:
    """Epsilon at `delta` by the conversion of Canonne, Kamath and Steinke (2020), at the best of the orders."""
    a = np.asarray(orders, float)
    epsilons = divergences + np.log1p(-1 / a) - (math.log(delta) + np.log(a)) / (a - 1)
    return max(0.0, float(np.min(epsilons)))


def classic(divergences: Reals, orders: Sequence[float], delta: float) -> float:
    """Epsilon at `delta` by Mironov's (2017) conversion, which the papers use: never below the improved one."""
    a = np.asarray(orders, float)
    return max(0.0, float(np.min(divergences + math.log(1 / delta) / (a - 1))))


def divergences(events: Sequence[Event], orders: Sequence[float] = ORDERS) -> Reals:
    """Upper bounds on the Rényi divergences of a run, remove direction, which dominates (T3 of docs/theory.md).

    Infinite at orders where nothing is proven.
    """
    total = np.zeros(len(orders))
    for event in events:
        total = total + event.steps * _of_some(replace(event, steps=1), tuple(orders))
    return total


def _of_some(event: Event, orders: tuple[float, ...]) -> Reals:
    """One release's divergences, also where a cap cuts draws: then those of a mixture of which one sees the parts."""
    if not event.crowded:
        return np.array(_of_one(event, orders))
    usual, last = (np.array(_of_one(event.uncut(rate), orders)) for rate in (event.rate, event.crowded_rate))
    over = np.asarray(orders, float) - 1
    return np.logaddexp(math.log1p(-event.crowded) + over * usual, math.log(event.crowded) + over * last) / over


@lru_cache(maxsize=1024)
def _of_one(event: Event, orders: tuple[float, ...]) -> tuple[float, ...]:
    """One release's divergences."""
    if event.best is not None:  # known at all orders together, for single units
        from discreet.accounting.tuning import of_the_best

        found = of_the_best(event.best) if event.group == 1 else np.full(len(ORDERS), math.inf)
        return tuple(dict(zip(ORDERS, found.tolist(), strict=True)).get(order, math.inf) for order in orders)
    if event.pure:  # of randomised response, which dominates
        a, epsilon = np.asarray(orders, float), event.group * event.pure
        growth = np.logaddexp(a * epsilon, (1 - a) * epsilon) - np.logaddexp(epsilon, 0.0)
        return tuple(float(x) for x in np.minimum(growth / (a - 1) * (1 + 1e-9), epsilon))
    if event.multiplier == 0 and event.law is None:
        return tuple(math.inf for _ in orders)
    if event.hardening == "exact" and event.rate < 1:  # whole orders, and chords between them
        of_query = _gaussian_moments(
            event.multiplier / (event.group * (2 if event.adjacency == "replace" else 1)), moments.MOST
        )
        rate = event.rate if event.scheme == "poisson" and event.adjacency != "replace" and event.group == 1 else 1.0
        return tuple(_interpolated(np.array([_subsampled(of_query, rate, a) for a in range(moments.MOST + 1)]), orders))
    by_coins = event.scheme == "poisson" and event.adjacency != "replace" and event.group == 1
    if event.law is None or not by_coins:
        if event.multiplier == 0:
            return tuple(math.inf for _ in orders)
        times = event.group * (2 if event.adjacency == "replace" else 1)  # as far as a unit moves the sum
        # where no amplification is known for Rényi divergences, as if everybody always took part
        return _gaussian(event.rate if by_coins else 1.0, event.multiplier / times, orders)
    of_query = moments.of_ball(event.law, 1 / event.scale)
    if event.shifts is not None:
        of_query = np.minimum(of_query, moments.of_product(event.law, event.shifts))
    if event.multiplier:
        of_query = np.minimum(of_query, _gaussian_moments(event.multiplier, moments.MOST))
    scaled = np.array([_subsampled(of_query, event.rate, a) for a in range(moments.MOST + 1)])
    return tuple(_interpolated(scaled, orders))


def _gaussian_moments(multiplier: float, most: int) -> Reals:
    k = np.arange(most + 1)
    return k * (k - 1) / 2 * multiplier**-2


def _gaussian(rate: float, multiplier: float, orders: tuple[float, ...]) -> tuple[float, ...]:
    """Of a Gaussian query: whole orders by the sum of T1's moments, fractional ones by quadrature."""
    if rate == 1:
        return tuple(a / (2 * multiplier**2) for a in orders)
    whole = [int(a) for a in orders if a == int(a)]
    gaussian_moments = _gaussian_moments(multiplier, max(whole, default=2))
    found = {float(a): _subsampled(gaussian_moments, rate, a) / (a - 1) for a in whole}
    if 1e-12 < rate < 0.02 and 0.05 < multiplier < 1e3:  # at larger rates whole orders say nearly as much
        found.update({a: _fractional(rate, multiplier, a) for a in orders if a != int(a)})
    return tuple(found.get(a, math.inf) for a in orders)


def _fractional(rate: float, multiplier: float, order: float) -> float:
    """The divergence of a Poisson sampled Gaussian query at any order above 1, by the trapezoidal rule.

    With r the likelihood ratio, E[r^a] - 1 is the mean of r^a - 1 - a (r - 1), as E[r] = 1: it is nowhere negative, so
    that nothing cancels. The rule's error is e^-(2 pi w / h) for a step h and w the width of the strip in which the
    integrand is analytic: r vanishes at pi sigma^2 beside the real line, and h is at most a sixth of that. The
    figure is raised by a billionth.
    """
    step = min(multiplier / 4, math.pi * multiplier**2 / 6)
    x = np.arange(-12 * multiplier, order + 12 * multiplier + step, step)
    exponent = (2 * x - 1) / (2 * multiplier**2)
    gain = rate * np.expm1(np.minimum(exponent, 60))  # r - 1
    ratio = np.where(exponent > 60, np.logaddexp(math.log1p(-rate), math.log(rate) + exponent), np.log1p(gain))
    term = order * (order - 1) / 2 * np.where(np.abs(gain) < 0.05, gain, 0.0) ** 2
    series = term.copy()
    for k in range(2, 16):  # the binomial series, where the difference would cancel
        term *= np.where(np.abs(gain) < 0.05, gain, 0.0) * (order - k) / (k + 1)
        series += term
    few = np.minimum(ratio, 5.0)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        much = order * ratio + np.log1p((order - 1) * np.exp(-order * ratio) - order * np.exp((1 - order) * ratio))
        some = np.log(np.where(np.abs(gain) < 0.05, series, np.expm1(order * few) - order * np.expm1(few)))
    density = -0.5 * (x / multiplier) ** 2 - math.log(multiplier * math.sqrt(2 * math.pi) / step)
    total = float(logsumexp(density + np.where(ratio > 5, much, some)))
    return float(np.logaddexp(0.0, total)) / (order - 1) * (1 + 1e-9)


def _subsampled(log_moments: Reals, rate: float, order: int) -> float:
    """(a - 1) times the divergence at a whole order a, of a query with these log-moments, Poisson sampled.

    log of 1 + sum over k = 2..a of C(a, k) q^k (1 - q)^(a - k) (e^lambda_k - 1), all terms positive.
    """
    if order < 2 or rate == 1:
        return float(log_moments[order])
    k, moment = np.arange(2, order + 1), log_moments[2 : order + 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(moment > 1e-8, moment + np.log(-np.expm1(-moment)), np.log(np.maximum(moment, 0)))
    ways = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    return float(np.logaddexp(0.0, logsumexp(ways + k * math.log(rate) + (order - k) * math.log1p(-rate) + logs)))


def _interpolated(scaled: Reals, orders: tuple[float, ...]) -> Reals:
    """The divergence at any order: (a - 1) D_a is convex in a, so a straight line between whole orders is above it."""
    a = np.asarray(orders, float)
    low = np.minimum(np.floor(a).astype(int), len(scaled) - 1)
    high = np.minimum(low + 1, len(scaled) - 1)
    with np.errstate(invalid="ignore"):
        line = np.where(a == low, scaled[low], scaled[low] + (a - low) * (scaled[high] - scaled[low]))
    return np.where((a <= len(scaled) - 1) & np.isfinite(line), line / (a - 1), math.inf)
