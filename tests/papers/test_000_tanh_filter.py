"""Paper 000 again: its cases, the epsilons they have, and what is said of results."""

import json
import math

import pytest
import torch

from discreet import methods
from discreet.papers import course, paper, tanh_filter
from discreet.papers.experiment import Place, Result, Results
from discreet.papers.small import chosen
from discreet.training import Fitted

PAPER = paper("000")
TINY = {"data": "digits", "network": "cnn", "c": 1.0, "k": 1.0, "learning_rate": 1.0, "epochs": 0.25}


def results(*rows):
    return Results(Result(case, 0, measured, 1.0) for case, measured in rows)


def trained(method, accuracy, *, c=1.0, k=1.0, rate=0.15, **measured):
    case = {"data": "mnist", "method": method, "c": c, "k": k, "learning_rate": rate}
    return case, {"accuracy": accuracy, "curve": [[1, accuracy, 1.0]], **measured}


@pytest.mark.parametrize("size", ["quick", "usual", "full"])
@pytest.mark.parametrize("experiment", PAPER.experiments, ids=lambda e: e.name)
def test_cases_are_plain_and_told_apart(experiment, size):
    cases = [json.dumps(case, sort_keys=True) for case in experiment.cases(size)]
    assert cases
    assert len(set(cases)) == len(cases)


def test_sound_forms_have_the_epsilon_of_dp_sgd_and_the_published_one_does_not():
    sampled = {"examples": 60_000, "batch_size": 256}
    plans = {m: tanh_filter.plan_of({**TINY, "epochs": 60, "method": m}, sampled, 26_010) for m in tanh_filter._METHODS}
    expected = methods.dp_sgd(epochs=60, noise=1.1, delta=1e-5).guarantee().epsilon
    for method in ("dp-sgd", "radial", "clipped", "scaled"):
        assert plans[method].guarantee().epsilon == expected
    published = plans["paper"].guarantee()
    assert published.epsilon > 1e5
    assert published.claims[0].epsilon == pytest.approx(3.0, abs=0.7)


@pytest.mark.parametrize("method", ["paper", "radial"])
def test_a_tiny_case(method, tmp_path):
    found = tanh_filter._tuned_run({**TINY, "method": method}, Place(tmp_path))
    assert 0 <= found["validation"] <= 1
    assert found["epsilon"] > 0
    assert ("largest" in found) == (method == "paper")
    assert math.isfinite(found["swing"])


def test_a_case_that_lost_steps_begins_anew(tmp_path, monkeypatch):
    tried = []

    def fit(model, *args, **others):
        tried.append(next(model.parameters()).detach().clone())
        torch.nn.init.zeros_(next(model.parameters()))
        records = [{"epoch": 1.0, "accuracy": 0.5, "epsilon": 1.0}]
        guarantee = methods.dp_sgd(steps=1, noise=1.0).guarantee()
        return Fitted(model, guarantee, records, lost=10 if len(tried) == 1 else 0)

    monkeypatch.setattr(course, "fit", fit)
    tanh_filter._figure_run({**TINY, "method": "radial"}, Place(tmp_path))
    assert len(tried) == 2
    assert torch.equal(*tried)


def test_a_tiny_recurrent_case(tmp_path):
    case = {"data": "digits", "examples": 128, "epochs": 1, "way": "filter", "spread": 1.0}
    assert tanh_filter._rnn_run(case, Place(tmp_path))["gradient"] > 0


def test_the_largest_norm_is_that_of_filtered_gradients(tmp_path):
    data = tanh_filter.Data("digits", "cnn", choose=False)
    model = data.model(Place(tmp_path))
    far = tanh_filter.largest_norm(model, data.train, 1.0, 1e-9)  # saturated: a one for every gradient that is not 0
    size = tanh_filter.size_of(model)
    assert math.sqrt(size) / 3 < far <= math.sqrt(size) * (1 + 1e-6)
    assert tanh_filter.largest_norm(model, data.train, 2.0, 1e-9) == pytest.approx(2 * far)


@pytest.mark.parametrize(("filtered", "words"), [(0.9, "holds: 10.0 points above"), (0.8, "does not hold")])
def test_improvement(filtered, words):
    found = tanh_filter.improves(results(trained("paper", filtered), trained("dp-sgd", 0.8)))
    assert found.startswith(words)


@pytest.mark.parametrize(("radial", "words"), [(0.9, "better"), (0.8, "not better")])
def test_improvement_of_the_sound_form(radial, words):
    assert tanh_filter.sound_improves(results(trained("radial", radial), trained("dp-sgd", 0.8))).startswith(words)


@pytest.mark.parametrize(("filtered", "words"), [(0.9, "holds for the unproven"), (0.8, "does not hold")])
def test_improvement_once_both_are_tuned(filtered, words):
    rows = results(
        trained("paper", filtered, validation=0.9),
        trained("dp-sgd", 0.5, validation=0.5),
        trained("dp-sgd", 0.8, validation=0.8, rate=0.6),
    )
    assert tanh_filter.improves_tuned(rows).startswith(words)
    assert tanh_filter.tuned(rows, "dp-sgd")[0]["learning_rate"] == 0.6
    assert not chosen(Results(), "learning_rate")


@pytest.mark.parametrize(("last", "words"), [(0.905, "holds"), (0.95, "does not hold")])
def test_the_output_range(last, words):
    rows = results(*(trained("paper", a, c=c) for c, a in ((1.0, 0.9), (2.0, 0.9), (4.0, last))))
    assert tanh_filter.no_effect_of_range(rows).startswith(words)


@pytest.mark.parametrize(
    ("swing", "accuracy", "words"),
    [(0.01, 0.8, "holds:"), (0.03, 0.8, "holds in part"), (0.03, 0.95, "does not hold")],
)
def test_the_active_range(swing, accuracy, words):
    rows = [trained("paper", 0.9, k=k, swing=0.02) for k in (1.0, 2.0, 4.0)]
    found = tanh_filter.stabler_with_k(results(*rows, trained("paper", accuracy, k=8.0, swing=swing)))
    assert found.startswith(words)


@pytest.mark.parametrize(("swing", "words"), [(0.03, "holds"), (0.01, "no difference")])
def test_stability(swing, words):
    rows = results(trained("paper", 0.9, swing=swing), trained("dp-sgd", 0.8, swing=0.02))
    assert tanh_filter.less_stable(rows).startswith(words)


@pytest.mark.parametrize(("largest", "words"), [(0.9, "holds here"), (11.0, "does not hold")])
def test_norms(largest, words):
    assert tanh_filter.near_one(results(trained("paper", 0.9, largest=largest))).startswith(words)


@pytest.mark.parametrize(("accuracy", "gradient", "words"), [(0.9, 1.0, "holds:"), (0.1, 1.0, "holds in part")])
def test_exploding_gradients(accuracy, gradient, words):
    rows = results(
        ({"way": "none", "spread": 4.0}, {"accuracy": 0.1, "gradient": math.inf}),
        ({"way": "filter", "spread": 4.0}, {"accuracy": accuracy, "gradient": gradient}),
    )
    assert tanh_filter.explodes_not(rows).startswith(words)


def test_nothing_is_said_of_what_was_not_run():
    for experiment in PAPER.experiments:
        assert all(stated.judged(Results()) == "not run" for stated in experiment.stated)
