"""What a run is: a strict TOML file or flags, read before any data is touched."""

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, NamedTuple, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from discreet._check import shown, within
from discreet._documents import parse_toml, read_toml
from discreet.accounting.serialization import to_toml
from discreet.errors import ConfigError
from discreet.runs import schema

if TYPE_CHECKING:
    from torch import nn

    from discreet.accounting.events import Event
    from discreet.features.pipeline import Pipeline
    from discreet.stages.plan import Plan

METHODS = ("dp_sgd", "tanh_filter", "belu", "adaptive_clipping", "encode_denoise", "band_mf", "dp_ftrl")
SHAPES = {  # of an example, and how many classes there are; public
    "digits": ((1, 8, 8), 10),
    "mnist": ((1, 28, 28), 10),
    "fashion-mnist": ((1, 28, 28), 10),
    "cifar10": ((3, 32, 32), 10),
}
EXAMPLES = {"digits": 1_437, "mnist": 60_000, "fashion-mnist": 60_000, "cifar10": 50_000}  # to train on; public


class Config(schema.Section, frozen=True):
    """A run, as its file describes it."""

    data: schema.DataSection = schema.DataSection()
    features: schema.FeaturesSection | None = None
    model: schema.ModelSection = schema.ModelSection()
    method: schema.MethodSection | None = None
    stages: schema.StagesSection | None = None
    budget: schema.BudgetSection = schema.BudgetSection()
    optimizer: schema.OptimizerSection = schema.OptimizerSection()
    schedule: schema.ScheduleSection = schema.ScheduleSection()
    averaging: schema.AveragingSection = schema.AveragingSection()
    augmentation: schema.AugmentationSection = schema.AugmentationSection()
    federated: schema.FederatedSection | None = None
    tune: schema.TuneSection | None = None
    sweep: schema.SweepSection | None = None
    evaluation: schema.EvaluationSection = schema.EvaluationSection()
    audit: schema.AuditSection = schema.AuditSection()
    run: schema.RunSection = schema.RunSection()
    statement: schema.StatementSection | None = None

    def to_toml(self) -> str:
        """Everything, defaults included, as the run folder keeps it."""
        return to_toml(_without_none(_plain(self)))

    def check(self) -> None:
        """Refuse what cannot be, before anything is made."""
        if self.stages is not None and self.method is not None:
            raise ConfigError("both [method] and [stages] are given; a run has a preset or stages of its own.")
        budget, method = self.budget, self.method or schema.MethodSection()
        published = self.stages is None and method.settings.get("form") == "paper"
        given = (budget.epsilon is not None) + (budget.noise is not None)
        if given != 1 and not (published and given == 0):
            raise ConfigError(
                f"epsilon is {budget.epsilon} and noise is {budget.noise}: give one of them, the other follows."
            )
        if not (isinstance(self.audit.canaries, int) and self.audit.canaries >= 0):
            raise ConfigError(f"[audit] canaries is {self.audit.canaries}; it must be 0 for none, or more.")
        if method.name not in METHODS:
            raise ConfigError(f"the method {method.name!r} is not one of {', '.join(METHODS)}.")

    def plan(self, examples: int, model: "nn.Module | None" = None) -> "Plan":
        """The plan for so many training examples, its noise solved; with the model, for its parameters.

        Canaries are rows like all others, so it is a plan for the examples and all of them.
        """
        from discreet.runs import resolve

        self.check()
        return resolve.plan(self.sized(examples), examples, model)

    def beside(self, plan: "Plan") -> "list[Event]":
        """What is asked of the data beside training: statistics of features, and what a table's schema leaves open."""
        from discreet.runs.tables import cost_of_schema, is_table

        adjacency = plan.sampling.contract().adjacency
        of_features = [] if self.features is None else self.pipeline().cost(adjacency)
        return [*of_features, *(cost_of_schema(self, adjacency) if is_table(self) else [])]

    def sized(self, examples: int) -> "Config":
        """The same with a batch size, where the budget says it as a share of the examples."""
        share = self.budget.batch_share
        if share is None:
            return self
        if not 0 < share <= 1:
            raise ConfigError(f"[budget] batch_share is {share}; it is a part of the examples, above 0 and at most 1.")
        size = max(1, math.ceil(share * examples))
        return msgspec.structs.replace(self, budget=msgspec.structs.replace(self.budget, batch_size=size))

    def pipeline(self) -> "Pipeline":
        """What makes features, with the noise that its statistics have at this budget."""
        from discreet.runs import resolve

        return resolve.pipeline(self)

    def beside_canaries(self, examples: int) -> "Config":
        """The same with batches that are larger by the canaries' share, so that each example takes part as often.

        A learning rate of SGD is kept what it is to an example, whose gradient is divided by the batch size.
        """
        if self.audit.canaries == 0:
            return self
        budget, optimizer = self.budget, self.optimizer
        size = round(budget.batch_size * (examples + self.audit.canaries) / examples)
        if optimizer.name == "sgd" and optimizer.at_batch_size is None:
            optimizer = msgspec.structs.replace(optimizer, at_batch_size=budget.batch_size)
        budget = msgspec.structs.replace(budget, batch_size=size)
        return msgspec.structs.replace(self, budget=budget, optimizer=optimizer)


def load(path: str | Path) -> Config:
    """Read a file, strictly."""
    values = read_toml(path)
    try:
        return from_dict(values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def from_dict(values: Mapping[str, Any]) -> Config:
    """A run of plain values."""
    _check_plain(values, "the file")
    try:
        return msgspec.convert(values, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(_in_words(str(error))) from error


def _check_plain(value: Any, where: str) -> None:
    """Refuse what a file could not hold again: dates, and numbers that are none."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_plain(inner, f"{where}, {key}" if where != "the file" else f"[{key}]")
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _check_plain(inner, where)
    elif isinstance(value, float) and not abs(value) < 1e300:
        raise ConfigError(f"{where} is {value}; it must be a finite number.")
    elif not (value is None or isinstance(value, (bool, int, float, str))):
        raise ConfigError(f"{where} is {value!r}; it must be a number, a text, true or false, or a list of them.")


def merged(config: Config, changes: Mapping[str, Any]) -> Config:
    """The same with some values replaced, given as "section.field"."""
    values = _without_none(_plain(config))
    for path, value in changes.items():
        if value is None:
            continue
        *tables, name = path.split(".")
        inner = values
        for table in tables:
            inner = inner.setdefault(table, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{path} is no field: {table} has a value and no fields of its own.")
        inner[name] = value
    if changes.get("budget.epochs") is not None and changes.get("budget.steps") is None:
        values.get("budget", {}).pop("steps", None)  # the length is said by one of them
    return from_dict(values)


def assignments(texts: Sequence[str]) -> dict[str, Any]:
    """Values given as "section.field=value", with the value in TOML; plain words need no quotes.

    >>> assignments(["model.settings.hidden=[64, 64]", "data.name=mnist"])
    {'model.settings.hidden': [64, 64], 'data.name': 'mnist'}
    """
    values: dict[str, Any] = {}
    for text in texts:
        path, equals, value = text.partition("=")
        if not equals or "." not in path:
            raise ConfigError(f"{shown(text)} is no assignment; write section.field=value.")
        within("depth", path.count("."), f"{shown(path)} has {path.count('.'):,} dots")
        try:
            values[path.strip()] = parse_toml(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            values[path.strip()] = value
    return values


class Field(NamedTuple):
    """A field of the file: where it is, what it holds, what it means."""

    section: str
    name: str
    kind: Any  # its type, without the None of a field that may be left out
    description: str
    default: Any


def documented() -> Iterator[Field]:
    """Every field of the file."""
    for section in msgspec.structs.fields(Config):
        table = _present(section.type)
        for entry in msgspec.structs.fields(table):
            annotation, *metadata = get_args(entry.type)
            description = next(str(m.description) for m in metadata if isinstance(m, Meta))
            default = entry.default
            if default is msgspec.NODEFAULT and callable(entry.default_factory):
                default = entry.default_factory()
            yield Field(section.name, entry.name, _present(annotation), description, default)


def _present(annotation: Any) -> Any:
    """The type of a value that is there, of `type | None`."""
    if get_origin(annotation) not in (Union, UnionType):
        return annotation
    return next(kind for kind in get_args(annotation) if kind is not type(None))


def _plain(config: Any) -> dict[str, Any]:
    return {
        f.name: _plain(value) if isinstance(value := getattr(config, f.name), Struct) else value
        for f in msgspec.structs.fields(config)
    }


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    cleaned = {k: _without_none(v) if isinstance(v, Mapping) else v for k, v in values.items() if v is not None}
    return {k: v for k, v in cleaned.items() if v != {}}


def _in_words(message: str) -> str:
    """msgspec's message with the place in front: `$.budget.epsilon` becomes [budget] epsilon."""
    what, _, place = message.partition(" - at ")
    path = place.strip("`").removeprefix("$").strip(".").split(".") if place else []
    where = f"[{path[0]}] " + ".".join(path[1:]) if path and path != [""] else "the file"
    return f"{where.strip()}: {what[0].lower()}{what[1:]}."
