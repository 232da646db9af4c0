"""Flags that come from the schema of a run's file, and the options that several commands have."""

import functools
import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer

from discreet.errors import ConfigError
from discreet.runs.config import Config, assignments, documented, load, merged

ConfigFile = Annotated[
    Path | None, typer.Argument(help="A TOML file, whose fields flags replace; or a data file, as people.csv.")
]
RunFolder = Annotated[
    Path | None, typer.Option(help="The run's folder, a new one; of a data file runs/NAME, with a number if it exists.")
]
OtherFields = Annotated[
    list[str] | None, typer.Option("--set", help="Any other field, as --set model.settings.hidden=[64,64].")
]
Show = Annotated[bool, typer.Option("--show", help="Print the resolved config and its guarantee, and touch no data.")]
OwnStages = Annotated[
    list[str] | None,
    typer.Option("--stages", help="A module with bounds, noises or samplers of your own, or one, as module:Class."),
]
LogFormat = Annotated[
    Literal["text", "json"],
    typer.Option(help="How it is told as it goes, on the error stream: words and bars, or a JSON object a line."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


class Flag(NamedTuple):
    """A flag for a field of a run's file, where its help is not the field's own, or it has several names."""

    field: str
    help: str | None = None
    names: tuple[str, ...] = ()


Flags = Mapping[str, str | Flag]  # parameters, and the fields that they set, as section.name

DATA: Flags = {"data": "data.name", "folder": "data.folder", "label": "data.label", "schema": "data.schema"}
MODEL: Flags = {"model": "model.name", "method": "method.name"}
BUDGET: Flags = {name: f"budget.{name}" for name in ("epsilon", "noise", "delta", "epochs", "steps", "batch_size")}
COUNTING: Flags = {
    "dataset": Flag("run.dataset", "The data set that counts it, by name; if not given the data file's, as people."),
    "cap": Flag("run.dataset_epsilon", "The most epsilon that all runs on the data set may come to together."),
    "alone": "run.alone",
}
OPTIMIZER: Flags = {
    "optimizer": "optimizer.name",
    "learning_rate": "optimizer.learning_rate",
    "momentum": "optimizer.momentum",
}


def config_flags(flags: Flags) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one flag for each field; it gets them by field as its parameter `flags`, None where not given.

    A flag's type and help are the schema's, so that a command line says what the file says.
    """
    schema = {f"{field.section}.{field.name}": field for field in documented()}
    chosen = {name: flag if isinstance(flag, Flag) else Flag(flag) for name, flag in flags.items()}

    def parameter(name: str, flag: Flag) -> Parameter:
        field = schema[flag.field]
        kind = field.kind if field.kind in (int, float, bool) else str  # what a text may be, the schema says
        switch = (f"--{name}",) if kind is bool else ()  # without its --no-
        words = flag.help or field.description
        if kind is bool:
            return Parameter(
                name, Parameter.KEYWORD_ONLY, default=typer.Option(False, *switch, help=words), annotation=bool
            )
        option = typer.Option(None, *flag.names, help=words + usual(field.default))
        return Parameter(name, Parameter.KEYWORD_ONLY, default=option, annotation=kind | None)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            taken = {flag.field: given.pop(name) for name, flag in chosen.items()}
            command(flags={field: None if value is False else value for field, value in taken.items()}, **given)

        parameters = []
        for own in inspect.signature(command).parameters.values():
            flagged = [parameter(name, flag) for name, flag in chosen.items()]
            parameters += flagged if own.name == "flags" else [own.replace(kind=Parameter.KEYWORD_ONLY)]
        vars(run)["__signature__"] = inspect.Signature(parameters)
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate


def usual(default: Any) -> str:
    """A field's default as --help says it; nothing where there is none to say."""
    return "" if default is None or isinstance(default, dict) else f" (default: {default})"


FILES = (".csv", ".parquet", ".npz")  # of data, which may stand where a config may
_FOR_TABLES: dict[str, Any] = {  # of a linear model few steps on much of the data serve best: benchmarks/tables.py
    "model.name": "linear",
    "budget.batch_share": 0.25,
    "budget.epochs": 30.0,
    "optimizer.learning_rate": 2.0,
    "optimizer.noise_walk": 10.0,  # lowers the learning rate of small tables
    "optimizer.momentum": 0.9,
    "schedule.name": "cosine",
    "evaluation.every": 5.0,
}
_FOR_NUMBERS = {"optimizer.learning_rate": 0.05, "optimizer.noise_walk": 1.0}  # of errors that are squared


def configured(file: Path | None, flags: Mapping[str, Any], other: list[str] | None) -> Config:
    """The config of a file, with what flags and --set replace; it is not checked yet.

    A data file in place of a config is the data's name. Of a table without a config what nobody says is as suits
    tables.
    """
    changes = {name: value for name, value in {**flags, **assignments(other or [])}.items() if value is not None}
    if file is None or not is_data(file):
        config = Config() if file is None else load(file)
    else:
        config, changes = Config(), {"data.name": str(file), **changes}
    if not (file is None or is_data(file)):
        return merged(config, changes)
    if Path(str(changes.get("data.name", ""))).suffix.lower() in (".csv", ".parquet"):
        usual = _FOR_TABLES | (_FOR_NUMBERS if _of_numbers(changes) else {})
        if "optimizer.learning_rate" in changes:
            del usual["optimizer.noise_walk"]
        if "budget.batch_size" in changes:
            del usual["budget.batch_share"]
        if "budget.steps" in changes:
            del usual["budget.epochs"]
        if "optimizer.name" in changes:
            usual = {name: value for name, value in usual.items() if not name.startswith("optimizer.")}
        changes = {**usual, **changes}
    return merged(config, changes)


def _of_numbers(said: Mapping[str, Any]) -> bool:
    """Whether a table's label is a number, by its schema; one that cannot be read is refused later."""
    from discreet.data.rules import Classes
    from discreet.data.tables import table_facts

    try:
        label, facts = table_facts(str(said["data.name"]), said.get("data.schema"), said.get("data.label"))
    except ConfigError:
        return False
    return not isinstance(facts.rules[label], Classes)


def is_data(file: Path) -> bool:
    """Whether a file is data, and no config."""
    return file.suffix.lower() in FILES or file.is_dir()
