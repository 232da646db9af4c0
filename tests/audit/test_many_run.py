import math
import os

import numpy as np
import pytest
from scipy import stats

from discreet import ConfigError
from discreet.accounting import gaussian as gdp
from discreet.audit.curves import GaussianCurve
from discreet.audit.many_run import Errors, clopper_pearson, epsilon_lower_bound, mu_lower_bound, refutes

REPEATS = 200 if os.environ.get("DISCREET_SOAK") else 40


def gaussian(mu, games, seed):
    random = np.random.default_rng(seed)
    return random.standard_normal(games), mu + random.standard_normal(games)


def randomised_response(epsilon, games, seed):
    random, p = np.random.default_rng(seed), 1 / (1 + math.exp(epsilon))
    return (random.random(games) < p).astype(float), (random.random(games) < 1 - p).astype(float)


def test_clopper_pearson_is_the_exact_interval():
    for count, total, level in [(0, 10, 0.05), (3, 10, 0.05), (9, 10, 0.01), (500, 1000, 0.025)]:
        bound = float(clopper_pearson(count, total, level))
        assert stats.binom.cdf(count, total, bound) == pytest.approx(level, rel=1e-9)
    assert float(clopper_pearson(10, 10, 0.05)) == 1


def test_errors_say_what_they_contradict():
    errors = Errors(0.01, 0.3, 0.05)
    assert errors.epsilon(0.1) == pytest.approx(math.log(0.6 / 0.01))
    assert Errors(0.3, 0.01, 0.05).epsilon(0.1) == pytest.approx(math.log(0.6 / 0.01))
    assert Errors(0.5, 0.5, 0.05).epsilon(0.0) == 0
    assert Errors(1.0, 1.0, 0.05).epsilon(0.0) == 0
    assert errors.mu == pytest.approx(stats.norm.isf(0.01) + stats.norm.isf(0.3))
    assert errors.refute(GaussianCurve(errors.mu - 1e-6))
    assert not errors.refute(GaussianCurve(errors.mu + 1e-6))
    assert Errors(0.6, 0.6, 0.05).mu == 0


def test_of_randomised_response_the_bound_is_below_the_truth_as_often_as_it_says():
    """Each bound is above the truth with probability at most 0.2, so the number of those is Bin(REPEATS, <= 0.2): a
    correct bound fails with probability below 1e-4. The seeds are fixed."""
    found = [epsilon_lower_bound(*randomised_response(1.0, 500, seed), 0.0, level=0.2) for seed in range(REPEATS)]
    above = sum(bound > 1.0 for bound in found)
    assert above <= stats.binom.isf(1e-4, REPEATS, 0.2)
    assert np.median(found) > 0.6


def test_of_the_gaussian_mechanism_mu_is_below_the_truth_as_often_as_it_says():
    """As above, with a level of 0.2."""
    found = [mu_lower_bound(*gaussian(1.0, 400, seed), level=0.2) for seed in range(REPEATS)]
    assert sum(bound > 1.0 for bound in found) <= stats.binom.isf(1e-4, REPEATS, 0.2)
    assert np.median(found) > 0.6


def test_with_many_games_the_bounds_are_close_to_the_truth():
    assert 0.95 < epsilon_lower_bound(*randomised_response(1.0, 100_000, 0), 0.0) < 1.0
    assert 0.97 < mu_lower_bound(*gaussian(1.0, 100_000, 0)) < 1.0
    for delta in (1e-5, 0.1):
        bound = epsilon_lower_bound(*gaussian(1.0, 100_000, 1), delta)
        assert 0.4 * gdp.epsilon(1.0, delta) < bound < gdp.epsilon(1.0, delta)


def test_the_claimed_curve_is_refuted_where_it_is_false_and_not_where_it_is_true():
    """Half the noise that is claimed, and the noise that is claimed. A true claim is refuted with probability at most
    0.05 a seed, 1e-4 at most for more than isf of them."""
    assert all(refutes(GaussianCurve(1.0), *gaussian(2.0, 300, seed)) for seed in range(REPEATS // 4))
    wrong = sum(refutes(GaussianCurve(1.0), *gaussian(1.0, 300, seed)) for seed in range(REPEATS))
    assert wrong <= stats.binom.isf(1e-4, REPEATS, 0.05)


def test_games_that_chose_a_threshold_are_not_counted_at_it():
    """In every second game the worlds are apart, and in the others, which are measured, they are not."""
    absent, present = np.zeros(400), np.zeros(400)
    present[0::2] = 1.0
    assert epsilon_lower_bound(absent, present, 0.0) == 0
    assert mu_lower_bound(absent, present) == 0
    assert mu_lower_bound(absent, np.ones(400)) > 3


def test_it_does_not_matter_which_way_the_statistic_points():
    absent, present = gaussian(2.0, 1000, 0)
    assert mu_lower_bound(-absent, -present) == pytest.approx(mu_lower_bound(absent, present), abs=0.2)
    assert mu_lower_bound(present, absent) > 1.4


def test_what_is_no_number_stands_out():
    absent = np.zeros(200)
    assert epsilon_lower_bound(absent, np.full(200, math.nan), 0.0) > 3
    assert epsilon_lower_bound(absent, np.full(200, math.inf), 0.0) > 3
    assert epsilon_lower_bound(np.full(200, math.nan), np.full(200, math.nan), 0.0) == 0


def test_the_same_in_both_worlds_shows_nothing():
    assert epsilon_lower_bound(np.zeros(100), np.zeros(100), 0.0) == 0
    assert mu_lower_bound(np.zeros(100), np.zeros(100)) == 0
    assert not refutes(GaussianCurve(0.0), np.zeros(100), np.zeros(100))


def test_what_is_no_sample_is_refused():
    with pytest.raises(ConfigError, match="at least two values"):
        mu_lower_bound([1.0], [1.0, 2.0])
    with pytest.raises(ConfigError, match="delta is 1"):
        epsilon_lower_bound([1.0, 2.0], [1.0, 2.0], 1.0)
    with pytest.raises(ConfigError, match="level is 0"):
        mu_lower_bound([1.0, 2.0], [1.0, 2.0], level=0)
