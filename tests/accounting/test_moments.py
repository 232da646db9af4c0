import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad

from discreet import AirySquared, Cauchy, Gaussian, Laplace, Logistic, Sech, StudentT, VarianceGamma
from discreet.accounting import moments
from discreet.accounting.events import Magnitudes

BOUNDED = [Laplace(1.0), StudentT(9, 1.0), StudentT(3, 1.0), Cauchy(1.0), Sech(1.0), Logistic(1.0), VarianceGamma(1.0)]


@pytest.mark.parametrize("shift", [1e-8, 1e-3, 0.5, 4.0])
@pytest.mark.parametrize("order", [2, 3, 16, 128])
def test_laplace_in_closed_form(order, shift):
    k, u = order, shift
    exact = math.log((k * math.exp((k - 1) * u) + (k - 1) * math.exp(-k * u)) / (2 * k - 1))
    found = moments.log_moments(Laplace(1.0).law, shift)[order]
    if k * u > 1e-2:
        assert exact <= found <= exact * (1 + 1e-7) + 1e-9
    else:  # to second order, where the closed form cancels
        assert found == pytest.approx(k * (k - 1) / 2 * u * u, rel=1e-2)


@pytest.mark.parametrize("law", [*BOUNDED, AirySquared(1.0)], ids=str)
@pytest.mark.parametrize("shift", [0.05, 1.0])
def test_against_plain_quadrature(law, shift):
    for order in (2, 5, 12):

        def integrand(x, k=order):
            point = np.array(x)
            return math.exp(float(k * law.log_density(point - shift) - (k - 1) * law.log_density(point)))

        ends = (-50, -5, 0, shift, 5, 50)
        mean = sum(quad(integrand, a, b, limit=300)[0] for a, b in pairwise(ends))
        if type(law).__name__ in ("Cauchy", "StudentT"):
            mean += quad(integrand, 50, math.inf)[0] + quad(integrand, -math.inf, -50)[0]
        assert moments.log_moments(law.law, shift)[order] == pytest.approx(math.log(mean), rel=2e-6, abs=1e-8)


@pytest.mark.parametrize("law", [*BOUNDED, AirySquared(1.0)], ids=str)
def test_small_shifts_see_only_the_fisher_information(law):
    k = np.arange(moments.MOST + 1)
    limit = k * (k - 1) / 2 * law.fisher * 1e-16
    np.testing.assert_allclose(moments.log_moments(law.law, 1e-8)[2:], limit[2:], rtol=1e-5)


@pytest.mark.parametrize("law", BOUNDED, ids=str)
def test_a_ball_bounds_every_way_of_spending_its_norm(law):
    """T4': one spike, two, many equal shifts: none exceeds the bound; and it is at most 1.1 % above the limit."""
    for norm in (0.3, 0.9, 2.0):
        bound = moments.of_ball(law.law, norm)
        for count in (1, 2, 7, 100, 10_000):
            found = moments.of_product(law.law, Magnitudes((norm / math.sqrt(count),), (count,)))
            assert np.all(found <= bound * (1 + 1e-9))
        k = np.arange(moments.MOST + 1)
        assert np.all(bound <= k * (k - 1) / 2 * law.fisher * norm**2 * 1.011 + 1e-12)


def test_no_such_bound_without_a_largest_loss():
    assert np.isinf(moments.of_ball(AirySquared(1.0).law, 1.0)[2:]).all()
    assert np.isinf(moments.of_ball(Laplace(1.0).law, 100.0)[2:]).all()  # beyond the range it was checked on


def test_ten_million_coordinates_are_added_up_level_by_level():
    law = StudentT(9, 1.0).law
    levels = tuple(np.linspace(1e-5, 1e-3, 50))
    found = moments.of_product(law, Magnitudes(levels, (200_000,) * 50))
    limit = law.fisher * 200_000 * sum(x * x for x in levels)
    assert found[2] == pytest.approx(limit, rel=1e-5)


def test_gaussian_moments_are_exact():
    found = moments.of_product(Gaussian(1.0).law, Magnitudes((0.3, 0.4), (1, 1)))
    assert found[5] == pytest.approx(10 * 0.25)
