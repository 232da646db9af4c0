"""The page on disk, and beside it each figure as SVG, PNG and CSV."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from discreet import _storage as storage
from discreet.errors import ConfigError
from discreet.report.charts import Chart, Panels, svg
from discreet.report.figures import charts, names
from discreet.report.page import render
from discreet.report.pictures import can_picture, picture
from discreet.report.record import Record, read

BESIDE = "report-files"


def write(
    folders: str | Path | Sequence[str | Path], out: str | Path | None = None, stages: Sequence[type[Any]] = ()
) -> Path:
    """Write report.html, and the figures and their data beside it in report-files; the page's path.

    A run's own folder is where its page goes; for several runs, or to have it elsewhere, `out` is the folder, and is
    made if it is not there. PNG needs matplotlib; without it the page says that there is none. `stages` are your own
    bounds, noises and samplers, by class.
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
    records = [read(folder, stages) for folder in chosen]
    target = chosen[0] if out is None else Path(out)
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
    """Have a file of a report hold this, whole or not at all; the disk is not waited for."""
    storage.replace(path, content, durable=False)


def draw(drawn: Sequence[Chart], folder: Path) -> str:
    """Write each chart as SVG, CSV and, with matplotlib, PNG; a line that says so where there is no PNG."""
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


def csv_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Rows under a head, as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()
