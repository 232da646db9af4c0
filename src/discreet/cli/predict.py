"""discreet predict."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet._documents import check_writable
from discreet.cli.options import AsJson, OwnStages
from discreet.cli.printing import print_json, say
from discreet.errors import ConfigError
from discreet.runs.progress import display

if TYPE_CHECKING:
    from discreet.runs.trained.model import Trained


def predict(
    run: Annotated[Path, typer.Argument(help="The folder of a run that has finished.")],
    file: Annotated[
        str,
        typer.Argument(help="A .csv or .parquet file for a table; .npz, .npy, an image or a folder of images else."),
    ],
    out: Annotated[Path | None, typer.Option(help="A .csv file to write; printed if not given.")] = None,
    stages: OwnStages = None,
    as_json: AsJson = False,
) -> None:
    """What a trained model says of new rows: no labels needed, one row out for each row in, in their order.

    The columns are `prediction` (a class's name, or a number), and for each class its probability. Images that are
    files have their names before that. A name that a spreadsheet would compute has a quote before it; --json has names
    as they are.

    For example: discreet predict runs/people people.csv --out predictions.csv
    """
    from discreet.ledger import storage
    from discreet.report import csv_table
    from discreet.runs.trained.model import load
    from discreet.stages.custom import stage_classes

    if out is not None:
        if out.suffix.lower() != ".csv":
            raise ConfigError(f"--out is {out}; predictions are written as .csv.")
        check_writable(out)
    trained = load(run, stages=stage_classes(stages or []))
    with display() as shown:
        found = trained.inputs(file, lambda done, total: shown.only("reading", done, total))
        outputs = trained.outputs(found.rows, lambda done, total: shown.bar("predicting", completed=done, total=total))
    head, rows = _table(trained, outputs, found.names)
    if as_json:
        print_json({"columns": head, "rows": list(rows)})
        return
    text = csv_table(head, rows)
    if out is None:
        sys.stdout.write(text)
        return
    try:
        storage.replace(out, text)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error}") from error
    say(f"{len(found.rows):,} predictions are in {out}.")


def _table(trained: "Trained", outputs: Any, names: Sequence[str]) -> tuple[list[str], Iterator[list[Any]]]:
    """The head of what is written, and its rows."""
    head = [*(["file"] if names else []), "prediction"]
    predicted = trained.named(outputs).tolist()
    if trained.classes is None:
        return head, ([*names[i : i + 1], round(value, 9)] for i, value in enumerate(predicted))
    head += [f"probability_{name}" for name in trained.classes]
    each = zip(predicted, trained.probabilities(outputs).tolist(), strict=True)
    return head, ([*names[i : i + 1], word, *(round(p, 6) for p in chances)] for i, (word, chances) in enumerate(each))
