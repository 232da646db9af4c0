import math

import pytest
from scipy.stats import norm

import discreet
from discreet.accounting import cost, delta_curve
from discreet.accounting.events import Event
from discreet.accounting.guarantee import guarantee
from discreet.accounting.tradeoff import GaussianFit, TradeOff, belief, gaussian_fit


@pytest.mark.parametrize(("mu", "ceiling"), [(0.25, 0.151), (0.5, 0.217), (1.0, 0.389), (2.0, 0.764)])
def test_ceilings_on_memorising_a_random_label(mu, ceiling):
    """T8 for Gaussian curves and ten classes: never below the truth, and close to it."""
    tradeoff = TradeOff(delta_curve([Event(1.0, 1 / mu, 1)], 1e-5))
    exact = norm.cdf(norm.ppf(0.1) + mu)
    assert exact == pytest.approx(ceiling, abs=6e-4)
    assert exact <= tradeoff.memorisation(10) <= exact + 3e-3


@pytest.mark.parametrize(("epsilon", "ceiling"), [(1, 0.272), (2, 0.739), (4, 0.984), (20, 1.0)])
def test_ceilings_from_one_epsilon_and_delta(epsilon, ceiling):
    assert TradeOff(((epsilon, 1e-5),)).memorisation(10) == pytest.approx(ceiling, abs=6e-4)


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_the_trade_off_of_a_gaussian_curve(mu):
    tradeoff = TradeOff(delta_curve([Event(1.0, 1 / mu, 1)], 1e-5))
    for x in (1e-3, 0.01, 0.1, 0.5, 0.9):
        exact = norm.cdf(norm.ppf(1 - x) - mu)
        assert exact - 5e-3 <= tradeoff(x) <= exact
    assert tradeoff.advantage == pytest.approx(2 * norm.cdf(mu / 2) - 1, abs=1e-6)
    assert tradeoff(0) <= 1
    assert tradeoff(1) == 0


@pytest.mark.parametrize(
    "event",
    [
        Event(0.01, 1.0, 500),
        Event(0.01, 1.0, 500, adjacency="replace"),
        Event(0.01, 1.0, 500, scheme="fixed-size", adjacency="replace"),
        Event(0.1, 2.0, 30, scheme="fixed-batches"),
        Event(0.01, 1.0, 500, overflow=1e-20),
    ],
    ids=str,
)
def test_every_point_of_a_curve_is_what_accounting_proves(event):
    points = delta_curve([event], 1e-5)
    epsilons = [e for e, _ in points]
    assert min(epsilons) == 0 or event.overflow or event.scheme == "fixed-batches"
    for epsilon, delta in points[:: max(1, len(points) // 5)]:
        if 1e-8 < delta < 0.9:
            assert cost([event], delta * (1 + 1e-3)).epsilon <= epsilon * (1 + 5e-3) + 1e-3
    assert (cost([event], 1e-5).epsilon, 1e-5) in [(e, d) for e, d in points]


def test_curves_against_dp_accounting():
    from dp_accounting.pld import privacy_loss_distribution as theirs

    made = theirs.from_gaussian_mechanism(1.0, sampling_prob=0.01, value_discretization_interval=1e-4).self_compose(500)
    for epsilon, delta in delta_curve([Event(0.01, 1.0, 500)], 1e-6):
        if delta > 1e-9:
            assert delta == pytest.approx(made.get_delta_for_epsilon(epsilon), rel=1e-2)


def test_beliefs():
    assert belief(0.0) == 0.5
    assert belief(math.log(3)) == pytest.approx(0.75)
    assert belief(1.0, prior=0.01) == pytest.approx(math.e * 0.01 / (math.e * 0.01 + 0.99))
    assert belief(1e6) == 1
    with pytest.raises(discreet.ConfigError):
        belief(1.0, prior=1.0)


def test_what_a_guarantee_says_of_an_attacker():
    plan = discreet.methods.dp_sgd(examples=60_000, batch_size=256, epochs=60, noise=1.1, delta=1e-5)
    found = plan.guarantee().attacker()
    advantage, at_a_thousandth, at_a_hundredth, label, posterior = found.values()
    assert advantage == pytest.approx(0.2245, abs=2e-4)
    assert 0.001 < at_a_thousandth < 0.007 < at_a_hundredth < 0.05 < label < 0.25
    assert belief(plan.guarantee().epsilon) < posterior < 0.97


@pytest.mark.parametrize(("mu", "delta"), [(1.0, 1e-5), (0.1, 1e-5), (3.0, 1e-3)])
def test_a_loss_that_is_exceeded_only_with_some_probability(mu, delta):
    """More than epsilon at that delta: the loss of a Gaussian release is normal, mean mu^2 / 2, deviation mu."""
    found = TradeOff(delta_curve([Event(1.0, 1 / mu, 1)], delta)).surprise(delta)
    exact = mu**2 / 2 + mu * norm.isf(delta)
    assert exact <= found <= exact * 1.25
    assert cost([Event(1.0, 1 / mu, 1)], delta).epsilon < exact


@pytest.mark.parametrize("mu", [0.05, 0.5, 2.0])
def test_the_fit_of_a_gaussian_mechanism_is_itself(mu):
    fit = guarantee([Event(1.0, 1 / mu, 1)], 1e-5).gaussian()
    assert mu <= fit.mu <= mu * (1 + 1e-6)
    assert fit.error < 2e-3
    assert fit.slack < 2e-3


@pytest.mark.parametrize("event", [Event(256 / 60_000, 1.1, 2_344), Event(0.1, 0.6, 3), Event(0.01, 0.8, 10)])
def test_a_fit_is_below_the_proven_curve_but_for_its_error(event):
    proven = guarantee([event], 1e-5)
    fit, curve = proven.gaussian(), proven.tradeoff()
    gaps = [curve(x) - norm.cdf(norm.ppf(1 - x) - fit.mu) for x in (1e-9, 1e-4, 0.01, 0.1, 0.3, 0.5, 0.9, 0.999)]
    assert min(gaps) >= -fit.error
    assert max(gaps) <= fit.slack


def test_the_fit_of_nothing_and_of_everything():
    assert gaussian_fit(((0.0, 0.0),)) == GaussianFit(0.0, 0.0, 0.0)
    assert gaussian_fit(((math.inf, 1e-5),)).mu == math.inf
