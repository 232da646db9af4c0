"""Whether a ledger is as it was written, and what it proves, from the file alone."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from discreet.accounting.guarantee import Condition, Guarantee, guarantee
from discreet.contracts import Layout
from discreet.errors import ConfigError, PrivacyError, whole
from discreet.ledger import SEEDED, Content, Run, read, steps_in_a_pass, together
from discreet.plan import Plan, known_stages


@dataclass(frozen=True)
class VerifiedRun:
    """One run: what was planned, what was released, what is proven."""

    run: str
    planned: int
    released: int
    recovered: int
    guarantee: Guarantee
    follows_from_its_plan: bool
    audit: Mapping[str, Any] | None = None  # what was declared to be tested, before the first release


@dataclass(frozen=True)
class Verified:
    """A ledger whose chain holds."""

    path: str
    lines: int
    head: str
    signed: bool
    torn: bool
    runs: tuple[VerifiedRun, ...]
    queries: tuple[str, ...]
    dataset: str | None
    total: Guarantee | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        import json

        values = {k: v for k, v in vars(self).items() if k not in ("runs", "total", "queries")}
        values["queries"] = list(self.queries)
        values["runs"] = [asdict(replace(r)) | {"guarantee": json.loads(r.guarantee.to_json())} for r in self.runs]
        values["total"] = None if self.total is None else json.loads(self.total.to_json())
        return values

    def __str__(self) -> str:
        parts = [f"{self.path}: {self.lines} lines, the chain holds{', every line signed' if self.signed else ''}."]
        if self.torn:
            parts.append("The last line was cut off by a crash: it is counted as spent.")
        for run in self.runs:
            parts.append(f"Run {run.run}: {run.released:,} of {run.planned:,} steps released. {run.guarantee}")
            if not run.follows_from_its_plan:
                parts.append("(The cost of a step was read from the ledger: a stage of the plan is not known here.)")
            if run.audit is not None:
                parts.append(_in_words(run.audit))
        if self.queries:
            parts.append(f"Also asked of the data: {', '.join(self.queries)}.")
        if self.total is not None:
            parts.append(f"All of data set {self.dataset!r} together: {self.total}")
        parts.append(f"Its last hash is {self.head}; keep it elsewhere, and a rewritten or shortened file will show.")
        return "\n\n".join(parts)


def verify(
    path: str | Path, *, key: bytes | None = None, anchor: str | None = None, stages: Sequence[type[Any]] = ()
) -> Verified:
    """Check a ledger's chain and re-derive its guarantees from nothing else; a PrivacyError says which line is damaged.

    `key` also checks every line's signature. `anchor` is the hash of a line that must be in the file: the last one, as
    it was printed or stored in a checkpoint, shows that nothing was cut off behind it. `stages` are your own bounds,
    noises and samplers, by class: without them a run of theirs is not re-derived, or cannot be read.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "ledger.jsonl"
    if not file.is_file():
        raise ConfigError(f"{file} is no ledger: there is no such file.")
    content, torn = read(file, key, stages)
    if not content.hashes:
        raise PrivacyError(f"{file} is damaged at line 1: it holds no whole line.")
    if anchor is not None and anchor not in content.hashes:
        raise PrivacyError(
            f"{file} lacks the line with hash {anchor}: it was cut short, rewritten, or is another file."
        )
    dataset = content.dataset
    try:
        runs = tuple(_run(name, run, content, bool(torn), stages) for name, run in content.runs.items())
        total = None
        if dataset is not None:
            unknown = () if all(r.follows_from_its_plan for r in runs) else (Condition(_UNKNOWN, "broken"),)
            units = {r.guarantee.unit for r in runs}
            total = guarantee(
                content.horizon(),
                float(dataset["delta"]),
                unit=units.pop() if len(units) == 1 else "example",
                conditions=(*content.conditions, *unknown),
            )
    except (ConfigError, KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise PrivacyError(f"{file} describes a run that cannot be: {error}") from error
    if total is not None and dataset is not None and total.epsilon > float(dataset["epsilon"]):
        raise PrivacyError(
            f"{file} caps data set {dataset['dataset']!r} at epsilon {dataset['epsilon']:g}, and its runs together are "
            f"at {total.epsilon:.4g}: it was not written by this library alone."
        )
    return Verified(
        path=str(file),
        lines=len(content.hashes),
        head=content.head,
        signed=key is not None,
        torn=bool(torn),
        runs=runs,
        queries=tuple(what for what, _ in content.queries),
        dataset=None if dataset is None else str(dataset["dataset"]),
        total=total,
    )


def _run(name: str, run: Run, content: Content, torn: bool, stages: Sequence[type[Any]]) -> VerifiedRun:
    opening = run.opening
    plan = opening["plan"]
    recovered = run.recovered
    plan_made = _follows(opening, run, stages)
    if torn and run.released < int(opening["steps"]):  # the line that was cut off counts for whoever wrote it
        run.count(run.one.rate, run.stretch(run.released)[1], 1, 1)
        recovered += 1
    if run.cheapened:
        raise PrivacyError(f"run {name} has a release that costs less than its plan says: the ledger was forged.")
    queries = [] if content.dataset is not None else [p for _, p in content.queries]
    proven = guarantee(
        [*run.horizon(), *queries],
        float(plan["delta"]),
        unit=str(plan.get("sampling", {}).get("unit", "example")),
        adjacency=run.one.adjacency,
        steps=int(opening["steps"]),
        tuning=None if plan_made is None else plan_made.tuning,
        conditions=(
            *content.broken,
            *((SEEDED,) if run.seeded else ()),
            *together(run.ranks, run.shares),
            *(() if plan_made is not None else (Condition(_UNKNOWN, "broken"),)),
        ),
    )
    return VerifiedRun(
        name,
        int(opening["steps"]),
        run.released,
        recovered,
        replace(proven, released=run.released),
        plan_made is not None,
        opening.get("audit"),
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


def _follows(opening: Mapping[str, Any], run: Run, stages: Sequence[type[Any]]) -> Plan | None:
    """The recorded plan, if the recorded cost of a step and number of steps are what it gives; an error if not.

    None where the plan has a stage of a kind that is not known here.
    """
    described = opening["plan"]
    types = {str(described[k]["type"]) for k in ("sampling", "bound", "noise", "denoise") if k in described}
    if types - known_stages() - {stage.__name__ for stage in stages}:
        return None
    plan = Plan.from_dict(described, stages)
    names, shapes = zip(*opening["parameters"], strict=True)
    layout = Layout(tuple(str(n) for n in names), tuple(tuple(whole("a size", d, least=0) for d in s) for s in shapes))
    expected = plan.phase(layout, steps=1)
    possible = plan.sampling.participations
    same = replace(run.one, steps=expected.steps) == expected and plan.steps == opening["steps"]
    same &= [tuple(s) for s in opening.get("schedule", [])] == (list(plan.stretches) if plan.noise_schedule else [])
    if not same or opening["participations"] != possible(plan.steps) or opening["pass"] != steps_in_a_pass(plan):
        raise PrivacyError(
            "the ledger's cost of a run is not what its plan and parameters give: it was not written by this version "
            "of the library, or was forged."
        )
    if run.participations < possible(run.released):
        raise PrivacyError("the ledger counts fewer participations than its releases bring: it was forged.")
    return plan
