"""What a run costs: a function of what was released. No torch here."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from discreet.contracts import Phase

__all__ = ["Cost", "cost"]


@dataclass(frozen=True)
class Cost:
    """A proven epsilon, and how it was computed."""

    epsilon: float
    accountant: str


def cost(phases: Sequence[Phase], delta: float) -> Cost:
    """The smallest epsilon at `delta` that is proven for these releases, and the accountant that proved it.

    Guarantee: an upper bound for any adaptive run whose releases are these phases, each a Gaussian query on a
    Poisson sample (T1 and T6 of docs/theory.md), under add-remove and zero-out adjacency.

    >>> round(cost([Phase(256 / 60_000, 1.1, 14_062)], 1e-5).epsilon, 2)
    2.38
    """
    phases = [p for p in merge(phases) if p.steps > 0 and p.rate > 0]
    if not phases:
        return Cost(0.0, "no release")
    if any(p.multiplier == 0 for p in phases):
        return Cost(math.inf, "no noise, so nothing is proven")
    tight = cost_for_search(phases, delta)
    if tight.accountant == _CLOSED or not _renyi_is_sound(phases):
        return tight
    from discreet.accounting import rdp

    return min(tight, Cost(rdp.epsilon(phases, delta), "Rényi divergence, improved conversion"), key=_epsilon)


_CLOSED = "Gaussian curve, closed form"


def _renyi_is_sound(phases: Sequence[Phase]) -> bool:
    """Whether dp-accounting's Rényi divergences are to be relied on.

    For much noise and small rates they round to zero, which is below the truth; for little noise no order helps.
    """
    return all(0.05 < p.multiplier < 100 and (p.rate / p.multiplier) ** 2 > 1e-14 for p in phases)


def cost_for_search(phases: Sequence[Phase], delta: float) -> Cost:
    """The same, without the slower accountant that hardly ever wins: what calibration searches with."""
    from discreet.accounting import gdp, pld

    if sum(p.rate * p.steps for p in phases) <= delta:  # whoever never takes part has no influence
        return Cost(0.0, "chance of taking part at all")
    # Poisson sampling never weakens a query, so without it the Gaussian curve is an upper bound; exact at rate 1.
    plain = gdp.epsilon(math.hypot(*(math.sqrt(p.steps) / p.multiplier for p in phases)), delta)
    if plain == 0 or all(p.rate == 1 for p in phases):
        return Cost(plain, _CLOSED)
    candidates = [Cost(plain, "Gaussian curve without amplification")]
    if min(p.multiplier for p in phases) > 1e-3:
        candidates.append(Cost(pld.epsilon(phases, delta), "privacy-loss distribution, both directions"))
    return min(candidates, key=_epsilon)


def _epsilon(cost: Cost) -> float:
    return cost.epsilon


def merge(phases: Sequence[Phase]) -> list[Phase]:
    """The same releases, with equal ones counted together: composition does not depend on the order."""
    counts: dict[tuple[float, float], int] = {}
    for phase in phases:
        key = (phase.rate, phase.multiplier)
        counts[key] = counts.get(key, 0) + phase.steps
    return [Phase(rate, multiplier, steps) for (rate, multiplier), steps in counts.items()]
