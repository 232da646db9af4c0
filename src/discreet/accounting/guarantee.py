"""What is proven of a run, in a form that can be read aloud and in a form that can be parsed."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from discreet._check import check_int, check_positive
from discreet._documents import parse_json
from discreet.accounting import cost, delta_curve, epsilon_by_accountant, without_noise
from discreet.accounting.event_serialization import event_from_dict, event_to_dict, tuning_from_dict, tuning_to_dict
from discreet.accounting.events import ROW, Adjacency, Event, Verdict, in_words, merge, units_of
from discreet.accounting.serialization import describe, json_values
from discreet.accounting.tradeoff import GaussianFit, TradeOff, belief, gaussian_fit
from discreet.accounting.tuning import Tuning
from discreet.errors import ConfigError, PrivacyError

Status = Literal["proven", "checked", "assumed", "broken"]


@dataclass(frozen=True)
class Condition:
    """Something the proof rests on, and how far it is known: proven, checked by a probe, assumed, or broken."""

    text: str
    status: Status


def weakest(conditions: Sequence[Condition]) -> Status:
    """How far something is known that rests on all of these."""
    order: tuple[Status, ...] = ("broken", "assumed", "checked", "proven")
    return min((c.status for c in conditions), key=order.index, default="proven")


_ACCOUNTANTS = {
    "pld": "privacy-loss distribution",
    "rdp": "Rényi, improved conversion",
    "rdp-mironov": "Rényi, Mironov's conversion",
    "gaussian": "the Gaussian curve, without amplification",
}


@dataclass(frozen=True)
class Claim:
    """A figure somebody states for this method, beside what is proven: never a guarantee."""

    source: str
    epsilon: float
    verdict: Verdict
    reason: str


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-differential privacy of a run: what is proven, given the conditions.

    `so_far` is the epsilon of the releases made until now, beside the declared horizon's `epsilon`; it may be
    quoted only if stopping here was not decided by looking at the outputs. `events` are the releases it was computed
    from, so that the whole curve can be: `curve()`, `tradeoff()`, `gaussian()`, `figures()` and `attacker()` compute
    when asked.
    """

    epsilon: float
    delta: float
    unit: str
    adjacency: str
    proof: str
    conditions: tuple[Condition, ...] = ()
    claims: tuple[Claim, ...] = ()
    steps: int = 0
    released: int | None = None
    so_far: float | None = None
    group: int = 1
    events: tuple[Event, ...] = ()
    tuning: Tuning | None = None

    def __post_init__(self) -> None:
        check_positive("a guarantee's delta", self.delta)
        if not self.delta < 1 or not isinstance(self.epsilon, (int, float)) or not self.epsilon >= 0:
            raise ConfigError(f"({self.epsilon!r}, {self.delta!r}) is no epsilon and delta.")
        if (self.adjacency, self.group > 1) not in _NEIGHBOURS:
            raise ConfigError(f"a guarantee's adjacency is {self.adjacency!r}; it is not known.")
        check_int("a guarantee's group", self.group, least=1)
        check_int("a guarantee's steps", self.steps, least=0)

    @property
    def sound(self) -> bool:
        """Whether no condition is known to be broken."""
        return all(c.status != "broken" for c in self.conditions)

    @property
    def protected(self) -> str:
        """Whom the guarantee is about, in words."""
        return self.unit if self.group == 1 else f"group of {self.group} {self.unit}s"

    def __str__(self) -> str:
        parts = [f"NOT PRIVATE AS IT STANDS: {c.text}." for c in self.conditions if c.status == "broken"]
        if math.isinf(self.epsilon):
            parts.append(f"Nothing is proven about the privacy of any {self.protected}: {self.proof}.")
        else:
            emptied = _EMPTIED["one" if self.unit == "example" else "several"]
            words = _NEIGHBOURS[self.adjacency, self.group > 1]
            neighbours = words.format(unit=self.unit, group=self.group, emptied=emptied)
            parts.append(
                f"The released model is (ε = {round_up(self.epsilon)}, δ = {self.delta:g})-differentially private for "
                f"each {self.protected}: {neighbours}, the probability of any "
                f"outcome changes by at most a factor of e^ε = {_factor(self.epsilon)}, apart from a probability "
                f"of δ. Proof: {self.proof}."
            )
        if self.released is not None and self.released < self.steps:
            parts.append(f"This is the figure for all {self.steps:,} planned steps; {self.released:,} were released.")
            if self.so_far is not None:
                parts.append(
                    f"For those alone ε is {round_up(self.so_far)}, which may be quoted only if the decision to stop "
                    "was not made by looking at the outputs."
                )
        for status, opening in _OPENINGS.items():
            texts = [c.text for c in self.conditions if c.status == status]
            if texts:
                parts.append(f"{opening} {'; '.join(texts)}.")
        parts += [f"{c.source} claims ε = {c.epsilon:g}: {c.verdict}, {c.reason}." for c in self.claims]
        return " ".join(parts)

    def to_json(self) -> str:
        """The machine-readable twin; infinite figures are the string "inf"."""
        values = {_KEYS.get(f.name, f.name): getattr(self, f.name) for f in fields(self)}
        values["conditions"] = [asdict(c) for c in self.conditions]
        values["claims"] = [asdict(c) for c in self.claims]
        values["phases"] = [event_to_dict(p) for p in self.events]
        values["tuning"] = None if self.tuning is None else tuning_to_dict(self.tuning)
        return json.dumps(json_values({"format": _FORMAT} | values), ensure_ascii=False, indent=2)

    @classmethod
    def from_json(cls, text: str, laws: Sequence[type[Any]] = ()) -> "Guarantee":
        """The guarantee that `to_json` wrote.

        Args:
            text: that JSON.
            laws: your own noises, by class.
        """
        try:
            values = parse_json(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"this is not the JSON of a guarantee: {error}") from error
        if not isinstance(values, dict) or values.get("format") != _FORMAT:
            form = values.get("format") if isinstance(values, dict) else type(values).__name__
            raise ConfigError(f"the guarantee's format is {form!r}; this version reads {_FORMAT!r}.")
        del values["format"]
        unknown = set(values) ^ {_KEYS.get(f.name, f.name) for f in fields(cls)}
        if unknown:
            raise ConfigError(f"a guarantee with missing or unknown fields: {', '.join(sorted(unknown))}.")
        try:
            settings: dict[str, Any] = {k: v for k, v in _numbers(values).items() if k != "phases"} | {
                "conditions": tuple(Condition(**c) for c in values["conditions"]),
                "claims": tuple(Claim(**_numbers(c)) for c in values["claims"]),
                "events": tuple(event_from_dict(p, laws) for p in values["phases"]),
                "tuning": None if values["tuning"] is None else tuning_from_dict(values["tuning"], laws),
            }
            told = any("unit" in event for event in values["phases"]) or settings["epsilon"] == math.inf
            if not told:  # written before events said whom they protect
                settings["events"] = tuple(replace(p, unit=settings["unit"]) for p in settings["events"])
            return cls(**settings)
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise ConfigError(f"the guarantee cannot be read: {error}") from error

    def at(self, delta: float | None = None, *, accountant: str | None = None) -> "Guarantee":
        """The same releases at another delta, or by one accountant in place of the best; what they rest on stays.

        Claims and `so_far` are left out, as they are of this delta.

        Args:
            delta: the delta at which epsilon is wanted.
            accountant: pld, rdp, rdp-mironov or gaussian, or its name in `figures()`.

        Raises:
            ConfigError: there is no such accountant.
            PrivacyError: it proves nothing for these releases.

        >>> import discreet
        >>> plan = discreet.methods.dp_sgd(examples=60_000, batch_size=256, epochs=10, noise=1.1, delta=1e-5)
        >>> proven = plan.guarantee()
        >>> proven.epsilon < proven.at(1e-7).epsilon, proven.epsilon < proven.at(accountant="rdp").epsilon
        (True, True)
        """
        delta = self.delta if delta is None else delta
        if self.group > 1 or (self.tuning is not None and accountant is not None):
            raise ConfigError("another delta is for single units, and one accountant for a run that was not tuned.")
        again = guarantee(self.events, delta, unit=self.unit, tuning=self.tuning, steps=self.steps)
        changed = replace(self, delta=delta, epsilon=again.epsilon, proof=again.proof, claims=(), so_far=None)
        if accountant is None:
            return changed
        figures = epsilon_by_accountant(self.events, delta)
        name = _ACCOUNTANTS.get(accountant, accountant)
        if name not in figures:
            raise ConfigError(f"the accountant {accountant!r} is not one of {', '.join([*_ACCOUNTANTS, *figures])}.")
        if math.isinf(figures[name]):
            raise PrivacyError(f"{name} proves nothing for these releases at delta {delta:g}; leave accountant out.")
        words = f"{again.proof.partition('; accounted by ')[0]}; accounted by {name}"
        return replace(changed, epsilon=figures[name], proof=words)

    # --- more than one figure ------------------------------------------------------------------------------------

    def apart(self) -> "dict[str, Guarantee]":
        """For each unit that some of the releases protect, what those alone prove: one part, unless they are mixed."""
        units = units_of(self.events)
        found = {}
        for unit in units:
            own = [p for p in self.events if p.unit == unit]
            others = [in_words(other) for other in units if other != unit]
            alone = (
                f"this is of what protects each {in_words(unit)} alone: what protects each {' or '.join(others)} was "
                "asked of the same data, and is not counted"
            )
            conditions = (Condition(alone, "assumed"),) if others else ()
            found[unit] = guarantee(own, self.delta, unit=unit, conditions=conditions, tuning=self.tuning)
        return found

    def curve(self) -> tuple[tuple[float, float], ...]:
        """Points (epsilon, delta) that are all proven."""
        return delta_curve(self.events, self.delta, self.tuning)

    def tradeoff(self) -> TradeOff:
        """The errors that whoever tells neighbouring data sets apart must make."""
        return TradeOff(self.curve())

    def gaussian(self) -> GaussianFit:
        """The whole curve as one figure, the mu of a Gaussian mechanism, with how far that is from it.

        >>> import discreet
        >>> plan = discreet.methods.dp_sgd(examples=60_000, batch_size=256, epochs=10, noise=1.1, delta=1e-5)
        >>> fit = plan.guarantee().gaussian()
        >>> round(fit.mu, 2), fit.error < 0.01
        (0.25, True)
        """
        return gaussian_fit(self.curve())

    def figures(self) -> dict[str, float]:
        """Epsilon of one run by each accountant, for comparison: infinite where one does not apply."""
        return epsilon_by_accountant(self.events, self.delta)

    def attacker(self, classes: int | None = 10) -> dict[str, float]:
        """What the guarantee means for an attacker who knows all but whether one unit's data was used.

        Args:
            classes: the number of labels that a random one is drawn from, for the ceiling on memorising it (T8); None
                where there are no labels.
        """
        tradeoff, recalled = self.tradeoff(), {}
        if classes is not None:
            check_int("classes", classes, least=2)
            recalled = {f"a random label among {classes} recalled": tradeoff.memorisation(classes)}
        return {
            "largest advantage over guessing (true less false positives)": tradeoff.advantage,
            "true positives at 0.1 % false positives": tradeoff.power(0.001),
            "true positives at 1 % false positives": tradeoff.power(0.01),
            **recalled,
            f"belief after, from an even one before (but for {self.delta:g} of cases)": belief(
                tradeoff.surprise(self.delta)
            ),
        }


def guarantee(
    events: Sequence[Event],
    delta: float,
    *,
    unit: str | None = None,
    adjacency: Adjacency | None = None,
    conditions: tuple[Condition, ...] = (),
    tuning: Tuning | None = None,
    steps: int = 0,
) -> Guarantee:
    """What is proven of these releases together: runs on the same data, a query beside the training, events of one run.

    Where nothing is proven, that is an error, unless it is for want of noise: then epsilon is infinite. So it is where
    some releases do not protect the `unit` (that of the releases; of several, not rows): a broken condition says which,
    and what each unit's own prove (`Guarantee.apart`).

    Args:
        events: the releases.
        delta: the delta at which epsilon is wanted.
        unit: whom it is to be about.
        adjacency: under which relation; that of the releases if not given.
        conditions: what the guarantee rests on.
        tuning: that the run is the best of several.
        steps: how many steps were planned.

    Raises:
        PrivacyError: nothing is proven, or the releases are analysed under another relation.
    """
    releases = tuple(merge(events))
    units = units_of(releases)
    named = unit or next((u for u in units if u != ROW), units[0] if units else ROW)
    if any(u != named for u in units):
        return _of_several_units(releases, delta, named, adjacency, conditions, tuning, steps)
    stated = releases[0].adjacency if releases else adjacency or "add-remove"
    if adjacency is not None and (adjacency == "replace") != (stated == "replace"):
        raise PrivacyError(f"the releases are analysed under {stated!r}, not {adjacency!r}.")
    stated = adjacency or stated
    if any(p.adjacency == "zero-out" and p.steps for p in releases):
        stated = "zero-out"  # one release that has the number of units for public makes it so for all of them
    spent = cost(releases, delta, tuning)
    if math.isinf(spent.epsilon) and not any(without_noise(p) for p in releases):
        raise PrivacyError(
            f"nothing is proven for these releases at delta {delta:g} ({spent.accountant}): "
            f"{'; '.join(_words(p) for p in releases)}."
        )
    proof = spent.accountant
    if math.isfinite(spent.epsilon):
        proof = f"{'; '.join(_words(p) for p in releases) or 'no release'}; accounted by {spent.accountant}"
    return Guarantee(
        spent.epsilon,
        delta,
        named,
        stated,
        proof,
        conditions,
        steps=steps,
        group=releases[0].group if releases else 1,
        events=releases,
        tuning=tuning,
    )


def _of_several_units(
    releases: tuple[Event, ...],
    delta: float,
    unit: str,
    adjacency: Adjacency | None,
    conditions: tuple[Condition, ...],
    tuning: Tuning | None,
    steps: int,
) -> Guarantee:
    """What is proven for each `unit` where some releases protect another one: nothing, and what each has apart."""
    parts = {u: [p for p in releases if p.unit == u] for u in units_of(releases)}
    others = " or ".join(in_words(u) for u in parts if u != unit)
    count = sum(p.steps for u, part in parts.items() if u != unit for p in part)
    apart = ", ".join(
        f"ε = {round_up(cost(p, delta, tuning).epsilon)} for each {in_words(u)}" for u, p in parts.items()
    )
    several = f", and how many rows a {unit} has is not declared" if unit != ROW and ROW in parts else ""
    broken = (
        f"{count:,} release{'s' * (count > 1)} beside those that protect each {in_words(unit)} "
        f"protect{'s' * (count == 1)} each {others} only{several}; apart, at δ = {delta:g}, it is {apart}"
    )
    return Guarantee(
        math.inf,
        delta,
        unit,
        adjacency or parts.get(unit, releases)[0].adjacency,
        f"what protects each {others} does not add up with what protects each {in_words(unit)}",
        (Condition(broken, "broken"), *conditions),
        steps=steps,
        group=releases[0].group,
        events=releases,
        tuning=tuning,
    )


def _words(event: Event) -> str:
    """A event in words, with the theorems it rests on."""
    if event.best is not None:
        best, settings = event.best, len(event.best.candidates)
        costs = "" if settings == 1 else f", each at most as revealing as the most revealing of {settings} settings"
        return f"the best of {best.runs:g} runs on average ({best.distribution}){costs}"
    if event.pure:
        return f"{event.steps:,} releases that are {event.pure:.6g}-private by themselves"
    if event.law is None:
        kind = "discrete Gaussian" if event.hardening == "exact" else "Gaussian"
        what, theorems = f"{kind} releases of effective noise multiplier {event.multiplier:.6g}", ["T1", "T6"]
    else:
        law = {k: v for k, v in describe(event.law).items() if k not in ("type", "scale")}
        name = type(event.law).__name__ + "".join(f" {k} {v:g}" for k, v in law.items())
        what = f"releases with {name} noise of scale {event.scale:.6g} sensitivities"
        theorems = ["T1", "T2" if event.shifts is not None else "T4' and T5"]
    if event.scheme == "allocation":
        epochs = (
            f"{event.steps:,} epochs of {event.batches:,}" if event.steps != 1 else f"an epoch of {event.batches:,}"
        )
        each = f"each {event.unit} in one batch of an epoch, drawn at random"
        return f"{epochs} {what}, {each} (theorems T6, C7 and C8)"
    how = {
        "poisson": f"each on a Poisson sample of rate {event.rate:.6g}",
        "fixed-size": f"each on a random set of fixed size, rate {event.rate:.6g}",
        "fixed-batches": f"each on one of {1 / event.rate:.6g} fixed batches",
    }[event.scheme]
    if event.rate == 1 and event.scheme == "poisson":
        how = "with no amplification by sampling"
    if event.scheme == "fixed-batches":
        theorems = ["T7"]
    count = f"{event.steps:,}"
    if event.theorem == "C1":
        theorems, count = [*theorems, "C1"], "a whole run, at most as revealing as"
        what = f"one {what.replace('releases', 'release')}" if event.steps == 1 else f"{event.steps:,} {what}"
    elif event.theorem == "C4":
        theorems, count = [*theorems, "C4"], f"rounds through all groups, at most as revealing as {event.steps:,}"
    return f"{count} {what}, {how} (theorem{'s' * (len(theorems) > 1)} {' and '.join(theorems)})"


_FORMAT = "discreet-guarantee/1"
_KEYS = {"events": "phases"}  # what a field is called in files, where that is not its name
_EMPTIED = {  # a unit that is no example has several records
    "one": "record were replaced by an empty one that contributes nothing",
    "several": "records were all replaced by empty ones that contribute nothing",
}
_NEIGHBOURS = {
    ("zero-out", False): "if one {unit}'s {emptied}",
    ("add-remove", False): "if one {unit} were added or removed",
    ("replace", False): "if one {unit} were replaced by another",
    ("zero-out", True): "if the records of {group} {unit}s were replaced by empty ones that contribute nothing",
    ("add-remove", True): "if {group} {unit}s were added or removed",
    ("replace", True): "if {group} {unit}s were replaced by others",
}
_OPENINGS = {
    "proven": "By construction,",
    "checked": "Checked while it ran:",
    "assumed": "Assumed, not checked:",
}


def _numbers(values: dict[str, Any]) -> dict[str, Any]:
    """The same with words for infinite figures as numbers again."""
    return {key: math.inf if key in ("epsilon", "so_far") and v == "inf" else v for key, v in values.items()}


def round_up(value: float) -> str:
    """Three decimals, or three significant digits below one, never rounded down.

    >>> round_up(2.38162), round_up(0.0001234), round_up(0.0)
    ('2.382', '0.000124', '0')
    """
    if not 1e-200 < value < 1e200:
        return "∞" if value > 1 else "0" if value == 0 else f"{value:g}"
    digits = 3 if value >= 1 else 2 - math.floor(math.log10(value))
    scale = 10.0**digits
    return f"{math.ceil(value * scale * (1 - 1e-12)) / scale:.{digits}f}"


def _factor(epsilon: float) -> str:
    return f"{math.exp(epsilon) * 1.0005:.4g}" if epsilon < 50 else "more than 10^21"
