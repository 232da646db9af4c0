"""Random allocation: against C7's closed forms, Monte Carlo, two independent programs, and for the safe side."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import some

from discreet import (
    Allocation,
    Clip,
    ConfigError,
    Gaussian,
    Laplace,
    Mechanism,
    Plan,
    Poisson,
    Tuning,
    calibrate,
)
from discreet.accounting import allocation, cost, delta_curve
from discreet.accounting import gaussian as gdp
from discreet.accounting.event_serialization import event_from_dict, event_to_dict
from discreet.accounting.events import Event
from discreet.stages.planning import solve

DELTA = 1e-5


def epochs(multiplier, batches, count, **more):
    return Event(1 / batches, multiplier, count, "allocation", more.pop("adjacency", "zero-out"), **more)


def epsilon(*events, delta=DELTA):
    return cost(events, delta, thorough=False).epsilon


def plan(sampling=None, steps=468, noise=None, **more):
    sampling = sampling or Allocation(examples=60_000, batches=234)
    return Plan(
        sampling=sampling, mechanism=Mechanism(Clip(1.0), noise or Gaussian(1.1), **more), steps=steps, delta=DELTA
    )


@pytest.mark.parametrize(
    ("multiplier", "batches", "count", "removal", "addition"),
    [
        (1.0, 100, 1, 0.6209, 0.4220),
        (0.8, 100, 1, 1.3739, 0.5916),
        (0.6, 234, 1, 2.6241, 0.6481),
        (0.8, 100, 10, 2.9076, 2.2559),
        (1.0, 234, 10, 1.0475, 0.9832),
        (2.0, 50, 10, 0.8815, 0.8739),
        (1.1, 234, 60, 2.3405, 2.2998),
    ],
)
def test_the_table_of_c8(multiplier, batches, count, removal, addition):
    from discreet.accounting import pld
    from discreet.accounting.dominating_pairs import pairs_of

    event = epochs(multiplier, batches, count)
    assert epsilon(event) == pytest.approx(removal, abs=5e-4)
    found = [pld._epsilon([pair], [count], DELTA) for pair in pairs_of(event)]
    assert found == pytest.approx([removal, addition], abs=5e-4)


@pytest.mark.parametrize(("multiplier", "count"), [(0.7, 1), (1.0, 2), (4.0, 100)])
def test_one_batch_an_epoch_is_the_gaussian_mechanism(multiplier, count):
    assert epsilon(epochs(multiplier, 1, count)) == gdp.epsilon(math.sqrt(count) / multiplier, DELTA)


@pytest.mark.parametrize(
    ("a", "removal", "addition"), [(math.exp(0.5), 0.02685, 0.01906), (math.exp(1.0), 0.002783, 0.000486)]
)
def test_one_epoch_against_monte_carlo(a, removal, addition):
    """Multiplier 1, 10 batches: 400,000 draws, within 4 standard errors (one false alarm in 8,000 fresh seeds)."""
    rng = np.random.default_rng(3)
    mean = np.exp(rng.normal(-0.5, 1, (400_000, 10))).mean(1)
    law = allocation.epoch(1.0, 10, 1e-8)
    for payoff, slack, stated in (
        (lambda x: np.maximum(x - a, 0), law.removal, removal),
        (lambda x: np.maximum(1 - a * x, 0), law.addition, addition),
    ):
        exact = float(payoff(law.ratios) @ law.masses) + slack
        seen = payoff(mean)
        assert abs(exact - seen.mean()) < 4 * seen.std() / math.sqrt(len(seen))
        assert exact == pytest.approx(stated, abs=1e-5)


def test_ten_epochs_against_monte_carlo():
    """Both directions at the epsilon that is proven: delta is reached, and not exceeded (4 standard errors)."""
    event = epochs(0.8, 20, 3)
    proven, rng = epsilon(event, delta=1e-2), np.random.default_rng(5)
    normal = rng.normal(size=(60_000, 3, 20))
    losses = np.log(np.exp((normal + 0) / 0.8 - 0.5 / 0.64).mean(2)).sum(1)  # without the unit
    normal[:, :, 0] += 1 / 0.8
    with_unit = np.log(np.exp(normal / 0.8 - 0.5 / 0.64).mean(2)).sum(1)
    deltas = [np.maximum(0, 1 - np.exp(proven - x)) for x in (with_unit, -losses)]
    low, high = (max(d.mean() + k * d.std() / math.sqrt(len(d)) for d in deltas) for k in (-4, 4))
    assert low <= 1e-2 <= high


@settings(max_examples=some(5, 60), deadline=None)
@given(
    st.floats(0.6, 5), st.integers(2, 300), st.integers(1, 40), st.floats(1.02, 2), st.sampled_from([1e-3, 1e-5, 1e-8])
)
def test_more_noise_more_batches_fewer_epochs_cost_no_more(multiplier, batches, count, factor, delta):
    most = epsilon(epochs(multiplier, batches, count), delta=delta)
    for less in (
        epochs(multiplier * factor, batches, count),
        epochs(multiplier, math.ceil(batches * factor), count),
        epochs(multiplier, batches, max(1, math.floor(count / factor))),
    ):
        assert epsilon(less, delta=delta) <= most * (1 + 2e-3) + 1e-6
    assert most <= gdp.epsilon(math.sqrt(count) / multiplier, delta)


@pytest.mark.parametrize("multiplier", [0.05, 0.3, 30.0])
def test_where_the_grid_says_nothing_the_gaussian_curve_does(multiplier):
    assert epsilon(epochs(multiplier, 100, 5)) <= gdp.epsilon(math.sqrt(5) / multiplier, DELTA)


def test_it_composes_with_other_releases_direction_by_direction():
    own, poisson, whole = epochs(1.0, 50, 4), Event(0.02, 1.0, 200), Event(1.0, 8.0, 1)
    together = epsilon(own, poisson, whole)
    assert max(map(epsilon, (own, poisson, whole))) < together
    assert together < epsilon(own, delta=DELTA / 3) + epsilon(poisson, delta=DELTA / 3) + epsilon(
        whole, delta=DELTA / 3
    )
    assert epsilon(own, epochs(1.0, 50, 3)) == epsilon(epochs(1.0, 50, 7))
    curve = dict(delta_curve([own, poisson], DELTA))
    assert all(0 <= d <= 1 for d in curve.values())
    assert sorted(curve.values(), reverse=True) == list(curve.values())


def test_groups_go_hop_by_hop_and_tuning_without_amplification():
    one = epsilon(epochs(2.0, 50, 1))
    two = cost([epochs(2.0, 50, 1, group=2)], DELTA, thorough=False)
    assert 2 * one < two.epsilon < gdp.epsilon(2 / 2.0, DELTA)
    assert "2 hops" in two.accountant
    best = cost([epochs(2.0, 50, 1)], DELTA, Tuning(10.0))
    assert best == cost([Event(1.0, 2.0, 1)], DELTA, Tuning(10.0))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"adjacency": "replace"}, "two hops"),
        ({"law": Laplace().law, "scale": 1.0}, "Gaussian noise"),
        ({"hardening": "exact"}, "real arithmetic"),
        ({"overflow": 1e-9}, "whole batches"),
        ({"rate": 0.3}, "whole number of batches"),
        ({"rate": 0.0}, "whole number of batches"),
    ],
)
def test_what_the_theorem_does_not_cover_is_refused(wrong, words):
    with pytest.raises(ConfigError, match=words):
        replace(epochs(1.0, 10, 1), **wrong)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"noise": Laplace(2.0)}, "Gaussian noise"),
        ({"hardening": "exact"}, "exact arithmetic"),
    ],
)
def test_a_plan_that_the_theorem_does_not_cover_is_refused(more, words):
    with pytest.raises(ConfigError, match=words):
        plan(**more)
    with pytest.raises(ConfigError, match="draw each step on its own"):
        replace(plan(), noise_schedule=(1.2, 0.8))


def test_correlated_noise_is_refused():
    class Remembering(Gaussian):
        bands = 4

    with pytest.raises(ConfigError, match="independent from step to step"):
        plan(noise=Remembering(1.0))


def test_a_plan_counts_epochs_and_says_so(tmp_path):
    made = plan()
    assert made.event() == epochs(1.1, 234, 2)
    assert [made.charges(n) for n in (0, 1, 234, 235, 468)] == [0, 1, 1, 2, 2]
    proven = made.guarantee()
    assert "2 epochs of 234 Gaussian releases" in proven.proof
    assert "C7" in proven.proof
    assert proven.adjacency == "zero-out"
    assert any("picked one batch of every epoch" in c.text for c in proven.conditions)
    made.save(tmp_path / "plan.toml")
    assert Plan.load(tmp_path / "plan.toml") == made
    assert event_from_dict(json.loads(json.dumps(event_to_dict(made.event())))) == made.event()


def test_calibration_and_planning_know_it():
    few = Allocation(examples=60_000, batches=40)
    found = calibrate(plan(few, steps=400), epsilon=1.0)
    assert 0.995 < found.guarantee().epsilon <= 1.0
    longest = calibrate(plan(few, steps=400, noise=Gaussian(3.0)), epsilon=1.0, solve_for="steps")
    assert longest.steps % 40 == 0  # an epoch that has begun costs as much as a whole one
    assert (
        longest.guarantee().epsilon <= 1.0 < replace(longest, epsilon=None, steps=longest.steps + 1).guarantee().epsilon
    )
    largest = calibrate(plan(few, steps=40, noise=Gaussian(2.0)), epsilon=0.5, solve_for="batch_size")
    assert largest.guarantee().epsilon <= 0.5
    made = solve(examples=60_000, delta=DELTA, batch_size=256, epochs=60, noise=1.1, sampling="allocation")
    assert made.sampling == Allocation(examples=60_000, batches=234)
    assert made.guarantee().epsilon == pytest.approx(2.3405, abs=5e-4)


def test_it_is_below_poisson_at_these_settings_and_not_in_general():
    """C7: Poisson at rate 1 / batches does not bound an epoch."""
    poisson = plan(sampling=Poisson(examples=60_000, batch_size=256), steps=14_062).guarantee().epsilon
    assert plan(steps=14_040).guarantee().epsilon < poisson
    little = 0.25
    assert epsilon(epochs(little, 2, 1), delta=0.9) > epsilon(Event(0.5, little, 2), delta=0.9)
