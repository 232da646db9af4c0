"""Which charts a page has: of one run, and of several beside each other."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from discreet.accounting.guarantee import Guarantee
from discreet.report.charts import Axis, Chart, Point, Series
from discreet.report.merit import calibration
from discreet.report.record import Audit, Measure, Record

_EPSILON = Axis("ε of the steps so far", "epsilon", low=0.0)
_STEPS = Axis("steps", "count", low=0.0)
_ACCURACY = Axis("accuracy", "share")
_SO_FAR = "A point before the end may be quoted only if it was settled beforehand that the run would stop there."
_WITHOUT = "Runs whose guarantee does not hold are left out."


def names(records: Sequence[Record]) -> list[str]:
    """A name for each run: its folder's, with as many folders above it as it takes to tell them apart."""
    paths = [r.folder.resolve().parts for r in records]
    for depth in range(1, max((len(p) for p in paths), default=0) + 1):
        labels = ["/".join(p[-depth:]) for p in paths]
        if len(set(labels)) == len(labels):
            return labels
    return [r.name for r in records]


def charts(records: Sequence[Record]) -> list[Chart]:
    """The figures of a page, those left out for which there is nothing to draw."""
    runs = list(zip(names(records), records, strict=True))
    alone = len(records) == 1
    over_epsilon = _lines(runs, "accuracy", lambda m: (m.epsilon, m.accuracy))
    epsilon = _lines(runs, "ε", lambda m: (m.step, m.epsilon))
    accuracy = _lines(runs, "accuracy", lambda m: (m.step, m.accuracy))
    loss = _lines(runs, "loss", lambda m: (m.step, m.loss))
    shown = [] if alone else [frontier(records)]
    shown += [
        Chart("accuracy-over-epsilon", "Accuracy over ε", _EPSILON, _ACCURACY, over_epsilon, _SO_FAR),
        Chart("epsilon-over-steps", "ε over steps", _STEPS, _EPSILON, (*epsilon, *_budget(records)), _SO_FAR),
        Chart("accuracy-over-steps", "Accuracy over steps", _STEPS, _ACCURACY, accuracy),
        Chart("loss-over-steps", "Loss over steps", _STEPS, Axis("loss", "number"), loss),
    ]
    if alone:
        shown += [calibration(records[0].merit), _clipping(records[0])]
    shown.append(tradeoff([Attacked(n, r.guarantee, r.audit, r.holds) for n, r in runs]))
    return [c for c in shown if any(s.points for s in c.series if s.colour is not None)]


@dataclass(frozen=True)
class Attacked:
    """A run as an attacker sees it; `holds` is whether its guarantee can be relied on."""

    name: str
    guarantee: Guarantee
    audit: Audit | None
    holds: bool


def tradeoff(runs: Sequence[Attacked]) -> Chart:
    """What no attacker can do better than, who must tell whether one unit's data were used.

    Of several runs those are drawn whose guarantee holds; one alone says what it would be worth if it did.
    """
    alone = len(runs) == 1
    shown = [(number, run) for number, run in enumerate(runs) if alone or run.holds]
    series = []
    for number, run in shown:
        curve = run.guarantee.tradeoff()
        points = tuple((x, curve.power(x)) for x in _grid())
        label = run.name if not alone else "at most, as proven" if run.holds else "at most, if the guarantee held"
        series.append(Series(label, ((0.0, 0.0), *points), colour=number, filled=alone))
    for number, run in shown:
        if run.audit is not None and run.audit.points:
            whose = "" if alone else f"{run.name}, "
            points = tuple((p.false_positives, p.true_positives) for p in run.audit.points)
            labels = tuple(f"{whose}{p.label}" for p in run.audit.points)
            series.append(Series(f"{whose}measured by attacks", points, "points", 1 if alone else number, labels))
    series.append(Series("chance", ((0.0, 0.0), (1.0, 1.0)), colour=None))
    note = "No attack can lie above the line, whatever else the attacker knows; guessing lies on the dashed one."
    if not all(run.holds for run in runs):
        note = "The guarantee does not hold, so attacks may lie above the line." if alone else f"{note} {_WITHOUT}"
    return Chart(
        "attacker",
        "True positives over false positives of an attacker",
        Axis("false positives", "share", low=0.0, high=1.0),
        Axis("true positives", "share", low=0.0, high=1.0),
        tuple(series),
        note,
    )


def frontier(records: Sequence[Record]) -> Chart:
    """Accuracy against proven epsilon, a point a run; the line joins those that no other one beats on both."""
    points: dict[bool, list[tuple[Point, str]]] = {True: [], False: []}
    for name, record in zip(names(records), records, strict=True):
        if record.accuracy is not None and math.isfinite(record.guarantee.epsilon):
            points[record.holds].append(((record.guarantee.epsilon, record.accuracy), name))
    best = tuple(_best(p for p, _ in points[True]))
    shown = (("proven and verified", "points", 0, True), ("not to be relied on", "hollow", 1, False))
    series = [Series("best at its ε", best, colour=None)] if len(best) > 1 else []
    for label, look, colour, holds in shown:
        if points[holds]:
            where, whose = zip(*points[holds], strict=True)
            series.append(Series(label, where, look, colour, whose))
    missing = len(records) - sum(len(p) for p in points.values())
    left_out = f" Without an accuracy or a finite ε, and so left out: {missing} of {len(records)} runs."
    deltas = {r.guarantee.delta for r in records}
    kinds = {(r.guarantee.unit, r.guarantee.adjacency) for r in records}
    unlike = " The runs differ in δ or in what is protected: their ε are not of one kind."
    return Chart(
        "frontier",
        "Accuracy against proven ε",
        Axis("proven ε", "epsilon", low=0.0),
        _ACCURACY,
        tuple(series),
        "Up and to the left is better."
        + (left_out if missing else "")
        + (unlike if max(len(deltas), len(kinds)) > 1 else ""),
    )


def _best(points: Iterable[Point]) -> Iterator[Point]:
    """Those that no other beats: more accurate than all with no greater epsilon."""
    highest = -math.inf
    for epsilon, accuracy in sorted(points, key=lambda p: (p[0], -p[1])):
        if accuracy > highest:
            highest = accuracy
            yield epsilon, accuracy


def _lines(
    runs: Sequence[tuple[str, Record]], what: str, point: Callable[[Measure], tuple[float | None, float | None]]
) -> tuple[Series, ...]:
    """A line a run, through the measurements that have both values."""
    lines = []
    for number, (name, record) in enumerate(runs):
        pairs = (point(m) for m in record.measures)
        points = tuple((x, y) for x, y in pairs if x is not None and y is not None)
        if points:
            lines.append(Series(what if len(runs) == 1 else name, points, colour=number))
    return tuple(lines)


def _budget(records: Sequence[Record]) -> Iterator[Series]:
    """The plans' budget, if they have the same, as a line across."""
    longest = max(float(record.plan.steps) for record in records)
    budgets = {record.plan.epsilon for record in records}
    for budget in budgets if len(budgets) == 1 else ():
        if budget is not None:
            yield Series(f"budget, ε = {budget:g}", ((0.0, budget), (longest, budget)), colour=None)


def _clipping(record: Record) -> Chart:
    """The clipping norms that the bound released, a line a part."""
    parts = dict.fromkeys(name for m in record.measures for name in m.clipping_norms)
    lines = {n: tuple((m.step, m.clipping_norms[n]) for m in record.measures if n in m.clipping_norms) for n in parts}
    values = [y for points in lines.values() for _, y in points if 0 < y < math.inf]
    wide = bool(values) and max(values) > 20 * min(values)
    return Chart(
        "clipping-norms",
        "Clipping norms over steps",
        _STEPS,
        Axis("clipping norm", "number", low=None if wide else 0.0, log=wide),
        tuple(Series(name, points, colour=number) for number, (name, points) in enumerate(lines.items())),
        "Learned from noisy answers, which are accounted.",
    )


def _grid() -> list[float]:
    """False positives at which a curve is drawn: close together where little is left to chance."""
    edges = (0.0, 0.01, 0.1, 0.9, 0.99, 1.0)
    return [low + (high - low) * i / 20 for low, high in pairwise(edges) for i in range(20)] + [1.0]
