"""What a model is worth on held-out rows, beside what one is worth that looks at no input."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from discreet.errors import ConfigError

Reals = npt.NDArray[np.floating[Any]]

_BINS = 10  # of confidence, for calibration
_MOST_CLASSES = 50  # of a confusion matrix


@dataclass(frozen=True)
class HeldOut:
    """What is known of held-out rows, and figures of them are told with.

    - `class_names`: what the classes are called, by number;
    - `target`: the range of a number that is predicted, which -1 and 1 stand for: errors are told in its units;
    - `group`: a column by whose words figures are told, which are `group_names`; `groups` has each row's, by number.
    """

    class_names: tuple[str, ...] = ()
    target: tuple[float, float] | None = None
    group: str = ""
    group_names: tuple[str, ...] = ()
    groups: Tensor | None = None


def merit(outputs: Tensor, targets: Tensor, about: HeldOut | None = None) -> dict[str, Any] | None:
    """The figures of outputs for one target a row; None where they do not fit each other."""
    about = about or HeldOut()
    if not targets.is_floating_point():
        if outputs.dim() != 2 or int(targets.min()) < 0 or int(targets.max()) >= outputs.shape[1]:
            return None
        found = of_classes(outputs, targets) | ({"classes": list(about.class_names)} if about.class_names else {})
        return found | _by_group("accuracy", (outputs.argmax(1) == targets.cpu()).double(), about)
    if outputs.numel() != len(targets):
        return None
    guess, truth = outputs.flatten().double().cpu(), targets.double().cpu()
    if about.target is not None:
        low, high = about.target
        guess, truth = ((t + 1) / 2 * (high - low) + low for t in (guess, truth))
    found = of_numbers(guess, truth) | ({} if about.target is None else {"target": list(about.target)})
    groups = _by_group("rmse", (guess - truth).square(), about)
    for group in groups.get("groups", []):
        group["rmse"] = None if group["rmse"] is None else math.sqrt(group["rmse"])
    return found | groups


def _by_group(name: str, values: Tensor, about: HeldOut) -> dict[str, Any]:
    """The mean over each group's rows, None for a group without; nothing where there are no groups."""
    if about.groups is None:
        return {}
    if len(about.groups) != len(values):
        raise ConfigError(f"there are {len(values)} held-out rows, and {len(about.groups)} have a group.")
    own = [values[about.groups == number] for number in range(len(about.group_names))]
    parts = zip(about.group_names, own, strict=True)
    return {
        "group": about.group,
        "groups": [
            {"name": called, "rows": len(part), name: float(part.mean()) if len(part) else None}
            for called, part in parts
        ],
    }


def of_classes(scores: Tensor, labels: Tensor) -> dict[str, Any]:
    """Figures of a classifier from its scores [rows, classes] and the true labels [rows].

    - "majority": the share of the commonest class, which is the accuracy of always saying it;
    - "recall": for each class the share of its rows that are found, None for one without rows;
    - "auc": how likely a row of a class has a higher score for it than a row of another, the mean over the classes;
    - "calibration_error": by how much confidence and accuracy differ in ten bins of confidence, on average over rows;
    - "calibration": for each bin with rows the mean confidence, the accuracy and the number of rows;
    - "confusion": how many rows of a class (a line) were taken for which (a column), of at most 50 classes.
    """
    chances, truth = scores.double().softmax(1).cpu().numpy(), labels.cpu().numpy()
    rows, classes = chances.shape
    said, counts = chances.argmax(1), np.bincount(truth, minlength=classes)
    right = said == truth
    recalls = [float(right[truth == c].mean()) if counts[c] else None for c in range(classes)]
    areas = [_area(chances[:, c], truth == c) for c in range(classes) if 0 < counts[c] < rows]
    bins = _calibration(chances.max(1), right)
    figures: dict[str, Any] = {
        "rows": rows,
        "majority": float(counts.max() / rows),
        "recall": recalls,
        "auc": float(np.mean(areas)) if areas else None,
        "calibration_error": sum(count * abs(sure - true) for sure, true, count in bins) / rows,
        "calibration": bins,
    }
    if classes <= _MOST_CLASSES:
        matrix = np.zeros((classes, classes), np.int64)
        np.add.at(matrix, (truth, said), 1)
        figures["confusion"] = matrix.tolist()
    return figures


def of_numbers(predicted: Tensor, targets: Tensor) -> dict[str, Any]:
    """Figures of a regression: root mean square error, mean absolute error, R2; and the errors of saying the mean."""
    guess, truth = predicted.double().cpu().numpy(), targets.double().cpu().numpy()
    errors, apart = guess - truth, truth - truth.mean()
    of_mean = float(np.square(apart).mean())
    return {
        "rows": len(truth),
        "rmse": math.sqrt(float(np.square(errors).mean())),
        "mae": float(np.abs(errors).mean()),
        "r2": 1 - float(np.square(errors).mean()) / of_mean if of_mean else None,
        "mean_rmse": math.sqrt(of_mean),
        "mean_mae": float(np.abs(apart).mean()),
    }


def _area(scores: Reals, mine: npt.NDArray[np.bool_]) -> float:
    """How likely a row of a class has a higher score than another; equal ones count half."""
    from scipy.stats import rankdata

    ours, others = int(mine.sum()), int((~mine).sum())
    return float((rankdata(scores)[mine].sum() - ours * (ours + 1) / 2) / (ours * others))


def _calibration(confidence: Reals, right: npt.NDArray[np.bool_]) -> list[tuple[float, float, int]]:
    """For each bin of confidence that has rows: the mean confidence, the accuracy, the number of rows."""
    place = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    chosen = [place == i for i in range(_BINS)]
    return [(float(confidence[c].mean()), float(right[c].mean()), int(c.sum())) for c in chosen if c.any()]


__all__ = ["HeldOut", "merit", "of_classes", "of_numbers"]
