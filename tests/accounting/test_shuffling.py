"""The lower bound of shuffled passes: an attack that works, and never above what is proven."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from discreet import Clip, Gaussian, Mechanism, PerLayerClip, Plan, Poisson, Shuffled, Tanh
from discreet.accounting import cost, gaussian
from discreet.accounting.events import Event
from discreet.accounting.shuffling import lower_bound


def true_delta(sigma, epsilon, moved):
    """Two batches, one pass, by quadrature on the plane: the unit moves the sum of the one or of the other."""
    x = np.linspace(-7 * sigma, 2 + 7 * sigma, 1201)
    near = {m: norm.pdf(x, m, sigma) for m in (0.0, 1.0, 2.0)}
    p, q = (0.5 * (np.outer(near[m], near[0.0]) + np.outer(near[0.0], near[m])) for m in moved)
    return np.maximum(p - math.exp(epsilon) * q, 0).sum() * (x[1] - x[0]) ** 2


@pytest.mark.parametrize("sigma", [0.7, 1.0, 3.0])
@pytest.mark.parametrize("replaced", [False, True])
def test_of_two_batches_the_divergence_is_at_least_delta(sigma, replaced):
    found = lower_bound(sigma, 10, 5, 1, 1e-3, replaced=replaced)
    low = 0.0 if replaced else 1.0
    assert found > 0
    most = max(true_delta(sigma, found, (2.0, low)), true_delta(sigma, found, (low, 2.0)))
    assert most >= 1e-3 * (1 - 1e-6)
    assert most <= 3e-3  # and the attack is not far from the best


@pytest.mark.parametrize("passes", [1, 10])
def test_of_one_batch_a_pass_it_is_the_gaussian_mechanism(passes):
    exact = gaussian.epsilon(math.sqrt(passes), 1e-5)
    assert 0.97 * exact < lower_bound(1.0, 9, 9, passes, 1e-5) <= exact


@settings(max_examples=30)
@given(
    st.floats(0.5, 8.0), st.integers(1, 400), st.integers(1, 400), st.integers(1, 40), st.sampled_from([1e-3, 1e-6]),
    st.booleans(),
)  # fmt: skip
def test_it_is_never_above_what_is_proven(sigma, batches, rows, passes, delta, replaced):
    adjacency = "replace" if replaced else "zero-out"
    proven = cost([Event(1.0, sigma, passes, adjacency=adjacency)], delta).epsilon
    assert lower_bound(sigma, batches * rows, rows, passes, delta, replaced=replaced) <= proven * (1 + 1e-9)


def test_by_games_of_the_attack_itself():
    """Ten passes of 20 batches with a smaller last one, a million games in all; six standard errors."""
    random, games, sigma = np.random.default_rng(0), 50_000, 1.0
    epsilon = lower_bound(sigma, 410, 20, 10, 0.05)
    losses = np.zeros(games)
    batches, there = 20, 400 / 410
    for _ in range(10):
        sums = random.normal(0, sigma, (games, batches))
        where = random.integers(0, batches, games)
        sums[np.arange(games), where] += 2 * (random.random(games) < there)
        largest = sums.max(1)
        at = np.log(norm.cdf(largest / sigma))
        density = []
        for shift in (2.0, 1.0):
            moved = norm.pdf(largest, shift) * np.exp((batches - 1) * at)
            moved += (batches - 1) * norm.pdf(largest) * np.exp((batches - 2) * at) * norm.cdf(largest - shift)
            none = batches * norm.pdf(largest) * np.exp((batches - 1) * at)
            density.append(there * moved + (1 - there) * none)
        losses += np.log(density[0] / density[1])
    seen = np.maximum(-np.expm1(epsilon - losses), 0)
    assert seen.mean() + 6 * seen.std() / games**0.5 > 0.05
    assert seen.mean() < 0.1


def plan(noise=1.1, sampling=None, bound=None):
    sampling = sampling or Shuffled(60_000, 256)
    return Plan(sampling=sampling, mechanism=Mechanism(bound or Clip(1.0), Gaussian(noise)), epochs=60, delta=1e-5)


def test_a_guarantee_of_shuffled_passes_says_what_no_proof_can_be_below():
    told = str(plan().guarantee())
    assert "no proof for passes in a random order, with this noise, can say less than 10.8" in told
    assert "can say less" in str(plan(bound=PerLayerClip(0.5)).guarantee())
    others = plan(sampling=Poisson(examples=60_000, batch_size=256)), plan(bound=Tanh(1.0, 1.0, size=10))
    assert not any("can say less" in str(other.guarantee()) for other in others)
