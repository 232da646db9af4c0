"""Paper 000 again: its cases, the epsilons they have, and what is said of results."""

import json
import math

import pytest
import torch

from discreet import methods
from discreet.papers import paper
from discreet.papers.experiment import Place, Result, Results
from discreet.papers.held_out import Data, size_of
from discreet.papers.tanh_filter import figures, membership, recurrent

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
    assert cases or (size == "full" and experiment.name.endswith("-tuned"))  # which is with the figures there
    assert len(set(cases)) == len(cases)


def test_sound_forms_have_the_epsilon_of_dp_sgd_and_the_published_one_does_not():
    sampled = {"examples": 60_000, "batch_size": 256}
    plans = {m: figures.plan_of({**TINY, "epochs": 60, "method": m}, sampled, 26_010) for m in figures._METHODS}
    expected = methods.dp_sgd(epochs=60, noise=1.1, delta=1e-5).guarantee().epsilon
    for method in ("dp-sgd", "radial", "clipped", "scaled"):
        assert plans[method].guarantee().epsilon == expected
    published = plans["paper"].guarantee()
    assert published.epsilon > 1e5
    assert published.claims[0].epsilon == pytest.approx(3.0, abs=0.7)


@pytest.mark.parametrize("method", ["paper", "radial"])
def test_a_tiny_case(method, tmp_path):
    found = figures._tuned_run({**TINY, "method": method}, Place(tmp_path))
    assert 0 <= found["validation"] <= 1
    assert found["epsilon"] > 0
    assert ("largest" in found) == (method == "paper")
    assert math.isfinite(found["swing"])


def test_a_tiny_recurrent_case(tmp_path):
    case = {"data": "digits", "examples": 128, "epochs": 1, "way": "filter", "spread": 1.0}
    assert recurrent._rnn_run(case, Place(tmp_path))["gradient"] > 0


def test_the_largest_norm_is_that_of_filtered_gradients(tmp_path):
    data = Data("digits", "cnn", choose=False)
    model = data.model(Place(tmp_path))
    far = figures.largest_norm(model, data.train, 1.0, 1e-9)  # saturated: a one for every gradient that is not 0
    size = size_of(model)
    assert math.sqrt(size) / 3 < far <= math.sqrt(size) * (1 + 1e-6)
    assert figures.largest_norm(model, data.train, 2.0, 1e-9) == pytest.approx(2 * far)


@pytest.mark.parametrize("method", ["none", "paper", "dp-sgd"])
def test_membership_is_attacked_by_shadow_models(method, tmp_path, monkeypatch):
    torch.manual_seed(0)
    data = torch.rand(60, 1, 16, 16), torch.randint(10, (60,))
    monkeypatch.setattr(membership, "pairs", lambda name: (data, data))
    case = {"data": "mnist", "method": method, "candidates": 40, "models": 4, "epochs": 1, "rate": 0.15}
    monkeypatch.setattr(membership, "BATCH", 10)
    found = membership.run(case, Place(tmp_path))
    assert 0 <= found["low"] <= found["true_positives"] <= found["high"] <= 1
    assert found["examples"] == 20
    assert ("one_release" in found) == (method != "none")
    if method == "dp-sgd":
        assert found["admissible_norm"] <= 1
    assert "at 1 % false ones" in membership.found(Results([Result(case, 0, found, 1.0)]))
