"""How good a model is, on the page: beside what looking at no input is worth, class by class, and how sure it is."""

from collections.abc import Mapping
from typing import Any

from discreet.report.charts import Axis, Chart, Series
from discreet.report.html import Html, section, table, text

_UNPROTECTED = (
    "The held-out rows are not protected by the guarantee: these figures are exact, and are about those rows."
)
_MOST_SHOWN = 20  # classes of a table on the page


def merit_section(accuracy: float | None, figures: Mapping[str, Any] | None) -> Html:
    """Figures of merit as a section; nothing where there are none."""
    if figures is None:
        return Html("")
    parts = [Html(f"<p>{text(in_words(accuracy, figures))} {text(_UNPROTECTED)}</p>")]
    if "rmse" in figures:
        rows = [
            ("root mean square error", f"{figures['rmse']:.4g}", f"{figures['mean_rmse']:.4g}"),
            ("mean absolute error", f"{figures['mae']:.4g}", f"{figures['mean_mae']:.4g}"),
        ]
        parts.append(table((f"error ({_units(figures)})", ("model",), ("the mean",)), rows))
    else:
        parts += [_by_class(figures), _confusion(figures)]
    parts.append(_by_group(figures))
    return section("How good it is", *parts)


def in_words(accuracy: float | None, figures: Mapping[str, Any]) -> str:
    """A sentence or two, with what looking at no input is worth."""
    if "rmse" in figures:
        r2 = "" if figures["r2"] is None else f", R2 {figures['r2']:.3f}"
        words = (
            f"Root mean square error {figures['rmse']:.3g}{r2} on {figures['rows']:,} held-out rows; always saying "
            f"their mean has {figures['mean_rmse']:.3g}."
        )
        if figures["rmse"] >= figures["mean_rmse"]:
            words += " It does not do better than the mean: nothing was learned that shows."
        return f"{words} {apart(figures)}".rstrip()
    if accuracy is None:
        return ""
    majority = figures["majority"]
    auc = "" if figures["auc"] is None else f", AUC {figures['auc']:.3f}"
    words = f"Accuracy {accuracy:.1%}{auc} on {figures['rows']:,} held-out rows"
    if accuracy <= majority:
        return (
            f"{words}. That does not exceed {majority:.1%}, which always saying the commonest class has: nothing was "
            f"learned that shows. {apart(figures)}"
        ).rstrip()
    return f"{words}; always saying the commonest class has {majority:.1%}. {apart(figures)}".rstrip()


def _units(figures: Mapping[str, Any]) -> str:
    """What errors of numbers are measured in."""
    if "target" not in figures:
        return "in units of the targets"
    low, high = figures["target"]
    return f"in the target's own units; what lies outside {low:g} to {high:g} was cut"


def _measured(figures: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    """Each group with rows: its name, how many there are, and its figure."""
    found = []
    for group in figures.get("groups", ()):
        if group["rows"]:
            shown = f"{group['rmse']:.4g}" if "rmse" in group else f"{group['accuracy']:.1%}"
            found.append((str(group["name"]), int(group["rows"]), shown))
    return found


def apart(figures: Mapping[str, Any]) -> str:
    """How groups fare, in a sentence; nothing where there are none."""
    found = _measured(figures)
    if not found:
        return ""
    listed = ", ".join(f"{name} {shown} ({rows:,} rows)" for name, rows, shown in found[:_MOST_SHOWN])
    return f"By {figures['group']}: {listed}{' ...' if len(found) > _MOST_SHOWN else ''}."


def _by_group(figures: Mapping[str, Any]) -> Html:
    found = _measured(figures)
    if not found:
        return Html("")
    what = "root mean square error" if "rmse" in figures else "accuracy"
    head = (f"by {figures['group']}", (what,), ("held-out rows",))
    shown = table(head, [(name, figure, f"{rows:,}") for name, rows, figure in found[:_MOST_SHOWN]])
    note = "A group of few rows has an uncertain figure, and one that is exact about those few."
    return Html(f"{shown}<p>{text(note)}</p>")


def _names(figures: Mapping[str, Any]) -> list[str]:
    return list(figures.get("classes") or map(str, range(len(figures["recall"]))))


def _by_class(figures: Mapping[str, Any]) -> Html:
    names, matrix = _names(figures), figures.get("confusion")
    rows = []
    for number, (name, recall) in enumerate(zip(names, figures["recall"], strict=False)):
        count = "" if matrix is None else f"{sum(matrix[number]):,}"
        rows.append((name, "no rows" if recall is None else f"{recall:.1%}", count))
    shown = table(("class", ("found",), ("held-out rows",)), rows[:_MOST_SHOWN])
    more = "" if len(rows) <= _MOST_SHOWN else f"<p>And {len(rows) - _MOST_SHOWN} more: metrics.jsonl.</p>"
    return Html(f"{shown}{more}")


def _confusion(figures: Mapping[str, Any]) -> Html:
    matrix = figures.get("confusion")
    if not matrix or len(matrix) > _MOST_SHOWN:
        return Html("")
    names = _names(figures)
    head = ("true class, taken for", *((name,) for name in names))
    rows = [(name, *(f"{count:,}" for count in line)) for name, line in zip(names, matrix, strict=False)]
    shown = table(head, rows)
    return Html(f"<details><summary>Which class was taken for which</summary>{shown}</details>")


def calibration(figures: Mapping[str, Any] | None) -> Chart:
    """How often the model is right, by how sure it says it is."""
    points = tuple((float(sure), float(true)) for sure, true, _ in (figures or {}).get("calibration", ()))
    error = (figures or {}).get("calibration_error", 0.0)
    ideal = Series("as sure as right", ((0.0, 0.0), (1.0, 1.0)), colour=None)
    return Chart(
        "calibration",
        "Right over sure",
        Axis("confidence", "share", 0.0, 1.0),
        Axis("share that is right", "share", 0.0, 1.0),
        (Series("held-out rows", points), ideal),
        f"Below the dashed line the model is surer than it should be; on average it is {error:.1%} off.",
    )
