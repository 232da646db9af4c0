"""What a run costs: a function of what was released. No torch here.

`cost` reads events (discreet.stages.sensitivity) and knows nothing of the stages they come from:

    losses.py, pairs.py, product.py   one release's privacy loss, for any noise and any way of taking part
    pld.py                            its composition over a run
    moments.py, rdp.py                the same by Rényi divergences
    domination.py                     any noise behind a Gaussian
    gdp.py                            Gaussian curves in closed form
    tuning.py                         the best of several runs
    meaning.py                        what a guarantee lets an attacker do
    guarantee.py, calibrate.py        in words, and solved the other way round
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from discreet.accounting.events import Adjacency, Event, Scheme, in_words, units_of
from discreet.errors import ConfigError, PrivacyError

if TYPE_CHECKING:
    from discreet.accounting.tuning import Tuning

__all__ = ["Cost", "cost", "delta_curve", "figures"]


@dataclass(frozen=True)
class Cost:
    """A proven epsilon, and how it was computed."""

    epsilon: float
    accountant: str


def cost(events: Sequence[Event], delta: float, tuning: "Tuning | None" = None) -> Cost:
    """The smallest epsilon at `delta` that is proven for these releases, and the accountant that proved it.

    Guarantee: an upper bound for any adaptive run whose releases are these events (T1 to T7 of docs/theory.md), or for
    the best of several such runs; infinite where they protect different units, which nothing here adds up.

    >>> round(cost([Event(256 / 60_000, 1.1, 14_062)], 1e-5).epsilon, 2)
    2.38
    """
    return _cost(events, delta, _thorough) if tuning is None else _tuned(events, delta, tuning, _thorough)


def cost_for_search(events: Sequence[Event], delta: float, tuning: "Tuning | None" = None) -> Cost:
    """The same, without the accountant that hardly ever wins for Gaussian noise: what calibration searches with."""
    return _cost(events, delta, _fast) if tuning is None else _tuned(events, delta, tuning, _fast)


def figures(events: Sequence[Event], delta: float) -> dict[str, float]:
    """Epsilon by each accountant, for comparison: infinite where one does not apply."""
    from discreet.accounting import pld, rdp

    events = _that_count(events)
    if not events:
        return {}
    if _mixed(events) is not None:
        return dict.fromkeys(_FIGURES, math.inf)
    renyi = rdp.divergences(events)
    found = (
        pld.epsilon(events, delta) if _has_losses(events) else math.inf,
        rdp.improved(renyi, rdp.ORDERS, delta),
        rdp.classic(renyi, rdp.ORDERS, delta),
        _without_amplification(events, delta).epsilon,
    )
    return dict(zip(_FIGURES, found, strict=True))


_FIGURES = (
    "privacy-loss distribution",
    "Rényi, improved conversion",
    "Rényi, Mironov's conversion",
    "the Gaussian curve, without amplification",
)


def delta_curve(
    events: Sequence[Event], delta: float, tuning: "Tuning | None" = None
) -> tuple[tuple[float, float], ...]:
    """Points (epsilon, delta), all proven, from epsilon 0 to beyond the epsilon at `delta`."""
    from discreet.accounting import gaussian as gdp
    from discreet.accounting import pld
    from discreet.accounting.tradeoff import deltas_for_curve

    events = _that_count(events)
    found = cost(events, delta, tuning)
    ends = ((0.0, 1.0), (found.epsilon, delta))
    if not events or found.epsilon == 0 or math.isinf(found.epsilon):
        return ends[1:] if events else ((0.0, 0.0),)
    epsilons = [found.epsilon * k / 48 for k in range(64)]
    deltas: Sequence[float] | None = None
    if tuning is None and not any(p.overflow for p in events):
        if found.accountant == _CLOSED:
            mu = math.hypot(*(math.sqrt(p.steps) * _moves(p) / p.multiplier for p in events))
            deltas = [gdp.delta(mu, e) * (1 + 1e-9) for e in epsilons]
        elif _has_losses(events):
            deltas = pld.curve(events, epsilons, (0.1, math.sqrt(0.1 * delta), delta, delta / 100))
    if deltas is not None:
        return (*zip(epsilons, (min(1.0, d) for d in deltas), strict=True), ends[1])
    return tuple((cost_for_search(events, d, tuning).epsilon, d) for d in deltas_for_curve(delta))


Accountants = Callable[[Sequence[Event], float], Cost]

_RENYI = "Rényi divergence, improved conversion"
_CLOSED = "Gaussian curve, closed form"
_PLAIN = "Gaussian curve without amplification"


def _cost(events: Sequence[Event], delta: float, direct: Accountants) -> Cost:
    _check_delta(delta)
    events = _that_count(events)
    if not events:
        return Cost(0.0, "no release")
    if any(p.multiplier == 0 and (p.law is None or p.scale == 0) for p in events):
        return Cost(math.inf, "no noise, so nothing is proven")
    mixed = _mixed(events)
    if mixed is not None:
        return mixed
    _check_alike(events)
    if any(p.overflow for p in events):
        slack = sum(p.steps * p.overflow for p in events)
        plain = [replace(p, overflow=0.0) for p in events]
        found = _within(delta, lambda d: _cost(plain, d, direct), lambda d, e: d + (1 + math.exp(min(e, 700))) * slack)
        return Cost(found.epsilon, f"{found.accountant}, delta shared with the chance of meeting the cap")
    found = direct(events, delta)
    hops = events[0].group * (2 if events[0].adjacency == "replace" and events[0].scheme == "poisson" else 1)
    alike = len({p.scheme for p in events}) == 1
    if hops > 1 and alike and found.accountant == _PLAIN:  # no pair of laws is known: go from neighbour to neighbour
        single = [replace(p, group=1, adjacency=_SINGLE.get((p.scheme, p.adjacency), p.adjacency)) for p in events]
        one = _within(delta, lambda d: _cost(single, d, direct), lambda d, e: d * _geometric(e, hops))
        chained = Cost(hops * one.epsilon, f"{one.accountant}, in {hops} hops from neighbour to neighbour")
        found = min(found, chained, key=_epsilon)
    return found


_SINGLE: dict[tuple[Scheme, Adjacency], Adjacency] = {("poisson", "replace"): "zero-out"}  # replacing is two hops


def _that_count(events: Sequence[Event]) -> list[Event]:
    """Those in which somebody can take part and move something, equal ones together."""
    moving = [p for p in events if p.shifts is None or p.shifts.norm > 0]
    return [p for p in merge(moving) if p.steps > 0 and p.rate > 0]


def _check_delta(delta: float) -> None:
    if not (isinstance(delta, float) and 0 < delta < 1):
        raise ConfigError(f"delta is {delta!r}; it must be a number between 0 and 1.")


def _mixed(events: Sequence[Event]) -> Cost | None:
    """What releases that protect different units prove together: nothing, as a user may have any number of rows."""
    units = units_of(events)
    if len(units) < 2:
        return None
    each = " and what protects each ".join(in_words(unit) for unit in units)
    return Cost(math.inf, f"what protects each {each} do not add up")


def _check_alike(events: Sequence[Event]) -> None:
    """Releases compose under one relation between data sets, for units of one kind."""
    relations = {p.adjacency == "replace" for p in events}
    if len(relations) > 1 or len({p.group for p in events}) > 1:
        raise PrivacyError(
            "releases analysed under different relations (adjacency, or size of a group) do not add up; give all of "
            "them the same one."
        )


def _thorough(events: Sequence[Event], delta: float) -> Cost:
    from discreet.accounting import rdp

    tight = _fast(events, delta)
    if tight.accountant == _CLOSED:
        return tight
    return min(tight, Cost(rdp.improved(rdp.divergences(events), rdp.ORDERS, delta), _RENYI), key=_epsilon)


def _fast(events: Sequence[Event], delta: float) -> Cost:
    from discreet.accounting import pld, rdp

    if all(p.scheme == "poisson" for p in events) and sum(p.group * p.rate * p.steps for p in events) <= delta:
        return Cost(0.0, "chance of taking part at all")  # whoever never takes part has no influence
    plain = _without_amplification(events, delta)
    if plain.accountant == _CLOSED or plain.epsilon == 0:
        return plain
    candidates = [plain]
    if _has_losses(events):
        candidates.append(Cost(pld.epsilon(events, delta), "privacy-loss distribution, both directions"))
    if any(p.law is not None or p.hardening == "exact" for p in events):
        candidates.append(Cost(rdp.improved(rdp.divergences(events), rdp.ORDERS, delta), _RENYI))
    return min(candidates, key=_epsilon)


def _has_losses(events: Sequence[Event]) -> bool:
    """Whether privacy-loss distributions are worth trying."""
    if any(p.hardening == "exact" for p in events):
        return False
    return all(p.scheme != "fixed-batches" and (p.multiplier == 0 or p.multiplier > 1e-3) for p in events)


def _tuned(events: Sequence[Event], delta: float, tuning: "Tuning", direct: Accountants) -> Cost:
    """The best of several runs: by Rényi divergences, or by composition where all of them count."""
    import numpy as np

    from discreet.accounting import rdp
    from discreet.accounting.tuning import tuned

    if tuning.distribution == "all":
        return _cost([replace(p, steps=int(tuning.runs) * p.steps) for p in events], delta, direct)
    _check_delta(delta)
    events = _that_count(events)
    if not events:
        return Cost(0.0, "no release")
    mixed = _mixed(events)
    if mixed is not None:
        return mixed
    _check_alike(events)
    if any(p.overflow for p in events):
        return Cost(math.inf, "no cost of tuning is known where a cap can be met")
    divergences = tuned(rdp.divergences(events), np.array(rdp.ORDERS), tuning)
    words = f"{_RENYI}, of the best of {tuning.runs:g} runs on average ({tuning.distribution})"
    return Cost(rdp.improved(divergences, rdp.ORDERS, delta), words)


def _moves(event: Event) -> int:
    """How many times the bound the sum moves by, at most, when the unit (or group) takes part."""
    return event.group * (2 if event.adjacency == "replace" else 1)


def _without_amplification(events: Sequence[Event], delta: float) -> Cost:
    """By the Gaussian curve of those releases a unit takes part in, averaged over which they are (T7).

    Sampling by coins or without replacement never weakens a query, so it counts as taking part always; exact at rate 1.
    """
    from scipy.stats import binom

    from discreet.accounting import gaussian as gdp

    if any(p.multiplier == 0 or p.hardening == "exact" for p in events):
        return Cost(math.inf, _PLAIN)
    spread = [(1.0, 0.0)]  # probabilities and mu
    for p in events:
        if p.scheme == "fixed-batches":
            # the units of a group may be in as many batches; all count as moving the sum whenever one of them does
            chance = min(1.0, p.group * p.rate)
            low, high = (int(x) for x in binom.ppf([1e-6 * delta, 1 - 1e-6 * delta], p.steps, chance))
            times = {k: float(binom.pmf(k, p.steps, chance)) for k in range(low, high + 1)}
        else:
            times = {p.steps: 1.0}
        spread = [
            (w * v, math.hypot(m, math.sqrt(k) * _moves(p) / p.multiplier)) for w, m in spread for k, v in times.items()
        ]
        if len(spread) > 10**6:
            return Cost(math.inf, "too many ways of taking part")
    if len(spread) == 1:
        exact = all(p.rate == 1 and p.law is None for p in events)
        return Cost(gdp.epsilon(spread[0][1], delta), _CLOSED if exact else _PLAIN)
    return Cost(gdp.mixture_epsilon(*zip(*spread, strict=True), delta), "Gaussian curves averaged over participation")


def _within(delta: float, spend: Callable[[float], Cost], needs: Callable[[float, float], float]) -> Cost:
    """The cost at the largest part of delta for which `needs(part, epsilon)` does not exceed delta."""
    part = delta
    while part > 1e-100:
        found = spend(part)
        needed = needs(part, found.epsilon) if math.isfinite(found.epsilon) else math.inf
        if needed <= delta:
            return found
        if math.isfinite(found.epsilon) and needs(0.0, found.epsilon) > delta:  # and a smaller part needs more still
            break
        part *= max(0.999 * delta / needed, 1e-3) if math.isfinite(needed) else 1e-3
    return Cost(math.inf, "delta is too small for this")


def _geometric(epsilon: float, terms: int) -> float:
    """1 + e^eps + ... + e^((terms - 1) eps)."""
    top = (terms - 1) * epsilon
    return math.inf if top > 700 else sum(math.exp(i * epsilon) for i in range(terms))


def _epsilon(cost: Cost) -> float:
    return cost.epsilon


def merge(events: Sequence[Event]) -> list[Event]:
    """The same releases, with equal ones counted together: composition does not depend on the order."""
    counts: dict[Event, int] = {}
    for event in events:
        key = replace(event, steps=0)
        counts[key] = counts.get(key, 0) + event.steps
    return [replace(event, steps=steps) for event, steps in counts.items()]
