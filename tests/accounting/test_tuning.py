import math

import numpy as np
import pytest

import discreet
from discreet import ConfigError, Tuning, tuning_cost
from discreet.accounting import rdp
from discreet.accounting.tuning import tuned

PLAN = discreet.methods.dp_sgd(examples=60_000, batch_size=64, epochs=10, noise=1.0, delta=1e-5)


@pytest.mark.parametrize(
    ("distribution", "shape", "epsilon"),
    [("geometric", 1.0, 1.587), ("logarithmic", 0.0, 1.401), ("poisson", math.inf, 1.434)],
)
def test_the_best_of_ten_runs_agrees_with_dp_accounting(distribution, shape, epsilon):
    from dp_accounting import dp_event
    from dp_accounting.rdp import RdpAccountant

    run = dp_event.SelfComposedDpEvent(
        dp_event.PoissonSampledDpEvent(64 / 60_000, dp_event.GaussianDpEvent(1.0)), 9_375
    )
    theirs = RdpAccountant([a for a in rdp.ORDERS if a > 1.6])
    theirs.compose(dp_event.RepeatAndSelectDpEvent(run, 10.0, shape))
    found = tuning_cost(PLAN, runs=10, distribution=distribution)
    assert found.epsilon == pytest.approx(epsilon, abs=6e-4)
    assert found.epsilon == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-6)
    assert "best of 10 runs" in found.proof
    assert any("score" in c.text and c.status == "assumed" for c in found.conditions)


def test_releasing_all_runs_is_composition():
    all_of_them = tuning_cost(PLAN, runs=3, distribution="all").epsilon
    longer = discreet.methods.dp_sgd(examples=60_000, batch_size=64, steps=3 * 9_375, noise=1.0, delta=1e-5)
    assert all_of_them == pytest.approx(longer.guarantee().epsilon)


@pytest.mark.parametrize("distribution", ["geometric", "logarithmic", "poisson", "all"])
def test_more_runs_never_cost_less_and_tuning_never_gains(distribution):
    costs = [tuning_cost(PLAN, runs=runs, distribution=distribution).epsilon for runs in (2, 5, 30)]
    assert PLAN.guarantee().epsilon <= costs[0] <= costs[1] <= costs[2]


def test_a_tuned_plan_carries_its_cost_through_solving_and_saving(tmp_path):
    from dataclasses import replace

    plan = discreet.calibrate(replace(PLAN, tuning=Tuning(8, "geometric")), epsilon=2)
    assert 1.95 < plan.guarantee().epsilon <= 2
    assert plan.mechanism.noise.multiplier > discreet.calibrate(PLAN, epsilon=2).mechanism.noise.multiplier
    plan.save(tmp_path / "plan.toml")
    assert discreet.Plan.load(tmp_path / "plan.toml") == plan


def test_the_best_of_several_against_an_exact_mechanism():
    """Randomised response with a score: the best of a geometric number of runs, its true Rényi divergence."""
    truth = math.log(3)  # one run: answers truthfully with odds 3 to 1; the score of an answer is the answer itself
    p, q = np.array([0.75, 0.25]), np.array([0.25, 0.75])
    gamma = 1 / 5

    def best(answers):
        """Of K runs the best answer is 1 unless all are 0; K geometric with parameter gamma."""
        none = gamma * answers[0] / (1 - (1 - gamma) * answers[0])
        return np.array([none, 1 - none])

    orders = np.array([2.0, 3.0, 8.0, 32.0])
    single = np.array([math.log(sum(p**a * q ** (1 - a))) / (a - 1) for a in orders])
    assert single.max() <= truth
    bound = tuned(single, orders, Tuning(5, "geometric"))
    for one, two in ((p, q), (q, p)):
        exact = [math.log(sum(best(one) ** a * best(two) ** (1 - a))) / (a - 1) for a in orders]
        assert np.all(np.array(exact) <= bound)


@pytest.mark.parametrize(
    ("runs", "distribution"), [(0.5, "poisson"), (1, "logarithmic"), (2.5, "all"), (3, "uniform"), (-1, "all")]
)
def test_what_makes_no_sense_is_refused(runs, distribution):
    with pytest.raises(ConfigError):
        Tuning(runs, distribution)
