import math
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worst_case import most_likely

import discreet
from discreet import ConfigError
from discreet.accounting.tradeoff import TradeOff
from discreet.audit import one_run
from discreet.audit.curves import GaussianCurve, mu_lower_bound, rejects
from discreet.audit.guessing import count_correct, guess

REPEATS = 200 if os.environ.get("DISCREET_SOAK") else 40


def gaussian(mu, m, k, random):
    """Right guesses of 2k about m canaries, each in a coordinate of its own with noise 1 / mu."""
    coins = random.random(m) < 0.5
    return count_correct(guess(coins * mu + random.standard_normal(m), k, k), coins)


CURVES = {
    "pure": TradeOff(((0.8, 0.0),)),
    "approximate": TradeOff(((0.8, 0.05),)),
    "several points": TradeOff(((0.0, 0.38), (0.5, 0.2), (1.0, 0.1), (2.0, 0.01))),
}


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("canaries", [1, 2, 3])
def test_no_mechanism_of_a_few_canaries_is_rejected_wrongly(name, canaries):
    """Linear programming finds the worst mechanism that keeps the curve; no level below its chance may be rejected."""
    curve = CURVES[name]
    for guesses in range(1, canaries + 1):
        for correct in range(1, guesses + 1):
            worst = most_likely(canaries, guesses, correct, curve.points)
            assert not rejects(curve, canaries, guesses, correct, level=worst * (1 - 1e-6))


@pytest.mark.parametrize("guesses", [1, 2, 3])
def test_for_pure_epsilon_the_worst_case_of_all_right_guesses_is_known_exactly(guesses):
    worst = most_likely(3, guesses, guesses, [(0.8, 0.0)])
    assert rejects(CURVES["pure"], 3, guesses, guesses, level=worst * (1 + 1e-6))


def test_a_gaussian_curve_is_found_as_often_as_the_theory_says():
    """m = 10^4, mu = 1: about .75 with m / 50 guesses, and .35 with m of them (9.4)."""
    random = np.random.default_rng(0)
    few = np.median([mu_lower_bound(10_000, 200, gaussian(1.0, 10_000, 100, random)) for _ in range(9)])
    all_of_them = mu_lower_bound(10_000, 10_000, gaussian(1.0, 10_000, 5_000, random))
    assert 0.65 < few < 0.85
    assert 0.30 < all_of_them < 0.40


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_of_the_gaussian_mechanism_mu_is_bounded_from_below(mu):
    """The level is 0.05 and the margin wide: that the true curve is rejected even once is no accident."""
    random = np.random.default_rng(1)
    found = [mu_lower_bound(5_000, 200, gaussian(mu, 5_000, 100, random)) for _ in range(REPEATS // 4)]
    assert max(found) < mu
    assert np.median(found) > 0.5 * mu


@given(st.integers(2, 300), st.data(), st.floats(0, 4))
def test_for_pure_epsilon_it_agrees_with_the_binomial_test_to_one_count(canaries, data, epsilon):
    guesses = data.draw(st.integers(1, canaries))
    correct = data.draw(st.integers(1, guesses))
    rejected = rejects(TradeOff(((epsilon, 0.0),)), canaries, guesses, correct)
    if one_run.p_value(canaries, guesses, correct - 1, epsilon, 0.0) < 0.05:
        assert rejected
    if one_run.p_value(canaries, guesses, min(guesses, correct + 1), epsilon, 0.0) > 0.05 + 1e-9:
        assert not rejected


@given(st.integers(2, 300), st.data(), st.floats(0, 4), st.sampled_from([1e-6, 1e-4, 1e-2]))
def test_at_one_epsilon_and_delta_it_never_rejects_what_the_exact_test_does_not(canaries, data, epsilon, delta):
    guesses = data.draw(st.integers(1, canaries))
    correct = data.draw(st.integers(1, guesses))
    if rejects(TradeOff(((epsilon, delta),)), canaries, guesses, correct):
        assert one_run.exact_p_value(canaries, guesses, correct, epsilon, delta) < 0.05 + 1e-9


def test_a_claimed_curve_that_is_false_is_rejected_and_the_true_one_is_not():
    """The claim is twice the noise of what ran; the chance of a false alarm is at most 0.05, with a wide margin."""
    random = np.random.default_rng(4)
    claims = {
        noise: discreet.methods.dp_sgd(examples=100, batch_size=100, steps=1, noise=noise, delta=1e-5).guarantee()
        for noise in (0.5, 1.0)
    }
    correct = gaussian(2.0, 5_000, 100, random)  # noise 0.5
    assert rejects(claims[1.0].tradeoff(), 5_000, 200, correct)
    assert not rejects(claims[0.5].tradeoff(), 5_000, 200, correct)


def test_the_claimed_curve_of_a_gaussian_query_is_the_gaussian_curve_but_for_the_grid():
    claimed = discreet.methods.dp_sgd(examples=9, batch_size=9, steps=1, noise=1.0, delta=1e-5).guarantee().tradeoff()
    for x in (1e-4, 0.01, 0.1, 0.5, 0.9):
        assert claimed(x) <= GaussianCurve(1.0)(x) + 1e-9
        assert claimed(x) == pytest.approx(GaussianCurve(1.0)(x), abs=2e-3)
        assert GaussianCurve(1.0).power(x) == pytest.approx(1 - GaussianCurve(1.0)(x), abs=1e-12)


def test_more_correct_guesses_and_less_confidence_reject_more():
    for curve in (GaussianCurve(1.0), TradeOff(((1.0, 1e-3), (2.0, 1e-5)))):
        rejected = [rejects(curve, 1000, 100, correct) for correct in range(101)]
        assert rejected == sorted(rejected)
        assert rejected[100]
        assert not rejected[60]
        boundary = rejected.index(True)
        assert not rejects(curve, 1000, 100, boundary, level=1e-6)
        assert rejects(curve, 1000, 100, boundary, level=0.2)


def test_perfect_privacy_is_rejected_only_by_what_coins_do_not_do():
    assert not rejects(GaussianCurve(0.0), 100, 100, 58)  # Pr[Bin(100, 1/2) >= 59] = 0.044
    assert rejects(GaussianCurve(0.0), 100, 100, 60)  # one count of slack
    assert mu_lower_bound(100, 100, 50) == 0
    assert mu_lower_bound(100, 0, 0) == 0


@pytest.mark.parametrize("arguments", [(10, 5, 6), (10, 11, 6), (0, 0, 0)])
def test_counts_that_cannot_be_are_refused(arguments):
    with pytest.raises(ConfigError):
        rejects(GaussianCurve(1.0), *arguments)


def test_a_curve_needs_a_number_and_a_test_a_level():
    with pytest.raises(ConfigError, match="mu is -1"):
        GaussianCurve(-1.0)
    with pytest.raises(ConfigError, match="level is nan"):
        rejects(GaussianCurve(1.0), 10, 5, 5, level=math.nan)
