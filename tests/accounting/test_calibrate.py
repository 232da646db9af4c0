import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import AutomaticClip, Clip, ConfigError, Gaussian, Mechanism, Plan, Poisson, calibrate
from discreet.accounting import cost_for_search
from discreet.accounting.events import Event


def plan(examples=60_000, batch_size=256, steps=14_062, noise=1.1, delta=1e-5):
    return Plan(
        sampling=Poisson(examples=examples, batch_size=batch_size),
        mechanism=Mechanism(Clip(1.0), Gaussian(noise)),
        steps=steps,
        delta=delta,
    )


def epsilon(plan):
    who = plan.sampling.contract()
    return cost_for_search([Event(who.rate, plan.mechanism.noise.multiplier, plan.steps)], plan.delta).epsilon


@pytest.mark.parametrize("target", [0.01, 0.5, 3.0, 20.0, 1000.0])
def test_noise_never_overshoots_and_is_tight(target):
    solved = calibrate(plan(noise=None), target)
    assert solved.guarantee().epsilon <= target
    assert solved.epsilon == target
    looser = replace(solved.mechanism, noise=Gaussian(solved.mechanism.noise.multiplier * 0.999))
    assert epsilon(replace(solved, mechanism=looser)) > target


@pytest.mark.parametrize("target", [0.5, 3.0, 20.0])
def test_steps_are_the_largest_that_fit(target):
    solved = calibrate(plan(), target, solve_for="steps")
    assert solved.guarantee().epsilon <= target
    assert epsilon(replace(solved, steps=solved.steps + 1)) > target


@pytest.mark.parametrize("target", [0.5, 3.0, 20.0])
def test_the_batch_size_is_the_largest_that_fits(target):
    solved = calibrate(plan(), target, solve_for="batch_size")
    assert solved.guarantee().epsilon <= target
    larger = solved.sampling.with_batch_size(solved.sampling.batch_size + 1)
    assert epsilon(replace(solved, sampling=larger)) > target


@settings(max_examples=15)
@given(
    st.integers(50, 5000),
    st.floats(0.01, 1.0),
    st.integers(1, 3000),
    st.floats(-1, 1.3).map(lambda x: 10**x),
    st.floats(-9, -3).map(lambda x: 10**x),
)
def test_noise_for_any_plan(examples, share, steps, target, delta):
    batch = max(1, int(share * examples))
    solved = calibrate(plan(examples, batch, steps, None, delta), target)
    assert epsilon(solved) <= target
    looser = replace(solved.mechanism, noise=Gaussian(solved.mechanism.noise.multiplier * 0.999))
    assert epsilon(replace(solved, mechanism=looser)) > target


def test_the_whole_data_set_may_fit():
    assert (
        calibrate(plan(examples=100, batch_size=1, steps=1, noise=50.0), 5, solve_for="batch_size").sampling.batch_size
        == 100
    )


def test_a_large_budget_needs_little_noise_and_the_rate_reaches_one():
    solved = calibrate(plan(examples=100, batch_size=100, steps=1, noise=None), 1e4)
    assert 9990 < solved.guarantee().epsilon <= 1e4
    secret = replace(plan(steps=100, noise=5.0), sampling=Poisson(rate=0.1, batch_size=10))
    assert calibrate(secret, 1000, solve_for="batch_size").sampling.batch_size == 100


def test_what_is_not_a_plan_is_refused():
    with pytest.raises(ConfigError, match="not a Plan"):
        calibrate(3, 1)


def test_a_secret_number_of_examples_scales_the_rate():
    secret = replace(plan(), sampling=Poisson(rate=0.01, batch_size=100))
    solved = calibrate(secret, 3, solve_for="batch_size")
    assert solved.sampling.rate == pytest.approx(0.01 * solved.sampling.batch_size / 100)
    assert solved.guarantee().epsilon <= 3


def test_other_bounds_have_the_same_multiplier():
    mechanism = Mechanism(AutomaticClip(), Gaussian())
    other = calibrate(replace(plan(), mechanism=mechanism), 3)
    assert other.mechanism.noise == calibrate(plan(noise=None), 3).mechanism.noise


@pytest.mark.parametrize(
    ("settings", "epsilon", "solve_for", "message"),
    [
        ({}, 0.0, "noise", "epsilon is 0.0"),
        ({}, math.inf, "noise", "epsilon is inf"),
        ({}, 3.0, "delta", "'noise', 'steps' or 'batch_size'"),
        ({"noise": None}, 3.0, "steps", "noise must be known"),
        ({"noise": 0.1}, 0.01, "steps", "not even one step"),
        ({"noise": 0.0}, 1.0, "steps", "not even one step"),
        ({"noise": 0.3}, 0.01, "batch_size", "not even batch size 1"),
        ({"noise": 1e7, "batch_size": 60_000}, 3.0, "steps", "nothing to solve"),
        ({"noise": None, "steps": 100, "delta": 1e-12}, 1e-11, "noise", "no noise up to"),
    ],
)
def test_what_cannot_be_solved_is_one_clear_error(settings, epsilon, solve_for, message):
    with pytest.raises(ConfigError, match=message):
        calibrate(plan(**settings), epsilon, solve_for)


# --- to a risk -------------------------------------------------------------------------------------------------------


def of_rate(rate=0.01, steps=300):
    sampling = Poisson(examples=10_000, batch_size=round(10_000 * rate))
    return Plan(sampling=sampling, mechanism=Mechanism(Clip(1.0), Gaussian()), steps=steps, delta=1e-5)


@pytest.mark.parametrize("wanted", [0.02, 0.1, 0.5])
def test_an_advantage_is_met_and_hardly_missed(wanted):
    made = calibrate(of_rate(), advantage=wanted)
    proven = made.guarantee()
    assert 0.99 * wanted < proven.tradeoff().advantage <= wanted
    assert proven.epsilon <= made.epsilon < proven.epsilon * 1.001


def test_true_positives_at_false_ones_are_met_and_hardly_missed():
    made = calibrate(of_rate(), tpr=0.05, at_fpr=0.01)
    assert 0.049 < made.guarantee().tradeoff().power(0.01) <= 0.05


def test_without_sampling_a_risk_is_that_of_the_gaussian_curve():
    """The advantage of N(0, 1) against N(mu, 1) is 2 Phi(mu / 2) - 1, and the power at x Phi(mu + Phi^-1(x))."""
    from scipy.stats import norm

    plain = replace(of_rate(1.0, 4))
    noise = calibrate(plain, advantage=0.2).mechanism.noise.multiplier
    assert noise == pytest.approx(2 / (2 * norm.ppf(0.6)), rel=2e-3)
    noise = calibrate(plain, tpr=0.2, at_fpr=0.05).mechanism.noise.multiplier
    assert noise == pytest.approx(2 / (norm.ppf(0.2) - norm.ppf(0.05)), rel=5e-3)


def test_a_risk_can_be_solved_for_steps():
    known = replace(of_rate(), mechanism=Mechanism(Clip(1.0), Gaussian(1.0)))
    longest = calibrate(known, advantage=0.1, solve_for="steps")
    assert longest.guarantee().tradeoff().advantage <= 0.1
    longer = replace(longest, epsilon=None, steps=math.ceil(longest.steps * 1.02) + 1)
    assert longer.guarantee().tradeoff().advantage > 0.1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({}, "give one of them"),
        ({"epsilon": 1.0, "advantage": 0.1}, "give one of them"),
        ({"advantage": 0.1, "tpr": 0.2, "at_fpr": 0.1}, "give one of them"),
        ({"tpr": 0.1}, "give both"),
        ({"tpr": 0.1, "at_fpr": 0.1}, "which guessing has"),
        ({"tpr": 1.0, "at_fpr": 0.1}, "between at_fpr"),
        ({"advantage": 1.0}, "between 0 and 1"),
        ({"advantage": 0.0}, "advantage"),
    ],
)
def test_targets_that_make_no_sense_are_refused(wrong, words):
    with pytest.raises(ConfigError, match=words):
        calibrate(of_rate(), **wrong)
