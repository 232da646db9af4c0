import numpy as np
import pytest

from discreet import ConfigError
from discreet.audit.guessing import best_of, count_correct, counts_for, guess
from discreet.audit.one_run import epsilon_lower_bound


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


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_counts_made_in_advance_do_about_as_well_as_the_best_of_all(mu):
    random, m = np.random.default_rng(5), 2000
    planned = counts_for(m, mu, 1e-5)
    scores = {}
    for _ in range(20):
        coins = random.random(m) < 0.5
        values = mu * coins + random.standard_normal(m)
        for k in (5, 20, 50, 100, 200, 400, 1000, planned[0]):
            right = count_correct(guess(values, k, k), coins)
            scores.setdefault(k, []).append(epsilon_lower_bound(m, 2 * k, right, 1e-5))
    means = {k: np.mean(found) for k, found in scores.items()}
    assert means[planned[0]] > 0.85 * max(means.values())
