"""The exact sampler against its law; fixed seeds, false alarms about once in a million fresh ones."""

import math

import numpy as np
import pytest
from scipy import stats

from discreet import ConfigError
from discreet.stages.noise import discrete
from discreet.stages.noise.discrete import discrete_gaussian
from discreet.stages.noise.random import KeyTree


def law(parameter):
    reach = int(12 * parameter) + 3
    values = np.arange(-reach, reach + 1)
    masses = np.exp(-(values**2) / (2 * parameter**2))
    return values, masses / masses.sum()


@pytest.mark.parametrize("parameter", [0.3, 0.5, 1.0, 2.7, 9.99])
def test_frequencies(parameter):
    drawn = discrete_gaussian(200_000, parameter, KeyTree(seed=2).stream("discrete", 0))
    values, masses = law(parameter)
    often = masses * len(drawn) > 20
    counts = np.array([(drawn == v).sum() for v in values])
    observed = np.append(counts[often], counts[~often].sum())
    expected = np.append(masses[often], masses[~often].sum()) * len(drawn)
    if expected[-1] < 5:
        observed, expected = observed[:-1], expected[:-1] * observed[:-1].sum() / expected[:-1].sum()
    assert stats.chisquare(observed, expected).pvalue > 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("parameter", [1e3, 2.0**20, 2.0**39])
def test_large_parameters_are_gaussian_in_the_limit(parameter):
    drawn = discrete_gaussian(30_000, parameter, KeyTree(seed=3).stream("discrete", 0))
    assert stats.kstest(drawn / parameter, "norm").pvalue > 1e-6
    assert len(np.unique(drawn % 2)) == 2


def test_undecided_draws_are_decided_with_more_bits(monkeypatch):
    """With a margin so wide that nothing is decided by floats, the law is the same."""
    monkeypatch.setattr(discrete, "_MARGIN", 0.3)
    drawn = discrete_gaussian(3_000, 1.5, KeyTree(seed=4).stream("discrete", 0))
    values, masses = law(1.5)
    inner = np.abs(values) <= 3
    counts = np.array([(drawn == v).sum() for v in values[inner]])
    assert stats.chisquare(counts, masses[inner] / masses[inner].sum() * counts.sum()).pvalue > 1e-6


def test_a_draw_at_the_very_edge_needs_more_bits():
    """U = 0.000...: sixty-three zero bits leave -log U unbounded."""

    class Zeros:
        def __init__(self):
            self.source = KeyTree(seed=5).stream("edge", 0)

        def octets(self, count):
            return np.zeros(count, np.uint8) if count > 8 else self.source.octets(count)

    found = discrete._geometric(2, 10, Zeros())
    assert (found >= math.floor(10 * 63 * math.log(2))).all()


@pytest.mark.parametrize("parameter", [0.0, -1.0, math.nan, 2.0**41])
def test_parameters_out_of_range_are_refused(parameter):
    with pytest.raises(ConfigError):
        discrete_gaussian(3, parameter, KeyTree(seed=0).stream("x", 0))
