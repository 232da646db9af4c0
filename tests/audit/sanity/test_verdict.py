import math

import pytest

from discreet import ConfigError
from discreet.audit.one_run import OneRun
from discreet.audit.sanity.search import smallest_noise
from discreet.audit.sanity.verdict import Verdict, margin, worst


def verdict(private, plain=(0.9,), ceiling=0.4, **more):
    return Verdict(tuple(private), tuple(plain), chance=0.1, ceiling=ceiling, tolerance=0.05, **more)


@pytest.mark.parametrize(
    ("private", "plain", "word"),
    [
        ([0.1, 0.12, 0.08], [0.9], "pass"),
        ([0.16, 0.2, 0.14], [0.9], "too weak"),
        ([0.1, 0.12, 0.08], [0.12], "says nothing"),
        ([0.1, 0.12, 0.08], [], "pass"),
        ([1.0] * 3, [0.9], "too weak"),  # three retrainings cannot show more, at this level
        ([1.0] * 10, [0.9], "broken"),
    ],
)
def test_a_verdict_in_a_word(private, plain, word):
    assert verdict(private, plain).word == word


def test_hoeffdings_margin_is_over_retrainings():
    assert margin(50, 0.025) == pytest.approx(math.sqrt(math.log(40) / 100))
    assert verdict([0.9] * 50).least == pytest.approx(0.9 - margin(50, 0.025))


def test_the_mean_of_fair_figures_is_called_broken_less_often_than_the_level():
    """Accuracies that are 0 or 1, as dependent as can be, with the ceiling for a mean: 2,000 seeded repeats."""
    import random

    draw = random.Random(0)
    alarms = sum(verdict([float(draw.random() < 0.4) for _ in range(12)]).broken for _ in range(2000))
    assert alarms / 2000 <= 0.025


def test_a_one_run_test_finds_what_the_mean_cannot():
    run = OneRun(canaries=2000, guesses=200, correct=190, epsilon=1.0, delta=1e-5, level=0.025)
    found = verdict([0.2], single=(run,))
    assert found.word == "broken"
    assert found.epsilon_lower_bound > 1.0
    fair = OneRun(canaries=2000, guesses=200, correct=140, epsilon=1.0, delta=1e-5, level=0.025)
    assert verdict([0.12], single=(fair,)).word == "pass"


def test_one_run_tests_share_half_of_the_level():
    with pytest.raises(ConfigError, match="half of the verdict's"):
        verdict([0.1] * 5, single=(OneRun(2000, 200, 140, 1.0, 1e-5, level=0.01),) * 5)
    assert verdict([0.1] * 5, single=(OneRun(2000, 200, 140, 1.0, 1e-5, level=0.005),) * 5).word == "pass"


def test_the_verdict_names_its_test_and_level():
    said = str(verdict([0.1, 0.1, 0.1], single=(OneRun(100, 10, 5, 1.0, 1e-5, level=0.02),), level=0.04))
    assert "3 independent retrainings" in said
    assert "level 0.02" in said
    assert "one-run" in said


def test_the_worst_of_several():
    assert worst(["pass", "too weak", "says nothing"]) == "too weak"
    assert worst(["pass", "broken", "too weak"]) == "broken"
    assert worst(["pass", "says nothing"]) == "says nothing"


@pytest.mark.parametrize("change", [{"level": 0.0}, {"level": 1.0}])
def test_levels_that_are_none_are_refused(change):
    with pytest.raises(ConfigError, match="level"):
        verdict([0.1], **change)
    with pytest.raises(ConfigError, match="retraining"):
        verdict([])


# --- the smallest noise ----------------------------------------------------------------------------------------------


def passing_from(threshold):
    return lambda noise: verdict([0.1 if noise >= threshold else 0.5])


def test_the_smallest_noise_is_found_by_halving():
    found, tried = smallest_noise(passing_from(1.0), 0.1, 10.0, tries=12)
    assert 1.0 <= found < 1.01
    assert len(tried) == 12
    assert min(t.noise for t in tried if t.passed) == found


def test_noise_that_is_never_enough_or_always():
    assert smallest_noise(passing_from(20.0), 0.1, 10.0)[0] is None
    found, tried = smallest_noise(passing_from(0.01), 0.1, 10.0)
    assert found == 0.1
    assert len(tried) == 2


def test_a_check_that_says_nothing_does_not_pass():
    def nothing(noise):
        return verdict([0.1], [0.1])

    assert smallest_noise(nothing, 0.1, 10.0)[0] is None


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (2.0, 1.0), (0.0, 1.0)])
def test_ranges_that_are_none_are_refused(low, high):
    with pytest.raises(ConfigError):
        smallest_noise(passing_from(1.0), low, high)
