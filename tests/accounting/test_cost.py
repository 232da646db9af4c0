import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm
from soak import some

from discreet.accounting import cost, cost_for_search, merge, pld, rdp
from discreet.accounting import dominating_pairs as pairs
from discreet.accounting import gaussian as gdp
from discreet.accounting.events import Event

# THEORY section 10: (rate, multiplier, steps, delta) and epsilon by RDP with the improved conversion, and by PLD
VECTORS = [
    (256 / 60_000, 1.1, 14_062, 1e-5, 2.597, 2.382),
    (64 / 60_000, 1.0, 9_375, 1e-5, 0.804, 0.494),
    (128 / 50_000, 0.7225, 23_438, 50_000**-1.1, 5.026, 4.516),
    (0.01, 4.0, 10_000, 1e-5, 1.035, 0.947),
]


def renyi_epsilon(events, delta):
    return rdp.improved(rdp.divergences(events), rdp.ORDERS, delta)


@pytest.mark.parametrize(("rate", "multiplier", "steps", "delta", "renyi", "tight"), VECTORS)
def test_vectors(rate, multiplier, steps, delta, renyi, tight):
    event = Event(rate, multiplier, steps)
    assert renyi_epsilon([event], delta) == pytest.approx(renyi, abs=6e-4)
    found = cost([event], delta)
    assert found.epsilon == pytest.approx(tight, abs=1e-3)
    assert found.accountant == "privacy-loss distribution, both directions"


def exact_single_step(rate, multiplier, delta):
    """Epsilon of one step in closed form: the larger of the two directions (T1 of docs/theory.md)."""

    def x_at(ratio):
        return multiplier**2 * math.log(ratio) + 0.5

    def remove(epsilon):
        ratio = (math.expm1(epsilon) + rate) / rate
        x = x_at(ratio)
        one, zero = norm.sf((x - 1) / multiplier), norm.sf(x / multiplier)
        return (1 - rate) * zero + rate * one - math.exp(epsilon) * zero

    def add(epsilon):
        ratio = (math.expm1(-epsilon) + rate) / rate
        if ratio <= 0:
            return 0.0
        x = x_at(ratio)
        one, zero = norm.cdf((x - 1) / multiplier), norm.cdf(x / multiplier)
        return zero - math.exp(epsilon) * ((1 - rate) * zero + rate * one)

    def solve(curve):
        return 0.0 if curve(0) <= delta else brentq(lambda e: curve(e) - delta, 0, 200, xtol=1e-14)

    return max(solve(remove), solve(add))


@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.3, 0.9])
@pytest.mark.parametrize("multiplier", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-9])
def test_one_step_against_the_closed_form(rate, multiplier, delta):
    exact = exact_single_step(rate, multiplier, delta)
    found = cost_for_search([Event(rate, multiplier, 1)], delta).epsilon
    assert exact * (1 - 1e-9) <= found <= exact * 1.005 + 1e-9


@pytest.mark.parametrize("steps", [1, 10, 1_000, 1_000_000])
@pytest.mark.parametrize("delta", [1e-3, 1e-8, 1e-15])
def test_rate_one_is_the_gaussian_curve_and_the_grid_agrees_with_it(steps, delta):
    multiplier = 2 * math.sqrt(steps)
    exact = cost([Event(1.0, multiplier, steps)], delta)
    assert exact.accountant == "Gaussian curve, closed form"
    assert delta == pytest.approx(gdp.delta(0.5, exact.epsilon), rel=1e-4)
    numeric = pld.epsilon([Event(1.0, multiplier, steps)], delta)
    assert exact.epsilon * (1 - 1e-8) <= numeric <= exact.epsilon * 1.005


def test_against_prv_accountant():
    """Never above its upper bound by more than half a percent, never below its lower bound."""
    from prv_accountant.dpsgd import DPSGDAccountant

    for rate, multiplier, steps, delta in [(0.01, 1.0, 1_000, 1e-5), (0.002, 0.8, 5_000, 1e-6), (0.05, 2.0, 500, 1e-5)]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = DPSGDAccountant(
                noise_multiplier=multiplier, sampling_probability=rate, eps_error=0.005, delta_error=delta / 1e3,
                max_steps=steps,
            )  # fmt: skip
            lower, estimate, upper = theirs.compute_epsilon(delta=delta, num_steps=steps)
        found = cost([Event(rate, multiplier, steps)], delta).epsilon
        assert lower <= found <= upper * 1.005
        assert found == pytest.approx(estimate, rel=2e-3)


@pytest.mark.parametrize(
    ("rate", "multiplier", "steps", "delta"),
    [(0.01, 0.5, 200, 1e-5), (0.001, 0.7, 2_000, 1e-6), (0.2, 3.0, 300, 1e-5), (0.6, 4.0, 50, 1e-7)],
)
def test_against_dp_accounting(rate, multiplier, steps, delta):
    """Their pessimistic figure on a fine grid is within a hair of ours; the true one is not above either."""
    from dp_accounting.pld import privacy_loss_distribution

    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        multiplier, sampling_prob=rate, value_discretization_interval=2e-4, use_connect_dots=True
    )
    expected = theirs.self_compose(steps).get_epsilon_for_delta(delta)
    assert cost_for_search([Event(rate, multiplier, steps)], delta).epsilon == pytest.approx(expected, rel=2e-3)


def test_a_finer_grid_only_lowers_the_figure_and_by_less_than_half_a_percent(monkeypatch):
    events = [Event(1e-3, 1.0, 10**6)], [Event(1e-5, 1.0, 10**6)], [Event(1e-3, 0.5, 10**5)], [Event(0.01, 0.3, 1000)]
    for event in some(events[::3], events):
        coarse = pld.epsilon(event, 1e-6)
        with monkeypatch.context() as patch:
            patch.setattr(pld, "_GRID", pld._GRID / 4)
            patch.setattr(pld, "_MOST_POINTS", pld._MOST_POINTS * 4)
            fine = pld.epsilon(event, 1e-6)
        assert fine <= coarse * (1 + 1e-6)
        assert coarse <= fine * 1.005


@pytest.mark.parametrize("losses", [pairs.remove_losses, pairs.add_losses])
@pytest.mark.parametrize("rate", [1e-6, 0.01, 0.5])
@pytest.mark.parametrize("multiplier", [0.3, 1.0, 20.0])
def test_one_steps_losses_dominate_and_keep_both_masses(losses, rate, multiplier):
    step = 0.02 * pairs.deviation(rate, multiplier)
    made = losses(rate, multiplier, step, 1e-18)
    assert made.masses.sum() + made.infinity == pytest.approx(1, abs=1e-12)
    assert (made.masses * np.exp(-made.values)).sum() <= 1 + 1e-12
    for epsilon in (0.0, 0.1 * rate, 3 * rate, 1.0):
        found = (made.masses * np.maximum(0, -np.expm1(epsilon - made.values))).sum() + made.infinity
        assert found >= single_step_delta(losses, rate, multiplier, epsilon) * (1 - 1e-9) - 1e-17


def single_step_delta(losses, rate, multiplier, epsilon):
    if losses is pairs.remove_losses:
        x = multiplier**2 * math.log((math.expm1(epsilon) + rate) / rate) + 0.5
        one, zero = norm.sf((x - 1) / multiplier), norm.sf(x / multiplier)
        return rate * one - (math.expm1(epsilon) + rate) * zero
    ratio = (math.expm1(-epsilon) + rate) / rate
    if ratio <= 0:
        return 0.0
    x = multiplier**2 * math.log(ratio) + 0.5
    one, zero = norm.cdf((x - 1) / multiplier), norm.cdf(x / multiplier)
    return -math.expm1(epsilon) * zero + math.exp(epsilon) * rate * (zero - one)


@pytest.mark.parametrize(
    ("event", "delta", "low", "high"),
    [
        (Event(0.01, 0.0, 10), 1e-5, math.inf, math.inf),
        (Event(0.01, 1.0, 0), 1e-5, 0, 0),
        (Event(0.01, 1e-6, 10), 1e-5, 1e6, 1e14),
        (Event(0.01, 1e-3, 10), 1e-5, 1e5, 1e8),
        (Event(0.01, 1e-2, 10), 1e-5, 1e2, 1e6),
        (Event(0.01, 1e9, 1000), 1e-5, 0, 1e-6),
        (Event(1.0, 1.0, 1), 1e-5, 4, 5),
        (Event(0.01, 1.0, 1000), 1e-15, 3, 10),
        (Event(0.01, 1.0, 1000), 0.5, 0, 0.1),
        (Event(1e-9, 1.0, 1), 1e-5, 0, 1e-6),
        (Event(0.999999, 1.0, 100), 1e-5, 80, 150),
        (Event(1 - 2e-15, 1.0, 1968), 1e-2, 1080, 1090),
    ],
)
def test_extremes_have_sensible_answers(event, delta, low, high):
    assert low <= cost([event], delta).epsilon <= high


def test_accuracy_at_tiny_delta_where_a_plain_fourier_transform_fails():
    """At delta 1e-15 the Gaussian bound without sampling and RDP are above, and a 20 times larger delta is below."""
    event = Event(256 / 60_000, 1.1, 14_062)
    found = pld.epsilon([event], 1e-15)
    assert pld.epsilon([event], 2e-14) < found < renyi_epsilon([event], 1e-15)


events = st.builds(
    Event,
    rate=st.floats(-4, 0).map(lambda x: 10**x),
    multiplier=st.floats(-0.3, 1.5).map(lambda x: 10**x),
    steps=st.integers(1, 20_000),
)
deltas = st.floats(-10, -2).map(lambda x: 10**x)


@settings(max_examples=40)
@given(events, deltas, st.floats(1.02, 3))
def test_more_noise_fewer_steps_a_smaller_rate_or_a_larger_delta_never_cost_more(event, delta, factor):
    base = cost_for_search([event], delta).epsilon
    slack = 1 + 1e-3  # the grid is chosen anew for each figure
    assert cost_for_search([Event(event.rate, event.multiplier * factor, event.steps)], delta).epsilon <= base * slack
    assert (
        cost_for_search([Event(event.rate, event.multiplier, math.ceil(event.steps / factor))], delta).epsilon
        <= base * slack
    )
    assert cost_for_search([Event(event.rate / factor, event.multiplier, event.steps)], delta).epsilon <= base * slack
    assert cost_for_search([event], delta * factor).epsilon <= base * slack


@settings(max_examples=25)
@given(events, deltas)
def test_never_above_the_simpler_bounds(event, delta):
    found = cost([event], delta).epsilon
    assert 0 <= found <= gdp.epsilon(math.sqrt(event.steps) / event.multiplier, delta)


def test_equal_releases_are_counted_together_in_any_order():
    one, two = Event(0.01, 1.0, 30), Event(0.02, 1.5, 40)
    assert merge([one, two, one]) == [Event(0.01, 1.0, 60), two]
    assert cost([one, two, one], 1e-5) == cost([Event(0.01, 1.0, 60), two], 1e-5)


def test_phases_compose():
    split = cost([Event(0.01, 1.0, 500), Event(0.01, 1.0000001, 500)], 1e-5).epsilon
    assert split == pytest.approx(cost([Event(0.01, 1.0, 1000)], 1e-5).epsilon, rel=1e-3)
    more = cost([Event(0.01, 1.0, 1000), Event(0.3, 8.0, 20)], 1e-5).epsilon
    assert more > cost([Event(0.01, 1.0, 1000)], 1e-5).epsilon
    assert math.isinf(cost([Event(0.01, 1.0, 1000), Event(0.3, 0.0, 1)], 1e-5).epsilon)


@pytest.mark.parametrize(
    ("rate", "multiplier", "delta"),
    [(0.5, 0.003, 0.4), (0.3, 0.1, 0.29), (0.9216, 0.2984, 0.7812), (0.7903, 0.3655, 0.5861), (0.05, 0.5, 0.01)],
)
def test_between_grid_points_the_figure_is_not_below_the_truth(rate, multiplier, delta):
    """delta is a straight line in e^epsilon between two points, not in epsilon."""

    def curve(epsilon):
        x = multiplier**2 * (
            math.log(math.expm1(epsilon) + rate) - math.log(rate) if epsilon < 30 else epsilon - math.log(rate)
        )
        x += 0.5
        log_zero = norm.logsf(x / multiplier)
        factor = math.exp(log_zero + epsilon) * -math.expm1(math.log(1 - rate) - epsilon)
        return rate * norm.sf((x - 1) / multiplier) - factor

    exact = brentq(lambda e: curve(e) - delta, 0, 1e6, xtol=1e-12)
    found = pld.epsilon([Event(rate, multiplier, 1)], delta)
    assert exact * (1 - 1e-9) <= found <= exact * 1.005


@pytest.mark.parametrize("multiplier", some([1e4, 1e8], [1e4, 1e6, 1e8]))
def test_renyi_divergences_that_round_to_zero_do_not_count(multiplier):
    event = Event(0.5, multiplier, 10**6)
    assert cost([event], 1e-10).epsilon == pytest.approx(cost_for_search([event], 1e-10).epsilon)
    assert cost([event], 1e-10).epsilon > 0


def test_rare_great_gains_do_not_wrap_around():
    """In the add direction a rare loss of -13 must not reappear at the top of the window."""
    assert pld.epsilon([Event(4.254658e-06, 0.37254964, 966_868)], 7.21023e-05) == pytest.approx(1.93451, rel=5e-3)


@pytest.mark.parametrize(
    ("event", "delta"),
    [
        (Event(0.01, 100.0, 10**6), 0.0398669),
        (Event(0.1, 300.0, 10**6), 0.13237166511518392),
        (Event(1e-7, 0.002, 10**6), 1e-15),
        (Event(0.217, 0.00375, 571_360), 5e-11),
        (Event(1e-12, 1.0, 1000), 1e-5),
    ],
)
def test_awkward_figures_need_no_great_memory(event, delta):
    found = cost_for_search([event], delta).epsilon
    assert 0 <= found <= gdp.epsilon(math.sqrt(event.steps) / event.multiplier, delta)
