"""Charts as pictures for papers and slides, by matplotlib where it is installed: PNG, SVG or PDF."""

import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from discreet.errors import ConfigError
from discreet.ledger import storage
from discreet.report.charts import COLOURS, Axis, Chart, Panels, Series

FORMATS = ("png", "svg", "pdf")
_COLOURS = ("#0b6e77", "#c2571a", "#5b4bb8", "#a3195b", "#4d7d1f", "#1f6fbf", "#8a6d00", "#6b7280")
_QUIET, _PALE = "#5a6675", "#dde2e8"
_NAMED = 16  # a picture has no room for the names of more; they are in its CSV, and on the page


def can_picture() -> bool:
    """Whether matplotlib is there."""
    try:
        from matplotlib.figure import Figure  # noqa: F401 - it is only asked whether it is there
    except ImportError:
        return False
    return True


def check_picture(path: Path) -> None:
    """Refuse, before anything is computed, a picture that could not be written there."""
    if not can_picture():
        raise ConfigError("plots need matplotlib; install it with: pip install 'discreet[plots]'")
    if path.is_dir() or not path.parent.is_dir() or path.suffix.lower()[1:] not in FORMATS:
        raise ConfigError(f"the plot cannot be written to {path}: name a .png, .svg or .pdf in a folder that exists.")


def save_picture(path: Path, panels: Panels) -> None:
    """Write charts beside each other to a file, in the format that its name asks for."""
    try:
        storage.replace(path, picture(panels, path.suffix.lower()[1:]), durable=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the plot cannot be written to {path}: {error}") from error


def picture(panels: Panels, form: str = "png") -> bytes:
    """A file of one of FORMATS."""
    from matplotlib.figure import Figure

    count = len(panels.charts)
    figure = Figure(figsize=(6.0, 4.2) if count == 1 else (4.8 * count, 4.0), layout="constrained")
    for chart, axes in zip(panels.charts, figure.subplots(1, count, squeeze=False)[0], strict=True):
        _draw(chart, axes)
    if panels.title:
        figure.suptitle(_plain(panels.title), fontsize=11)
    file = io.BytesIO()
    figure.savefig(file, dpi=150, format=form)
    return file.getvalue()


def _draw(chart: Chart, axes: Any) -> None:
    for series in chart.series:
        if series.points:
            _mark(series, axes)
    axes.set_title(_plain(chart.title), loc="left", fontsize=11 if len(chart.title) <= 48 else 9)
    for side, axis, values in (
        ("x", chart.x, [x for s in chart.series for x, _ in s.points]),
        ("y", chart.y, [y for s in chart.series for _, y in s.points]),
    ):
        _scale(axes, side, axis, values)
    axes.grid(color=_PALE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if 1 < len(chart.series) <= _NAMED and any(series.points for series in chart.series):
        axes.legend(fontsize=8, frameon=False)


def _mark(series: Series, axes: Any) -> None:
    x, y = zip(*series.points, strict=True)
    colour = _QUIET if series.colour is None else _COLOURS[series.colour % COLOURS]
    dashed = series.colour is None or series.look == "dashed" or series.colour // COLOURS % 2 == 1
    if series.look not in ("line", "dashed") or len(series.spread) == 1:
        for at, low, high in series.spread:
            axes.plot((at, at), (low, high), color=colour, linewidth=1.2)
    elif series.spread:
        places, low, high = zip(*series.spread, strict=True)
        axes.fill_between(places, low, high, color=colour, alpha=0.16, linewidth=0)
    if series.look == "bars":
        axes.bar(x, y, width=0.36, color=colour, alpha=0.55, label=_plain(series.name))
    elif series.look in ("points", "hollow"):
        face = "none" if series.look == "hollow" else colour
        axes.scatter(x, y, s=36, facecolors=face, edgecolors=colour, label=_plain(series.name), zorder=3)
        for label, place in zip(series.labels[:8], series.points, strict=False):
            axes.annotate(_plain(label), place, xytext=(6, 4), textcoords="offset points", fontsize=8)
    else:
        mark = "." if series.colour is not None and len(x) <= 40 else ""
        axes.plot(x, y, color=colour, linestyle="--" if dashed else "-", marker=mark, label=_plain(series.name))


def _scale(axes: Any, side: str, axis: Axis, values: Sequence[float]) -> None:
    """What an axis measures, and how far it reaches."""
    getattr(axes, f"set_{side}label")(_plain(axis.label))
    getattr(axes, f"set_{side}scale")("log" if axis.log else "linear")
    drawn = [v for v in values if math.isfinite(v) and (v > 0 or not axis.log)]
    low = None if axis.low is None else min([axis.low, *drawn])
    high = None if axis.high is None else max([axis.high, *drawn])
    if side == "y" and high is not None:
        high *= 1.02  # so that a line along the top is seen
    getattr(axes, f"set_{side}lim")(low, high)
    if axis.names:
        getattr(axes, f"set_{side}ticks")(range(len(axis.names)), [_plain(name) for name in axis.names])
    elif axis.kind in _TICKS:
        getattr(axes, f"{side}axis").set_major_formatter(_TICKS[axis.kind])


_TICKS: dict[str, Callable[[float, int], str]] = {
    "share": lambda value, _: f"{100 * value:.6g}%",
    "count": lambda value, _: f"{value:,.6g}",
}


def _plain(text: str) -> str:
    """A text without matplotlib's own mathematics, and not hidden from the legend."""
    plain = text.replace("$", r"\$")
    return f" {plain}" if plain.startswith("_") else plain
