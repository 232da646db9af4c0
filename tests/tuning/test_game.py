"""The distinguishing game over a whole search on a toy mechanism: never above what is proven.

A trial draws one of two settings, and adds noise of the setting's size to a sum that the one who is looked for moves by
one; its score is its output, so that the best tells as much as it can. Of the maximum of a random number of draws the
law is known: with G the generating function of the number and F a trial's distribution function, its density with the
setting s is G'(F(x)) f_s(x) / 2. So delta at an epsilon is an integral, and not estimated.
"""

import math
import random

import numpy as np
import pytest
from scipy.stats import beta, norm

from discreet import Tuning
from discreet.accounting import cost
from discreet.accounting.events import Event
from discreet.accounting.tuning import _chance, _stopping, draw_runs

LAWS = ("logarithmic", "geometric", "poisson")
SIZES = (1.0, 1.4)  # of the noise, by setting
X = np.linspace(-14.0, 15.0, 60_001)


def slope(tuning, share):
    """The derivative of the generating function of the number of runs."""
    mean = tuning.runs
    if tuning.distribution == "poisson":
        return mean * np.exp(mean * (share - 1))
    stop = _stopping(mean, {"geometric": 1.0, "logarithmic": 0.0}[tuning.distribution])
    if tuning.distribution == "geometric":
        return stop / (1 - (1 - stop) * share) ** 2
    return (1 - stop) / ((1 - (1 - stop) * share) * math.log(1 / stop))


def densities(tuning, moved):
    """Of the best's output, with each setting."""
    share = np.mean([norm.cdf(X, moved, size) for size in SIZES], axis=0)
    return np.array([slope(tuning, share) * norm.pdf(X, moved, size) / 2 for size in SIZES])


def exact_delta(tuning, epsilon):
    """The exact delta of the whole search at an epsilon, in the worse direction."""
    without, within = densities(tuning, 0.0), densities(tuning, 1.0)
    sides = ((without, within), (within, without))
    gaps = (np.maximum(one - math.exp(epsilon) * other, 0).sum(0) for one, other in sides)
    return max(float(np.trapezoid(gap, X)) for gap in gaps)


def whole(runs, law):
    """The search as it is accounted."""
    return Tuning(runs, law, candidates=tuple((Event(1.0, size, 1),) for size in SIZES))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("runs", [1.5, 4, 30])
def test_the_laws_add_up_to_one_and_their_means_are_as_said(runs, law):
    tuning, counts = Tuning(runs, law), range(3_000)
    chances = [_chance(tuning, k) if k or law == "poisson" else 0.0 for k in counts]
    assert math.fsum(chances) == pytest.approx(1, abs=1e-9)
    assert math.fsum(k * p for k, p in zip(counts, chances, strict=True)) == pytest.approx(runs, rel=1e-6)
    total = densities(tuning, 0.0).sum(0)
    none = math.exp(-runs) if law == "poisson" else 0.0
    assert float(np.trapezoid(total, X)) == pytest.approx(1 - none, abs=1e-6)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("runs", [1.5, 4, 30])
@pytest.mark.parametrize("delta", [1e-2, 1e-5])
def test_the_exact_delta_of_the_whole_search_is_never_above_what_is_proven(runs, law, delta):
    tuning = whole(runs, law)
    proven = cost([Event.of_best(tuning)], delta).epsilon
    assert exact_delta(tuning, proven) <= delta


@pytest.mark.parametrize("law", LAWS)
def test_one_run_that_is_charged_for_all_would_be_caught(law):
    alone = cost([Event(1.0, min(SIZES), 1)], 1e-5).epsilon
    assert exact_delta(whole(30, law), alone) > 2e-5
    # and so would a search that is charged with the less revealing of its settings
    weaker = cost([Event.of_best(Tuning(30, law, candidates=((Event(1.0, 3.0, 1),),)))], 1e-5).epsilon
    assert exact_delta(whole(30, law), weaker) > 1e-5


@pytest.mark.parametrize("law", LAWS)
def test_the_game_played_with_numbers_of_trials_as_they_are_drawn(law):
    """8,000 searches on each side, numbers drawn by draw_runs; a threshold on the best's output accuses.

    Ten thresholds, each tested at 1e-6: a false alarm is rarer than 1e-5 for each law.
    """
    tuning, delta, games = whole(6, law), 1e-2, 8_000
    proven = cost([Event.of_best(tuning)], delta).epsilon
    coins, noise = random.Random(7), np.random.default_rng(7)

    def best(moved):
        found = np.full(games, -np.inf)  # where no run is made nothing is released, on both sides
        for game in range(games):
            runs = draw_runs(tuning, coins.random())
            if runs:
                sizes = np.asarray(SIZES)[noise.integers(2, size=runs)]
                found[game] = (moved + sizes * noise.normal(size=runs)).max()
        return found

    out, inside = best(0.0), best(1.0)
    for threshold in np.quantile(inside, np.linspace(0.05, 0.95, 10)):
        true, false = int((inside > threshold).sum()), int((out > threshold).sum())
        least = beta.ppf(1e-6, true, games - true + 1)
        most = beta.ppf(1 - 1e-6, false + 1, games - false)
        assert least <= math.exp(proven) * most + delta
        assert draw_runs(tuning, 0.999_999) < 10_000
