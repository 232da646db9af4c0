"""Paper 004 again: its cases, the epsilons they have, and what is said of results."""

import json

import numpy as np
import pytest
import torch

from discreet.errors import ConfigError
from discreet.papers import paper
from discreet.papers.encoding import denoising, fitted_envelope, gradients, methods, noise_size, verdicts
from discreet.papers.experiment import Place, Result, Results
from discreet.stages.sensitivity import Layout

PAPER = paper("004")
SAMPLED = {"examples": 50_000, "batch_size": 213}


def results(*rows):
    return Results(Result(case, 0, measured, 1.0) for case, measured in rows)


def case(method, **fields):
    return {**methods.case_of("digits", "full", method, epochs=0.25, rate=2.0), **fields}


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
    compared = [m for m in methods.METHODS if "fitted" not in m]  # which needs a public data set
    plans = {m: methods.plan_of(case(m), SAMPLED, 500) for m in compared}
    epsilons = {method: plan.guarantee().epsilon for method, plan in plans.items()}
    assert max(epsilons.values()) == epsilons["DP-SGD"]
    assert min(epsilons.values()) > 0.995 * epsilons["DP-SGD"]
    assert plans["DP-SGD"].mechanism.denoise is None
    assert plans["Student-t, encoded, KS"].mechanism.denoise == methods._DENOISERS["KS"]


def test_a_budget_is_kept_at_every_length():
    for epochs in (1, 3):
        plan = methods.plan_of(case("Gaussian, KS", noise=None, budget=1.0, epochs=epochs), SAMPLED, 500)
        assert 0.99 < plan.guarantee().epsilon <= 1.0


@pytest.mark.parametrize("method", ["Gaussian, KS", "Gaussian | none"])
def test_a_tiny_case(method, tmp_path):
    found = methods.train(case(method), Place(tmp_path))
    assert 0 <= found["validation"] <= 1
    assert found["epsilon"] > 0


def test_gradients_of_a_tiny_case(tmp_path):
    found = gradients._gradient_run(case("DP-SGD"), Place(tmp_path))
    assert found["kurtosis"] > 0
    assert len(found["histogram"]) == 81
    rows = results((case("DP-SGD"), found))
    assert gradients._gradient_charts(rows)[0].series[0].points
    assert verdicts.gaussian_gradients(rows).word == "refuted"


def test_distance_from_the_normal_law():
    values = torch.special.ndtri((torch.arange(1000, dtype=torch.float64) + 0.5) / 1000)
    assert gradients.distance_from_normal(values) == pytest.approx(0.0005, abs=1e-9)
    assert gradients.distance_from_normal(values + 5) > 0.9


def test_noise_of_equal_order_two():
    assert noise_size.scale_of_order_two("Gaussian", 1.0) == pytest.approx(1.0, rel=1e-4)
    found = noise_size._size_run({"law": "Student-t", "budget": "D2", "value": 1.0}, Place(None))
    assert found["l1_ratio"] == pytest.approx(0.9989, abs=2e-4)
    assert found["l2_ratio"] == pytest.approx(1.0351, abs=2e-4)


def test_the_common_rate_is_chosen_on_held_out_rows_among_those_that_all_were_given():
    both = [trained(m, a, rate=r) for m in ("DP-SGD", "Gaussian, KS") for r, a in ((2.0, 0.8), (4.0, 0.9))]
    assert denoising.common_rate(results(*both, trained("DP-SGD", 0.99, rate=8.0))) == 4.0
    lacking = [(c, {k: v for k, v in m.items() if c["learning_rate"] > 2 or k != "validation"}) for c, m in both]
    assert denoising.common_rate(results(*lacking)) == 4.0


def test_a_part_of_a_training_has_the_noise_of_the_whole():
    fields = {"noise": None, "budget": 1.0, "epochs": 2}
    whole = methods.plan_of(case("Gaussian, KS", **fields), SAMPLED, 500)
    part = methods.plan_of(case("Gaussian, KS", **fields | {"epochs": 1, "planned": 2}), SAMPLED, 500)
    assert part.mechanism == whole.mechanism
    assert part.steps == pytest.approx(whole.steps / 2, abs=1)
    assert part.guarantee().epsilon < whole.guarantee().epsilon


def test_an_envelope_fitted_to_public_gradients_holds_what_it_says():
    random = np.random.default_rng(0)
    shape = fitted_envelope.shape_of(np.sort(np.abs(random.standard_t(2, 500))))
    bound = fitted_envelope.FittedEncode(size=500, heights=shape.levels, counts=shape.counts)
    layout = Layout(("w",), ((500,),))
    state = bound.start(layout)
    contract = bound.contract(layout, state)
    assert contract.magnitudes.norm <= 1
    assert shape.levels == tuple(sorted(shape.levels))
    rows = 100 * torch.from_numpy(random.standard_t(2, (20, 500))).float()
    found = bound.apply(rows.clone(), state).abs().sort(1).values.double().numpy()
    limit = np.repeat(np.array(contract.magnitudes.levels), contract.magnitudes.counts)
    assert (found <= limit + 1e-12).all()
    assert np.linalg.norm(found, axis=1).max() <= 1
    with pytest.raises(ConfigError, match="not fitted to 7"):
        bound.start(Layout(("w",), ((7,),)))
