"""discreet report."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; several are compared.")],
    out: Annotated[Path | None, typer.Option(help="Where the page goes; beside the run if there is one.")] = None,
) -> None:
    """Write the page that a person reads: one self-contained file."""
    from discreet.report import write

    typer.echo(str(write(runs, out)))
