"""discreet export."""

from pathlib import Path
from typing import Annotated

import typer

from discreet.cli.options import AsJson
from discreet.cli.printing import print_json, say


def export(
    run: Annotated[Path, typer.Argument(help="The folder of a run that has finished.")],
    to: Annotated[str, typer.Option(help="torchscript, onnx or sklearn.")],
    out: Annotated[
        Path | None, typer.Option(help="The file; model.pt, model.onnx or model.joblib in the run's folder otherwise.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """A trained model in one file for other programs, its preprocessing inside.

    The file is read again and compared: its outputs on made-up rows are the model's own.

    For example: discreet export runs/people --to onnx
    """
    from discreet.runs.trained.export import export as write

    done = write(run, to, out)
    if as_json:
        print_json({"path": str(done.path), "rows": done.rows, "difference": done.difference})
    else:
        say(f"{done.path}: equal to the model within {done.difference:.1g} on {done.rows} made-up rows.")
