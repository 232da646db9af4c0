"""What the lines of a ledger add up to: runs, each with what it has spent, and queries."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from discreet._check import check_int, check_positive
from discreet.accounting.event_serialization import event_from_dict
from discreet.accounting.events import ROW, Event, in_words
from discreet.accounting.guarantee import Condition
from discreet.errors import PrivacyError
from discreet.ledger.chain import FORMAT, OLD, checked, one_step
from discreet.ledger.conditions import ALONE, SEEDED, at_most, read_conditions


@dataclass
class Run:
    """One run, as its lines tell it."""

    opening: Mapping[str, Any]
    one: Event  # what one step costs
    released: int = 0
    participations: int = 0
    recovered: int = 0
    last: int = 0  # where the present pass began, at the latest
    cheapened: bool = False  # whether a line counts less than its steps cost
    seeded: bool = False  # whether a release's noise came from a known seed
    unprobed: bool = False  # whether a release was made before anything was probed
    ranks: int = 1  # the most processes that made a release together
    shares: bool = True  # whether all that were made together had noise in shares
    rows: set[str] = field(default_factory=set)  # how far the rows of those that were made together were compared
    attempt: str = ""  # who wrote last: every process that takes the run up has a name of its own
    rests_on: tuple[Condition, ...] | None = None  # what was tested of it and what was not, as was last written down
    end: Mapping[str, Any] | None = None  # its closing line, with that line's hash
    _spent: list[Event] = field(default_factory=list)
    _last: int = 0  # how many steps the last of them has: an Event is made when it is asked for, not at each step

    @property
    def spent(self) -> list[Event]:
        """What was counted, equal steps in a row together."""
        return [*self._spent[:-1], *(replace(last, steps=self._last) for last in self._spent[-1:])]

    @cached_property
    def stretches(self) -> list[tuple[int, float]]:
        """How many steps have which noise multiplier, in order."""
        factors = self.opening.get("schedule") or [[self.opening["steps"], 1.0]]
        return [(int(steps), self.one.multiplier * float(factor)) for steps, factor in factors]

    def stretch(self, step: int) -> tuple[int, float]:
        """How many steps from this one on have the same noise, and its multiplier."""
        multiplier = self.one.multiplier
        for steps, multiplier in self.stretches:
            if step < steps:
                return steps - step, multiplier
            step -= steps
        return 1, multiplier

    @cached_property
    def steps(self) -> int:
        """How many steps it was declared to have."""
        return int(self.opening["steps"])

    @cached_property
    def in_a_pass(self) -> int:
        """How many steps in a row a unit takes part in only once."""
        return int(self.opening["pass"])

    @property
    def left(self) -> int:
        """How many steps the present pass has left."""
        return 0 if self.released == 0 else max(0, self.last + self.in_a_pass - self.released)

    def least(self, count: int) -> int:
        """The fewest participations that the next `count` steps can add: passes that must begin in them."""
        return -(-max(0, count - self.left) // self.in_a_pass)

    def count_release(self, step: Any, count: int, participations: int, rate: float, multiplier: float) -> None:
        """Count the next `count` steps, of which a unit takes part in so many; a PrivacyError if they cannot be."""
        if self.end is not None:
            raise PrivacyError("it counts a step of a run that has ended")
        if step != self.released:
            raise PrivacyError(f"it counts step {step!r} where {self.released} is due")
        if self.released + count > self.steps:
            raise PrivacyError("it counts more steps than its run has")
        if participations < count and participations < self.least(count):
            raise PrivacyError("it counts fewer participations than its steps bring")
        self.count(rate, multiplier, participations, count)

    def count(self, rate: float, multiplier: float, participations: int, steps: int) -> None:
        same, planned = self.stretch(self.released)
        self.cheapened |= rate < self.one.rate or multiplier > planned or steps > same
        if participations == steps:
            self.last = self.released + steps - 1
        elif participations:  # the first pass began when the one before was over, the others after it, at the latest
            self.last = self.released + min(steps - 1, self.left + (participations - 1) * self.in_a_pass)
        self.released += steps
        self.participations += participations
        last = self._spent[-1] if self._spent else None
        if last is not None and (last.rate, last.multiplier) == (rate, multiplier):
            self._last += participations
        else:
            new = replace(self.one, rate=rate, multiplier=multiplier, steps=participations)
            self._spent, self._last = [*self.spent, new], participations

    def line(self, name: str, multiplier: float, count: int, participations: int, **notes: Any) -> dict[str, Any]:
        """The line that counts its next releases, and says what else is to be noted of them."""
        one = {"rate": self.one.rate, "multiplier": multiplier, "participations": participations}
        return {"kind": "release", "run": name, "step": self.released, "count": count, **one, **notes}

    def protects(self, unit: str) -> None:
        """Have it known whom the run protects, where its lines do not say it: they were written before units were."""
        self.one = replace(self.one, unit=unit)
        self._spent = [replace(p, unit=unit) for p in self._spent]

    @property
    def withdrawn(self) -> bool:
        """Whether it has ended without a release."""
        return self.end is not None and self.released == 0

    def horizon(self) -> list[Event]:
        """What the run was declared to spend, or what it has spent if that is more; nothing of one that was withdrawn.

        A run that ends early counts with its whole horizon: when it ends may depend on what was seen.
        """
        if self.withdrawn:
            return []
        rest = max(0, int(self.opening["participations"]) - self.participations)
        if not self.opening.get("schedule"):
            return [*self.spent, replace(self.one, steps=rest)]
        left, done = [], self.released
        for steps, multiplier in self.stretches:
            left.append(replace(self.one, multiplier=multiplier, steps=max(0, steps - done)))
            done = max(0, done - steps)
        return [*self.spent, *left]


@dataclass
class LedgerState:
    """What the lines read so far add up to."""

    dataset: Mapping[str, Any] | None = None
    runs: dict[str, Run] = field(default_factory=dict)
    queries: list[tuple[str, Event]] = field(default_factory=list)
    broken: tuple[Condition, ...] = ()  # queries that are known not to be private
    declared: tuple[Condition, ...] = ()  # how many rows a unit has in queries that are counted for it
    stages: tuple[type[Any], ...] = ()
    lines: int = 0
    head: str = ""  # the hash of the last line
    format: str = ""  # of the first one
    asked_by: str | None = None  # the run that the last query says it belongs to
    times: list[str] = field(default_factory=list)  # for each query when it was counted
    askers: list[str] = field(default_factory=list)  # for each query the run that it belongs to, "" for none
    facts: dict[str, tuple[Condition, ...]] = field(default_factory=dict)  # what was declared of runs' data, by run
    answers: dict[str, tuple[str, Event]] = field(default_factory=dict)  # by the noise in it, which answers one query

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What is known not to be private, of everything together, and what queries rest on."""
        seeded = any(run.seeded for run in self.runs.values())
        facts = dict.fromkeys(fact for facts in self.facts.values() for fact in facts)
        return (*self.broken, *((SEEDED,) if seeded else ()), *self.declared, *facts)

    def beside(self, name: str, run: Run, unit: str) -> tuple[Condition, ...]:
        """What the file adds to what one run's guarantee for a unit rests on."""
        broken = (*self.broken, *((SEEDED,) if run.seeded else ()), *((ALONE,) if run.opening.get("alone") else ()))
        if self.dataset is None:
            return (*broken, *self.declared, *(fact for facts in self.facts.values() for fact in facts))
        alone = (
            f"this is of the run alone: what else was asked of data set {self.dataset['dataset']!r}, also what went "
            "into the model before (a projection), is in its ledger's guarantee"
        )
        others = [in_words(u) for u in self._units if u != unit]
        if others:
            alone += (
                f", of which some protects each {' or '.join(others)} and not each {in_words(unit)}: nothing is proven "
                "of all"
            )
        return (*broken, *self.facts.get(name, ()), Condition(alone, "assumed"))

    def queries_of(self, name: str) -> list[Event]:
        """What was asked of the data for one run: of a file of one run, everything."""
        everything = self.dataset is None
        return [event for (_, event), run in zip(self.queries, self.askers, strict=True) if everything or run == name]

    @property
    def closed(self) -> bool:
        """Whether nothing can follow: a file of one run, which has ended."""
        return self.dataset is None and any(run.end is not None for run in self.runs.values())

    @property
    def adds_up(self) -> bool:
        """Whether all that is counted must be for one unit: a run with its queries, or what is under one cap."""
        return self.dataset is None or self.dataset["epsilon"] is not None

    @property
    def _units(self) -> list[str]:
        """Whom runs and queries protect, each once."""
        asked = [event.unit for _, event in self.queries if event.steps]
        return list(dict.fromkeys([run.one.unit for run in self.runs.values()] + asked))

    def horizon(self) -> list[Event]:
        """Everything that was declared: runs to their ends, and queries."""
        return [p for run in self.runs.values() for p in run.horizon()] + [p for _, p in self.queries]

    def declare(self, unit: str, rows: int) -> None:
        """Count the queries so far that protect rows for a unit, which has at most so many in each."""
        rowwise = [what for what, event in self.queries if event.unit == ROW]
        self.queries = [(what, p.per(unit, rows) if p.unit == ROW else p) for what, p in self.queries]
        self.declared = *self.declared, *(at_most(unit, rows, what) for what in rowwise)

    def take(self, line: bytes, key: bytes | None) -> None:
        """Check one line against the chain and add it up; a PrivacyError says what is wrong with it."""
        if key is None and (found := one_step(line, self.head)) is not None:
            digest, (name, figures) = found
            run = self.runs.get(name)
            if run is not None and 0 < figures[1] >= figures[2]:
                run.count_release(*figures)
                self.follow(digest)
                return
        content, digest = checked(line, self.head, key)
        self.add(content, digest)

    def add(self, content: Mapping[str, Any], digest: str) -> None:
        """Add up one line that is known to follow in the chain."""
        if not self.lines:
            self.format = str(content.get("format"))
            if self.format not in (FORMAT, OLD):
                raise PrivacyError(f"its format is {content.get('format')!r}, this version reads {FORMAT!r}")
        self.count(content, digest)
        self.follow(digest)

    def follow(self, digest: str) -> None:
        """A line with this hash is the last one."""
        self.lines, self.head = self.lines + 1, digest

    def count_release(self, line: Mapping[str, Any]) -> None:
        """Add up a line that counts releases and was made a moment ago."""
        seeded, unprobed = "seeded" in line, "unprobed" in line
        if len(line) > _FIGURES + seeded + unprobed or "attempt" in line:  # it says something beside
            self.count(line)
            return
        run = self.runs[line["run"]]
        run.count_release(line["step"], line["count"], line["participations"], line["rate"], line["multiplier"])
        run.seeded |= seeded and bool(line["seeded"])
        run.unprobed |= unprobed and bool(line["unprobed"])

    def count(self, content: Mapping[str, Any], digest: str = "") -> None:
        """Add up what a line says, without a place for it in the chain."""
        try:
            self._add(content, digest)
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise PrivacyError(f"its content makes no sense ({error})") from error

    def _add(self, content: Mapping[str, Any], digest: str) -> None:
        kinds: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "release": self._add_release,
            "run": self._add_run,
            "query": self._add_query,
            "dataset": self._add_dataset,
            "cap": self._add_cap,
            "evidence": lambda line: self._note(self.runs[line["run"]], line),
            "declared": self._add_facts,
            "end": lambda line: self._add_end(line, digest),
        }
        if content["kind"] not in kinds:
            raise PrivacyError(f"its kind is {content['kind']!r}, which is not known")
        kinds[content["kind"]](content)

    @staticmethod
    def _note(run: Run, content: Mapping[str, Any]) -> None:
        """What a line says of a run beside what it counts."""
        if run.end is not None:
            raise PrivacyError("it speaks of a run that has ended")
        if "attempt" in content:
            run.attempt = str(content["attempt"])
        if "conditions" in content:
            run.rests_on = read_conditions(content["conditions"])

    def _add_release(self, content: Mapping[str, Any]) -> None:
        run = self.runs[content["run"]]
        count = check_int("count", content["count"], least=1)
        taken = check_int("participations", content["participations"], least=0, most=count)
        run.count_release(content["step"], count, taken, float(content["rate"]), float(content["multiplier"]))
        run.recovered += bool(content.get("recovered"))
        run.seeded |= bool(content.get("seeded"))
        run.unprobed |= bool(content.get("unprobed"))
        ranks = check_int("ranks", content.get("ranks", 1), least=1)
        run.ranks = max(run.ranks, ranks)
        run.shares &= ranks == 1 or bool(content.get("noise_shares"))
        if ranks > 1:
            run.rows.update(str(content.get("rows", "none")).split())
        if ranks > 1 and count > 1 and not content.get("restored"):  # it cannot know the rows of loops to come
            run.rows.add("none")
        self._note(run, content)

    def _add_run(self, content: Mapping[str, Any]) -> None:
        if content["run"] in self.runs or (self.runs and self.dataset is None):
            raise PrivacyError("it opens a second run in a file that holds one")
        check_int("steps", content["steps"], least=0)
        check_int("participations", content["participations"], least=0, most=content["steps"])
        check_int("pass", content["pass"], least=1)
        for steps, factor in content.get("schedule", []):
            check_int("a stretch's steps", steps, least=0)
            check_positive("a stretch's factor", factor)
        if not isinstance(content["plan"], dict) or not isinstance(content["parameters"], list):
            raise PrivacyError("it does not describe a run")
        one = event_from_dict({**_old_unit(content["plan"]), **content["phase"]}, self.stages)
        if one.group != 1:
            raise PrivacyError("it does not describe a run")
        if not isinstance(content.get("audit", {}), dict):
            raise PrivacyError("it does not describe an audit")
        if self.asked_by is not None and self.dataset is None and self.asked_by != content["run"]:
            raise PrivacyError("it opens another run than the one that asked before it")
        if "rows" in content:
            self.declare(one.unit, check_int("rows", content["rows"], least=1))
        run = Run(content, one)
        self._note(run, content)
        self.runs[str(content["run"])] = run

    def _add_query(self, content: Mapping[str, Any]) -> None:
        if self.closed:
            raise PrivacyError("it asks something after its run has ended")
        what, event = str(content["what"]), event_from_dict(content["phase"], self.stages)
        self.queries.append((what, event))
        self.askers.append(str(content.get("run", "")))
        self.times.append(str(content.get("at", "")))
        if "run" in content:
            self.asked_by = str(content["run"])
        if "answer" in content:
            self.answers[str(content["answer"])] = what, event
        if "rows" in content:
            rows = check_int("rows", content["rows"], least=1)
            self.declared = *self.declared, at_most(event.unit, rows, what)
        if "broken" in content:
            self.broken = *self.broken, Condition(str(content["broken"]), "broken")

    def _add_facts(self, content: Mapping[str, Any]) -> None:
        run = str(content["run"])
        if run in self.runs and self.runs[run].end is not None:
            raise PrivacyError("it speaks of a run that has ended")
        # nothing that was declared before is taken back
        self.facts[run] = tuple(dict.fromkeys((*self.facts.get(run, ()), *read_conditions(content["conditions"]))))

    def _add_dataset(self, content: Mapping[str, Any]) -> None:
        if self.lines:
            raise PrivacyError("it names a data set after the file's beginning")
        named = {k: content[k] for k in ("dataset", "epsilon", "delta")}
        if not isinstance(named["dataset"], str) or not 0 < check_positive("delta", named["delta"]) < 1:
            raise PrivacyError("it names no data set and cap")
        if named["epsilon"] is not None:
            check_positive("epsilon", named["epsilon"])
        self.dataset = named

    def _add_cap(self, content: Mapping[str, Any]) -> None:
        if self.dataset is None or self.dataset["epsilon"] is not None:
            raise PrivacyError("it caps what is no data set's, or has a cap")
        self.dataset = {**self.dataset, "epsilon": check_positive("epsilon", content["epsilon"])}

    def _add_end(self, content: Mapping[str, Any], digest: str) -> None:
        run = self.runs[content["run"]]
        if content["released"] != run.released:
            raise PrivacyError(f"it ends a run after {content['released']!r} steps, and {run.released} are counted")
        check_int("lost", content["lost"], least=0)
        if not all(isinstance(name, str) and isinstance(found, str) for name, found in content["files"].items()):
            raise PrivacyError("it names no files")
        self._note(run, content)
        run.end = {**content, "hash": digest}


_FIGURES = 7  # of a line that counts releases and says nothing beside


def _old_unit(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Whom a run protects by its sampler's word, for lines that were written before events said it."""
    sampling = plan.get("sampling")
    unit = sampling.get("unit") if isinstance(sampling, dict) else None
    return {"unit": unit} if isinstance(unit, str) else {}
