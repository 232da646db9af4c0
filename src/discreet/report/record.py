"""A run as its folder tells it: configuration, plan, ledger, measurements, guarantee, audit."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from discreet._check import check_int
from discreet._documents import parse_json, parse_toml
from discreet.accounting import cost
from discreet.accounting.guarantee import Guarantee, round_up
from discreet.errors import ConfigError, PrivacyError
from discreet.ledger import storage
from discreet.ledger.verification import Verified, VerifiedRun, compare_files, ledger_of, verify, verify_folder
from discreet.stages.plan import Plan

_Read = TypeVar("_Read")


@dataclass(frozen=True)
class Measure:
    """One line of metrics.jsonl: what was known after `step` steps, None where it was not measured.

    `epsilon` is that of the steps so far. `clipping_norms` are those that the bound released, by part. `merit` is what
    the figures of the end are worth (discreet.training.merit).
    """

    step: int
    epoch: float | None = None
    epsilon: float | None = None
    seconds: float | None = None
    examples_per_second: float | None = None
    accuracy: float | None = None
    loss: float | None = None
    clipping_norms: Mapping[str, float] = field(default_factory=dict)
    merit: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class AuditPoint:
    """What one attack did: how often it accused the innocent, and how often it found the guilty."""

    false_positives: float
    true_positives: float
    label: str


@dataclass(frozen=True)
class Audit:
    """What attacks on the run measured: a lower bound, never a guarantee."""

    points: tuple[AuditPoint, ...] = ()
    epsilon_lower_bound: float | None = None
    pipeline: bool = False  # whether the bound is of the same plan and code on made-up data, and not of this model
    refuted: bool = False  # whether what is proven was rejected, at the audit's level


@dataclass(frozen=True)
class Record:
    """A run, read from its folder or from a ledger alone.

    `doubts` say why its figures are not to be trusted as they stand: none if all is well. `verified` is what the ledger
    alone proves, or None if it is damaged; then `doubts` begin with the reason. `own` is this run of it: a data set's
    ledger has several. `folder` is where it is, and names it. `statement` is what people have declared.
    """

    folder: Path
    ledger: Path
    config: Mapping[str, Any]
    plan: Plan
    guarantee: Guarantee
    measures: tuple[Measure, ...]
    verified: Verified | None
    own: VerifiedRun | None
    doubts: tuple[str, ...]
    versions: Mapping[str, str]
    audit: Audit | None = None
    statement: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.folder.resolve().name

    @property
    def method(self) -> str:
        """What the configuration calls the method, or else the plan's bound and noise."""
        said = None if self.config.get("stages") else self.config.get("method")
        named = said.get("name") if isinstance(said, Mapping) else said
        mechanism = self.plan.mechanism
        words = str(named) if named else f"{type(mechanism.bound).__name__}, {type(mechanism.noise).__name__}"
        return f"federated, {words}" if self.config.get("federated") else words

    @property
    def accuracy(self) -> float | None:
        """The last accuracy that was measured."""
        return next((m.accuracy for m in reversed(self.measures) if m.accuracy is not None), None)

    @property
    def merit(self) -> Mapping[str, Any] | None:
        """What the figures of the end are worth, if that was measured."""
        return self.measures[-1].merit if self.measures else None

    @property
    def holds(self) -> bool:
        """Whether the ledger was verified, nothing contradicts it, and no condition is known to be broken."""
        return not self.doubts and self.guarantee.sound and math.isfinite(self.guarantee.epsilon)


def read(folder: str | Path, stages: Sequence[type[Any]] = ()) -> Record:
    """Read a run folder; a ConfigError names the file that is missing or broken.

    A damaged ledger is no error here, but a doubt that the page puts on top.

    Args:
        folder: of the run.
        stages: your own bounds, noises and samplers, by class, as for `discreet.verify`.
    """
    run = Path(folder)
    if not run.is_dir():
        raise ConfigError(f"{run} is no run folder: there is no such folder.")
    config = _file(run / "config.toml", parse_toml)
    plan = _file(run / "plan.toml", lambda text: Plan.from_dict(parse_toml(text), stages))
    measures = _file(run / "metrics.jsonl", _measures)
    stated = _file(run / "guarantee.json", lambda text: Guarantee.from_json(text, stages))
    ledger = ledger_of(run)
    if not ledger.is_file():
        raise ConfigError(f"{ledger} is missing: a run counts in it before anything is released; put it back.")
    audit = _file(run / "audit.json", _audit) if (run / "audit.json").exists() else None
    verified, own, doubts, guarantee, versions = None, None, [], stated, {}
    try:
        verified, own = verify_folder(run, stages, files=False)
    except PrivacyError as error:
        doubts.append(f"The ledger could not be verified: {str(error).replace(str(ledger), 'it')}")
        nothing: Any = {"epsilon": math.inf, "proof": "its ledger could not be verified", "so_far": None, "events": ()}
        guarantee = replace(stated, **nothing, conditions=(), claims=())
    else:
        guarantee, versions = own.guarantee, own.versions
        if json.loads(json.dumps(plan.to_dict())) != own.plan:
            plan = Plan.from_dict(own.plan, stages)
            doubts.append("plan.toml is not the plan that the ledger has; what is shown is the ledger's.")
        doubts += _contradictions(own, plan, stated, measures)
        doubts += _other_files(run, verified, stages)
        if (run / "end.json").exists() and not own.ended and not verified.old:
            doubts.append("end.json says that the run has finished, and the ledger does not: it was cut short.")
    if audit is not None and audit.refuted:
        doubts.append("An audit contradicts what is proven, at its stated level: the proof or the code is wrong.")
    if audit is not None and (audit.epsilon_lower_bound or 0.0) > guarantee.epsilon:
        doubts.append(
            f"An attack measured an ε of at least {audit.epsilon_lower_bound:.4g}, more than the "
            f"{round_up(guarantee.epsilon)} that is stated: one of the two is wrong."
        )
    said = config.get("statement")
    statement = said if isinstance(said, Mapping) else {}
    return Record(
        run, ledger, config, plan, guarantee, measures, verified, own, tuple(doubts), versions, audit, statement
    )


def read_all(path: str | Path, stages: Sequence[type[Any]] = ()) -> list[Record]:
    """The runs at a path: that of a run folder; or all of a ledger, where there is no more than that.

    A loop of your own, a Trainer, Lightning and scikit-learn leave a ledger: what is proven follows from it alone.

    Args:
        path: a run's folder, a folder with a ledger, or a ledger.
        stages: classes of stages of your own, which the ledger names.
    """
    place = Path(path)
    if not place.is_dir() and not place.exists():
        raise ConfigError(f"{place} is no run folder and no ledger: there is no such file.")
    if place.is_dir():
        if (place / "ledger.jsonl").exists() and not any((place / name).exists() for name in _OF_A_RUN):
            return _of_ledger(place / "ledger.jsonl", place, stages)
        return [read(place, stages)]
    return _of_ledger(place, place.with_suffix(""), stages)


def _of_ledger(ledger: Path, place: Path, stages: Sequence[type[Any]]) -> list[Record]:
    """The runs of a ledger, without anything beside it; a damaged one is an error, as there is nothing else to show."""
    verified = verify(ledger, stages=stages)
    if not verified.runs:
        raise ConfigError(f"{ledger} has no run to report on; `discreet verify` says what is in it.")
    records = []
    for own in verified.runs:
        named = place if len(verified.runs) == 1 else place / own.run
        plan = Plan.from_dict(own.plan, stages)
        records.append(Record(named, ledger, {}, plan, own.guarantee, (), verified, own, (), own.versions))
    return records


_OF_A_RUN = ("config.toml", "plan.toml", "metrics.jsonl", "guarantee.json")


def _file(path: Path, parse: Callable[[str], _Read]) -> _Read:
    try:
        if not storage.is_file(path):
            raise ConfigError(
                f"{path} is missing: a run leaves it behind when it ends; see whether it did, or resume it."
            )
    except OSError as error:
        raise ConfigError(str(error)) from error
    try:
        return parse(storage.read_text(path))
    except (OSError, ValueError, RecursionError) as error:  # a ConfigError is a ValueError
        raise ConfigError(f"{path} is broken: {' '.join(str(error).split())}") from error


# --- the ledger ------------------------------------------------------------------------------------------------------


def _other_files(folder: Path, verified: Verified, stages: Sequence[type[Any]]) -> Iterator[str]:
    """Where the model, the metrics, the statistics or the ledger's extract are not what the run left."""
    try:
        compare_files(folder, verified, stages)
    except PrivacyError as error:
        yield str(error).replace(f"{folder}/", "").replace(verified.path, "the ledger")


def _contradictions(run: VerifiedRun, plan: Plan, stated: Guarantee, measures: Sequence[Measure]) -> Iterator[str]:
    """Where the other files say something else than the ledger."""
    proven = run.guarantee
    if stated.delta != proven.delta or plan.delta != proven.delta:
        yield f"The ledger's δ is {proven.delta:g}, the plan's {plan.delta:g}, and guarantee.json's {stated.delta:g}."
    elif stated.epsilon < proven.epsilon * (1 - 1e-9):
        yield (
            f"guarantee.json states ε = {round_up(stated.epsilon)}, and the ledger proves no less than "
            f"{round_up(proven.epsilon)}."
        )
    last = measures[-1] if measures else None
    if last is not None and not run.ended and last.step == run.released and last.epsilon is not None:
        spent = proven.epsilon if proven.so_far is None else proven.so_far
        if last.epsilon < spent * (1 - 1e-6):
            yield (
                f"metrics.jsonl says that ε is {last.epsilon:.4g} after {last.step:,} steps, and the ledger has "
                f"{round_up(spent)}."
            )
    if not math.isclose(_follows(stated), stated.epsilon, rel_tol=1e-6, abs_tol=1e-9):
        yield f"guarantee.json states ε = {round_up(stated.epsilon)}, which does not follow from its own releases."
    if (stated.unit, stated.adjacency, stated.group) != (proven.unit, proven.adjacency, proven.group):
        yield (
            f"guarantee.json is about each {stated.protected} ({stated.adjacency}), and the ledger about each "
            f"{proven.protected} ({proven.adjacency})."
        )
    if (stated.released or 0) > run.released or plan.steps != run.planned:
        yield (
            f"The ledger has {run.released:,} of {run.planned:,} steps released, guarantee.json "
            f"{stated.released or 0:,}, and the plan has {plan.steps:,} in all."
        )
    if measures and measures[-1].step > run.released:
        yield f"metrics.jsonl goes to step {measures[-1].step:,}; the ledger has {run.released:,} released."
    yield from (
        f"The ledger says, and guarantee.json does not: {c.text}."
        for c in proven.conditions
        if c.status == "broken" and c not in stated.conditions
    )
    if run.ended and stated != proven:
        yield "guarantee.json is not what the ledger proves, word for word; what is shown is the ledger's."


def _follows(stated: Guarantee) -> float:
    """The epsilon of the releases that a guarantee lists; NaN if they have none."""
    try:
        return cost(stated.events, stated.delta, stated.tuning).epsilon
    except (ConfigError, PrivacyError):
        return math.nan


# --- measurements ----------------------------------------------------------------------------------------------------

_FIGURES = ("epoch", "epsilon", "seconds", "examples_per_second", "accuracy", "loss")


def _measures(text: str) -> tuple[Measure, ...]:
    """The lines by step; of two for one step the later one, and a last line that was cut off is left out."""
    *lines, torn = text.split("\n")
    measures: dict[int, Measure] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                measure = _measure(parse_json(line))
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"line {number}: {error}") from error
            measures[measure.step] = measure
    try:
        measure = _measure(parse_json(torn))
    except (ValueError, RecursionError):
        pass
    else:
        measures[measure.step] = measure
    return tuple(measures[step] for step in sorted(measures))


def _measure(values: Any) -> Measure:
    if not isinstance(values, dict):
        raise ConfigError(f"{values!r} is not a table of figures.")
    step = check_int("step", values.get("step", None), least=0)
    norms = values.get("clipping_norms") or {}
    if not isinstance(norms, dict):
        raise ConfigError(f"clipping_norms is {norms!r}; it must be a table of names and numbers.")
    figures = {name: _figure(name, values.get(name)) for name in _FIGURES}
    clipping = {str(k): _figure(f"clipping_norms' {k}", v) for k, v in norms.items()}
    return Measure(
        step, **figures, clipping_norms={k: v for k, v in clipping.items() if v is not None}, merit=_merit(values)
    )


def _merit(values: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What the figures are worth, if they are whole; the page needs them all."""
    merit = values.get("merit")
    if merit is None:
        return None
    kinds = [{"rmse", "mae", "mean_rmse", "mean_mae"}, {"majority", "recall", "calibration", "calibration_error"}]
    if not isinstance(merit, dict) or not any(kind <= set(merit) for kind in kinds):
        raise ConfigError("merit is no table of figures.")
    return merit


def _figure(name: str, value: Any) -> float | None:
    """A number, or None for none: no measurement, or one that is no number (a loss that ran away)."""
    if value is None or value == "inf":
        return None if value is None else math.inf
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{name} is {value!r}; it must be a number.")
    return None if math.isnan(value) else float(value)


# --- audit -----------------------------------------------------------------------------------------------------------


def _audit(text: str) -> Audit:
    """Points and a lower bound: a list of both, or a table with `points` and `epsilon_lower_bound`."""
    values = parse_json(text)
    if isinstance(values, dict):
        points = values.get("points", [])
        values = [*(points if isinstance(points, list) else [points]), {k: values[k] for k in values if k != "points"}]
    if not isinstance(values, list) or not all(isinstance(v, dict) for v in values):
        raise ConfigError("an audit is a list of points and of a lower bound, each a table of figures.")
    points = [_point(v) for v in values if "false_positives" in v or "true_positives" in v]
    bounds = [_figure("epsilon_lower_bound", v.get("epsilon_lower_bound")) for v in values]
    pipeline = any(v.get("audited") == "pipeline" for v in values)
    refuted = any(v.get("refuted") is True for v in values)
    return Audit(tuple(points), max((b for b in bounds if b is not None), default=None), pipeline, refuted)


def _point(values: Mapping[str, Any]) -> AuditPoint:
    shares = [_figure(name, values.get(name)) for name in ("false_positives", "true_positives")]
    if any(share is None or not 0 <= share <= 1 for share in shares):
        raise ConfigError(f"the audit's point {values!r} has no false_positives and true_positives from 0 to 1.")
    false, true = (float(share or 0.0) for share in shares)
    return AuditPoint(false, true, str(values.get("label", "attack")))
