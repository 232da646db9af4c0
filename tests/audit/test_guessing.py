import numpy as np
import pytest
from scipy import stats

from discreet import ConfigError
from discreet.audit.guessing import best_of, count_correct, counts_for, guess, log_likelihood, rehearsed
from discreet.audit.one_run import epsilon_lower_bound, exact_epsilon_lower_bound


def test_the_highest_are_in_and_the_lowest_out():
    assert guess([5.0, 1.0, 3.0, 2.0, 4.0], 2, 1).tolist() == [1, -1, 0, 0, 1]
    assert guess([5.0, 1.0], 0, 0).tolist() == [0, 0]
    assert guess([1.0, 1.0, 1.0], 1, 2).tolist() == [-1, -1, 1]
    assert guess([np.inf, -np.inf, 0.0], 1, 1).tolist() == [1, -1, 0]


def test_right_guesses_are_counted_on_both_sides():
    coins = np.array([True, False, True, False])
    assert count_correct(np.array([1, -1, 0, 0], np.int8), coins) == 2
    assert count_correct(np.array([-1, 1, 0, 0], np.int8), coins) == 0
    assert count_correct(np.array([1, 1, 1, 1], np.int8), coins) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0, np.nan], 1, 0), "none of them NaN"),
        (([[1.0]], 1, 0), "a row of numbers"),
        (([1.0, 2.0], 2, 1), r"2 \+ 1 guesses about 2 canaries"),
        (([1.0, 2.0], -1, 1), "'included' is -1"),
    ],
)
def test_what_cannot_be_guessed_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        guess(*arguments)


def test_guesses_and_coins_belong_together():
    with pytest.raises(ConfigError, match="2 guesses and 3 coins"):
        count_correct(guess([1.0, 2.0], 1, 0), np.array([True, False, True]))


def lower_bound(canaries, guesses, correct, level):
    return epsilon_lower_bound(canaries, guesses, correct, 1e-5, level)


def test_a_declared_few_share_the_level():
    random = np.random.default_rng(0)
    coins = random.random(400) < 0.5
    scores = 2.0 * coins + random.standard_normal(400)
    declared = [(10, 10), (40, 40), (200, 200)]
    found, counts = best_of(scores, coins, declared, lower_bound, level=0.06)
    each = [(lower_bound(400, sum(c), count_correct(guess(scores, *c), coins), 0.02), c) for c in declared]
    assert (found, counts) == max(each)
    with pytest.raises(ConfigError, match="no numbers of guesses were declared"):
        best_of(scores, coins, [], lower_bound)


@pytest.mark.parametrize(("rate", "mu", "steps"), [(1.0, 0.5, 1), (1.0, 2.0, 1), (0.25, 0.5, 50), (0.02, 1.2, 200)])
def test_counts_from_a_rehearsal_do_about_as_well_as_the_best_of_all(rate, mu, steps):
    m = 2000
    planned = counts_for(m, *rehearsed(rate, mu, steps), delta=1e-5)
    some = [(a, b) for a in (5, 20, 50, 100, 200, 400) for b in (0, 20, 50, 100, 200, 400)]
    found = {counts: [] for counts in (planned, *some)}
    for seed in range(1, 9):
        scores, coins = rehearsed(rate, mu, steps, canaries=m, seed=seed)
        for counts, bounds in found.items():
            right = count_correct(guess(scores, *counts), coins)
            bounds.append(exact_epsilon_lower_bound(m, sum(counts), right, 1e-5))
    means = {counts: np.mean(bounds) for counts, bounds in found.items()}
    assert means[planned] > 0.8 * max(means.values()) > 0


def test_the_likelihood_is_that_of_the_two_normal_laws():
    seen = np.linspace(-3, 5, 9)
    for rate, mu in [(1.0, 2.0), (0.3, 0.7)]:
        mixture = (1 - rate) * stats.norm.pdf(seen) + rate * stats.norm.pdf(seen - mu)
        np.testing.assert_allclose(log_likelihood(seen, rate, mu), np.log(mixture / stats.norm.pdf(seen)), rtol=1e-12)


def test_the_likelihood_finds_more_than_the_sum_where_few_take_part():
    """At rate 0.02, 200 steps: the best 20 of 2000 by either score; the seed is fixed."""
    random, rate, mu = np.random.default_rng(0), 0.02, 1.5
    coins = random.random(2000) < 0.5
    total, likelihood = np.zeros(2000), np.zeros(2000)
    for _ in range(200):
        seen = mu * (coins & (random.random(2000) < rate)) + random.standard_normal(2000)
        total += seen
        likelihood += log_likelihood(seen, rate, mu)
    right = [count_correct(guess(scores, 100, 0), coins) for scores in (total, likelihood)]
    assert right[1] > right[0] + 5
