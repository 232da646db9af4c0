"""discreet audit."""

from pathlib import Path
from typing import Annotated

import typer

from discreet.cli.options import AsJson
from discreet.cli.printing import print_json
from discreet.runs.progress import display
from discreet.runs.terminal import Terminal


def audit(
    run: Annotated[Path, typer.Argument(help="The folder of a run that has audit_run.")],
    canaries: Annotated[
        int | None, typer.Option(help="How many canaries the new run on made-up data has; 1000 if the model has room.")
    ] = None,
    level: Annotated[float, typer.Option(help="The chance that a test rejects what is true, at most.")] = 0.05,
    quick: Annotated[bool, typer.Option("--quick", help="Only attack the model: no new run with canaries.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Write true against false positives to this file (.png, .svg, .pdf), log axes.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Attack a finished run, and measure epsilon from below, beside what is proven.

    A run that was trained with --audit is tested again. Of any other the model is attacked as it is, and its code and
    plan by a new run with canaries on made-up data. Exits with 1 if what is proven is contradicted.
    """
    from discreet.audit import audit_run, render
    from discreet.report import plots, write
    from discreet.report.pictures import check_picture, save_picture

    if plot is not None:
        check_picture(plot)
    with display() as shown:
        figures = audit_run.audit(run, canaries=canaries, level=level, quick=quick, tell=shown.only)
        write([run])
    if plot is not None:
        save_picture(plot, plots.membership(*audit_run.roc(run, figures)))
    if as_json:
        print_json(figures)
    else:
        Terminal().print(render.after(figures) if "membership" in figures else render.words(figures))
    if figures["refuted"]:
        raise typer.Exit(1)
