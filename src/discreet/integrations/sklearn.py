"""Private training behind scikit-learn's interface: a classifier, a regressor, and a score for cross-validation.

What scikit-learn usually reads off the data is declared here instead: the features' ranges, the classes, the range of
a regressor's target. What comes before an estimator in a pipeline must not learn from private rows either.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from discreet._check import check_int, check_positive
from discreet.accounting.calibrate import calibrate
from discreet.accounting.events import Event
from discreet.accounting.guarantee import Condition
from discreet.errors import ConfigError, PrivacyError
from discreet.integrations.fit_registry import REGISTER
from discreet.ledger import Ledger
from discreet.models import networks as models
from discreet.stages.bounds import Clip
from discreet.stages.mechanism import Mechanism
from discreet.stages.noise import Gaussian
from discreet.stages.noise.random import KeyTree
from discreet.stages.plan import Plan
from discreet.stages.sampling import Poisson
from discreet.training.loop import fit

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils import Tags, check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ConfigError("scikit-learn is not installed; pip install 'discreet[sklearn]'.") from error

Numbers = npt.NDArray[Any]
Bounds = tuple[Any, Any]
Model = str | Callable[[int, int], nn.Module]

_AT_A_TIME = 8192  # rows, when predicting


class _Private(BaseEstimator):
    """What the classifier and the regressor share."""

    epsilon: float
    delta: float
    bounds: Bounds | None
    model: Model
    epochs: float
    batch_size: int
    rate: float | None
    clip: float
    learning_rate: float
    ledger: Ledger | None
    repeat: str
    random_state: Any

    def _keep(self, given: Mapping[str, Any]) -> None:
        """Have a constructor's arguments for attributes, as they were given: what scikit-learn asks of estimators."""
        for name in self._get_param_names():
            setattr(self, name, given[name])

    def _train(self, rows: Numbers, targets: Tensor, outputs: int, assumed: Sequence[str]) -> None:
        """Fit a network to rows and targets that were checked, and keep it with what is proven of it."""
        plan = self._plan(len(rows))
        network = self._network(rows.shape[1], outputs)
        inputs = self._scaled(rows)
        optimizer = torch.optim.SGD(network.parameters(), lr=check_positive("learning_rate", self.learning_rate))
        book = self._book()
        entered = REGISTER.enter(rows, book, alone=self.repeat == "alone")
        released: list[int] = []
        try:
            done = fit(
                network, (inputs, targets), plan, optimizer=optimizer, ledger=self.ledger, on_step=released.append
            )
        except (ConfigError, PrivacyError):
            if not released:
                REGISTER.leave(entered)
            raise
        conditions = (*(Condition(text, "assumed") for text in assumed), *self._conditions())
        self.guarantee_ = replace(done.guarantee, conditions=(*done.guarantee.conditions, *conditions))
        self.plan_, self.model_ = plan, network.eval()

    def _plan(self, rows: int) -> Plan:
        if self.rate is None:
            size = min(check_int("batch_size", _plain(self.batch_size), least=1), rows)
            sampling = Poisson(examples=rows, batch_size=size)
        else:
            sampling = Poisson(rate=_plain(self.rate), batch_size=_plain(self.batch_size))
        numbers = (_plain(value) for value in (self.clip, self.epochs, self.epsilon, self.delta))
        return _solved(sampling, *numbers)

    def _network(self, features: int, outputs: int) -> nn.Module:
        """A network with first weights of its own, which no draw of the data or the noise has anything to do with."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(check_random_state(self.random_state).randint(2**31 - 1)))
            if isinstance(self.model, str):
                return models.build(self.model, (features,), outputs)
            return self.model(features, outputs)

    def _scaled(self, rows: Numbers) -> Tensor:
        low, high = _ends("bounds", self.bounds, "the features", rows.shape[1])
        part = (np.clip(rows, low, high) - low) / (high - low)
        return torch.from_numpy((2 * part - 1).astype(np.float32))

    def _book(self) -> str | None:
        """The ledger by its place, so that two of the same file are one."""
        if self.repeat not in ("refuse", "alone"):
            raise ConfigError(f"repeat is {self.repeat!r}; it must be 'refuse' or 'alone'.")
        if self.ledger is None:
            return None
        if not isinstance(self.ledger, Ledger) or self.ledger.dataset is None:
            raise ConfigError(
                f"ledger is {self.ledger!r}; an estimator is fitted more than once, so it must be a data set's: "
                "discreet.Ledger(path, dataset=..., epsilon=..., delta=...)."
            )
        return str(Path(self.ledger.path).resolve())

    def _conditions(self) -> list[Condition]:
        """What a fit here rests on beside the run itself."""
        conditions = [
            Condition("the ranges of the features were stated without looking at the data", "assumed"),
            Condition(
                "each row's features come from that row alone, and whether a row was given depends on no other row: no "
                "scaler, selection or stratified fold before this has learned from them",
                "assumed",
            ),
        ]
        if self.repeat == "alone":
            text = "this is of the fit alone: what other fits on the same rows cost is not counted"
            conditions.append(Condition(text, "assumed"))
        elif self.ledger is None:
            conditions.append(Condition("no earlier fit in this process had rows with the same features", "checked"))
        return conditions

    def _outputs(self, X: Any) -> Tensor:
        check_is_fitted(self)
        inputs = self._scaled(validate_data(self, X, dtype=np.float64, reset=False))
        with torch.no_grad():
            return torch.cat([self.model_(part) for part in inputs.split(_AT_A_TIME)])

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        return tags


class PrivateClassifier(ClassifierMixin, _Private):
    """A classifier of which each fit is (epsilon, delta)-differentially private, by DP-SGD.

    Declared, as it is not read off private rows:

    - `bounds`: (low, high) of the features, numbers or one for each feature; what is outside is cut;
    - `classes`: the labels there may be; "public" takes those that occur in y, and the guarantee says that their set
      was assumed to be public.

    `model` is a name that discreet.models knows ("linear", "mlp"), module:function, or a function of the numbers of
    features and of classes. The number of rows is public; where it is secret, `rate` is how likely each row takes part
    in a step, and `batch_size` a constant declared without the data.

    Rows that were fitted before in this process are refused unless one `ledger` of the data set counts both fits, so
    cross-validation takes such a ledger. `repeat="alone"` allows it without: each guarantee is then of its own fit.
    `random_state` is for the first weights only: noise and sampling are never seeded.

    After `fit`: `guarantee_`, `plan_`, `model_` (the network), `classes_`.
    """

    classes: Sequence[Any] | str | None

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        bounds: Bounds | None = None,
        classes: Sequence[Any] | str | None = None,
        model: Model = "linear",
        epochs: float = 20.0,
        batch_size: int = 256,
        rate: float | None = None,
        clip: float = 1.0,
        learning_rate: float = 1.0,
        ledger: Ledger | None = None,
        repeat: str = "refuse",
        random_state: Any = None,
    ) -> None:
        self._keep(locals())

    def fit(self, X: Any, y: Any) -> "PrivateClassifier":
        """Train on private rows, by DP-SGD to the end of its steps.

        Args:
            X: the rows.
            y: the label of each.
        """
        rows, labels = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(labels)
        public = isinstance(self.classes, str) and self.classes == "public"
        known, numbers = np.unique(labels, return_inverse=True)
        if not public:
            known = self._declared()
            numbers = np.searchsorted(known, labels).clip(max=len(known) - 1)
            strange = np.flatnonzero(known[numbers] != labels)
            if len(strange):
                raise ConfigError(f"row {strange[0]} has none of the classes that were declared; name all of them.")
        if len(known) < 2:
            raise ConfigError("there is one class only; a classifier needs two or more.")
        assumed = ["the set of labels that occur, from which the classes were read, is public"] if public else []
        self._train(rows, torch.from_numpy(numbers.astype(np.int64)), len(known), assumed)
        self.classes_ = known
        return self

    def _declared(self) -> Numbers:
        if self.classes is None or isinstance(self.classes, str):
            raise ConfigError(
                f"classes is {self.classes!r}; which labels occur is private, so name those there may be, "
                "classes=[...]; or say classes='public' if it is no secret which occur in y."
            )
        declared = np.unique(np.asarray(self.classes))
        if len(declared) < len(self.classes):
            raise ConfigError(f"classes are {self.classes!r}; name each class once.")
        return declared

    def predict_proba(self, X: Any) -> Numbers:
        """How likely each class is, in the order of `classes_`.

        Args:
            X: the rows.
        """
        return self._outputs(X).double().softmax(1).numpy()

    def predict(self, X: Any) -> Numbers:
        """The likeliest class of each row.

        Args:
            X: the rows.
        """
        likeliest = self._outputs(X).argmax(1).numpy()
        return self.classes_[likeliest]


class PrivateRegressor(RegressorMixin, _Private):
    """A regressor of which each fit is (epsilon, delta)-differentially private, by DP-SGD on squared errors.

    `target_bounds` is (low, high) of the target, declared without looking; targets outside are cut, and so are
    predictions. Everything else is as in PrivateClassifier.
    """

    target_bounds: Bounds | None

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        bounds: Bounds | None = None,
        target_bounds: Bounds | None = None,
        model: Model = "linear",
        epochs: float = 20.0,
        batch_size: int = 256,
        rate: float | None = None,
        clip: float = 1.0,
        learning_rate: float = 0.2,
        ledger: Ledger | None = None,
        repeat: str = "refuse",
        random_state: Any = None,
    ) -> None:
        self._keep(locals())

    def fit(self, X: Any, y: Any) -> "PrivateRegressor":
        """Train on private rows, by DP-SGD to the end of its steps.

        Args:
            X: the rows.
            y: the target of each.
        """
        rows, values = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        low, high = _target_ends(self.target_bounds)
        targets = 2 * (np.clip(values.astype(np.float64), low, high) - low) / (high - low) - 1
        assumed = ["the range of the target was stated without looking at the data"]
        self._train(rows, torch.from_numpy(targets.astype(np.float32)), 1, assumed)
        return self

    def predict(self, X: Any) -> Numbers:
        """The target of each row, within its declared range.

        Args:
            X: the rows.
        """
        low, high = _target_ends(self.target_bounds)
        part = (self._outputs(X).double().squeeze(1).clamp(-1, 1) + 1) / 2
        return low + (high - low) * part.numpy()


@dataclass(frozen=True)
class PrivateScore:
    """A score with Gaussian noise, counted in the ledger of the data set: `scoring=` for cross-validation.

    Of a classifier the share of right answers; of a regressor (with `target_bounds`) one minus the mean squared error
    in units of the squared range. `noise` is a standard deviation in rows.

    Guarantee: a row counts from 0 to 1 in one sum over the rows, so this is one Gaussian query of multiplier `noise`
    for a public number of rows. It is in the ledger before a row is looked at. What is scored has not learned from
    private rows but by fits that the same ledger counts: of scikit-learn's estimators only such are taken. One row is
    one unit.
    """

    ledger: Ledger
    noise: float
    target_bounds: Bounds | None = None

    def __call__(self, estimator: Any, X: Any, y: Any) -> float:
        """The score of a fitted estimator on these rows."""
        _check_scored(estimator, self.ledger)
        answers = np.asarray(y)
        ends = None if self.target_bounds is None else _target_ends(self.target_bounds)
        event = Event(rate=1.0, multiplier=check_positive("noise", self.noise), steps=1, adjacency="zero-out")
        self.ledger.query(f"score on {len(answers)} rows, noise {self.noise:g}", event)
        predicted = np.asarray(estimator.predict(X))
        if answers.ndim != 1 or predicted.shape != answers.shape:
            raise ConfigError(
                f"there are predictions of shape {predicted.shape} for answers of shape {answers.shape}; one number or "
                "label a row is needed of both, or a row would count more than once. No score was given."
            )
        if ends is None:
            each = (predicted == answers).astype(np.float64)
        else:
            low, high = ends
            cut = (np.clip(np.asarray(v, np.float64), low, high) for v in (predicted, answers))
            each = 1 - np.square(np.subtract(*cut) / (high - low))
        noise = KeyTree(None).stream("score", 0).fill_normal(torch.empty(1, dtype=torch.float64), self.noise)
        return float((np.nan_to_num(each).sum() + float(noise)) / len(answers))


def _check_scored(estimator: Any, ledger: Ledger) -> None:
    """Refuse to score what has learned from rows without being counted: each row would change all predictions."""
    while (inner := getattr(estimator, "best_estimator_", None)) is not None or hasattr(estimator, "steps"):
        estimator = estimator.steps[-1][1] if inner is None else inner
    counted = isinstance(estimator, _Private) and estimator._book() == str(Path(ledger.path).resolve())
    if isinstance(estimator, BaseEstimator) and not counted:
        raise PrivacyError(
            f"{type(estimator).__name__} was not fitted under the ledger {ledger.path}, so that one row may change all "
            "of its predictions, which the noise of a score does not hide. Score estimators of discreet.sklearn that "
            "have this ledger; of a public model, an object with nothing but its predict."
        )


@lru_cache(maxsize=64)
def _solved(sampling: Poisson, clip: float, epochs: float, epsilon: float, delta: float) -> Plan:
    plan = Plan(sampling=sampling, mechanism=Mechanism(Clip(clip), Gaussian()), epochs=epochs, delta=delta)
    return calibrate(plan, epsilon)


def _plain(value: Any) -> Any:
    """Python's own number for numpy's, which searches over settings give."""
    return value.item() if isinstance(value, np.generic) else value


def _target_ends(bounds: Bounds | None) -> tuple[float, float]:
    low, high = _ends("target_bounds", bounds, "the target", 1)
    return float(low[0]), float(high[0])


def _ends(name: str, bounds: Bounds | None, whose: str, count: int) -> tuple[Numbers, Numbers]:
    """The lower and upper ends of declared ranges, one of each a feature."""
    if bounds is None:
        raise ConfigError(
            f"{name} is None; the range of {whose} is not read off private data: state {name}=(low, high), or have it "
            "asked for with noise, discreet.data.private_ranges(...)."
        )
    try:
        low, high = (np.asarray(end, np.float64) for end in bounds)
        low, high = np.broadcast_to(low, (count,)), np.broadcast_to(high, (count,))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{name} is {bounds!r}; it must be (low, high), each a number or {count} of them, one a feature."
        ) from error
    if not (np.isfinite(low) & np.isfinite(high) & (low < high)).all() or math.isinf(float((high - low).max())):
        raise ConfigError(f"{name} is {bounds!r}; ends must be finite numbers, low below high.")
    return low, high


__all__ = ["PrivateClassifier", "PrivateRegressor", "PrivateScore"]
