"""Each law against its own density, by quadrature, and each sampler against its law.

Statistical tests use a fixed seed; with a fresh one each would raise a false alarm about once in a million runs.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import quad

from discreet import AirySquared, Cauchy, ConfigError, Gaussian, Laplace, Logistic, Sech, StudentT, VarianceGamma
from discreet.stages.noise.distribution import NoiseDistribution
from discreet.stages.noise.random import KeyTree

FAMILIES = [
    Gaussian(1.0),
    Laplace(1.0),
    StudentT(9, 1.0),
    StudentT(2.5, 1.0),
    Cauchy(1.0),
    Sech(1.0),
    Logistic(1.0),
    VarianceGamma(1.0),
    AirySquared(1.0),
]
ids = [str(f) for f in FAMILIES]
every = pytest.mark.parametrize("law", FAMILIES, ids=ids)

# THEORY section 0: Fisher information, variance, mean size, all at scale 1
TABLE = {
    "Gaussian": (1, 1, 0.79788),
    "Laplace": (1, 2, 1),
    "StudentT": (10 / 12, 9 / 7, None),
    "Cauchy": (0.5, math.inf, math.inf),
    "Sech": (math.pi**2 / 8, 1, 0.74245),
    "Logistic": (1 / 3, math.pi**2 / 3, 2 * math.log(2)),
    "VarianceGamma": (0.29817, 4, 1.5),
    "AirySquared": (1.35839, 0.7499, 0.67920),
}


def integral(function):
    far = 60.0
    inner = sum(quad(function, a, b, limit=200, epsabs=1e-13)[0] for a, b in ((0, 1), (1, 6), (6, far)))
    return 2 * (inner + quad(function, far, math.inf, limit=200)[0])


def density(law, x):
    return float(np.exp(law.log_density(np.array(x))))


@every
def test_the_density_integrates_to_one_and_is_symmetric_and_unimodal(law):
    assert integral(lambda x: density(law, x)) == pytest.approx(1, abs=1e-8)
    x = np.linspace(0, 30, 3001)
    assert np.array_equal(law.log_density(x), law.log_density(-x))
    assert np.all(np.diff(law.log_density(x)) <= 1e-13)


@every
def test_masses_are_integrals_of_the_density(law):
    for low, high in ((-3.0, -1.0), (-0.5, 0.25), (1.0, 2.5), (4.0, 6.0)):
        mass = quad(lambda x: density(law, x), low, high, epsabs=1e-14, points=[0] if low < 0 < high else None)[0]
        ends = np.array([low, high])
        assert law.upper(ends)[0] - law.upper(ends)[1] == pytest.approx(mass, rel=1e-9)
        assert law.cdf(ends)[1] - law.cdf(ends)[0] == pytest.approx(mass, rel=1e-9)


@every
def test_score_and_fisher_information_follow_from_the_density(law):
    x = np.array([-4.0, -0.7, 0.3, 2.0, 7.0])
    slope = (law.log_density(x + 1e-6) - law.log_density(x - 1e-6)) / 2e-6
    np.testing.assert_allclose(law.score(x), -slope, rtol=1e-6, atol=1e-8)
    assert integral(lambda t: density(law, t) * float(law.score(np.array(t))) ** 2) == pytest.approx(
        law.fisher, rel=1e-6
    )
    assert np.all(np.abs(law.score(np.linspace(-50, 50, 999))) <= law.largest_score + 1e-12)


@every
def test_the_printed_constants(law):
    fisher, variance, size = TABLE[type(law).__name__]
    if law != StudentT(2.5, 1.0):
        assert law.fisher == pytest.approx(fisher, abs=6e-6)
        assert law.variance == pytest.approx(variance, abs=6e-5)
        assert size is None or law.mean_size == pytest.approx(size, abs=6e-6)
    if math.isfinite(law.mean_size):
        assert integral(lambda x: density(law, x) * x) == pytest.approx(law.mean_size, rel=1e-6)
    if math.isfinite(law.variance) and law != StudentT(2.5, 1.0):  # its tail converges too slowly for quadrature
        assert integral(lambda x: density(law, x) * x * x) == pytest.approx(law.variance, rel=1e-6)


@every
@pytest.mark.parametrize("shift", [1e-6, 1e-3, 0.3, 2.0])
def test_losses_are_log_ratios_without_cancellation(law, shift):
    x = np.linspace(-9, 9, 73)
    exact = law.log_density(x - shift) - law.log_density(x)
    np.testing.assert_allclose(law.loss(x, shift), exact, rtol=1e-9, atol=4e-14)
    if shift < 1e-2:  # to first order it is score * shift, which a difference of logarithms would lose
        smooth = (np.abs(x) > 0.05) | (law.gaussian is True)
        np.testing.assert_allclose(law.loss(x, shift)[smooth], (law.score(x) * shift)[smooth], atol=2 * shift**2)
    assert np.all(np.abs(law.loss(x, shift)) <= law.largest_loss(shift) * (1 + 1e-12))


@every
@pytest.mark.parametrize("shift", [0.01, 0.4, 3.0])
def test_masses_above_a_loss_are_masses_of_the_set_where_the_loss_is_larger(law, shift):
    at = np.linspace(-math.asinh(40), math.asinh(40), 160_001)
    x, widths = np.sinh(at), np.cosh(at) * (at[1] - at[0])  # finest where the mass is
    losses = law.loss(x, shift)
    near, plain = np.exp(law.log_density(x - shift)) * widths, np.exp(law.log_density(x)) * widths
    outside = 2 * law.upper(np.array([40.0]))[0] + 1e-3 * shift
    for part in (-0.9, -0.3, 0.0, 0.3, 0.9):
        limit = part * min(law.largest_loss(shift), 3 * shift)
        shifted_mass, plain_mass = law.masses_above(np.array([limit]), shift)
        assert shifted_mass[0] == pytest.approx(near[losses > limit].sum(), abs=outside + 2e-4)
        assert plain_mass[0] == pytest.approx(plain[losses > limit].sum(), abs=outside + 2e-4)


@pytest.mark.parametrize("law", [Sech(1.0), Logistic(1.0), VarianceGamma(1.0), AirySquared(1.0), Laplace(1.0)], ids=str)
def test_the_point_where_a_loss_is_passed(law):
    for shift in (1e-3, 0.2, 2.0):
        top = min(law.largest_loss(shift), 3 * shift)
        losses = np.linspace(-top, top, 101)[1:-1]
        np.testing.assert_allclose(law.loss(law.where(losses, shift), shift), losses, atol=1e-13)
        if not isinstance(law, Laplace):
            generic = NoiseDistribution.where(law, losses, shift)
            np.testing.assert_allclose(law.upper(generic), law.upper(law.where(losses, shift)), atol=1e-12)


@every
def test_samples_have_the_stated_law(law):
    """Kolmogorov-Smirnov on 200,000 draws; alarm below 1e-6."""
    source = KeyTree(seed=11).stream(str(law), 0)
    drawn = law.draw(200_000, source)
    assert np.isfinite(drawn).all()
    assert stats.kstest(drawn, law.cdf).pvalue > 1e-6
    size = np.sort(np.abs(drawn))[-2_000:]  # the outermost percent on its own: a whole-sample test hardly sees tails
    inner = 2 * law.upper(np.array([size[0]]))[0]
    assert stats.kstest(1 - 2 * law.upper(size[1:]) / inner, "uniform").pvalue > 1e-6
    assert abs(np.corrcoef(drawn[:-1] > 0, drawn[1:] > 0)[0, 1]) < 5 / math.sqrt(len(drawn))


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tensors_are_filled_at_the_given_scale(law, dtype):
    out = torch.empty(300_001, dtype=dtype)
    law.sample(out, 2.5, KeyTree(seed=3).stream("fill", 0))
    assert stats.kstest(out.double().numpy() / 2.5, law.cdf).pvalue > 1e-6


def test_parameters_outside_their_range_are_refused():
    for df in (0.5, 0.999, -1, 2000, math.inf):
        with pytest.raises(ConfigError, match="df is"):
            StudentT(df, 1.0)
    for family in (Laplace, Cauchy, Sech, Logistic, VarianceGamma, AirySquared):
        with pytest.raises(ConfigError, match="scale is -1"):
            family(-1)
        assert not family().solved
        assert family(0.5).scaled(2.0) == family(2.0)


def test_cauchy_is_students_t_with_one_degree_of_freedom():
    x = np.linspace(-5, 5, 11)
    np.testing.assert_allclose(Cauchy(1.0).upper(x), stats.cauchy.sf(x), rtol=1e-12)
    np.testing.assert_allclose(Cauchy(1.0).upper(x), StudentT(1, 1.0).upper(x))
