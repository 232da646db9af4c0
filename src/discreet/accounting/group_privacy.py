"""What no accountant covers as it is: groups and replacements hop by hop, and draws that may meet a cap."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from discreet.accounting.accountants import PLAIN, best
from discreet.accounting.events import Adjacency, Cost, Event, Scheme, merge


def with_overflow(events: Sequence[Event], delta: float, thorough: bool) -> Cost:
    """The cost of merged events; part of delta goes to the chance that a draw was not as its scheme says."""
    slack = sum(p.steps * p.slack for p in events)
    if not slack:
        return with_hops(events, delta, thorough)
    plain = merge([replace(p, overflow=p.overflow - p.slack) for p in events])
    found = _within(
        delta, lambda d: with_hops(plain, d, thorough), lambda d, e: d + (1 + math.exp(min(e, 700))) * slack
    )
    return Cost(found.epsilon, f"{found.accountant}, delta shared with the chance of meeting the cap")


def with_hops(events: Sequence[Event], delta: float, thorough: bool) -> Cost:
    """The best accountant's; where no pair of laws is known for a group or a replacement, also hop by hop.

    k hops of (epsilon, delta) are (k epsilon, delta (1 + e^epsilon + ... + e^((k - 1) epsilon))).
    """
    epsilon, accountant = best(events, delta, thorough=thorough)
    direct = Cost(epsilon, accountant.name)
    hops = events[0].group * (2 if events[0].adjacency == "replace" and events[0].scheme == "poisson" else 1)
    if hops == 1 or accountant is not PLAIN or len({p.scheme for p in events}) > 1:
        return direct
    single = [replace(p, group=1, adjacency=_SINGLE.get((p.scheme, p.adjacency), p.adjacency)) for p in events]
    one = _within(delta, lambda d: with_hops(merge(single), d, thorough), lambda d, e: d * _geometric(e, hops))
    if hops * one.epsilon >= epsilon:
        return direct
    return Cost(hops * one.epsilon, f"{one.accountant}, in {hops} hops from neighbour to neighbour")


_SINGLE: dict[tuple[Scheme, Adjacency], Adjacency] = {("poisson", "replace"): "zero-out"}  # replacing is two hops


def _within(delta: float, spend: Callable[[float], Cost], needs: Callable[[float, float], float]) -> Cost:
    """The cost at the largest part of delta for which `needs(part, epsilon)` does not exceed delta."""
    part = delta
    while part > 1e-100:
        spent = spend(part)
        needed = needs(part, spent.epsilon) if math.isfinite(spent.epsilon) else math.inf
        if needed <= delta:
            return spent
        if math.isfinite(spent.epsilon) and needs(0.0, spent.epsilon) > delta:  # and a smaller part needs more still
            break
        part *= max(0.999 * delta / needed, 1e-3) if math.isfinite(needed) else 1e-3
    return Cost(math.inf, "delta is too small for this")


def _geometric(epsilon: float, terms: int) -> float:
    """1 + e^eps + ... + e^((terms - 1) eps)."""
    top = (terms - 1) * epsilon
    return math.inf if top > 700 else sum(math.exp(i * epsilon) for i in range(terms))
