"""What a run costs: a function of what was released. No torch here.

`cost` reads events, and knows nothing of the stages they come from:

    events.py             what was released, as accounting sees it
    accountants.py        the ways to prove an epsilon, in one tuple; cost takes the smallest
    dominating_pairs.py   one release's privacy loss, for any noise and any way of taking part
    coordinate_pld.py     the same coordinate by coordinate
    pld_grid.py, pld.py   losses on a grid, and their composition over a run
    moments.py, rdp.py    the same by Rényi divergences
    gaussian.py           Gaussian curves in closed form, and any noise behind a Gaussian
    allocation.py         an epoch in which each unit is in one batch, secretly
    shuffling.py          what a shuffled pass gives away for certain
    group_privacy.py      groups and replacements hop by hop, and draws that may overflow
    tuning.py             the best of several runs
    tradeoff.py           what a guarantee lets an attacker do
    guarantee.py          in words
    calibrate.py          solved the other way round
    serialization.py      stages as plain values
    event_serialization.py  events and tunings as plain values
    numerics.py           where a growing function passes a value

To add an accountant: a class in accountants.py, and its name in the tuple ACCOUNTANTS there. Its mathematics has a file
of its own beside it.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from discreet.accounting.events import Cost, Event, in_words, merge, units_of
from discreet.errors import ConfigError, PrivacyError

if TYPE_CHECKING:
    from discreet.accounting.tuning import Tuning

__all__ = ["Cost", "cost", "delta_curve", "epsilon_by_accountant", "merge"]


def cost(events: Sequence[Event], delta: float, tuning: "Tuning | None" = None, *, thorough: bool = True) -> Cost:
    """The smallest epsilon at `delta` that is proven for these releases, and the accountant that proved it.

    Guarantee: an upper bound for any adaptive run whose releases are these events (T1 to T7 of docs/theory.md), or for
    the best of several such runs; infinite where they protect different units, which nothing here adds up.

    Args:
        events: the releases; their order does not matter.
        delta: the delta at which epsilon is wanted.
        tuning: that the run is the best of several.
        thorough: ask also the accountants that hardly ever win. Searches do without them.

    Raises:
        ConfigError: delta is not between 0 and 1.
        PrivacyError: the releases are analysed under different relations, or for groups of different sizes.

    >>> round(cost([Event(256 / 60_000, 1.1, 14_062)], 1e-5).epsilon, 2)
    2.38
    """
    from discreet.accounting.group_privacy import with_overflow

    if tuning is not None and tuning.distribution == "all":
        events, tuning = [replace(p, steps=int(tuning.runs) * p.steps) for p in events], None
    _check_delta(delta)
    events = _that_count(events)
    if not events:
        return Cost(0.0, "no release")
    if tuning is None and any(without_noise(p) for p in events):
        return Cost(math.inf, "no noise, so nothing is proven")
    mixed = _mixed(events)
    if mixed is not None:
        return mixed
    _check_alike(events)
    if tuning is not None:
        return _of_the_best(events, delta, tuning)
    return with_overflow(events, delta, thorough)


def epsilon_by_accountant(events: Sequence[Event], delta: float) -> dict[str, float]:
    """Epsilon by each accountant, for comparison: infinite where one does not apply.

    Args:
        events: the releases of one run.
        delta: the delta at which epsilon is wanted.

    Returns:
        Epsilon by the accountant's name; nothing where there are no releases.
    """
    from discreet.accounting import rdp
    from discreet.accounting.accountants import AVERAGED, LOSSES, PLAIN

    events = _that_count(events)
    if not events:
        return {}
    names = (
        "privacy-loss distribution",
        "Rényi, improved conversion",
        "Rényi, Mironov's conversion",
        "the Gaussian curve, without amplification",
    )
    if _mixed(events) is not None:
        return dict.fromkeys(names, math.inf)
    divergences = rdp.divergences(events)
    epsilons = (
        LOSSES.epsilon(events, delta) if LOSSES.covers(events) else math.inf,
        rdp.improved(divergences, rdp.ORDERS, delta),
        rdp.classic(divergences, rdp.ORDERS, delta),
        min((a.epsilon(events, delta) for a in (PLAIN, AVERAGED) if a.covers(events)), default=math.inf),
    )
    return dict(zip(names, epsilons, strict=True))


def delta_curve(
    events: Sequence[Event], delta: float, tuning: "Tuning | None" = None
) -> tuple[tuple[float, float], ...]:
    """Points (epsilon, delta), all proven, from epsilon 0 to beyond the epsilon at `delta`.

    Args:
        events: the releases.
        delta: where the curve is sharpest.
        tuning: that the run is the best of several.
    """
    from discreet.accounting.accountants import ACCOUNTANTS
    from discreet.accounting.tradeoff import deltas_for_curve

    events = _that_count(events)
    end = cost(events, delta, tuning).epsilon
    if not events or end == 0 or math.isinf(end):
        return ((end, delta),) if events else ((0.0, 0.0),)
    epsilons = [end * k / 48 for k in range(64)]
    if tuning is None and not any(p.slack for p in events):
        for accountant in ACCOUNTANTS:
            deltas = accountant.curve(events, epsilons, delta) if accountant.covers(events) else None
            if deltas is not None:
                return (*zip(epsilons, (min(1.0, d) for d in deltas), strict=True), (end, delta))
    return tuple((cost(events, d, tuning, thorough=False).epsilon, d) for d in deltas_for_curve(delta))


def _that_count(events: Sequence[Event]) -> list[Event]:
    """Those in which somebody can take part and move something, equal ones together."""
    moving = [p for p in events if p.shifts is None or p.shifts.norm > 0]
    return [p for p in merge(moving) if p.steps > 0 and p.rate > 0]


def without_noise(event: Event) -> bool:
    """Whether nothing hides what a release shows."""
    known = event.pure or event.best is not None
    return event.multiplier == 0 and not known and (event.law is None or event.scale == 0)


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


def _of_the_best(events: Sequence[Event], delta: float, tuning: "Tuning") -> Cost:
    """The best of several runs, by Rényi divergences."""
    from discreet.accounting import rdp
    from discreet.accounting.accountants import RENYI
    from discreet.accounting.tuning import of_the_best

    several = [*events, *(event for candidate in tuning.candidates for event in candidate)]
    if any(p.slack for p in several):
        return Cost(math.inf, "no cost of tuning is known where a cap can be met")
    _check_alike(several)
    divergences = of_the_best(tuning, events)
    words = f"{RENYI.name}, of the best of {tuning.runs:g} runs on average ({tuning.distribution})"
    return Cost(rdp.improved(divergences, rdp.ORDERS, delta), words)


# the names that these had, for one release


def cost_for_search(events: Sequence[Event], delta: float, tuning: "Tuning | None" = None) -> Cost:
    """`cost(..., thorough=False)`."""
    return cost(events, delta, tuning, thorough=False)


figures = epsilon_by_accountant
