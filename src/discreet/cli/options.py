"""Flags that come from the schema of a run's file, and the options that several commands have."""

import functools
import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from discreet.runs.config import Config, assignments, documented, load, merged

ConfigFile = Annotated[Path | None, typer.Argument(help="A TOML file; flags replace what it says.")]
RunFolder = Annotated[Path | None, typer.Option(help="The run's folder, a new one.")]
OtherFields = Annotated[
    list[str] | None, typer.Option("--set", help="Any other field, as --set model.settings.hidden=[64,64].")
]
Show = Annotated[bool, typer.Option("--show", help="Print the resolved config and its guarantee, and touch no data.")]
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
        option = typer.Option(None, *(flag.names or switch), help=flag.help or field.description)
        return Parameter(name, Parameter.KEYWORD_ONLY, default=option, annotation=kind | None)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            command(flags={flag.field: given.pop(name) for name, flag in chosen.items()}, **given)

        parameters = []
        for own in inspect.signature(command).parameters.values():
            flagged = [parameter(name, flag) for name, flag in chosen.items()]
            parameters += flagged if own.name == "flags" else [own.replace(kind=Parameter.KEYWORD_ONLY)]
        vars(run)["__signature__"] = inspect.Signature(parameters)
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate


def configured(file: Path | None, flags: Mapping[str, Any], other: list[str] | None) -> Config:
    """The config of a file, with what flags and --set replace; it is not checked yet."""
    return merged(Config() if file is None else load(file), {**flags, **assignments(other or [])})
