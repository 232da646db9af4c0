import itertools
import math
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from worst_case import most_likely

from discreet import ConfigError
from discreet.accounting import gaussian as gdp
from discreet.audit.guessing import count_correct, guess
from discreet.audit.one_run import OneRun, epsilon_lower_bound, exact_epsilon_lower_bound, exact_p_value, p_value

REPEATS = 200 if os.environ.get("DISCREET_SOAK") else 40


def test_the_vectors_of_the_theory():
    assert p_value(100, 100, 75, math.log(3), 0.0) == pytest.approx(0.5535, abs=5e-5)
    assert epsilon_lower_bound(1000, 100, 75, 1e-4, 0.05) == pytest.approx(0.673, abs=5e-4)
    assert epsilon_lower_bound(1000, 100, 95, 1e-5, 0.05) == pytest.approx(2.165, abs=5e-4)


def binomial(guesses, epsilon):
    p = 1 / (1 + math.exp(-epsilon))
    return [math.comb(guesses, k) * p**k * (1 - p) ** (guesses - k) for k in range(guesses + 1)]


def as_published(canaries, guesses, correct, epsilon, delta):
    law = binomial(guesses, epsilon)
    alpha = max((math.fsum(law[correct - i : correct]) / i for i in range(1, correct + 1)), default=0.0)
    return min(1.0, math.fsum(law[correct:]) + 2 * canaries * delta * alpha)


DELTAS = st.sampled_from([0.0, 1e-9, 1e-5, 1e-2])


@given(st.integers(1, 60), st.data(), st.floats(0, 6), DELTAS)
def test_the_p_value_is_the_published_one_wherever_that_is_below_one_half(canaries, data, epsilon, delta):
    guesses = data.draw(st.integers(0, canaries))
    correct = data.draw(st.integers(0, guesses))
    expected, found = (f(canaries, guesses, correct, epsilon, delta) for f in (as_published, p_value))
    assert found >= expected * (1 - 1e-9)
    if expected < 0.5:
        assert found == pytest.approx(expected, rel=1e-9)


@given(st.integers(1, 60), st.data(), st.floats(0, 6), DELTAS)
def test_the_exact_p_value_is_the_formula_and_never_above_the_other(canaries, data, epsilon, delta):
    guesses = data.draw(st.integers(1, canaries))
    correct = data.draw(st.integers(1, guesses))
    law = binomial(guesses, epsilon)
    beta, rest = math.fsum(law[correct:]), math.fsum(law[:correct])
    expected = min(1.0, beta + canaries * delta * beta * rest / (correct * law[correct]))
    found = exact_p_value(canaries, guesses, correct, epsilon, delta)
    assert found == pytest.approx(expected, rel=1e-9)
    assert found <= p_value(canaries, guesses, correct, epsilon, delta)


@pytest.mark.parametrize("canaries", [1, 2, 3])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (2.0, 0.0), (0.0, 0.05), (0.7, 0.01), (1.5, 0.1)])
def test_the_exact_p_value_is_that_of_the_worst_mechanism(canaries, epsilon, delta):
    for guesses in range(1, canaries + 1):
        for correct in range(1, guesses + 1):
            worst = most_likely(canaries, guesses, correct, [(epsilon, delta)])
            assert exact_p_value(canaries, guesses, correct, epsilon, delta) == pytest.approx(worst, abs=1e-9)
            assert p_value(canaries, guesses, correct, epsilon, delta) >= worst - 1e-9


def test_what_was_published_is_too_small_for_a_mechanism_of_two_canaries():
    """Both coins told right with probability e^eps a, either alone with a, none with (a - delta) / e^eps."""
    epsilon, delta = 1.5, 0.1
    grown = math.exp(epsilon)
    a = (1 + delta / grown) / (grown + 2 + 1 / grown)
    none = (a - delta) / grown
    assert grown * a + 2 * a + none == pytest.approx(1)
    neighbours = [(grown * a, a), (a, none), (a, grown * a), (none, a)]
    assert sum(max(0.0, x - grown * y) for x, y in neighbours) == pytest.approx(delta)
    assert as_published(2, 2, 1, epsilon, delta) < 0.981
    assert 1 - none == pytest.approx(0.98829, abs=5e-6)
    assert p_value(2, 2, 1, epsilon, delta) == pytest.approx(1 - none)


def test_a_million_canaries_keep_their_digits():
    m = 10**6
    for epsilon, correct in [(1.0, 732_000), (1.0, 731_059), (0.1, 526_000), (8.0, 999_700), (40.0, m)]:
        beta = stats.binom.sf(correct - 1, m, 1 / (1 + math.exp(-epsilon)))
        assert p_value(m, m, correct, epsilon, 0.0) == pytest.approx(beta, rel=1e-6)
        assert beta <= p_value(m, m, correct, epsilon, 1e-9) <= beta + 2 * m * 1e-9
        assert beta <= exact_p_value(m, m, correct, epsilon, 1e-9) <= p_value(m, m, correct, epsilon, 1e-9)
    # the term with delta near the mode, where the mean over i = 1 is largest: a normal density
    peak = p_value(m, m, m // 2, 0.0, 1e-9) - p_value(m, m, m // 2, 0.0, 0.0)
    assert peak == pytest.approx(2 * m * 1e-9 / math.sqrt(2 * math.pi * m / 4), rel=1e-4)
    for bound in (epsilon_lower_bound, exact_epsilon_lower_bound):
        assert bound(m, m, 731_059, 1e-9) == pytest.approx(1.0, abs=0.01)


def test_chances_too_small_for_a_float_are_still_bounds():
    found = [exact_p_value(10**6, 10**6, correct, 0.0, 1e-9) for correct in (515_000, 518_000, 600_000)]
    assert found == sorted(found, reverse=True)
    assert 0 < found[2] < found[0] < 1e-3
    assert exact_p_value(10**6, 10**6, 100_000, 1.0, 1e-9) == 1  # far below what is expected
    assert exact_p_value(10**6, 1000, 1000, 5.0, 0.0) == pytest.approx((1 + math.exp(-5)) ** -1000)


@pytest.mark.parametrize(
    ("bound", "chance"), [(epsilon_lower_bound, p_value), (exact_epsilon_lower_bound, exact_p_value)]
)
def test_the_bound_is_the_largest_epsilon_that_is_rejected(bound, chance):
    for guesses, share, delta in itertools.product((20, 100), (0.95, 0.75, 0.6), (0.0, 1e-5, 1e-3)):
        correct = round(share * guesses)
        found = bound(200, guesses, correct, delta)
        assert chance(200, guesses, correct, found + 1e-6, delta) >= 0.05
        assert found == 0 or chance(200, guesses, correct, found, delta) < 0.05


@given(st.integers(1, 200), st.data())
def test_more_correct_guesses_prove_more_and_more_confidence_proves_less(canaries, data):
    guesses = data.draw(st.integers(1, canaries))
    correct = data.draw(st.integers(1, guesses))
    found = epsilon_lower_bound(canaries, guesses, correct, 1e-6)
    assert epsilon_lower_bound(canaries, guesses, correct - 1, 1e-6) <= found + 1e-8
    assert epsilon_lower_bound(canaries, guesses, correct, 1e-6, level=0.01) <= found + 1e-8


def test_no_guess_proves_nothing():
    assert epsilon_lower_bound(10, 0, 0, 1e-5) == 0
    assert p_value(10, 0, 0, 3.0, 1e-5) == 1


def randomised_response(epsilon, canaries, random):
    """Each coin is told as it is with probability e^eps / (1 + e^eps)."""
    coins = random.random(canaries) < 0.5
    told = coins ^ (random.random(canaries) > 1 / (1 + math.exp(-epsilon)))
    return count_correct(guess(told.astype(float), int(told.sum()), int((~told).sum())), coins)


def test_of_randomised_response_the_bound_is_below_the_truth_as_often_as_it_says():
    """The bound exceeds the truth in a share of at most 0.1 of runs, and here nearly in as many: the test is exact.

    The number of those above is Bin(REPEATS, <= 0.1). A correct test fails either assertion with probability below
    1e-4; the seed is fixed.
    """
    random, level = np.random.default_rng(1), 0.1
    found = [
        exact_epsilon_lower_bound(500, 500, randomised_response(1.0, 500, random), 0.0, level) for _ in range(REPEATS)
    ]
    above = sum(bound > 1.0 for bound in found)
    assert above <= stats.binom.isf(1e-4, REPEATS, level)
    assert 0.7 < np.median(found) < 1.0


def test_with_many_canaries_the_bound_is_close_to_the_truth():
    random = np.random.default_rng(2)
    found = exact_epsilon_lower_bound(10**5, 10**5, randomised_response(1.0, 10**5, random), 0.0)
    assert 0.96 < found < 1.0


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_of_the_gaussian_mechanism_the_bound_is_below_the_truth_and_not_far(mu):
    """One coordinate a canary, noise 1 / mu: each is mu-GDP. The bound's level is 0.05; its margin here is wide, so
    that exceeding the truth even once in the repeats is no accident."""
    random, delta, m = np.random.default_rng(3), 1e-5, 5_000
    truth, found = gdp.epsilon(mu, delta), []
    for _ in range(REPEATS // 4):
        coins = random.random(m) < 0.5
        scores = coins * mu + random.standard_normal(m)
        found.append(exact_epsilon_lower_bound(m, 200, count_correct(guess(scores, 100, 100), coins), delta))
    assert max(found) < truth
    assert np.median(found) > 0.35 * truth


def test_a_result_says_what_it_is():
    run = OneRun(canaries=1000, guesses=100, correct=95, epsilon=2.0, delta=1e-5)
    assert run.disproves
    assert run.p_value < 0.05
    assert run.epsilon_lower_bound == exact_epsilon_lower_bound(1000, 100, 95, 1e-5)
    assert "at least 2.171" in str(run)  # rounded down
    assert "contradicts the proof" in str(run)
    fine = OneRun(canaries=1000, guesses=100, correct=95, epsilon=4.0, delta=1e-5)
    assert not fine.disproves
    assert "proves nothing" in str(fine)
    assert fine.to_dict()["epsilon_lower_bound"] == fine.epsilon_lower_bound
    assert OneRun(10, 2, 2, math.inf, 1e-5).to_dict()["epsilon"] == "inf"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, 5, 6, 1.0, 0.0), "6 of 5 guesses about 10 canaries"),
        ((10, 11, 6, 1.0, 0.0), "6 of 11 guesses about 10 canaries"),
        ((0, 0, 0, 1.0, 0.0), "number of canaries is 0"),
        ((10, 5, 5, -1.0, 0.0), "epsilon is -1.0"),
        ((10, 5, 5, math.nan, 0.0), "epsilon is nan"),
        ((10, 5, 5, 1.0, 1.5), "delta is 1.5"),
    ],
)
def test_counts_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        p_value(*arguments)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, math.nan])
def test_a_level_is_between_zero_and_one(level):
    with pytest.raises(ConfigError, match="level is"):
        epsilon_lower_bound(10, 5, 5, 0.0, level)
