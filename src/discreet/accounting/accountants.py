"""Accountants: each turns releases into a proven epsilon. `cost` takes the smallest of those that cover them."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from discreet.accounting import gaussian
from discreet.accounting.events import Event


class Accountant(Protocol):
    """One way to prove an epsilon; to add one, write these members and put it in ACCOUNTANTS.

    Events come merged: all of one unit, relation and size of group, none without effect, none with an overflow.
    """

    def __hash__(self) -> int: ...

    @property
    def name(self) -> str:
        """What a guarantee's proof calls it. Nothing else depends on it."""
        ...

    @property
    def exact(self) -> bool:
        """Whether no other accountant can say less where this one covers the events: then no other is asked."""
        ...

    def covers(self, events: Sequence[Event]) -> bool:
        """Whether it is worth asking at all. It may still find no finite epsilon."""
        ...

    def quick(self, events: Sequence[Event]) -> bool:
        """Whether to ask it in every step of a search; where it hardly ever wins, only the final figure does."""
        ...

    def epsilon(self, events: Sequence[Event], delta: float) -> float:
        """An upper bound on epsilon at `delta`; infinite where nothing is proven."""
        ...

    def curve(self, events: Sequence[Event], epsilons: Sequence[float], delta: float) -> Sequence[float] | None:
        """Upper bounds on delta at each epsilon, sharp around `delta`; None where it has no curve of its own."""
        ...


class _Quick:
    """The members of most accountants: not exact, asked in every search, with no curve of their own."""

    exact = False

    def quick(self, events: Sequence[Event]) -> bool:
        return True

    def curve(self, events: Sequence[Event], epsilons: Sequence[float], delta: float) -> Sequence[float] | None:
        return None


class RareParticipation(_Quick):
    """Whoever never takes part has no influence: epsilon is 0 where the chance of taking part is at most delta."""

    name = "chance of taking part at all"

    def covers(self, events: Sequence[Event]) -> bool:
        return all(p.scheme == "poisson" for p in events)

    def epsilon(self, events: Sequence[Event], delta: float) -> float:
        return 0.0 if sum(p.group * p.rate * p.steps for p in events) <= delta else math.inf


class ClosedForm(_Quick):
    """The exact curve of Gaussian releases in which everybody takes part."""

    name = "Gaussian curve, closed form"
    exact = True

    def covers(self, events: Sequence[Event]) -> bool:
        return _dominated(events) and all(p.rate == 1 and p.law is None for p in events)

    def epsilon(self, events: Sequence[Event], delta: float) -> float:
        return gaussian.epsilon(_mu(events), delta)

    def curve(self, events: Sequence[Event], epsilons: Sequence[float], delta: float) -> Sequence[float]:
        return [gaussian.delta(_mu(events), e) * (1 + 1e-9) for e in epsilons]


class WithoutAmplification(_Quick):
    """The Gaussian curve of all releases that a unit takes part in, as if everybody always did (T7)."""

    name = "Gaussian curve without amplification"

    def covers(self, events: Sequence[Event]) -> bool:
        return _dominated(events) and not any(_random(p) for p in events)

    def epsilon(self, events: Sequence[Event], delta: float) -> float:
        return gaussian.epsilon(_mu(events), delta)


class AveragedParticipation(_Quick):
    """The average of Gaussian curves over how often a unit takes part, where that is random and can be seen (T7)."""

    name = "Gaussian curves averaged over participation"

    def covers(self, events: Sequence[Event]) -> bool:
        return _dominated(events) and any(_random(p) for p in events)

    def epsilon(self, events: Sequence[Event], delta: float) -> float:
        spread = _participation(events, delta)
        return gaussian.mixture_epsilon(*zip(*spread, strict=True), delta) if spread else math.inf


class Sum(_Quick):
    """The sum of the epsilons of releases of which nothing else is known."""

    name = "sum of epsilons"

    def covers(self, events: Sequence[Event]) -> bool:
        return all(p.pure for p in events)

    def epsilon(self, events: Sequence[Event], delta: float) -> float:
        return math.fsum(p.steps * p.group * p.pure for p in events)


class LossDistributions(_Quick):
    """Privacy-loss distributions of dominating pairs, composed in both directions."""

    name = "privacy-loss distribution, both directions"

    def covers(self, events: Sequence[Event]) -> bool:
        if any(p.hardening == "exact" or p.best is not None for p in events):
            return False
        return all(p.scheme != "fixed-batches" and (p.multiplier == 0 or p.multiplier > 1e-3) for p in events)

    def epsilon(self, events: Sequence[Event], delta: float) -> float:
        from discreet.accounting import pld

        return pld.epsilon(events, delta)

    def curve(self, events: Sequence[Event], epsilons: Sequence[float], delta: float) -> Sequence[float] | None:
        from discreet.accounting import pld

        return pld.curve(events, epsilons, (0.1, math.sqrt(0.1 * delta), delta, delta / 100))


class Renyi(_Quick):
    """Rényi divergences, with the improved conversion: for noise of other laws, and noise on whole numbers."""

    name = "Rényi divergence, improved conversion"

    def covers(self, events: Sequence[Event]) -> bool:
        return True

    def quick(self, events: Sequence[Event]) -> bool:
        return any(p.law is not None or p.hardening == "exact" or p.best is not None for p in events)

    def epsilon(self, events: Sequence[Event], delta: float) -> float:
        from discreet.accounting import rdp

        return rdp.improved(rdp.divergences(events), rdp.ORDERS, delta)


RARE, CLOSED, PLAIN, AVERAGED = RareParticipation(), ClosedForm(), WithoutAmplification(), AveragedParticipation()
SUM, LOSSES, RENYI = Sum(), LossDistributions(), Renyi()

# in the order in which they are asked: cheap ones first, and of equals the first is named
ACCOUNTANTS: tuple[Accountant, ...] = (RARE, CLOSED, PLAIN, AVERAGED, SUM, LOSSES, RENYI)


def best(events: Sequence[Event], delta: float, *, thorough: bool = True) -> tuple[float, Accountant]:
    """The smallest epsilon that an accountant proves, and which one.

    Args:
        events: merged events.
        delta: the delta at which epsilon is wanted.
        thorough: ask also those that hardly ever win (`Accountant.quick`).

    Returns:
        Epsilon and its accountant; infinity and PLAIN where nothing is proven.
    """
    releases = tuple(events)
    least: float = math.inf
    by: Accountant = PLAIN
    for accountant in ACCOUNTANTS:
        if not accountant.covers(releases) or not (thorough or accountant.quick(releases)):
            continue
        epsilon = _proven(accountant, releases, delta)
        if epsilon < least:
            least, by = epsilon, accountant
        if accountant.exact or least == 0:
            return epsilon, accountant
    return least, by


@lru_cache(maxsize=4096)  # a plan is asked for its guarantee when it is solved, attached, saved, verified and shown
def _proven(accountant: Accountant, events: tuple[Event, ...], delta: float) -> float:
    return accountant.epsilon(events, delta)


def moves(event: Event) -> int:
    """How many times the bound the sum moves by, at most, when the unit (or group) takes part."""
    return event.group * (2 if event.adjacency == "replace" else 1)


def _dominated(events: Sequence[Event]) -> bool:
    """Whether each release is one with Gaussian noise, or is proven to be no worse."""
    return all(p.multiplier > 0 and p.hardening != "exact" for p in events)


def _random(event: Event) -> bool:
    """Whether it is random how often a unit takes part, and can be seen."""
    return event.scheme == "fixed-batches" and event.group * event.rate < 1


def _mu(events: Sequence[Event]) -> float:
    """The mu of all releases, the unit taking part in each."""
    return math.hypot(*(math.sqrt(p.steps) * moves(p) / p.multiplier for p in events))


def _participation(events: Sequence[Event], delta: float) -> list[tuple[float, float]]:
    """The ways of taking part, with their probabilities and each one's mu; none if there are too many.

    The units of a group may be in as many batches, and all count as moving the sum whenever one of them does. What is
    left out of the probabilities is at most 2e-6 of delta for each event.
    """
    from scipy.stats import binom

    spread = [(1.0, 0.0)]
    for p in events:
        times = {p.steps: 1.0}
        if _random(p):
            chance = p.group * p.rate
            low, high = (int(x) for x in binom.ppf([1e-6 * delta, 1 - 1e-6 * delta], p.steps, chance))
            times = {k: float(binom.pmf(k, p.steps, chance)) for k in range(low, high + 1)}
        spread = [
            (w * v, math.hypot(m, math.sqrt(k) * moves(p) / p.multiplier)) for w, m in spread for k, v in times.items()
        ]
        if len(spread) > 10**6:
            return []
    return spread
