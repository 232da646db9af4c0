"""The page on disk, and beside it each figure as SVG, PNG and CSV."""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from discreet._check import inert
from discreet.errors import ConfigError
from discreet.ledger import storage
from discreet.report.charts import Chart, Panels, svg
from discreet.report.figures import charts, names
from discreet.report.page import render
from discreet.report.pictures import can_picture, picture
from discreet.report.record import Record, read_all

BESIDE = "report-files"


def write(
    folders: str | Path | Sequence[str | Path],
    out: str | Path | None = None,
    stages: Sequence[type[Any]] = (),
    statement: Mapping[str, Any] | None = None,
) -> Path:
    """Write report.html, and the figures and their data beside it in report-files; the page's path.

    A run's own folder is where its page goes, and that of ledger.jsonl goes into ledger-report beside it. PNG needs
    matplotlib; without it the page says that there is none.

    Args:
        folders: run folders, or ledgers: a ledger alone has all that is proven.
        out: the folder for the page, which is made if it is not there; needed for several.
        stages: bounds, noises and samplers of your own, by class.
        statement: what people declare, in place of the `[statement]` of each run.
    """
    chosen = [Path(folders)] if isinstance(folders, (str, Path)) else [Path(f) for f in folders]
    if not chosen:
        raise ConfigError("there is no run to report on; name at least one run folder.")
    places = [folder.resolve() for folder in chosen]
    twice = next((chosen[i] for i, place in enumerate(places) if place in places[:i]), None)
    if twice is not None:
        raise ConfigError(f"{twice} is named twice; a run is compared with others, not with itself.")
    if out is None and len(chosen) > 1:
        raise ConfigError(f"a report on {len(chosen)} runs belongs to none of their folders; say where with out=.")
    records = [record for folder in chosen for record in read_all(folder, stages)]
    if statement is not None:
        records = [replace(record, statement=statement) for record in records]
    beside = chosen[0] if chosen[0].is_dir() else chosen[0].with_name(f"{chosen[0].stem}-report")
    target = beside if out is None else Path(out)
    drawn = charts(records)
    try:
        beside = target / BESIDE
        storage.make_folder(beside)
        save(beside / "runs.csv", _runs(records))
        words = f"Each figure and its data: {BESIDE}. {draw(drawn, beside)}"
        page = target / "report.html"
        save(page, render(records, drawn, words))
    except OSError as error:
        raise ConfigError(f"the report cannot be written to {target}: {error}") from error
    return page


def save(path: Path, content: str | bytes) -> None:
    """Have a file of a report hold this, whole or not at all; the disk is not waited for.

    Args:
        path: of the file.
        content: text, or bytes.
    """
    storage.replace(path, content, durable=False)


def draw(drawn: Sequence[Chart], folder: Path) -> str:
    """Write each chart as SVG, CSV and, with matplotlib, PNG; a line that says so where there is no PNG.

    Args:
        drawn: the charts.
        folder: where the files go.
    """
    pictures = can_picture()
    for chart in drawn:
        storage.replace(folder / f"{chart.key}.svg", svg(chart, alone=True), durable=False)
        storage.replace(folder / f"{chart.key}.csv", _csv(chart), durable=False)
        if pictures:
            storage.replace(folder / f"{chart.key}.png", picture(Panels("", (chart,))), durable=False)
    return "" if pictures else "There is no PNG of them, as matplotlib is not installed: pip install 'discreet[plots]'."


def _csv(chart: Chart) -> str:
    """Every point of a chart, at full precision."""
    rows = [(s.labels[i] if s.labels else s.name, *p) for s in chart.series for i, p in enumerate(s.points)]
    return csv_table(("series", chart.x.label, chart.y.label), rows)


def _runs(records: Sequence[Record]) -> str:
    """A line a run."""
    head = ("run", "method", "accuracy", "epsilon", "delta", "unit", "adjacency", "released", "planned", "holds")
    rows = []
    for name, record in zip(names(records), records, strict=True):
        proven = record.guarantee
        who = (proven.delta, proven.unit, proven.adjacency, proven.released, record.plan.steps, record.holds)
        rows.append((name, record.method, record.accuracy, proven.epsilon, *who))
    return csv_table(head, rows)


def csv_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows under a head, as CSV; no text in it is a formula to a spreadsheet, or steers a terminal.

    Args:
        head: the columns' names.
        rows: of texts, numbers or anything that has a text.

    >>> csv_table(("run", "epsilon"), [("=1+1", -1.5)])
    "run,epsilon\\n'=1+1,-1.5\\n"
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([_harmless(cell) for cell in row] for row in (head, *rows))
    return text.getvalue()


def _harmless(cell: Any) -> Any:
    """A text with a quote before what a spreadsheet would compute; numbers as they are, also as texts."""
    if not isinstance(cell, str) or re.fullmatch(r"[-+]?\d{1,30}(\.\d{1,30})?", cell):
        return cell
    shown = inert(cell)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@", "\t", "\n")) else shown
