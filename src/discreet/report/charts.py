"""Charts as data, and as SVG: lines and points with axes, ticks, labels, and a value at every point."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from itertools import pairwise
from textwrap import wrap
from typing import Literal

from discreet.accounting.guarantee import round_up

Kind = Literal["count", "epsilon", "share", "number"]
Look = Literal["line", "dashed", "points", "hollow", "bars"]
Point = tuple[float, float]

COLOURS = 8  # after as many they come round again, dashed
_WIDTH, _HEIGHT = 440.0, 290.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 60.0, 20.0, 12.0, 44.0
_MOST = 240  # points drawn of a line; beyond, those that show its shape
_FEW = 40  # points up to which each has its dot
_TITLE = 56  # letters of a title in a line
_NAMED = 8  # points up to which each has its name beside it


@dataclass(frozen=True)
class Axis:
    """What an axis measures; `low` and `high` are values that it must reach. With `names` its ticks are 0, 1, 2, ..."""

    label: str
    kind: Kind
    low: float | None = None
    high: float | None = None
    log: bool = False
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Series:
    """Points with a name. `colour` counts through the palette; None is a quiet line to compare with.

    `labels` name single points; `filled` shades what lies between the line and the straight one from end to end.
    `spread` has (x, low, high): a band around a line, whiskers on points and bars.
    """

    name: str
    points: tuple[Point, ...]
    look: Look = "line"
    colour: int | None = 0
    labels: tuple[str, ...] = ()
    filled: bool = False
    spread: tuple[tuple[float, float, float], ...] = ()


@dataclass(frozen=True)
class Chart:
    """A figure: `key` is its file's name, `note` what a reader must know to read it."""

    key: str
    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    note: str = ""


@dataclass(frozen=True)
class Panels:
    """Charts beside each other under a title."""

    title: str
    charts: tuple[Chart, ...]


def words(value: float, kind: Kind) -> str:
    """A figure as a person reads it; an epsilon is never rounded down.

    >>> words(0.9312, "share"), words(2.38162, "epsilon"), words(14062, "count"), words(0.12345, "number")
    ('93.1%', '2.382', '14,062', '0.1235')
    """
    if kind == "epsilon":
        return round_up(value)
    return {"share": f"{value:.1%}", "count": f"{value:,.0f}", "number": f"{value:.4g}"}[kind]


def style() -> str:
    """The style that charts need, in pages and alone."""
    return files(__name__.rpartition(".")[0]).joinpath("chart.css").read_text(encoding="utf-8")


def svg(chart: Chart, *, alone: bool = False) -> str:
    """The chart as an SVG element; `alone` makes it a file of its own, with its style, title and legend.

    Where there are more points than can be told apart, those are drawn that show the line's shape: the first, the last,
    the lowest and the highest of every stretch.
    """
    frame = _Frame(chart)
    legend = [s for s in chart.series if len(chart.series) > 1] if alone else []
    title = wrap(chart.title, _TITLE)
    head = 8.0 + 18.0 * len(title) if alone else 0.0
    height = _HEIGHT + head + 18.0 * len(legend) + (6.0 if legend else 0.0)
    inner = "".join([*frame.axes(), *(_series(s, frame, chart) for s in chart.series)])
    label = escape(f"{chart.title}. {summary(chart)}")
    if not alone:
        return (
            f'<svg class="chart" viewBox="0 0 {_WIDTH:g} {height:g}" role="img" aria-label="{label}" tabindex="0">'
            f"{inner}</svg>"
        )
    rows = "".join(_legend_row(s, _HEIGHT + head + 18.0 * i) for i, s in enumerate(legend))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {_WIDTH:g} {height:g}" '
        f'width="{_WIDTH:g}" height="{height:g}" role="img" aria-label="{label}"><style>{style()}</style>'
        f'<rect class="paper" width="{_WIDTH:g}" height="{height:g}"/>'
        f"{''.join(_heading(line, 19.0 + 18.0 * i) for i, line in enumerate(title))}"
        f'<g transform="translate(0 {head:g})">{inner}</g>{rows}</svg>\n'
    )


def _heading(line: str, top: float) -> str:
    return f'<text class="heading" x="12" y="{top:g}">{escape(line)}</text>'


def summary(chart: Chart) -> str:
    """The chart in words: where each series begins and ends."""
    parts = []
    for s in chart.series:
        drawn = _drawable(s.points, chart)
        if not drawn:
            continue
        ends = [drawn[0], drawn[-1]] if len(drawn) > 1 else [drawn[0]]
        told = " to ".join(f"{words(y, chart.y.kind)} at {words(x, chart.x.kind)}" for x, y in ends)
        parts.append(f"{s.name}: {told}")
    return f"{chart.y.label} over {chart.x.label}. {'; '.join(parts)}."


def swatch(series: Series) -> str:
    """A sample of a series' look, for a legend."""
    return f'<svg class="swatch" viewBox="0 0 24 12" width="24" height="12" aria-hidden="true">{_sample(series)}</svg>'


# --- scales ----------------------------------------------------------------------------------------------------------


class _Frame:
    """Where values lie on the picture."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        points = [p for s in chart.series for p in _drawable(s.points, chart)]
        ends = [(x, y) for s in chart.series for x, low, high in s.spread for y in (low, high)]
        points += _drawable(ends, chart)
        self.x_low, self.x_high, self.x_ticks = _range([x for x, _ in points], chart.x)
        self.y_low, self.y_high, self.y_ticks = _range([y for _, y in points], chart.y)

    def x(self, value: float) -> float:
        share = _share(value, self.x_low, self.x_high, self.chart.x.log)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        share = _share(value, self.y_low, self.y_high, self.chart.y.log)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    def axes(self) -> list[str]:
        """Grid lines, the numbers beside them, and what they measure."""
        right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
        parts = ['<g class="axes">']
        for tick in self.y_ticks:
            y = self.y(tick)
            parts.append(f'<line x1="{_LEFT:g}" x2="{right:g}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text class="left" x="{_LEFT - 7:g}" y="{y + 4:.1f}">{_tick(tick, self.chart.y)}</text>')
        for tick in self.x_ticks:
            x = self.x(tick)
            parts.append(f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom:g}" y2="{bottom + 4:g}"/>')
            parts.append(f'<text class="below" x="{x:.1f}" y="{bottom + 17:g}">{_tick(tick, self.chart.x)}</text>')
        parts.append(f'<line class="base" x1="{_LEFT:g}" x2="{right:g}" y1="{bottom:g}" y2="{bottom:g}"/>')
        middle, centre = (_LEFT + right) / 2, (_TOP + bottom) / 2
        parts.append(
            f'<text class="label" x="{middle:g}" y="{_HEIGHT - 8:g}">{escape(self.chart.x.label)}</text>'
            f'<text class="label" transform="translate(12 {centre:g}) rotate(-90)">{escape(self.chart.y.label)}</text>'
            "</g>"
        )
        return parts


def _share(value: float, low: float, high: float, log: bool) -> float:
    if log:
        value, low, high = (math.log(v) for v in (value, low, high))
    return (value - low) / (high - low)


def _range(values: Sequence[float], axis: Axis) -> tuple[float, float, list[float]]:
    """From where to where an axis goes, and its ticks."""
    if axis.names:
        return -0.6, len(axis.names) - 0.4, [float(i) for i in range(len(axis.names))]
    values = [*values, *(v for v in (axis.low, axis.high) if v is not None)]
    low, high = min(values, default=1.0 if axis.log else 0.0), max(values, default=10.0 if axis.log else 1.0)
    if axis.log:
        return _decades(low, high)
    if low == high:
        room = abs(low) / 10 or 1.0
        low, high = (low if low == axis.low else low - room), (high if high == axis.high else high + room)
    if axis.kind == "share":
        low, high = max(0.0, low), min(1.0, high)
        low = low if low < high else high - 0.1
    rough = (high - low) / 4
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(m * unit for m in (1, 2, 2.5, 5, 10) if m * unit >= rough * (1 - 1e-9))
    if axis.kind == "count":
        step = max(1.0, math.ceil(step))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [round(i * step, 12) for i in range(first, last + 1)]
    if axis.kind == "count":  # steps end where the run ends
        return low, high, [t for t in ticks if low <= t <= high]
    return ticks[0], ticks[-1], ticks


def _decades(low: float, high: float) -> tuple[float, float, list[float]]:
    """An axis of orders of magnitude: ticks at 1, or 1, 2 and 5, of each."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = (1, 2, 5) if last - first <= 2 else (1,)
    ticks = [m * 10.0**k for k in range(first - 1, last + 2) for m in every]  # logarithms are rounded
    below, above = [t for t in ticks if t <= low], [t for t in ticks if t >= high]
    start, end = below[-1], above[0]
    if start == end:
        start, end = start / 2, end * 2
    return start, end, [t for t in ticks if start <= t <= end]


def _tick(value: float, axis: Axis) -> str:
    if axis.names:
        return escape(axis.names[round(value)])
    if axis.kind == "share":
        return f"{100 * value:.6g}%"
    return f"{value:,.0f}" if axis.kind == "count" else f"{value:.6g}"


# --- marks -----------------------------------------------------------------------------------------------------------


def _drawable(points: Sequence[Point], chart: Chart) -> list[Point]:
    """The points that have a place: finite ones, and positive ones where an axis is logarithmic."""
    return [
        (x, y)
        for x, y in points
        if math.isfinite(x) and math.isfinite(y) and (x > 0 or not chart.x.log) and (y > 0 or not chart.y.log)
    ]


def _series(series: Series, frame: _Frame, chart: Chart) -> str:
    named = bool(series.labels)
    labels = [label for p, label in zip(series.points, series.labels, strict=False) if _drawable([p], chart)]
    drawn = _drawable(series.points, chart)
    drawn = drawn if named else _thinned(drawn)
    if not drawn:
        return ""
    places = [(frame.x(x), frame.y(y)) for x, y in drawn]
    line = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    parts = _spread(series, frame, chart)
    if series.look == "bars":
        width = abs(frame.x(1.0) - frame.x(0.0)) * 0.36
        bottom = frame.y(frame.y_low)
        for (x, y), (left, top) in zip(drawn, places, strict=True):
            told = escape(f"{series.name}: {words(y, chart.y.kind)}{_named(x, chart.x)}")
            parts.append(
                f'<rect class="bar" x="{left - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" '
                f'height="{max(0.0, bottom - top):.1f}"><title>{told}</title></rect>'
            )
        return f'<g class="{_classes(series)}">{"".join(reversed(parts))}</g>'
    if series.filled:
        parts.append(f'<path class="area" d="{line}Z"/>')
    if not _single(series) and len(drawn) > 1:
        parts.append(f'<path class="line" d="{line}"/>')
    if series.colour is not None:
        seen = _single(series) or len(drawn) <= _FEW
        for i, ((x, y), (left, top)) in enumerate(zip(drawn, places, strict=True)):
            value = f"{labels[i] if named else series.name}: {words(y, chart.y.kind)} at {_at(x, chart.x)}"
            parts.append(
                f'<circle class="{"dot" if seen else "dot hidden"}" cx="{left:.1f}" cy="{top:.1f}" '
                f'r="{5 if _single(series) else 2.6}"><title>{escape(value)}</title></circle>'
            )
    if named and _single(series) and len(labels) <= _NAMED:
        parts += [_name(label, place) for label, place in zip(labels, places, strict=True)]
    return f'<g class="{_classes(series)}">{"".join(parts)}</g>'


def _spread(series: Series, frame: _Frame, chart: Chart) -> list[str]:
    """A band around a line; whiskers on what stands for itself."""
    rows = [(x, a, b) for x, a, b in series.spread if len(_drawable([(x, a), (x, b)], chart)) == 2]
    if not rows:
        return []
    if _single(series) or series.look == "bars" or len(rows) == 1:
        return [
            f'<path class="whisker" d="M{frame.x(x):.1f} {frame.y(a):.1f}V{frame.y(b):.1f}"/>'
            for x, a, b in rows
            if a < b
        ]
    upper = [f"{frame.x(x):.1f} {frame.y(b):.1f}" for x, _, b in rows]
    lower = [f"{frame.x(x):.1f} {frame.y(a):.1f}" for x, a, _ in reversed(rows)]
    return [f'<path class="band" d="M{"L".join([*upper, *lower])}Z"/>']


def _named(value: float, axis: Axis) -> str:
    return f" for {axis.names[round(value)]}" if axis.names and 0 <= round(value) < len(axis.names) else ""


def _name(label: str, place: Point) -> str:
    """A point's name beside it, on the side that has room."""
    left, top = place
    short = label if len(label) <= 24 else f"{label[:23]}…"
    side, x = ("after", left + 9) if left < _WIDTH / 2 else ("before", left - 9)
    return f'<text class="{side}" x="{x:.1f}" y="{top + 4:.1f}">{escape(short)}</text>'


def _single(series: Series) -> bool:
    """Whether the points stand each for itself, with no line through them."""
    return series.look in ("points", "hollow")


def _at(value: float, axis: Axis) -> str:
    told = words(value, axis.kind)
    return {"count": f"{axis.label.rstrip('s')} {told}", "epsilon": f"ε = {told}"}.get(axis.kind, told)


def _classes(series: Series) -> str:
    if series.colour is None:
        return "series quiet"
    dashed = series.look == "dashed" or (series.look == "line" and series.colour // COLOURS % 2 == 1)
    return (
        f"series c{series.colour % COLOURS}{' dashed' if dashed else ''}{' hollow' if series.look == 'hollow' else ''}"
    )


def _sample(series: Series) -> str:
    mark = '<circle class="dot" cx="12" cy="6" r="4.5"/>' if _single(series) else '<path class="line" d="M1 6H23"/>'
    if series.look == "bars":
        mark = '<rect class="bar" x="7" y="1" width="10" height="10"/>'
    return f'<g class="{_classes(series)}">{mark}</g>'


def _legend_row(series: Series, top: float) -> str:
    return (
        f'<g transform="translate({_LEFT:g} {top:g})">{_sample(series)}<text class="legend" x="32" y="10">'
        f"{escape(series.name)}</text></g>"
    )


def _thinned(points: list[Point]) -> list[Point]:
    """At most about _MOST points: of every stretch the first, the last, the lowest and the highest."""
    if len(points) <= _MOST:
        return points
    stretches = _MOST // 4
    edges = [round(i * len(points) / stretches) for i in range(stretches + 1)]
    thinned: list[Point] = []
    for start, end in pairwise(edges):
        heights = [y for _, y in points[start:end]]
        extremes = (heights.index(min(heights)), heights.index(max(heights)))
        thinned += [points[start + i] for i in sorted({0, *extremes, end - start - 1})]
    return thinned
