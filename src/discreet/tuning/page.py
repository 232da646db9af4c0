"""All trials of a search, or all runs of a grid, on a page."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from discreet.accounting.guarantee import Guarantee
from discreet.report.charts import Axis, Chart, Series
from discreet.report.files import csv_table, save
from discreet.report.html import Html, document, grid, heading, section, table, text
from discreet.runs.space import Settings

_SECRET = (
    "Not for publication. The guarantee is of the best trial alone: whoever sees the others, their number, their "
    "scores or this page has seen more than it counts."
)
_LINES = 8  # in a chart


def write_search(
    folder: Path, trials: Mapping[str, Settings], scores: Mapping[str, float], best: str, proven: Guarantee, all_of: str
) -> Path:
    """The page of a search, for whoever holds the data.

    Args:
        folder: where it goes.
        trials: the settings of each.
        scores: of each.
        best: which one is released.
        proven: of the released one, all trials included.
        all_of: what it would cost to show all of them, in words.

    Returns:
        The page's path.
    """
    order = sorted(trials, key=lambda name: -scores[name])
    fields = [field for field in next(iter(trials.values())) if field != "run.seed"]
    rows = [
        (
            name + (" (released)" if name == best else ""),
            *(_shown(trials[name][f]) for f in fields),
            _shown(scores[name]),
        )
        for name in order
    ]
    parts = [
        heading("A search over settings", f"{len(trials)} trials, of which the best is released."),
        Html(f'<div class="alarm" role="alert"><strong>Secret</strong><ul><li>{text(_SECRET)}</li></ul></div>'),
        section("What is proven of the best", Html(f"<p>{text(str(proven))}</p><p>{text(all_of)}</p>")),
        section("The trials", table(("trial", *fields, ("score",)), rows, kind="cards")),
        section("Scores by setting", grid(_by_setting(trials, scores, fields))),
    ]
    page = folder / "report.html"
    save(page, document("A search over settings", parts, "What was drawn: draws.json; what is released: best/."))
    return page


def write_sweep(folder: Path, runs: Sequence[Mapping[str, Any]], fields: Sequence[str]) -> Path:
    """The page of a grid, and its runs as CSV.

    Args:
        folder: where it goes.
        runs: for each its "name", its settings by field, "accuracy" and "epsilon".
        fields: the settings that were varied.

    Returns:
        The page's path.
    """
    figures = ("accuracy", "epsilon")
    save(
        folder / "runs.csv",
        csv_table(("run", *fields, *figures), [[r[k] for k in ("name", *fields, *figures)] for r in runs]),
    )
    measured = sorted(runs, key=lambda run: -_number(run["accuracy"]))
    rows = [
        (str(r["name"]), *(_shown(r[k]) for k in fields), _shown(r["accuracy"]), _shown(r["epsilon"])) for r in measured
    ]
    words = (
        "A grid on data that was said to be public, or to stand for private data: nothing was charged to any data set."
    )
    drawn = _against_epsilon(runs, fields)
    parts = [
        heading("A grid of settings", f"{len(runs)} runs. {words}"),
        *([section("Accuracy against epsilon", grid([drawn]))] if drawn else []),
        section("The runs", table(("run", *fields, ("accuracy",), ("proven ε",)), rows, kind="cards")),
    ]
    page = folder / "report.html"
    save(page, document("A grid of settings", parts, "The runs as CSV: runs.csv."))
    return page


def _against_epsilon(runs: Sequence[Mapping[str, Any]], fields: Sequence[str]) -> Chart | None:
    """A line for each setting of all but epsilon and the seed, the best ones first; the mean over seeds."""
    others = [field for field in fields if field not in ("budget.epsilon", "budget.noise", "run.seed")]
    lines: dict[tuple[str, ...], dict[float, list[float]]] = {}
    for run in runs:
        if run["accuracy"] is not None and math.isfinite(run["epsilon"]):
            asked = float(run.get("budget.epsilon", run["epsilon"]))
            key = tuple(f"{f.rpartition('.')[2]} {_shown(run[f])}" for f in others)
            lines.setdefault(key, {}).setdefault(asked, []).append(float(run["accuracy"]))
    if not lines:
        return None
    means = {key: sorted((e, fmean(found)) for e, found in by.items()) for key, by in lines.items()}
    best = sorted(means, key=lambda key: -fmean(y for _, y in means[key]))[:_LINES]
    drawn = tuple(
        Series(
            ", ".join(key) or "accuracy", tuple(means[key]), look="line" if len(means[key]) > 1 else "points", colour=i
        )
        for i, key in enumerate(best)
    )
    more = "" if len(means) <= _LINES else f" The best {_LINES} of {len(means)} settings."
    log = all(x > 0 for line in drawn for x, _ in line.points)
    note = f"Means over seeds where there are several.{more}"
    return Chart(
        "sweep", "Accuracy", Axis("epsilon, proven", "epsilon", log=log), Axis("accuracy", "share"), drawn, note
    )


def _by_setting(trials: Mapping[str, Settings], scores: Mapping[str, float], fields: Sequence[str]) -> list[Chart]:
    """Scores against each setting that is a number."""
    charts = []
    for field in fields:
        values = {name: settings[field] for name, settings in trials.items()}
        numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values.values())
        points = (
            tuple(sorted((float(values[n]), scores[n]) for n in trials if math.isfinite(scores[n]))) if numbers else ()
        )
        if points:
            log = min(x for x, _ in points) > 0 and max(x for x, _ in points) > 8 * min(x for x, _ in points)
            line = (Series("trials", points, look="points"),)
            charts.append(
                Chart(field.replace(".", "-"), field, Axis(field, "number", log=log), Axis("score", "number"), line)
            )
    return charts


def _number(value: float | None) -> float:
    return -math.inf if value is None else value


def _shown(value: Any) -> str:
    """A setting or a figure, as a person reads it."""
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
