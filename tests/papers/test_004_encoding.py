"""Paper 004 again: its cases, the epsilons they have, and what is said of results."""

import json
import math

import pytest
import torch

from discreet.papers import encoding, paper
from discreet.papers.experiment import Place, Result, Results

PAPER = paper("004")
SAMPLED = {"examples": 50_000, "batch_size": 213}


def results(*rows):
    return Results(Result(case, 0, measured, 1.0) for case, measured in rows)


def case(method, **fields):
    return {**encoding._case("digits", "full", method, epochs=0.25, rate=2.0), **fields}


def trained(method, accuracy, *, rate=2.0, **fields):
    curve = [[0.5, accuracy - 0.1, 0.5], [1.0, accuracy, 1.0]]
    measured = {"accuracy": accuracy, "validation": accuracy, "epsilon": fields.get("budget", 1.0), "curve": curve}
    return case(method, learning_rate=rate, **fields), measured


@pytest.mark.parametrize("size", ["quick", "usual", "full"])
@pytest.mark.parametrize("experiment", PAPER.experiments, ids=lambda e: e.name)
def test_cases_are_plain_and_told_apart(experiment, size):
    cases = [json.dumps(found, sort_keys=True) for found in experiment.cases(size)]
    assert cases
    assert len(set(cases)) == len(cases)


def test_all_methods_prove_the_same_epsilon():
    plans = {m: encoding.plan_of(case(m), SAMPLED, 500) for m in encoding._METHODS}
    epsilons = {method: plan.guarantee().epsilon for method, plan in plans.items()}
    assert max(epsilons.values()) == epsilons["DP-SGD"]
    assert min(epsilons.values()) > 0.995 * epsilons["DP-SGD"]
    assert plans["DP-SGD"].mechanism.denoise is None
    assert plans["Student-t, encoded, KS"].mechanism.denoise == encoding._DENOISERS["KS"]


def test_a_budget_is_kept_at_every_length():
    for epochs in (1, 3):
        plan = encoding.plan_of(case("Gaussian, KS", noise=None, budget=1.0, epochs=epochs), SAMPLED, 500)
        assert 0.99 < plan.guarantee().epsilon <= 1.0


@pytest.mark.parametrize("method", ["Gaussian, KS", "Gaussian | none"])
def test_a_tiny_case(method, tmp_path):
    found = encoding._train(case(method), Place(tmp_path))
    assert 0 <= found["validation"] <= 1
    assert found["epsilon"] > 0


def test_gradients_of_a_tiny_case(tmp_path):
    found = encoding._gradient_run(case("DP-SGD"), Place(tmp_path))
    assert found["kurtosis"] > 0
    assert len(found["histogram"]) == 81
    rows = results((case("DP-SGD"), found))
    assert encoding._gradient_charts(rows)[0].series[0].points
    assert encoding.gaussian_gradients(rows).startswith("does not hold")


def test_distance_from_the_normal_law():
    values = torch.special.ndtri((torch.arange(1000, dtype=torch.float64) + 0.5) / 1000)
    assert encoding.distance_from_normal(values) == pytest.approx(0.0005, abs=1e-9)
    assert encoding.distance_from_normal(values + 5) > 0.9


def test_noise_of_equal_order_two():
    assert encoding.scale_of_order_two("Gaussian", 1.0) == pytest.approx(1.0, rel=1e-4)
    found = encoding._size_run({"law": "Student-t", "budget": "D2", "value": 1.0}, Place(None))
    assert found["l1_ratio"] == pytest.approx(0.9989, abs=2e-4)
    assert found["l2_ratio"] == pytest.approx(1.0351, abs=2e-4)


@pytest.mark.parametrize(("ratio", "words"), [(0.9, "holds"), (0.9989, "not by any margin")])
def test_the_least_noise(ratio, words):
    rows = results(({"law": "Student-t", "budget": "D2", "value": 1.0}, {"l1_ratio": ratio, "l2_ratio": 1.0}))
    assert encoding.least_noise(rows).startswith(words)


@pytest.mark.parametrize(("student", "words"), [(0.95, "holds"), (0.9, "does not hold")])
def test_the_best_family(student, words):
    rows = results(trained("Student-t | KS", student), trained("Gaussian | KS", 0.9))
    assert encoding.student_best(rows).startswith(words)


@pytest.mark.parametrize(("tuned", "words"), [(0.9, "does not help"), (0.8, "helps")])
def test_denoising_is_compared_with_a_tuned_baseline(tuned, words):
    rows = results(trained("DP-SGD", 0.7), trained("DP-SGD", tuned, rate=8.0), trained("Gaussian, KS", 0.9))
    assert encoding.denoising_at_one_rate(rows).startswith("helps")
    assert encoding.denoising_tuned(rows).startswith(words)


def test_the_common_rate_is_chosen_on_held_out_rows_among_those_that_all_were_given():
    both = [trained(m, a, rate=r) for m in ("DP-SGD", "Gaussian, KS") for r, a in ((2.0, 0.8), (4.0, 0.9))]
    assert encoding.common_rate(results(*both, trained("DP-SGD", 0.99, rate=8.0))) == 4.0
    lacking = [(c, {k: v for k, v in m.items() if c["learning_rate"] > 2 or k != "validation"}) for c, m in both]
    assert encoding.common_rate(results(*lacking)) == 4.0


@pytest.mark.parametrize(("accuracy", "words"), [(0.99, "holds"), (0.9, "does not hold")])
def test_steps_to_an_accuracy(accuracy, words):
    rows = results(trained("DP-SGD", 0.9), trained("Student-t, encoded, KS", accuracy))
    assert encoding.sooner(rows).startswith(words)
    assert encoding.epochs_until([[1.0, 0.5]], 0.9) == math.inf


@pytest.mark.parametrize(("accuracy", "words"), [(0.95, "holds"), (0.9, "does not hold")])
def test_budgets(accuracy, words):
    rows = results(
        *(trained(m, accuracy, budget=1.0) for m in ("Gaussian, KS", "Student-t, encoded, KS")),
        trained("DP-SGD", 0.9, budget=1.0),
    )
    assert encoding.better_at_budget(rows).startswith(words)
    assert encoding.best_at_budget(rows).startswith(words)


@pytest.mark.parametrize(("last", "words"), [(0.91, "holds"), (0.99, "not seen here")])
def test_the_price_of_a_point(last, words):
    rows = results(*(trained("DP-SGD", a, budget=b) for b, a in ((0.5, 0.85), (1.0, 0.9), (1.5, last))))
    assert encoding.dearer_points(rows).startswith(words)


def test_nothing_is_said_of_what_was_not_run():
    for experiment in PAPER.experiments:
        assert all(stated.judged(Results()) == "not run" for stated in experiment.stated)
