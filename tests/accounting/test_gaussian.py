import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import norm

from discreet import AirySquared, Cauchy, Gaussian, Laplace, Logistic, PrivacyError, Sech, StudentT, VarianceGamma
from discreet.accounting.gaussian import gaussian_rate

# rho / sqrt(I), THEORY section 0
PRINTED = [
    (Laplace(), 1.2533),
    (StudentT(9), 1.0655),
    (StudentT(3), 1.1284),
    (Cauchy(), 1.1284),
    (Sech(), 1.1284),
    (Logistic(), 1.0854),
    (VarianceGamma(), 1.1476),
]


@pytest.mark.parametrize(("law", "printed"), PRINTED, ids=lambda x: str(x))
def test_the_certified_rate_is_the_printed_one(law, printed):
    assert gaussian_rate(law.law) / math.sqrt(law.fisher) == pytest.approx(printed, abs=6e-5)
    least = math.sqrt(2 * math.pi) * math.exp(float(law.log_density(np.array(0.0))))
    assert least <= gaussian_rate(law.law) <= least * 1.00001


@pytest.mark.parametrize("df", [1, 1.5, 30, 200, 1000])
def test_it_is_certified_for_all_degrees_of_freedom_that_are_allowed(df):
    law = StudentT(df)
    least = math.sqrt(2 * math.pi) * math.exp(float(law.log_density(np.array(0.0))))
    assert least <= gaussian_rate(law.law) <= least * 1.001


@pytest.mark.parametrize("law", [law for law, _ in PRINTED], ids=str)
@pytest.mark.parametrize("shift", [0.01, 0.3, 1.0, 4.0])
def test_no_hockey_stick_exceeds_the_gaussians(law, shift):
    epsilons = np.linspace(0, 4, 401) * min(1.0, 3 * shift)
    shifted, plain = law.masses_above(epsilons, shift)
    mu = gaussian_rate(law.law) * shift
    gaussian = norm.cdf(-epsilons / mu + mu / 2) - np.exp(epsilons) * norm.cdf(-epsilons / mu - mu / 2)
    assert np.all(shifted - np.exp(epsilons) * plain <= gaussian + 1e-13)


@pytest.mark.parametrize("law", [law for law, _ in PRINTED], ids=str)
def test_hiding_falls_with_the_shift(law):
    """T2: every hockey stick grows with the shift."""
    losses = np.linspace(-3, 3, 61)
    curves = []
    for shift in np.linspace(0.05, 6, 40):
        shifted, plain = law.masses_above(losses, shift)
        curves.append(shifted - np.exp(losses) * plain)
    assert np.diff(np.array(curves), axis=0).min() > -1e-12


def test_a_gaussian_dominates_itself():
    assert gaussian_rate(Gaussian(2.0).law) == 1


def test_unbounded_scores_are_refused():
    with pytest.raises(PrivacyError, match="score is unbounded"):
        gaussian_rate(AirySquared().law)


@dataclass(frozen=True)
class TwoHumps(Laplace):
    """A law whose score falls somewhere, without a profile of its own."""

    def score(self, x):
        return np.sin(np.abs(x))


def test_a_law_of_ones_own_whose_score_falls_needs_its_own_profile():
    with pytest.raises(PrivacyError, match="profile"):
        gaussian_rate(TwoHumps(1.0))
