"""A trained model in one file for other programs, with its preprocessing inside, checked by equal outputs."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from discreet.data.files import needed
from discreet.data.rules import Bins, Dates, Range, Rule, Unscaled, WithMissing, Words
from discreet.data.schema import rules_of
from discreet.errors import ConfigError
from discreet.ledger import storage
from discreet.runs.trained.model import Predictor, Trained, load

Kind = Literal["torchscript", "onnx", "sklearn"]
KINDS: dict[str, str] = {"torchscript": "pt", "onnx": "onnx", "sklearn": "joblib"}  # and how their files end
_TOLERANCE = 1e-5  # on a probability, or in a number's declared range
_COMPARED = (37, 1)  # rows, in batches of these sizes

Outputs = npt.NDArray[np.float64]
Run = Callable[[Any], Outputs]  # what a written file makes of a table's columns, or of an array


@dataclass(frozen=True)
class Exported:
    """A file that was written: where it is, on how many rows it was compared, and how far apart outputs were."""

    path: Path
    rows: int
    difference: float


def export(run: str | Path, to: str, out: str | Path | None = None) -> Exported:
    """Write a run's model as one file that other programs read.

    Its outputs are probabilities of classes, or a number in its own unit. The file is read again and its outputs on
    made-up rows are compared with the model's own; if they differ by more than 1e-5 there is no file.

    - `torchscript`: takes a tensor, or of a table a dictionary of columns whose cells are texts, as in a .csv;
    - `onnx`: takes a tensor, or of a table an input for each column, numbers as double and words as strings;
    - `sklearn`: an estimator in a joblib file, which needs discreet where it is read; takes whatever `discreet.load`'s
      `predict` takes.

    Args:
        run: the run's folder.
        to: torchscript, onnx or sklearn.
        out: the file; model.pt, model.onnx or model.joblib in the folder if not given.

    Returns:
        Where it is, and how close outputs were.

    Raises:
        ConfigError: the model cannot be exported in this form, and why; or a package is missing.
    """
    if to not in KINDS:
        raise ConfigError(f"a model is not exported to {to!r}; it is to one of {', '.join(KINDS)}.")
    trained = load(run)
    path = Path(run) / f"model.{KINDS[to]}" if out is None else Path(out)
    if path.suffix != f".{KINDS[to]}":
        raise ConfigError(f"the file for {to} is {path}; it ends in .{KINDS[to]}.")
    found: list[float] = []
    try:
        storage.replace(path, lambda scratch: found.append(_written(trained, to, scratch)))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error
    return Exported(path, sum(_COMPARED), found[0])


def _written(trained: Trained, to: str, path: Path) -> float:
    """Write the file, and compare what it does, before it has its name; how far outputs are apart."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of formats that torch would rather not have
        if to == "torchscript":
            from discreet.runs.trained.torchscript import write
        elif to == "onnx":
            needed("onnx", "an export to onnx", extra="onnx")
            needed("onnxruntime", "an export to onnx", extra="onnx")
            from discreet.runs.trained.onnx import write
        else:
            needed("sklearn", "an export to sklearn", extra="sklearn")
            from discreet.runs.trained.estimator import write
        write(trained, path)
        found = _difference(trained, _reader(to)(path))
    if not found <= _TOLERANCE:
        raise ConfigError(
            f"the model as {to} gives other outputs (by {found:.2g}, where {_TOLERANCE:g} is allowed); nothing was "
            "written. What it does may depend on the number of rows; use discreet.load."
        )
    return found


def _reader(to: str) -> Callable[[Path], Run]:
    if to == "torchscript":
        from discreet.runs.trained.torchscript import read
    elif to == "onnx":
        from discreet.runs.trained.onnx import read
    else:
        from discreet.runs.trained.estimator import read
    return read


def _difference(trained: Predictor, run: Run) -> float:
    """How far outputs are apart, at most: of probabilities, or of numbers in parts of their range."""
    target = trained.manifest.target
    unit = 1.0 if target is None else (target[1] - target[0]) / 2
    worst = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for count in _COMPARED:
            rows = _made_up(trained, count)
            wanted = trained.predict(rows) if trained.classes is None else trained.predict_proba(rows)
            found = np.asarray(run(rows), np.float64).reshape(wanted.shape)
            worst = max(worst, float(np.abs(found - wanted.astype(np.float64)).max()) / unit)
    return worst


def _made_up(trained: Predictor, count: int) -> Any:
    """Rows of what the model takes: within ranges and outside, known words and others, and cells that are missing."""
    draw, how = np.random.default_rng(count), trained.manifest.inputs
    if how["kind"] != "table":
        return draw.random((count, *how["shape"])).astype(np.float32)
    rules = rules_of("the schema", how["schema"]).items()
    return {name: _cells(rule, count, draw) for name, rule in rules if name != how["label"]}


def _cells(rule: Rule, count: int, draw: np.random.Generator) -> list[Any]:
    """Made-up cells of a column."""
    if isinstance(rule, WithMissing):
        rule = rule.rule
    if isinstance(rule, Range):
        wide = draw.uniform(2 * rule.low - rule.high, 2 * rule.high - rule.low, count)
        return [None if i % 7 == 3 else float(np.float32(value)) for i, value in enumerate(wide)]
    if isinstance(rule, Bins):
        return [*rule.edges, None, *draw.uniform(2 * rule.edges[0], 2 * rule.edges[-1] + 1, count).tolist()][:count]
    if isinstance(rule, Unscaled):
        return [None if i % 7 == 3 else float(value) for i, value in enumerate(draw.standard_cauchy(count))]
    if isinstance(rule, Dates):
        first, last = rule.low.toordinal(), rule.high.toordinal()
        return [date.fromordinal(int(day)).isoformat() for day in draw.integers(first, last + 1, count)]
    known = rule.words if isinstance(rule, Words) else [f"a word {number}" for number in range(40)]
    words = [*known, "none of these", None]
    return [words[int(i)] for i in draw.integers(len(words), size=count)]


def feature_rules(trained: Predictor) -> dict[str, Range | Words]:
    """A table's columns that are inputs, each with its rule; one that only discreet knows is a ConfigError."""
    how, rules = trained.manifest.inputs, dict[str, Range | Words]()
    for name, rule in rules_of("the schema", how["schema"]).items():
        if name == how["label"]:
            continue
        if not isinstance(rule, (Range, Words)):
            raise ConfigError(
                f"column {name!r} is a {type(rule).__name__}, which only discreet makes; export to sklearn."
            )
        rules[name] = rule
    return rules


def refuse_features(trained: Predictor, to: str) -> None:
    """Refuse a model whose inputs are features of images: code that only runs in Python makes them."""
    if trained.manifest.features is not None:
        raise ConfigError(
            f"a model on features of images is not exported to {to}: they are extracted by code that it cannot hold. "
            "Export it to sklearn, or use discreet.load."
        )
