"""discreet report."""

from pathlib import Path
from typing import Annotated, Any

import typer

from discreet.cli.options import OwnStages
from discreet.cli.printing import say
from discreet.errors import ConfigError


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or ledgers alone; several are compared.")],
    out: Annotated[Path | None, typer.Option(help="Where the page goes; beside the run if there is one.")] = None,
    stages: OwnStages = None,
    statement: Annotated[
        Path | None, typer.Option(help="A TOML file with a [statement] table, in place of that of the run's file.")
    ] = None,
    registry: Annotated[
        Path | None, typer.Option(help="Also write an entry for OpenDP's deployments registry, as entry.yaml.")
    ] = None,
) -> None:
    """Write the page that a person reads: one self-contained file.

    Whatever trained it, a ledger suffices: a loop of your own, a Trainer, Lightning or scikit-learn.
    """
    from discreet.ledger.storage import replace as written
    from discreet.report import read_all, write
    from discreet.report import registry as entry
    from discreet.stages.custom import stage_classes

    own, said = stage_classes(stages or []), None if statement is None else _declared(statement)
    if registry is not None:
        records = [record for run in runs for record in read_all(run, own)]
        if len(records) > 1:
            raise ConfigError(f"a registry's entry is of one run, and here are {len(records)}; name one run's folder.")
        made = entry(records[0], said)
        try:
            written(registry, made, durable=False)
        except OSError as error:
            raise ConfigError(f"{registry} cannot be written: {error}") from error
        say(str(registry))
    say(str(write(runs, out, own, said)))


def _declared(path: Path) -> dict[str, Any]:
    """What a file declares, its fields checked as in a run's file."""
    import msgspec

    from discreet.runs.config import load

    statement = load(path).statement
    if statement is None:
        raise ConfigError(f"{path} has no [statement] table; docs/config.md has its fields.")
    return msgspec.to_builtins(statement)
