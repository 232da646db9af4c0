"""A trained model as a scikit-learn estimator, with its preprocessing and its guarantee; saved as a joblib file."""

from functools import cached_property
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import numpy.typing as npt
from safetensors.torch import load, save
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from discreet._documents import parse_json
from discreet.accounting.guarantee import Guarantee
from discreet.errors import ConfigError
from discreet.features.statistics import Whitened
from discreet.runs.trained.export import Outputs, Run
from discreet.runs.trained.manifest import Manifest
from discreet.runs.trained.model import Predictor, Trained


class TrainedEstimator(BaseEstimator):
    """What both kinds have: a run's model, ready to predict. It is trained already and cannot be fitted again.

    Args:
        manifest: what the model takes and how its outputs are called, as model.json has it.
        weights: its parameters, in the form of a safetensors file.
        statistics: what whitens features of images, where it takes these.
        proven: the guarantee as JSON.
    """

    def __init__(
        self,
        manifest: str = "",
        weights: bytes = b"",
        statistics: dict[str, dict[str, Any]] | None = None,
        proven: str = "",
    ) -> None:
        self.manifest, self.weights, self.statistics, self.proven = manifest, weights, statistics, proven

    @cached_property
    def predictor_(self) -> Predictor:
        """The network with its preprocessing."""
        manifest = Manifest.parse(parse_json(self.manifest))
        model = manifest.make()
        model.load_state_dict(load(self.weights))
        fitted = None if self.statistics is None else {k: Whitened(**v) for k, v in self.statistics.items()}
        return Predictor(manifest, model.eval(), fitted)

    @property
    def guarantee_(self) -> Guarantee:
        """What is proven of the model."""
        return Guarantee.from_json(self.proven)

    def fit(self, X: Any, y: Any = None) -> "TrainedEstimator":
        """Refused: what it was trained on is protected, and other data would not be."""
        raise ConfigError("this estimator was trained with differential privacy and is not fitted again; predict.")

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Classes by name, or numbers: of a table's columns (a data frame, a mapping), an array, or a file."""
        return self.predictor_.predict(X)

    def __sklearn_is_fitted__(self) -> bool:
        return bool(self.weights)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in super().__getstate__().items() if k != "predictor_"}


class TrainedClassifier(ClassifierMixin, TrainedEstimator):
    """A model that predicts classes."""

    @property
    def classes_(self) -> npt.NDArray[Any]:
        """The classes' names, in the order of the probabilities."""
        return np.asarray(self.predictor_.classes, dtype=object)

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """The probability of each class for each row."""
        return self.predictor_.predict_proba(X)


class TrainedRegressor(RegressorMixin, TrainedEstimator):
    """A model that predicts a number."""


def write(trained: Trained, path: Path) -> None:
    """Write the estimator of a run's model."""
    fitted = trained.fitted
    statistics = None if fitted is None else {name: dict(vars(each)) for name, each in fitted.items()}
    weights = save({name: value.contiguous() for name, value in trained.model.state_dict().items()})
    kind = TrainedRegressor if trained.classes is None else TrainedClassifier
    made = kind(trained.manifest.to_json(), weights, statistics, trained.guarantee.to_json())
    joblib.dump(made, path)


def read(path: Path) -> Run:
    """What a written file computes."""
    made = joblib.load(path)

    def run(rows: Any) -> Outputs:
        return made.predict_proba(rows) if isinstance(made, TrainedClassifier) else made.predict(rows)

    return run
