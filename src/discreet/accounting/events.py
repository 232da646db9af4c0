"""What was released, as accounting sees it: frozen values that say everything privacy depends on."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from discreet._check import check_int, check_positive
from discreet.errors import ConfigError, PrivacyError

if TYPE_CHECKING:
    from discreet.accounting.tuning import Tuning

ROW = "example"  # the unit of a release that hides one row of the data, whoever it belongs to


@dataclass(frozen=True)
class Magnitudes:
    """`counts[i]` coordinates that one unit may move by at most `levels[i]` each."""

    levels: tuple[float, ...]
    counts: tuple[int, ...]

    @property
    def norm(self) -> float:
        return math.sqrt(math.fsum(c * x * x for x, c in zip(self.levels, self.counts, strict=True)))


Verdict = Literal["holds", "holds if", "unproven", "false"]
Adjacency = Literal["add-remove", "zero-out", "replace"]
Scheme = Literal["poisson", "fixed-size", "fixed-batches", "allocation"]
Hardening = Literal["idealised", "exact"]
Theorem = Literal["", "C1", "C4"]  # of docs/theory-correlated.md, where a run's steps are not releases one by one


@dataclass(frozen=True)
class Participation:
    """Who takes part in one release, and under which relation between data sets that is analysed.

    - scheme "poisson": each unit by its own coin of probability `rate` (rate 1: always);
    - "fixed-size": a set of fixed size, drawn anew without replacement, of which a unit is part with `rate`;
    - "fixed-batches": one of several fixed batches, each with probability `rate`;
    - "allocation": one release of an epoch of 1 / `rate`, each unit's drawn independently; what is counted are epochs.

    `adjacency` is "add-remove" where the number of units is secret, "zero-out" where it is public (a unit's record
    is replaced by one that contributes nothing; the same figures, T1 of docs/theory.md), or "replace" (by any other
    record). `overflow` bounds the probability that the draw was not as the scheme says (a cap was met). Where a cap
    cuts draws at random and the number of units is public, `crowded` is the chance that the others leave just one
    place, and `crowded_rate` a unit's chance to have it ("A cap on the batch" in docs/theory.md): then `overflow` costs
    nothing.

    Over the whole run, two participations of a unit are at least `separation` steps apart, and there are at most
    `most`, if that is declared. A run that is taken up again keeps both (what `continues` of a sampler says).
    """

    rate: float
    adjacency: Adjacency
    unit: str
    scheme: Scheme = "poisson"
    overflow: float = 0.0
    separation: int = 1
    most: int | None = None
    crowded: float = 0.0
    crowded_rate: float = 0.0


class Law(Protocol):
    """The noise's law on one coordinate, in units of its scale; stages/noise/distribution.py describes the members."""

    def __hash__(self) -> int: ...
    @property
    def gaussian(self) -> bool: ...
    @property
    def fisher(self) -> float: ...
    @property
    def largest_score(self) -> float: ...
    @property
    def far(self) -> float: ...
    def log_density(self, x: Any) -> Any: ...
    def loss(self, x: Any, shift: float) -> Any: ...
    def largest_loss(self, shift: float) -> float: ...
    def masses_above(self, losses: Any, shift: float) -> tuple[Any, Any]: ...
    def profile(self) -> tuple[Any, Any]: ...


@dataclass(frozen=True)
class Query:
    """What hides one unit in one release; the fields are as in Event."""

    multiplier: float
    law: Law | None = None
    scale: float = 0.0
    shifts: Magnitudes | None = None
    hardening: Hardening = "idealised"


@dataclass(frozen=True)
class Event:
    """`steps` equal releases: everything about them that privacy depends on. (Of "allocation", equal epochs.)

    The query is a Gaussian one of effective noise `multiplier`, or is dominated by it (T5 of docs/theory.md). Where
    the noise has another law, `law` says so, with its `scale` in units of the sensitivity, and `shifts` are the
    coordinates' in units of that scale, where they are known; `multiplier` is 0 if no Gaussian is proven to dominate.
    Who takes part is as in Participation; `group` is the number of units that are protected together. `hardening`
    "exact" is Gaussian noise on whole numbers, for which only Rényi divergences of whole orders are known. `unit` is
    what is hidden: "example", a row of the data, or "user", say, with all rows. Different units' do not add up.
    `theorem` says by which one so many releases are at least as revealing as a run of more steps: "C1", a whole run as
    one release, or "C4", a round through all groups as one.
    `pure` is that of a mechanism of which only its epsilon is known (`Event.of_pure`); `best` that of the best of
    several runs, of which its divergences are known (`Event.of_best`).
    """

    rate: float
    multiplier: float
    steps: int
    scheme: Scheme = "poisson"
    adjacency: Adjacency = "add-remove"
    group: int = 1
    overflow: float = 0.0
    law: Law | None = None
    scale: float = 0.0
    shifts: Magnitudes | None = None
    hardening: Hardening = "idealised"
    unit: str = ROW
    theorem: Theorem = ""
    crowded: float = 0.0
    crowded_rate: float = 0.0
    pure: float = 0.0
    best: "Tuning | None" = None

    def __post_init__(self) -> None:
        numbers = (
            ("rate", self.rate, 1.0),
            ("multiplier", self.multiplier, math.inf),
            ("overflow", self.overflow, 1.0),
            ("pure", self.pure, math.inf),
            ("crowded", self.crowded, 1.0),
            ("crowded_rate", self.crowded_rate, 1.0),
        )
        for name, value, most in numbers:
            if not isinstance(value, (int, float)) or not 0 <= value <= most or math.isinf(value):
                raise ConfigError(f"an event's {name} is {value!r}; it must be a finite number from 0 to {most:g}.")
        check_int("an event's steps", self.steps, least=0)
        check_int("an event's group", self.group, least=1)
        for name, words in (
            ("scheme", Scheme),
            ("adjacency", Adjacency),
            ("hardening", Hardening),
            ("theorem", Theorem),
        ):
            value = getattr(self, name)
            if value not in get_args(words):
                raise ConfigError(f"an event's {name} is {value!r}; it must be one of {', '.join(get_args(words))}.")
        check_unit("an event's unit", self.unit)
        if self.scheme == "fixed-size" and self.adjacency != "replace":
            raise ConfigError("sets of fixed size are analysed for one unit replaced by another; say 'replace'.")
        if self.crowded and not (self.scheme == "poisson" and self.rate <= self.crowded_rate):
            raise ConfigError(
                f"an event's crowded_rate is {self.crowded_rate!r}, its scheme {self.scheme!r} and rate {self.rate!r}; "
                "only Poisson draws are cut, and the last place of a batch is not harder to get than others."
            )
        plain = self.multiplier == 0 and self.law is None and self.rate == 1 and self.scheme == "poisson"
        if self.pure and not (plain and not self.overflow and not self.crowded and self.hardening == "idealised"):
            raise ConfigError("of a pure mechanism nothing but its epsilon is known: no rate, no noise, no cap.")
        if self.best is not None and (self.pure or not plain or self.hardening != "idealised"):
            raise ConfigError("of the best of several runs nothing but what these released is known.")
        if self.scheme == "allocation":
            self._check_allocation()
        if self.theorem == "C4" and self.group > 1 and self.rate < 1:
            raise PrivacyError(
                f"for groups of {self.group} {self.unit}s that take part in different steps by their own coins nothing "
                "is proven here; ask for one, or use FixedOrder."
            )
        if self.law is not None and not (self.scale > 0 and math.isfinite(self.scale)):
            raise ConfigError(f"an event's scale is {self.scale!r}; noise with a law needs a finite number > 0.")

    def _check_allocation(self) -> None:
        """What the theorems on random allocation ask for (C7)."""
        batches = 1 / self.rate if self.rate > 0 else 0.0
        if not 1 <= batches <= 10**9 or abs(batches - round(batches)) > 1e-9 * batches:
            raise ConfigError(
                f"an epoch of random allocation has a whole number of batches; 1 / {self.rate!r} is none."
            )
        if self.adjacency == "replace":
            raise ConfigError(
                "random allocation is analysed for a unit whose records are replaced by empty ones, or which is added "
                "or removed; nothing better than two hops is proven for one that is replaced by another."
            )
        if self.law is not None or self.hardening != "idealised" or self.overflow:
            raise ConfigError("random allocation is analysed for Gaussian noise on whole batches, in real arithmetic.")

    @property
    def batches(self) -> int:
        """How many releases an epoch of random allocation has; 1 of other schemes."""
        return round(1 / self.rate) if self.scheme == "allocation" else 1

    @property
    def slack(self) -> float:
        """The part of delta for each release whose draw was not as its scheme says."""
        return 0.0 if self.crowded else self.overflow

    def uncut(self, rate: float) -> "Event":
        """The same releases at another rate, as if no cap were there."""
        return replace(self, rate=rate, overflow=0.0, crowded=0.0, crowded_rate=0.0)

    @classmethod
    def of(cls, who: Participation, query: Query, steps: int, group: int = 1, theorem: Theorem = "") -> "Event":
        """`steps` releases of a query in which these take part."""
        return cls(
            rate=who.rate,
            multiplier=query.multiplier,
            steps=steps,
            scheme=who.scheme,
            adjacency=who.adjacency,
            group=group,
            overflow=who.overflow,
            law=query.law,
            scale=query.scale,
            shifts=query.shifts,
            hardening=query.hardening,
            unit=who.unit,
            theorem=theorem,
            crowded=who.crowded,
            crowded_rate=who.crowded_rate,
        )

    @classmethod
    def of_pure(cls, epsilon: float, steps: int = 1, *, adjacency: Adjacency = "zero-out", unit: str = ROW) -> "Event":
        """Any mechanism that is (epsilon, 0)-private: a count with Laplace noise, a choice by exponential mechanism or
        report-noisy-max, randomised response. Counted in a ledger (`Ledger.query`), it composes with everything else.

        Args:
            epsilon: what each of the mechanisms proves under this relation, whatever was released before.
            steps: how many there are.
            adjacency: the relation between data sets.
            unit: what is hidden.

        >>> from discreet.accounting import cost
        >>> round(cost([Event.of_pure(0.1, steps=5)], 1e-6).epsilon, 2)
        0.5
        """
        return cls(1.0, 0.0, steps, adjacency=adjacency, unit=unit, pure=check_positive("epsilon", epsilon))

    @classmethod
    def of_best(cls, tuning: "Tuning") -> "Event":
        """The best of several runs, released once, as one event: it composes with all else by Rényi divergences.

        Args:
            tuning: how many runs were drawn, and what each of them costs by its settings (`candidates`).
        """
        several = [event for events in tuning.candidates for event in events]
        if not several or tuning.distribution == "all":
            raise ConfigError("the best of several runs is known by the releases of its candidates; give them.")
        kinds = {(event.adjacency == "replace", event.unit, event.group) for event in several}
        if len(kinds) > 1 or several[0].group != 1:
            raise PrivacyError("runs that are analysed under different relations or for different units have no best.")
        known = "zero-out" if any(event.adjacency == "zero-out" for event in several) else several[0].adjacency
        return cls(1.0, 0.0, 1, adjacency=known, unit=several[0].unit, best=tuning)

    def per(self, unit: str, rows: int) -> "Event":
        """The same releases, which hide one row now, for a unit that has at most so many rows: a user, say.

        Guarantee: with Gaussian noise on sums in which every row takes part, all rows of a unit together move a sum by
        at most `rows` times what one does, so this is a query of 1 / rows of the multiplier. Where rows are sampled, or
        the noise has another law, that is not proven here, and is a PrivacyError.

        >>> Event(rate=1.0, multiplier=10.0, steps=1).per("user", rows=5).multiplier
        2.0
        """
        check_int(f"the most rows a {unit} has", rows, least=1)
        if self.unit != ROW or check_unit("the unit", unit) == ROW:
            raise ConfigError(
                f"releases for each {self.unit} are turned into those for each {unit}; it goes from rows."
            )
        sampled = self.rate != 1 or self.scheme != "poisson" or self.overflow > 0
        other = self.law is not None or self.best is not None
        if sampled or other or self.hardening != "idealised" or self.group != 1:
            how = f"at a rate of {self.rate:g}" if sampled else f"with {self.law or self.hardening!r} noise"
            raise PrivacyError(
                f"what is released {how} protects each row, and what it is for a {unit} with up to {rows} rows is not "
                "proven; only Gaussian noise on sums of all rows is. Use a plan whose sampler takes "
                f"{unit}s (unit={unit!r}), or count it in a ledger of its own."
            )
        return replace(self, multiplier=self.multiplier / rows, pure=self.pure * rows, unit=unit)


def merge(events: Sequence[Event]) -> list[Event]:
    """The same releases, with equal ones counted together: composition does not depend on the order.

    Args:
        events: releases, of which equal ones may stand apart.
    """
    counts: dict[Event, int] = {}
    for event in events:
        key = replace(event, steps=0)
        counts[key] = counts.get(key, 0) + event.steps
    return [replace(event, steps=steps) for event, steps in counts.items()]


def check_unit(name: str, unit: object) -> str:
    """The unit, if it is a short word."""
    if not isinstance(unit, str) or not unit.isprintable() or not 0 < len(unit) <= 40:
        raise ConfigError(f"{name} is {unit!r}; it must be a short word, such as 'example' or 'user'.")
    return unit


def in_words(unit: str) -> str:
    """What a release hides, where other units are spoken of too."""
    return "row" if unit == ROW else unit


def units_of(events: Iterable[Event]) -> tuple[str, ...]:
    """Whom these releases protect, in order of appearance; what nobody takes part in protects nobody."""
    return tuple(dict.fromkeys(p.unit for p in events if p.steps and p.rate))


def check_units(unit: str, beside: Iterable[Event]) -> None:
    """Raise unless what is asked beside the releases that protect a unit protects it too."""
    for other in units_of(beside):
        if other != unit:
            rows = f", or declare how many a {unit} has at most: cost().per({unit!r}, rows=...)" if other == ROW else ""
            raise PrivacyError(
                f"what is asked beside the training protects each {in_words(other)}, and the plan each "
                f"{in_words(unit)}: the two do not add up. Ask for what protects each {in_words(unit)}{rows}."
            )


@dataclass(frozen=True)
class Cost:
    """A proven epsilon, and how it was computed."""

    epsilon: float
    accountant: str


@dataclass(frozen=True)
class Claimed:
    """What somebody says of a stage: the releases as their own accounting sees them, and whether that is so."""

    source: str
    events: tuple[Event, ...]
    verdict: Verdict
    reason: str
