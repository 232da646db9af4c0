import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import Laplace, StudentT
from discreet.accounting import cost, moments, rdp
from discreet.accounting.events import Event
from discreet.papers.claims import enveloped

events = st.builds(
    Event,
    rate=st.floats(-4, 0).map(lambda x: 10**x),
    multiplier=st.floats(-0.3, 1.5).map(lambda x: 10**x),
    steps=st.integers(1, 10_000),
)
whole = tuple(float(a) for a in (2, 3, 5, 8, 16, 64))


@settings(max_examples=50, deadline=None)
@given(events, events)
def test_composition_is_additive(one, two):
    together = rdp.divergences([one, two], whole)
    np.testing.assert_allclose(together, rdp.divergences([one], whole) + rdp.divergences([two], whole), rtol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.001, 0.999), st.floats(0.4, 4), st.sampled_from([2, 3, 7]))
def test_removing_dominates_adding(rate, multiplier, order):
    """T3, by a sum over a fine grid: D(mixture || plain) >= D(plain || mixture)."""
    x = np.linspace(-14 * multiplier, 14 * multiplier + 1 + order, 200_001)
    width = (x[1] - x[0]) / (multiplier * math.sqrt(2 * math.pi))
    zero, one = np.exp(-0.5 * (x / multiplier) ** 2), np.exp(-0.5 * ((x - 1) / multiplier) ** 2)
    mixed = (1 - rate) * zero + rate * one
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        remove = np.nansum(np.where(zero > 0, mixed**order * zero ** (1.0 - order), 0)) * width
        add = np.nansum(np.where(mixed > 0, zero**order * mixed ** (1.0 - order), 0)) * width
    assert remove >= add * (1 - 1e-9)
    if order * 14 / multiplier < 200 and order <= 3:
        found = rdp.divergences([Event(rate, multiplier, 1)], (float(order),))[0]
        assert found == pytest.approx(math.log(remove) / (order - 1), rel=1e-4, abs=1e-9)


@pytest.mark.parametrize(
    ("rate", "multiplier", "order", "exact"),
    [  # by mpmath with 40 digits
        (0.004266666666666667, 1.1, 1.01, 1.1726087021220416e-5),
        (0.004266666666666667, 1.1, 2.5, 2.9358070281807934e-5),
        (0.01, 30.0, 1.01, 5.6141680438246096e-8),
        (0.01, 30.0, 2.5, 1.3896683526259188e-7),
        (0.019, 0.1, 1.01, 1.101036743533855),
        (0.019, 0.1, 2.5, 118.39447283364049),
        (0.5, 1.0, 1.01, 0.14029743611126404),
        (0.5, 1.0, 2.5, 0.51056038092363165),
        (0.9, 0.3, 1.01, 4.8141056060045464),
        (0.9, 0.3, 2.5, 13.713288040163746),
        (1e-05, 4.0, 1.01, 3.2569680510996439e-12),
        (1e-05, 4.0, 2.5, 8.061810020277721e-12),
        (0.2, 0.06, 1.01, 46.908328861556582),
        (0.2, 0.06, 2.5, 344.53982570149875),
    ],
)
def test_fractional_orders_against_forty_digits(rate, multiplier, order, exact):
    found = rdp._fractional(rate, multiplier, order)
    assert exact <= found <= exact * (1 + 2e-9)


@pytest.mark.parametrize(("rate", "multiplier"), [(256 / 60_000, 1.1), (0.01, 0.5), (1e-4, 4.0)])
def test_fractional_orders_against_dp_accounting(rate, multiplier):
    """Its series agree from order 3 on, and are above the truth below (by 20 % at order 1.01, for rate .01)."""
    from dp_accounting import dp_event
    from dp_accounting.rdp import RdpAccountant

    orders = (1.01, 1.5, 2.5, 3.7, 5.5, 9.9)
    theirs = RdpAccountant(orders)
    theirs.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(multiplier)))
    found = rdp.divergences([Event(rate, multiplier, 1)], orders)
    assert np.all(found <= np.array(theirs.rdp) * (1 + 1e-8))
    np.testing.assert_allclose(found[3:], theirs.rdp[3:], rtol=1e-5)


@settings(max_examples=20, deadline=None)
@given(st.floats(1e-4, 0.9), st.floats(0.2, 20))
def test_fractional_orders_join_whole_ones(rate, multiplier):
    whole = rdp.divergences([Event(rate, multiplier, 1)], (2.0, 5.0, 14.0))
    beside = [rdp._fractional(rate, multiplier, order + 1e-9) for order in (2.0, 5.0, 14.0)]
    np.testing.assert_allclose(beside, whole, rtol=1e-7)


def test_the_papers_conversion_is_never_below_the_improved_one():
    found = rdp.divergences([Event(256 / 60_000, 1.1, 14_062)])
    assert rdp.classic(found, rdp.ORDERS, 1e-5) == pytest.approx(3.008, abs=6e-4)
    assert rdp.improved(found, rdp.ORDERS, 1e-5) == pytest.approx(2.597, abs=6e-4)


@pytest.mark.parametrize("law", [StudentT(9), Laplace()], ids=str)
def test_fractional_orders_lie_on_a_line_above_a_convex_function(law):
    event = enveloped(law.law, 1.0, 1_000, 0.01, 1)
    orders = (2.0, 2.5, 3.0, 3.25, 4.0)
    two, half, three, quarter, four = rdp.divergences([event], orders)
    assert 1.5 * half == pytest.approx((1 * two + 2 * three) / 2)
    assert 2.25 * quarter == pytest.approx(0.75 * 2 * three + 0.25 * 3 * four)


def test_nothing_is_said_beyond_the_largest_order_that_was_computed():
    event = enveloped(StudentT(9).law, 1.0, 1_000, 0.01, 1)
    assert math.isinf(rdp.divergences([event], (moments.MOST + 1.0,))[0])


@pytest.mark.parametrize(
    ("settings", "times"),
    [({"scheme": "fixed-size", "adjacency": "replace"}, 2), ({"adjacency": "replace"}, 2), ({"group": 3}, 3),
     ({"scheme": "fixed-batches"}, 1)],
)  # fmt: skip
def test_where_no_amplification_is_proven_everybody_counts_as_taking_part(settings, times):
    found = rdp.divergences([Event(0.01, 1.0, 1, **settings)], (2.0, 7.5))
    np.testing.assert_allclose(found, [times**2, 7.5 * times**2 / 2])


def test_without_sampling_the_gaussian_divergence_is_known_for_every_relation():
    assert rdp.divergences([Event(1.0, 4.0, 3, adjacency="replace", group=2)], (5.0,))[0] == pytest.approx(3 * 5 / 2)


@pytest.mark.parametrize(
    "way", [{}, {"hardening": "exact"}, {"adjacency": "replace"}, {"scheme": "fixed-batches"}], ids=str
)
@pytest.mark.parametrize("rate", [0.25, 1.0])
def test_without_noise_nothing_is_proven(way, rate):
    assert all(map(math.isinf, rdp.divergences([Event(rate, 0.0, 1, **way)])))
    assert math.isinf(cost([Event(rate, 0.0, 1, **way)], 1e-5).epsilon)
