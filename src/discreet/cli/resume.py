"""discreet resume."""

from pathlib import Path
from typing import Annotated

import typer

from discreet.cli.options import AsJson, LogFormat
from discreet.cli.running import carry_out


def resume(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    as_json: AsJson = False,
    log_format: LogFormat = "text",
) -> None:
    """Continue a run where it was left; one that has finished says so and is left alone."""
    from discreet.runs.run import resume as go_on

    carry_out(lambda watch: go_on(run, watch), as_json, log_format=log_format)
