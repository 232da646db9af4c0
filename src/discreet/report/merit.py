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
        parts.append(table(("error (targets from −1 to 1 by their range)", ("model",), ("the mean",)), rows))
    else:
        parts += [_by_class(figures), _confusion(figures)]
    return section("How good it is", *parts)


def in_words(accuracy: float | None, figures: Mapping[str, Any]) -> str:
    """A sentence or two, with what looking at no input is worth."""
    if "rmse" in figures:
        r2 = "" if figures["r2"] is None else f", R2 {figures['r2']:.3f}"
        words = (
            f"Root mean square error {figures['rmse']:.3g}{r2} on {figures['rows']:,} held-out rows; always saying "
            f"their mean has {figures['mean_rmse']:.3g}."
        )
        worse = figures["rmse"] >= figures["mean_rmse"]
        return f"{words} It does not do better than the mean: nothing was learned that shows." if worse else words
    if accuracy is None:
        return ""
    majority = figures["majority"]
    auc = "" if figures["auc"] is None else f", AUC {figures['auc']:.3f}"
    words = f"Accuracy {accuracy:.1%}{auc} on {figures['rows']:,} held-out rows"
    if accuracy <= majority:
        return (
            f"{words}. That does not exceed {majority:.1%}, which always saying the commonest class has: nothing was "
            "learned that shows."
        )
    return f"{words}; always saying the commonest class has {majority:.1%}."


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
