import math
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from scipy import stats

from discreet import ConfigError, Poisson
from discreet.noise.source import Root


def streams(root):
    return partial(root.stream, "sampling")


def test_the_rate_is_exactly_batch_size_over_examples():
    assert Poisson(examples=60_000, batch_size=256).exact_rate == Fraction(256, 60_000)
    assert Poisson(rate=0.1, batch_size=5).exact_rate == Fraction(0.1)


def test_adjacency_follows_from_what_is_public():
    assert Poisson(examples=10, batch_size=2).contract().adjacency == "zero-out"
    assert Poisson(rate=0.2, batch_size=2).contract().adjacency == "add-remove"


def test_sizes_are_binomial_and_members_equally_likely():
    """2,000 draws of 100 examples: chi-square of the sizes, and of the members; false-alarm rate 1e-6 each."""
    sampler, root = Poisson(examples=100, batch_size=7), Root(seed=1)
    draws = [sampler.draw(100, i, 0, streams(root)) for i in range(2000)]
    sizes = np.bincount([len(d) for d in draws], minlength=101)
    edges = list(range(3, 12))
    expected = stats.binom.pmf(np.arange(101), 100, 0.07) * 2000
    grouped = [np.add.reduceat(a, [0, *edges]) for a in (sizes, expected)]
    assert stats.chisquare(grouped[0], grouped[1] * grouped[0].sum() / grouped[1].sum()).pvalue > 1e-6
    members = np.bincount(np.concatenate(draws), minlength=100)
    chi = ((members - 140) ** 2 / (2000 * 0.07 * 0.93)).sum()
    assert stats.chi2.sf(chi, 100) > 1e-6
    assert all((np.diff(d) > 0).all() for d in draws)  # no example twice


def test_rate_one_draws_everything_and_small_rates_may_draw_nothing():
    root = Root(seed=2)
    assert len(Poisson(examples=50, batch_size=50).draw(50, 0, 0, streams(root))) == 50
    empty = [len(Poisson(examples=50, batch_size=1).draw(50, i, 0, streams(root))) == 0 for i in range(400)]
    share = sum(empty) / 400  # (1 - 1/50)^50 = 0.364; six standard deviations of 0.024
    assert abs(share - 0.98**50) < 6 * math.sqrt(0.364 * 0.636 / 400)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"examples": 10, "batch_size": 11}, "larger than the 10 examples"),
        ({"examples": 10, "batch_size": 0}, "batch_size is 0"),
        ({"examples": 0, "batch_size": 1}, "examples is 0"),
        ({"examples": 10.5, "batch_size": 1}, "whole number"),
        ({"examples": 10, "batch_size": 2, "rate": 0.2}, "not both"),
        ({"batch_size": 2}, "not both"),
        ({"rate": 0.0, "batch_size": 2}, r"rate is 0\.0"),
        ({"rate": 1.5, "batch_size": 2}, r"rate is 1\.5"),
        ({"rate": math.nan, "batch_size": 2}, "rate is nan"),
        ({"rate": 0.5}, "batch_size is 0"),
    ],
)
def test_bad_settings_give_one_clear_error(settings, message):
    with pytest.raises(ConfigError, match=message):
        Poisson(**settings)


def test_another_batch_size_keeps_the_data():
    assert Poisson(examples=100, batch_size=10).with_batch_size(20) == Poisson(examples=100, batch_size=20)
    assert Poisson(rate=0.1, batch_size=10).with_batch_size(20) == Poisson(rate=0.2, batch_size=20)
