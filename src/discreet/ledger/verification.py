"""Whether a ledger is as it was written, and what it proves, from the file alone."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from discreet._check import check_int
from discreet._documents import parse_json, parse_toml
from discreet.accounting import cost
from discreet.accounting.events import Event, in_words
from discreet.accounting.guarantee import Condition, Guarantee, Status, guarantee, weakest
from discreet.accounting.tuning import Tuning
from discreet.errors import ConfigError, PrivacyError
from discreet.ledger import LedgerState, Run, read, same_rows, steps_in_a_pass, storage, together, totals
from discreet.ledger.budget import total_of
from discreet.ledger.chain import OLD
from discreet.ledger.extract import EXTRACT, Extract, as_of, compare_extract, read_extract
from discreet.ledger.reading import counted_as_torn, has_hash
from discreet.stages.conditions import guarantee_of
from discreet.stages.plan import Plan, known_stages
from discreet.stages.sensitivity import Layout

IDENTITY = "run.json"  # of a run's folder: which run of a ledger it holds


@dataclass(frozen=True)
class VerifiedRun:
    """One run: what was planned, what was released, what is proven.

    `rests_on` is what was tested of it and what was not, as the ledger has it; None where it does not say. `ended` is
    whether its ledger is closed, `files` the hashes of what it left, `lost` how many steps crashes took, `head` the
    hash of its closing line, `began` when its opening line was written.
    """

    run: str
    planned: int
    released: int
    recovered: int
    guarantee: Guarantee
    follows_from_its_plan: bool
    audit: Mapping[str, Any] | None = None  # what was declared to be tested, before the first release
    rests_on: tuple[Condition, ...] | None = None
    ended: bool = False
    files: Mapping[str, str] | None = None
    lost: int = 0
    head: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)  # of what it was made with
    plan: Mapping[str, Any] = field(default_factory=dict)
    began: str = ""


@dataclass(frozen=True)
class Verified:
    """A ledger whose chain holds; of a run's folder, with the name of its `own` run and its files that are `absent`.

    `extract` says of which ledger it is a part, where it is one: a run's own lines, and the total as of a date.
    """

    path: str
    lines: int
    head: str
    signed: bool
    torn: bool
    runs: tuple[VerifiedRun, ...]
    queries: tuple[str, ...]
    dataset: str | None
    total: Guarantee | None
    old: bool = False  # whether an earlier version began it
    own: str | None = None
    absent: tuple[str, ...] = ()
    extract: Extract | None = None

    def run_of(self, folder: str | Path) -> VerifiedRun:
        """The run that a folder holds."""
        found = next((run for run in self.runs if run.run == self.own), None)
        if found is None:
            raise PrivacyError(
                f"{self.path} does not hold run {self.own}, which {folder} says it is: nothing of it was counted, or "
                "one of the two was replaced."
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        values = {k: v for k, v in vars(self).items() if k not in ("runs", "total", "queries", "absent")}
        values["queries"], values["absent"] = list(self.queries), list(self.absent)
        values["runs"] = [asdict(replace(r)) | {"guarantee": json.loads(r.guarantee.to_json())} for r in self.runs]
        values["total"] = None if self.total is None else json.loads(self.total.to_json())
        values["extract"] = None if self.extract is None else asdict(self.extract)
        return values

    def __str__(self) -> str:
        parts = [f"{self.path}: {self.lines} lines, the chain holds{', every line signed' if self.signed else ''}."]
        if self.old:
            parts.append(
                "An earlier version wrote it: folders did not say which run they hold, so that runs of one plan on one "
                "data set are told apart by their plan alone; what was tested of a run is not in it, nor which model "
                "it made."
            )
        if self.torn:
            parts.append("The last line was cut off by a crash: it is counted as spent.")
        for run in self.runs:
            over = " Its ledger is closed." if run.ended else ""
            parts.append(f"Run {run.run}: {run.released:,} of {run.planned:,} steps released.{over} {run.guarantee}")
            if not run.follows_from_its_plan:
                parts.append("(The cost of a step was read from the ledger: a stage of the plan is not known here.)")
            if run.audit is not None:
                parts.append(_in_words(run.audit))
        if self.absent:
            parts.append(f"Not there to be compared with what the run left: {', '.join(self.absent)}.")
        if self.queries and self.extract is None:
            parts.append(f"Also asked of the data: {', '.join(self.queries)}.")
        if self.total is not None:
            when = "" if self.extract is None else f" as of {self.extract.at}"
            parts.append(f"All of data set {self.dataset!r} together{when}: {self.total}")
        if self.extract is None:
            parts.append(
                f"Its last hash is {self.head}; keep it elsewhere, and a rewritten or shortened file will show."
            )
        else:
            parts.append(
                f"It is an extract of {self.extract.ledger}, with this run's own lines alone. That ledger has each of "
                f"them, and had the hash {self.head} in its line {self.extract.lines:,}."
            )
        return "\n\n".join(parts)


def verify(
    path: str | Path, *, key: bytes | None = None, anchor: str | None = None, stages: Sequence[type[Any]] = ()
) -> Verified:
    """Check a ledger's chain and re-derive its guarantees from nothing else; a PrivacyError says which line is damaged.

    Args:
        path: a ledger, or a run's folder: then the files that the run left are compared with the hashes in its ledger.
        key: also checks every line's signature.
        anchor: the hash of a line that must be in the file: the last one, as it was printed or stored in a checkpoint,
            shows that nothing was cut off behind it.
        stages: your own bounds, noises and samplers, by class: without them a run of theirs is not re-derived, or
            cannot be read.
    """
    found, folder = _verify(Path(path), key, anchor, stages, everything=True), Path(path)
    if not folder.is_dir():
        return found
    if any((folder / name).exists() for name in ("checkpoint", "end.json")):  # something was released, and must be here
        found.run_of(folder)
    return replace(found, absent=compare_files(folder, found, stages))


def verify_folder(
    folder: str | Path, stages: Sequence[type[Any]] = (), *, files: bool = True
) -> tuple[Verified, VerifiedRun]:
    """The same of a run's folder and its own run alone: other runs on its data set are checked, but not proven.

    With `files=False` the files that the run left are not looked at (`compare_files` does that).
    """
    found = _verify(Path(folder), None, None, stages, everything=False)
    if files:
        found = replace(found, absent=compare_files(Path(folder), found, stages))
    return found, found.run_of(folder)


def _verify(
    place: Path, key: bytes | None, anchor: str | None, stages: Sequence[type[Any]], *, everything: bool
) -> Verified:
    folder = place if place.is_dir() else None
    file = place if folder is None else ledger_of(folder)
    try:
        there = storage.is_file(file)
    except OSError as error:
        raise ConfigError(f"{file} is no ledger: {error}") from error
    if not there:
        raise ConfigError(f"{file} is no ledger: there is no such file.")
    extract, torn = None, b""
    if file.name == EXTRACT:
        content, extract = read_extract(file, key, stages)
    else:
        content, torn = read(file, key, stages)
    counted = counted_as_torn(content, file, torn) if torn else []
    if not content.lines:
        raise PrivacyError(f"{file} is damaged at line 1: it holds no whole line.")
    if anchor is not None and not has_hash(file, anchor):
        raise PrivacyError(
            f"{file} lacks the line with hash {anchor}: it was cut short, rewritten, or is another file."
        )
    own = None if folder is None else own_run(folder, content)
    shown = [name for name, run in content.runs.items() if not run.withdrawn or not run.steps]
    chosen = [own] if not everything and own in content.runs else shown
    memory = _Memory()
    dataset = content.dataset
    try:
        plans = {name: _planned(name, run, name in counted, stages) for name, run in content.runs.items()}
        runs = tuple(_run(name, content, plans[name], name in counted, memory) for name in chosen)
        total, spent = None, {}
        if dataset is not None:
            unknown = () if all(made is not None for made in plans.values()) else (Condition(_UNKNOWN, "broken"),)
            dated = () if extract is None else (as_of(extract),)
            conditions = (*content.conditions, *unknown, *dated)
            total = total_of(content, conditions)
            if dataset["epsilon"] is not None:
                spent = totals(content.horizon(), float(dataset["delta"]))
    except (ConfigError, KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise PrivacyError(f"{file} describes a run that cannot be: {error}") from error
    for unit, epsilon in spent.items():
        if dataset is not None and epsilon > float(dataset["epsilon"]):
            raise PrivacyError(
                f"{file} caps data set {dataset['dataset']!r} at epsilon {dataset['epsilon']:g}, and its runs together "
                f"are at {epsilon:.4g} for each {in_words(unit)}: it was not written by this library alone."
            )
    return Verified(
        path=str(file),
        lines=content.lines,
        head=content.head,
        signed=key is not None,
        torn=bool(torn),
        runs=runs,
        queries=tuple(what for what, _ in content.queries),
        dataset=None if dataset is None else str(dataset["dataset"]),
        total=total,
        old=content.format == OLD,
        own=own,
        extract=extract,
    )


# --- a run's folder --------------------------------------------------------------------------------------------------


def ledger_of(folder: Path) -> Path:
    """The ledger that counts a folder's run: its own, or the data set's that its config names, or an extract of it."""
    own, config, extract = folder / "ledger.jsonl", folder / "config.toml", folder / EXTRACT
    if own.exists() or not config.is_file():
        return own
    try:
        named = parse_toml(storage.read_text(config)).get("run", {}).get("ledger")
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"{config} cannot be read: {error}") from error
    if not isinstance(named, str):
        return own
    return Path(named) if os.path.lexists(named) or not extract.exists() else extract  # it was moved without the ledger


def read_identity(folder: Path) -> tuple[str, tuple[str, ...]] | None:
    """The name of the run that a folder holds, and of those who took it up; None where it was not written down."""
    path = folder / IDENTITY
    try:
        if not storage.is_file(path):
            return None
        values = parse_json(storage.read_text(path))
        run, attempts = values["run"], values["attempts"]
        if values["format"] != "discreet-run/1" or not run or not all(isinstance(a, str) for a in (run, *attempts)):
            raise ValueError("it names no run")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read, so that it is not known which run this is: {error}") from error
    return run, tuple(attempts)


def own_run(folder: Path, content: LedgerState) -> str | None:
    """Which run of a ledger a folder holds: the one it names, the only one, or (before it had a name) by its plan."""
    named = read_identity(folder)
    if named is not None:
        return named[0]
    if content.dataset is None:
        return next(iter(content.runs), None)
    try:
        plan = json.loads(json.dumps(parse_toml(storage.read_text(folder / "plan.toml"))))
    except (OSError, ValueError):
        return None
    return next((name for name, run in reversed(content.runs.items()) if run.opening["plan"] == plan), None)


def compare_files(folder: Path, found: Verified, stages: Sequence[type[Any]] = ()) -> tuple[str, ...]:
    """The files of a run that are not there; an error where one is not what the run left."""
    run = next((run for run in found.runs if run.run == found.own), None)
    if found.extract is None and found.dataset is not None and os.path.lexists(folder / EXTRACT):
        compare_extract(folder / EXTRACT, Path(found.path), stages)
    absent = []
    for name, left in (run.files or {}).items() if run is not None else ():
        path = folder / name
        try:
            if not storage.is_file(path):
                absent.append(name)
            elif storage.digest(path) != left:
                raise PrivacyError(
                    f"{path} is not the file that the run left: the closing line of {found.path} has another hash of "
                    "it. It was changed, or put in its place."
                )
        except storage.NotRegular as error:
            raise PrivacyError(f"{path} cannot be compared with what the run left: {error}") from error
        except OSError as error:
            raise ConfigError(f"{path} cannot be compared with what the run left: {error}") from error
    return tuple(absent)


# --- a run -----------------------------------------------------------------------------------------------------------


class _Memory:
    """What releases prove and cost, computed once for runs that are alike: a data set's ledger may have a thousand."""

    def __init__(self) -> None:
        self._guarantees: dict[Any, Guarantee] = {}
        self._costs: dict[Any, float] = {}

    def guarantee(self, plan: Plan, layout: Layout, events: Sequence[Event], taking_part: Status) -> Guarantee:
        """What is proven of these releases of a plan."""
        key = json.dumps(plan.to_dict(), sort_keys=True, default=repr), layout, tuple(events), taking_part
        if key not in self._guarantees:
            self._guarantees[key] = guarantee_of(plan, layout, events, taking_part=taking_part)
        return self._guarantees[key]

    def cost(self, events: Sequence[Event], delta: float, tuning: Tuning | None) -> float:
        """The epsilon of releases."""
        key = tuple(events), delta, tuning
        if key not in self._costs:
            self._costs[key] = cost(events, delta, tuning).epsilon
        return self._costs[key]


def _planned(name: str, run: Run, torn: bool, stages: Sequence[type[Any]]) -> tuple[Plan, Layout] | None:
    """A run's plan and layout, if what it counts follows from them; None where a stage is not known here."""
    made = _follows(run.opening, run, stages)
    if torn:  # the line that was cut off counts for whoever wrote it
        due = run.left == 0
        run.count(run.one.rate, run.stretch(run.released)[1], int(due), 1)
    if run.cheapened:
        raise PrivacyError(f"run {name} has a release that costs less than its plan says: the ledger was forged.")
    return made


def _run(name: str, content: LedgerState, made: tuple[Plan, Layout] | None, torn: bool, memory: _Memory) -> VerifiedRun:
    run = content.runs[name]
    opening, recovered = run.opening, run.recovered + torn
    described = opening["plan"]
    unit = str(described.get("sampling", {}).get("unit", "example"))
    queries = content.queries_of(name)
    events, same = [*run.horizon(), *queries], same_rows(run.ranks, run.rows, unit)
    if made is not None:
        proven = memory.guarantee(*made, events, weakest(same))
        tuning = made[0].tuning
    else:
        tuning = None
        delta, steps = float(described["delta"]), int(opening["steps"])
        known: dict[str, Any] = {"unit": run.one.unit, "adjacency": run.one.adjacency, "steps": steps}
        proven = guarantee(events, delta, conditions=(Condition(_UNKNOWN, "broken"),), **known)
    conditions = (
        *proven.conditions,
        *content.beside(name, run, run.one.unit),
        *((Condition(_UNTOLD, "assumed"),) if run.rests_on is None else run.rests_on),
        *same,
        *together(run.ranks, run.shares),
    )
    over = run.end is not None or run.released >= run.steps
    so_far = None if over else memory.cost([*run.spent, *queries], proven.delta, tuning)
    end = run.end or {}
    return VerifiedRun(
        name,
        run.steps,
        run.released,
        recovered,
        replace(proven, conditions=conditions, released=run.released, so_far=so_far),
        made is not None,
        opening.get("audit"),
        run.rests_on,
        run.end is not None,
        end.get("files"),
        int(end.get("lost", 0)),
        str(end.get("hash", "")),
        {str(k): str(v) for k, v in dict(opening.get("versions", {})).items()},
        described,
        str(opening.get("at", "")),
    )


def _in_words(audit: Mapping[str, Any]) -> str:
    """What was declared to be tested."""
    told = {name: audit.get(name, "?") for name in ("canaries", "guesses_in", "guesses_out", "score", "level")}
    return (
        f"Declared before its first release: {told['canaries']} of the rows that are counted are canaries, made up and "
        f"in or out by secret coins, of which {told['guesses_in']} will be guessed in and {told['guesses_out']} out by "
        f"their {told['score']}, tested at level {told['level']}."
    )


_UNKNOWN = "a stage of the plan is not known here, so the cost of a step is what the ledger says, unchecked"
_UNTOLD = (
    "no example's gradient depends on another example, and nothing that depends on the data is kept (what was tested "
    "of this is not in the ledger)"
)


def _follows(opening: Mapping[str, Any], run: Run, stages: Sequence[type[Any]]) -> tuple[Plan, Layout] | None:
    """The recorded plan and layout, if the recorded cost of a step and number of steps are what they give; or an error.

    None where the plan has a stage of a kind that is not known here.
    """
    described = opening["plan"]
    types = {str(described[k]["type"]) for k in ("sampling", "bound", "noise", "denoise") if k in described}
    if types - known_stages() - {stage.__name__ for stage in stages}:
        return None
    plan = Plan.from_dict(described, stages)
    names, shapes = zip(*opening["parameters"], strict=True)
    layout = Layout(
        tuple(str(n) for n in names), tuple(tuple(check_int("a size", d, least=0) for d in s) for s in shapes)
    )
    expected = plan.event(layout, steps=1)
    if "unit" not in opening["phase"]:
        run.protects(expected.unit)
    if "crowded" not in opening["phase"]:  # written before caps were accounted by what they leave
        expected = replace(expected, crowded=0.0, crowded_rate=0.0)
    possible = plan.charges
    same = replace(run.one, steps=expected.steps) == expected and plan.steps == opening["steps"]
    same &= [tuple(s) for s in opening.get("schedule", [])] == (list(plan.stretches) if plan.noise_schedule else [])
    if not same or opening["participations"] != possible(plan.steps) or opening["pass"] != steps_in_a_pass(plan):
        raise PrivacyError(
            "the ledger's cost of a run is not what its plan and parameters give: it was not written by this version "
            "of the library, or was forged."
        )
    if run.participations < possible(run.released):
        raise PrivacyError("the ledger counts fewer participations than its releases bring: it was forged.")
    return plan, layout
