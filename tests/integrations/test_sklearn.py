"""The scikit-learn face: what is declared, what is counted, what is refused."""

import copy
import pickle
from dataclasses import replace

import joblib
import numpy as np
import pytest
import torch
from discreet.sklearn import PrivateClassifier, PrivateRegressor, PrivateScore
from sklearn.base import clone
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from torch import nn

from discreet import BudgetExhausted, ConfigError, Ledger, PrivacyError, attach, verify
from discreet.accounting import cost
from discreet.accounting.events import Event
from discreet.integrations.fit_registry import Register
from discreet.training import loop as training

FAST = {"bounds": (-4, 4), "epochs": 3, "batch_size": 50}


@pytest.fixture
def rows():
    """Rows that no other test has."""
    x = np.random.default_rng().normal(size=(200, 3))
    return x, np.where(x[:, 0] > 0, "yes", "no")


def classifier(**settings):
    return PrivateClassifier(**{"epsilon": 1.0, "classes": ["no", "yes"], **FAST, **settings})


def regressor(**settings):
    return PrivateRegressor(**{"epsilon": 1.0, "target_bounds": (-2, 2), **FAST, **settings})


def patients(path, epsilon=10.0):
    return Ledger(path / "patients.jsonl", dataset="patients", epsilon=epsilon, delta=1e-4)


# --- what a fit gives ------------------------------------------------------------------------------------------------


def test_a_fit_has_a_guarantee_within_its_epsilon(rows):
    fitted = classifier(epsilon=2.0, delta=1e-6).fit(*rows)
    proven = fitted.guarantee_
    assert (proven.delta, proven.adjacency, proven.sound) == (1e-6, "zero-out", True)
    assert 1.9 < proven.epsilon <= 2.0
    assert proven.released == fitted.plan_.steps == 12  # every step was counted
    texts = {c.text: c.status for c in proven.conditions}
    assert any("the losses were computed" in text and texts[text] == "proven" for text in texts)
    assert any("settings were chosen without these rows" in text and texts[text] == "assumed" for text in texts)
    assert any("no scaler, selection or stratified fold" in text and texts[text] == "assumed" for text in texts)


def test_a_classifier_learns():
    x = np.random.default_rng(0).normal(size=(2000, 3))
    y = x[:, 0] > 0
    fitted = PrivateClassifier(8.0, bounds=(-4, 4), classes=[False, True], repeat="alone").fit(x, y)
    assert fitted.score(x, y) > 0.9
    assert fitted.predict_proba(x).sum(1) == pytest.approx(1)
    assert (fitted.classes_[fitted.predict_proba(x).argmax(1)] == fitted.predict(x)).all()


def test_a_regressor_learns_within_its_declared_range():
    x = np.random.default_rng(0).uniform(-1, 1, size=(2000, 2))
    y = 100 + 10 * x[:, 0]
    fitted = PrivateRegressor(8.0, bounds=(-1, 1), target_bounds=(80, 120), repeat="alone").fit(x, y)
    assert fitted.score(x, y) > 0.8
    far = fitted.predict(1000 * x)
    assert far.min() >= 80
    assert far.max() <= 120


def test_the_number_of_rows_may_be_secret(rows):
    fitted = classifier(rate=0.25).fit(*rows)
    assert fitted.guarantee_.adjacency == "add-remove"
    assert fitted.plan_.steps == 12
    assert fitted.plan_ == classifier(rate=0.25, repeat="alone").fit(rows[0][:150], rows[1][:150]).plan_


def test_noise_is_never_the_same_whatever_the_random_state(rows):
    one, two = (classifier(random_state=0, repeat="alone").fit(*rows).model_ for _ in range(2))
    assert not any(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_the_random_state_is_for_the_first_weights_and_leaves_torchs_generator_alone(rows):
    before = torch.get_rng_state()
    first = []

    def network(features, outputs):
        first.append(nn.Linear(features, outputs))
        return copy.deepcopy(first[-1])

    for _ in range(2):
        classifier(model=network, random_state=7, repeat="alone").fit(*rows)
    assert torch.equal(first[0].weight, first[1].weight)
    assert torch.equal(torch.get_rng_state(), before)


def test_one_row_changes_no_other_rows_features(rows):
    x, _ = rows
    other = x.copy()
    other[0] = 1e6
    estimator = classifier()
    assert torch.equal(estimator._scaled(x)[1:], estimator._scaled(other)[1:])
    assert (estimator._scaled(other)[0] == 1).all()  # cut at its declared end


def test_ranges_may_be_one_for_each_feature():
    estimator = classifier(bounds=([0, 0, 0], [1, 10, 100]))
    assert estimator._scaled(np.array([[1.0, 5.0, 0.0]])).tolist() == [[1.0, 0.0, -1.0]]


# --- is privacy really on? -------------------------------------------------------------------------------------------


def test_a_fit_whose_model_was_not_attached_fails(rows, monkeypatch):
    def astray(model, *arguments, **settings):
        return attach(copy.deepcopy(model), *arguments, **settings)

    monkeypatch.setattr(training, "attach", astray)
    with pytest.raises(PrivacyError, match="from another model"):
        classifier().fit(*rows)


def test_a_model_that_mixes_rows_is_refused_and_its_rows_are_not_counted(rows):
    def mixing(features, outputs):
        return nn.Sequential(nn.Linear(features, 8), nn.BatchNorm1d(8), nn.Linear(8, outputs))

    with pytest.raises(PrivacyError, match="BatchNorm1d"):
        classifier(model=mixing).fit(*rows)
    classifier().fit(*rows)  # nothing was released of them


# --- what must be declared -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bounds": None}, "private_ranges"),
        ({"bounds": (1, 0)}, "low below high"),
        ({"bounds": (0, np.inf)}, "finite"),
        ({"bounds": (0, [1, 2])}, "each a number or 3 of them"),
        ({"bounds": 4}, r"must be \(low, high\)"),
        ({"classes": None}, "which labels occur is private"),
        ({"classes": "all"}, "which labels occur is private"),
        ({"classes": ["no", "yes", "no"]}, "each class once"),
        ({"classes": ["no"]}, "none of the classes"),
        ({"ledger": "ledger.jsonl"}, "must be a data set's"),
        ({"ledger": Ledger("ledger.jsonl")}, "must be a data set's"),
        ({"repeat": "yes"}, "'refuse' or 'alone'"),
        ({"epsilon": -1}, "epsilon"),
        ({"model": "none"}, "is not one of"),
    ],
)
def test_what_is_not_declared_or_makes_no_sense_is_refused(rows, settings, words):
    with pytest.raises(ConfigError, match=words):
        classifier(**settings).fit(*rows)


def test_a_label_nobody_declared_is_refused_without_saying_it(rows):
    x, y = rows
    strange = np.array(y, dtype=object)
    strange[17] = "secret"
    with pytest.raises(ConfigError, match="row 17") as caught:
        classifier().fit(x, strange.astype(str))
    assert "secret" not in str(caught.value)


def test_a_regressor_needs_the_range_of_its_target(rows):
    with pytest.raises(ConfigError, match="target_bounds is None"):
        regressor(target_bounds=None).fit(rows[0], rows[0][:, 0])


def test_classes_that_are_read_off_the_labels_are_an_assumption(rows):
    fitted = classifier(classes="public").fit(*rows)
    assert fitted.classes_.tolist() == ["no", "yes"]
    (condition,) = (c for c in fitted.guarantee_.conditions if "set of labels" in c.text)
    assert condition.status == "assumed"


def test_a_declared_class_need_not_occur(rows):
    fitted = classifier(classes=["maybe", "yes", "no"]).fit(*rows)
    assert fitted.classes_.tolist() == ["maybe", "no", "yes"]
    assert fitted.predict_proba(rows[0]).shape == (200, 3)


# --- the same rows twice ---------------------------------------------------------------------------------------------


def test_the_same_rows_are_not_fitted_twice_without_a_ledger(rows):
    x, y = rows
    fitted = classifier().fit(x, y)
    with pytest.raises(PrivacyError, match="no ledger adds the two up"):
        fitted.fit(x, y)
    with pytest.raises(PrivacyError, match="repeat='alone'"):
        clone(fitted).fit(x[50:], y[50:])  # some of the rows are enough
    with pytest.raises(PrivacyError):
        regressor().fit(x.astype(np.float32), x[:, 0])  # the same people, another estimator
    classifier().fit(np.random.default_rng().normal(size=(100, 3)), y[:100])


def test_each_guarantee_is_of_its_own_fit_if_that_is_asked_for(rows):
    for _ in range(2):
        fitted = classifier(repeat="alone").fit(*rows)
    assert any("of the fit alone" in c.text for c in fitted.guarantee_.conditions)


def test_cross_validation_without_a_ledger_is_refused(rows):
    x, y = rows
    with pytest.raises(PrivacyError, match="no ledger"):
        cross_val_score(classifier(), x, y, cv=KFold(4), error_score="raise")


def test_cross_validation_without_a_ledger_has_one_score_at_most(rows):
    x, y = rows
    with pytest.warns(FitFailedWarning, match="no ledger adds the two up"):
        scores = cross_val_score(classifier(), x, y, cv=KFold(4))
    assert np.isnan(scores[1:]).all()


def test_a_ledger_adds_cross_validation_up(rows, tmp_path):
    x, y = rows
    ledger = patients(tmp_path)
    search = GridSearchCV(
        make_pipeline(FunctionTransformer(np.tanh), classifier(ledger=ledger, bounds=(-1, 1))),
        {"privateclassifier__learning_rate": np.array([0.5, 1.0]), "privateclassifier__epochs": [2, 3]},
        cv=KFold(2),
        scoring=PrivateScore(ledger, noise=30.0),
        error_score="raise",
    )
    search.fit(x, y)
    total = ledger.guarantee()
    one = search.best_estimator_[-1].guarantee_
    assert one.epsilon <= 1.0 < total.epsilon < 10.0
    assert len(verify(ledger.path).runs) == 9  # two folds of four settings, and the best of them on everything


def test_a_spent_ledger_ends_it(rows, tmp_path):
    x, y = rows
    ledger = patients(tmp_path, epsilon=1.1)
    classifier(ledger=ledger).fit(x, y)
    with pytest.raises(BudgetExhausted, match="patients"):
        clone(classifier(ledger=ledger)).fit(x, y)


def test_rows_belong_to_one_ledger(rows, tmp_path):
    x, y = rows
    classifier().fit(x[:100], y[:100])
    with pytest.raises(PrivacyError):
        classifier(ledger=patients(tmp_path)).fit(x, y)
    classifier(ledger=patients(tmp_path)).fit(x[100:], y[100:])
    other = replace(patients(tmp_path), path=tmp_path / "other.jsonl")
    with pytest.raises(PrivacyError):
        classifier(ledger=other).fit(x[100:], y[100:])
    with pytest.raises(PrivacyError):
        classifier().fit(x[100:], y[100:])


def test_a_fit_alone_is_known_to_later_ones(rows, tmp_path):
    """Or a later guarantee would say that it was checked that there was none."""
    classifier(repeat="alone").fit(*rows)
    classifier(repeat="alone").fit(*rows)
    for later in (classifier(), classifier(ledger=patients(tmp_path))):
        with pytest.raises(PrivacyError, match="fitted before"):
            later.fit(*rows)


def test_a_fit_alone_under_a_ledger_goes_on_under_it(rows, tmp_path):
    classifier(repeat="alone", ledger=patients(tmp_path)).fit(*rows)
    classifier(ledger=patients(tmp_path)).fit(*rows)


def enter_elsewhere(values):
    try:
        Register().enter(values, None)
    except PrivacyError as error:
        return str(error)
    return ""


def test_a_worker_process_needs_a_ledger():
    values = np.zeros((1, 1))
    assert enter_elsewhere(values) == ""
    with joblib.parallel_config("multiprocessing"):
        (told,) = joblib.Parallel(n_jobs=2)([joblib.delayed(enter_elsewhere)(values)])
    assert "worker process" in told


def test_a_fork_needs_a_ledger(monkeypatch):
    register = Register()
    monkeypatch.setattr("discreet.integrations.fit_registry.os.getpid", lambda: -1)
    with pytest.raises(PrivacyError, match="worker process"):
        register.enter(np.zeros((1, 1)), None)
    register.enter(np.zeros((1, 1)), "ledger.jsonl")


def test_what_is_kept_of_a_row_is_no_hash_of_it_that_others_could_make():
    row = np.array([[1.0, -0.0]])
    assert Register()._digests(row) != Register()._digests(row)
    register = Register()
    assert register._digests(row) == register._digests(np.array([[1.0, 0.0]], np.float32))


# --- conventions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", [classifier(), regressor()])
def test_settings_survive_clone_and_pickle(estimator, rows, tmp_path):
    estimator.set_params(epsilon=2.5, ledger=patients(tmp_path))
    assert clone(estimator).get_params() == estimator.get_params() == pickle.loads(pickle.dumps(estimator)).get_params()
    fitted = clone(estimator).fit(rows[0], rows[1] if "classes" in estimator.get_params() else rows[0][:, 0])
    again = pickle.loads(pickle.dumps(fitted))
    assert (again.predict(rows[0]) == fitted.predict(rows[0])).all()
    assert again.guarantee_ == fitted.guarantee_


def signed(path):
    return Ledger(path / "signed.jsonl", dataset="patients", epsilon=20.0, delta=1e-4, key=KEY)


KEY = b"0123456789abcdef, a secret"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_estimator_does_not_hold_the_ledgers_key(rows, tmp_path, protocol):
    fitted = classifier(ledger=signed(tmp_path)).fit(*rows)
    kept = pickle.dumps(fitted, protocol)
    assert KEY not in kept
    assert KEY.hex().encode() not in kept
    assert b"signed.jsonl" in kept  # it is the ledger that is there, without its key
    again = pickle.loads(kept)
    assert (again.predict(rows[0]) == fitted.predict(rows[0])).all()
    assert (again.guarantee_, again.plan_) == (fitted.guarantee_, fitted.plan_)
    assert again.ledger.guarantee() == fitted.ledger.guarantee()  # it can be read


def test_what_was_pickled_counts_nothing_in_a_signed_ledger_until_it_has_the_key(rows, tmp_path):
    ledger = signed(tmp_path)
    again = pickle.loads(pickle.dumps(classifier(ledger=ledger)))
    with pytest.raises(PrivacyError, match="key was left out when it was pickled"):
        again.fit(*rows)  # not even a first line without a signature
    assert not ledger.path.exists() or not ledger.path.read_bytes()
    fitted = classifier(ledger=ledger).fit(*rows)
    before = ledger.path.read_bytes()
    with pytest.raises(PrivacyError, match="key was left out when it was pickled"):
        pickle.loads(pickle.dumps(fitted)).fit(*rows)
    assert ledger.path.read_bytes() == before
    again.set_params(ledger=signed(tmp_path)).fit(*rows)
    assert len(verify(ledger.path, key=KEY).runs) == 2


def test_no_way_to_keep_an_estimator_or_a_search_holds_the_key(rows, tmp_path):
    ledger = signed(tmp_path)
    score = PrivateScore(ledger, noise=30.0)
    search = GridSearchCV(classifier(ledger=ledger), {"clip": [0.5, 1.0]}, scoring=score, cv=KFold(2)).fit(*rows)
    joblib.dump(search, tmp_path / "search.joblib")
    for kept in ((tmp_path / "search.joblib").read_bytes(), pickle.dumps(search), pickle.dumps(score)):
        assert KEY not in kept
    again = joblib.load(tmp_path / "search.joblib")
    assert (again.predict(rows[0]) == search.predict(rows[0])).all()


def test_copies_within_the_process_sign_as_before(rows, tmp_path):
    estimator = classifier(ledger=signed(tmp_path))
    for copied in (clone(estimator), copy.deepcopy(estimator), copy.copy(estimator)):
        assert copied.ledger.key == copy.copy(estimator.ledger).key == KEY
    clone(estimator).fit(*rows)
    assert len(verify(estimator.ledger.path, key=KEY).runs) == 1


# --- scores ----------------------------------------------------------------------------------------------------------


class Always:
    def __init__(self, answer):
        self.answer = answer

    def predict(self, x):
        return np.full(len(x), self.answer)


def test_a_score_is_counted_before_it_is_asked(tmp_path):
    ledger = patients(tmp_path)
    score = PrivateScore(ledger, noise=5.0)
    found = [score(Always(1), np.zeros((1000, 1)), np.r_[np.ones(250), np.zeros(750)]) for _ in range(2)]
    assert found[0] != found[1]
    assert found == pytest.approx([0.25, 0.25], abs=0.06)  # twelve standard deviations
    two = Event(rate=1.0, multiplier=5.0, steps=2, adjacency="zero-out")
    assert ledger.guarantee().epsilon == pytest.approx(cost([two], 1e-4).epsilon)
    with pytest.raises(BudgetExhausted):
        PrivateScore(ledger, noise=0.1)(None, None, np.zeros(5))  # nothing was even predicted


def test_one_row_moves_a_score_by_one_row_at_most(tmp_path):
    score = PrivateScore(patients(tmp_path, 1e9), noise=1e-3, target_bounds=(0, 10))
    for answer in (0.0, 10.0, 1e9, np.inf, -3.0):
        mine = score(Always(0.0), np.zeros((10, 1)), np.r_[np.zeros(9), answer])
        assert -0.002 <= mine - 0.9 <= 0.102


@pytest.mark.parametrize(("answer", "shape"), [(1, (10, 1)), ([1], (10,))])
def test_a_row_counts_once_whatever_the_shapes(tmp_path, answer, shape):
    """Ten answers in a column beside ten in a row make a hundred comparisons."""

    class Columns(Always):
        def predict(self, x):
            return np.full((len(x), *np.shape(answer)), 1)

    with pytest.raises(ConfigError, match="a row would count more than once"):
        PrivateScore(patients(tmp_path), noise=5.0)(Columns(answer), np.zeros((10, 1)), np.ones(shape))


def test_what_learned_from_rows_uncounted_is_not_scored(rows, tmp_path):
    ledger = patients(tmp_path)
    score = PrivateScore(ledger, noise=30.0)
    for estimator in (LogisticRegression(), make_pipeline(FunctionTransformer(), classifier())):
        with pytest.raises(PrivacyError, match="was not fitted under the ledger"):
            score(estimator, *rows)
    assert not ledger.path.exists()  # nothing was asked


def test_a_score_without_noise_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="noise"):
        PrivateScore(patients(tmp_path), noise=0.0)(Always(1), np.zeros((1, 1)), np.ones(1))
