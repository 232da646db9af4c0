"""Noise of any law on many coordinates: against closed forms, Monte Carlo and dp-accounting."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq

from discreet import (
    AirySquared,
    Cauchy,
    Clip,
    Gaussian,
    Laplace,
    Logistic,
    Mechanism,
    Plan,
    Poisson,
    Sech,
    StudentT,
    VarianceGamma,
)
from discreet.accounting import coordinate_pld as product
from discreet.accounting import cost, pld, rdp
from discreet.accounting import gaussian as gdp
from discreet.accounting.events import Event, Magnitudes
from discreet.accounting.gaussian import gaussian_rate
from discreet.accounting.pld_grid import regrid, subsampled
from discreet.papers.claims import enveloped
from discreet.stages.bounds.envelope import half_normal
from discreet.stages.noise.random import KeyTree

RATE, STEPS, DELTA = 256 / 60_000, 14_062, 1e-5
TIGHT = 2.38162  # dp-accounting on a fine grid, THEORY 6.3


@pytest.mark.parametrize("size", [1, 10, 1_000, 26_010])
def test_gaussian_noise_on_many_coordinates_is_gaussian_noise(size):
    found = pld.epsilon([enveloped(Gaussian(1.0).law, 1.1, size, RATE, STEPS)], DELTA)
    assert TIGHT <= found <= TIGHT * 1.001


def test_a_million_coordinates_are_within_a_thousandth():
    found = pld.epsilon([enveloped(Gaussian(1.0).law, 1.1, 10**6, RATE, STEPS)], DELTA)
    assert TIGHT <= found <= TIGHT * 1.001


def test_gaussian_moments_are_dp_accountings_to_nine_digits():
    from dp_accounting.rdp import rdp_privacy_accountant as theirs

    orders = tuple(float(a) for a in range(2, 65))
    expected = theirs._compute_rdp_poisson_subsampled_gaussian(RATE, 1.1, orders)
    own = rdp.divergences([Event(RATE, 1.1, 1)], orders)
    as_product = rdp.divergences([enveloped(Gaussian(1.0).law, 1.1, 10_000, RATE, 1)], orders)
    np.testing.assert_allclose(own, expected, rtol=1e-9)
    np.testing.assert_allclose(as_product, expected, rtol=1e-9)


def test_the_test_vector_of_students_t():
    """THEORY section 10: t with 9 degrees of freedom, scale 1.0042, 1,000 coordinates in 48 levels."""
    assert pld.epsilon([enveloped(StudentT(9).law, 1.0042, 1_000, RATE, STEPS)], DELTA) == pytest.approx(
        2.3804, abs=1e-4
    )


@pytest.mark.parametrize("law", [Laplace(1.0), StudentT(9, 1.0), Cauchy(1.0), Sech(1.0), AirySquared(1.0)], ids=str)
@pytest.mark.parametrize("shift", [0.2, 1.5])
def test_one_coordinate_against_the_hockey_stick_itself(law, shift):
    base = product.losses(law.law, Magnitudes((shift,), (1,)), 1e-12)
    for epsilon in (0.0, 0.3 * shift, 0.8 * shift):
        shifted, plain = law.masses_above(np.array([epsilon]), shift)
        exact = float(shifted[0] - math.exp(epsilon) * plain[0])
        found = float(base.masses @ np.maximum(0, -np.expm1(epsilon - base.values))) + base.infinity
        assert exact * (1 - 1e-9) <= found <= exact * 1.001 + 1e-9


@pytest.mark.parametrize("law", [StudentT(9, 1.0), Laplace(1.0), VarianceGamma(1.0)], ids=str)
def test_delta_against_monte_carlo(law):
    """120,000 draws of 500 coordinates; five standard errors, so about one false alarm in 10^6 fresh seeds."""
    envelope = half_normal(500)
    shifts = Magnitudes(tuple(x / 1.1 for x in envelope.levels), envelope.counts)
    each = np.repeat(shifts.levels, shifts.counts)
    source = KeyTree(seed=5).stream("monte carlo", 0)
    losses = []
    for _ in range(24):
        noise = law.draw(5_000 * len(each), source).reshape(5_000, -1)
        total = np.zeros(5_000)
        for level in set(shifts.levels):
            columns = noise[:, each == level]
            total += law.loss(columns + level, level).sum(1)
        losses.append(total)
    drawn = np.concatenate(losses)
    base = product.losses(law.law, shifts, 1e-12)
    for epsilon in (0.0, 0.7, 2.0):
        gains = np.maximum(0, -np.expm1(epsilon - drawn))
        found = float(base.masses @ np.maximum(0, -np.expm1(epsilon - base.values))) + base.infinity
        assert abs(found - gains.mean()) < 5 * gains.std() / math.sqrt(len(gains))


@pytest.mark.parametrize("law", [Laplace(1.0), StudentT(9, 1.0), Logistic(1.0), AirySquared(1.0)], ids=str)
def test_many_small_shifts_are_as_the_gaussian_of_equal_fisher_information(law):
    """The verdict of THEORY section 8: at equal Fisher information all laws tend to the same epsilon."""
    scale = 1.1 * math.sqrt(law.fisher)
    found = pld.epsilon([enveloped(law.law, scale, 10**5, RATE, STEPS)], DELTA)
    assert found == pytest.approx(TIGHT, rel=2e-3)


def test_losses_on_the_grid_keep_both_masses_and_dominate():
    values, masses = np.array([-1.3, 0.2, 0.7, 2.05]), np.array([0.1, 0.4, 0.3, 0.2])
    made = regrid(values, masses, 0.0, 0.25)
    assert made.masses.sum() == pytest.approx(1)
    assert (made.masses * np.exp(-made.values)).sum() == pytest.approx((masses * np.exp(-values)).sum())
    for epsilon in np.linspace(-2, 2.5, 19):
        exact = (masses * np.maximum(0, -np.expm1(epsilon - values))).sum()
        assert (made.masses * np.maximum(0, -np.expm1(epsilon - made.values))).sum() >= exact - 1e-15


@pytest.mark.parametrize("rate", [1e-3, 0.3, 1.0])
def test_subsampling_a_composed_pair_is_exact_for_gaussians(rate):
    """Both directions of one step, against the closed form."""
    base = product.losses(Gaussian(1.0).law, Magnitudes((0.5,), (4,)), 1e-14)  # as one shift of 1
    for losses, sign in zip(subsampled(base, rate, 1e-4), (1, -1), strict=True):
        for epsilon in (0.0, 0.5 * rate, 0.9):
            found = float(losses.masses @ np.maximum(0, -np.expm1(epsilon - losses.values))) + losses.infinity
            exact = mixture_delta(rate, epsilon, sign)
            assert exact - 1e-12 <= found <= exact * 1.001 + 1e-8


def mixture_delta(rate, epsilon, sign):
    """H of remove (sign 1) or add (-1) for one Gaussian step with multiplier 1, by a sum over a fine grid."""
    x = np.linspace(-12, 13, 2_000_001)
    zero, one = np.exp(-0.5 * x**2), np.exp(-0.5 * (x - 1) ** 2)
    mixed = (1 - rate) * zero + rate * one
    p, q = (mixed, zero) if sign == 1 else (zero, mixed)
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * (x[1] - x[0]) / math.sqrt(2 * math.pi))


@pytest.mark.parametrize("law", [StudentT(9), Laplace(), Cauchy(), Sech(), Logistic(), VarianceGamma()], ids=str)
def test_what_is_proven_for_a_ball_is_never_below_what_holds_for_an_envelope(law):
    """T4' and T5 against the exact product: they cost, they never gain."""
    exact = enveloped(law.law, 1.2, 5_000, RATE, STEPS)
    whole = Event(RATE, 1.2 / gaussian_rate(law.law), STEPS, law=law.law, scale=1.2)
    tight, loose = cost([exact], DELTA).epsilon, cost([whole], DELTA).epsilon
    assert tight <= loose <= tight * 1.35
    by_moments = rdp.improved(rdp.divergences([whole]), rdp.ORDERS, DELTA)
    assert by_moments >= rdp.improved(rdp.divergences([exact]), rdp.ORDERS, DELTA)


def test_a_run_without_sampling_of_a_product():
    """At rate 1, four Laplace steps of one coordinate: brute force over the sum of four losses."""
    event = Event(1.0, 0.0, 4, law=Laplace().law, scale=2.0, shifts=Magnitudes((0.5,), (1,)))
    x = np.linspace(-0.5, 0.5, 2_001)
    masses = np.zeros(2_001)
    masses[-1], masses[0] = 0.5, 0.5 * math.exp(-0.5)
    inner = np.exp(-0.5 * (0.5 - x[1:-1])) / 4 * (x[1] - x[0])  # density of the loss between its ends
    masses[1:-1] = inner
    masses /= masses.sum()
    total = masses
    for _ in range(3):
        total = np.convolve(total, masses)
    values = np.linspace(-2, 2, len(total))
    exact = brentq(lambda e: float(total @ np.maximum(0, -np.expm1(e - values))) - 0.01, 0, 2)
    assert cost([event], 0.01).epsilon == pytest.approx(exact, rel=2e-3)
    assert cost([event], 0.01).epsilon <= 2  # pure: never more than 4 * 0.5


def test_mixed_noises_compose():
    one = enveloped(StudentT(9).law, 1.5, 1_000, 0.01, 500)
    other = Event(0.02, 2.0, 300)
    both = cost([one, other], DELTA).epsilon
    assert max(cost([one], DELTA).epsilon, cost([other], DELTA).epsilon) < both
    assert both < cost([one], DELTA / 2).epsilon + cost([other], DELTA / 2).epsilon


def test_half_normal_envelopes_have_norm_one_and_all_their_coordinates():
    for size in (1, 7, 1_000):
        envelope = half_normal(size)
        assert envelope.norm == pytest.approx(1)
        assert sum(envelope.counts) == size
        assert list(envelope.levels) == sorted(envelope.levels)


def test_a_gaussian_curve_bounds_the_product_without_sampling():
    mu = 3 / 2.0
    event = Event(1.0, 0.0, 9, law=Gaussian(1.0).law, scale=2.0, shifts=Magnitudes((0.5,), (1,)))
    assert gdp.epsilon(mu, DELTA) * (1 - 1e-9) <= pld.epsilon([event], DELTA) <= gdp.epsilon(mu, DELTA) * 1.001


@pytest.mark.parametrize("scale", [1e-4, 2e-3, 0.05])
@pytest.mark.parametrize("rate", [0.01, 1.0])
@pytest.mark.parametrize("law", [Laplace(), StudentT(9), Sech(), AirySquared()], ids=lambda law: type(law).__name__)
def test_hardly_any_noise_neither_hangs_nor_crashes(law, scale, rate):
    for size in (1, 100):
        event = enveloped(law.law, scale, size, rate, 3)
        if not isinstance(law, AirySquared):
            event = replace(event, multiplier=scale / gaussian_rate(law.law))
        found = cost([event], DELTA).epsilon
        assert found > 10 or math.isinf(found)


def test_without_sampling_both_directions_are_the_same():
    """One coordinate shifted by 14 scales of Laplace noise: pure epsilon 14."""
    event = Event(1.0, 0.0, 1, law=Laplace().law, scale=1 / 14, shifts=Magnitudes((14.0,), (1,)))
    assert cost([event], 1e-7).epsilon == pytest.approx(14, rel=1e-3)


def test_coordinates_that_nobody_moves_cost_nothing():
    event = Event(0.1, 0.0, 5, law=Laplace().law, scale=1.0, shifts=Magnitudes((0.0,), (10,)))
    assert cost([event], DELTA).epsilon == 0


def test_a_norm_bound_is_loose_for_few_parameters_only():
    """Laplace noise of half a norm, rate .2, three steps: what is proven for any model, and what a unit that moves all
    of d parameters alike reaches. The figures of docs/theory.md, T5."""
    mechanism = Mechanism(Clip(1.0), Laplace(0.5))
    plan = Plan(sampling=Poisson(examples=1_000, batch_size=200), mechanism=mechanism, steps=3, delta=1e-5)
    proven, event = plan.guarantee().epsilon, plan.event()
    assert proven == pytest.approx(13.65, abs=0.005)
    last = 0.0
    for count, printed in ((1, 2.47), (2, 4.25), (16, 9.24), (100, 10.73)):
        spread = Magnitudes((2 / math.sqrt(count),), (count,))
        reached = cost([replace(event, multiplier=0.0, shifts=spread)], 1e-5).epsilon
        assert reached == pytest.approx(printed, abs=0.005)
        assert last < reached < proven
        last = reached
    limit = replace(plan, mechanism=Mechanism(Clip(1.0), Gaussian(0.5))).guarantee().epsilon
    assert last < limit < proven < 1.19 * limit
