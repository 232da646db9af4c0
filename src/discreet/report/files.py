"""The page on disk, and beside it each figure as SVG, PNG and CSV."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from discreet import _storage as storage
from discreet.errors import ConfigError
from discreet.report.charts import COLOURS, Chart, svg
from discreet.report.figures import charts, names
from discreet.report.page import render
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
    for chart in drawn:
        save(folder / f"{chart.key}.svg", svg(chart, alone=True))
        save(folder / f"{chart.key}.csv", _csv(chart))
    return _pictures(drawn, folder)


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


# --- PNG -------------------------------------------------------------------------------------------------------------

_COLOURS = ("#0b6e77", "#c2571a", "#5b4bb8", "#a3195b", "#4d7d1f", "#1f6fbf", "#8a6d00", "#6b7280")
_QUIET, _PALE = "#5a6675", "#dde2e8"
_NAMED = 16  # a picture has no room for the names of more; they are in its CSV, and on the page


def _pictures(drawn: Sequence[Chart], folder: Path) -> str:
    """Write each chart as PNG; a line that says so if that is not possible."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "There is no PNG of them, as matplotlib is not installed: pip install 'discreet[plots]'."
    for chart in drawn:
        figure = Figure(figsize=(6.0, 4.2), layout="constrained")
        _draw(chart, figure.subplots())
        picture = io.BytesIO()
        figure.savefig(picture, dpi=150, format="png")
        save(folder / f"{chart.key}.png", picture.getvalue())
    return ""


def _draw(chart: Chart, axes: Any) -> None:
    for series in chart.series:
        if not series.points:
            continue
        x, y = zip(*series.points, strict=True)
        colour = _QUIET if series.colour is None else _COLOURS[series.colour % COLOURS]
        dashed = series.colour is None or series.look == "dashed" or series.colour // COLOURS % 2 == 1
        for at, low, high in series.spread if series.look in ("points", "hollow", "bars") else ():
            axes.plot((at, at), (low, high), color=colour, linewidth=1.2)
        if series.look == "bars":
            axes.bar(x, y, width=0.36, color=colour, alpha=0.55, label=_plain(series.name))
            continue
        if series.look in ("points", "hollow"):
            face = "none" if series.look == "hollow" else colour
            axes.scatter(x, y, s=36, facecolors=face, edgecolors=colour, label=_plain(series.name), zorder=3)
            for label, place in zip(series.labels[:8], series.points, strict=False):
                axes.annotate(_plain(label), place, xytext=(6, 4), textcoords="offset points", fontsize=8)
        else:
            if len(series.spread) > 1:
                places, low, high = zip(*series.spread, strict=True)
                axes.fill_between(places, low, high, color=colour, alpha=0.16, linewidth=0)
            mark = "." if series.colour is not None and len(x) <= 40 else ""
            axes.plot(x, y, color=colour, linestyle="--" if dashed else "-", marker=mark, label=_plain(series.name))
    axes.set_title(_plain(chart.title), loc="left", fontsize=11)
    axes.set_xlabel(chart.x.label)
    axes.set_ylabel(chart.y.label)
    axes.set_xscale("log" if chart.x.log else "linear")
    axes.set_yscale("log" if chart.y.log else "linear")
    if chart.x.low is not None and not chart.x.log:
        axes.set_xlim(left=chart.x.low)
    if chart.y.low is not None and not chart.y.log:
        axes.set_ylim(bottom=chart.y.low)
    if chart.x.names:
        axes.set_xticks(range(len(chart.x.names)), [_plain(name) for name in chart.x.names])
    for side, axis in (("x", chart.x), ("y", chart.y)):
        if axis.kind == "share":
            getattr(axes, f"{side}axis").set_major_formatter(lambda value, _: f"{100 * value:.6g}%")
    axes.grid(color=_PALE, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if 1 < len(chart.series) <= _NAMED and any(series.points for series in chart.series):
        axes.legend(fontsize=8, frameon=False)


def _plain(text: str) -> str:
    """A text without matplotlib's own mathematics, and not hidden from the legend."""
    plain = text.replace("$", r"\$")
    return f" {plain}" if plain.startswith("_") else plain
