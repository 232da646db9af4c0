import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from discreet import (
    AirySquared,
    Cauchy,
    Clip,
    ConfigError,
    Encode,
    Gaussian,
    Laplace,
    Logistic,
    Mechanism,
    Plan,
    Poisson,
    Sech,
    StudentT,
    VarianceGamma,
    attach,
)
from discreet.accounting.gaussian import gaussian_rate
from discreet.stages.bounds.envelope import covering, half_normal, sampled
from discreet.stages.sensitivity import Layout, norm_of

numbers = st.one_of(st.floats(-(2.0**100), 2.0**100, width=32), st.sampled_from([0.0, -0.0, 1.0, -1.0]))
DTYPES = [torch.float32, torch.float64]


def layout(size):
    return Layout(("all",), ((size,),))


def expanded(magnitudes):
    return np.sort(np.repeat(magnitudes.levels, magnitudes.counts))


@settings(max_examples=200)
@given(
    st.lists(numbers, min_size=1, max_size=60),
    st.sampled_from([Encode(), Encode(2.0, "nearest", levels=5), Encode(0.5, envelopes=4), Encode(levels=1)]),
    st.sampled_from(DTYPES),
)
def test_whatever_comes_in_stays_inside_the_permuted_box(values, bound, dtype):
    size = len(values)
    out = bound.apply(torch.tensor([values], dtype=dtype), bound.start(layout(size)))
    contract = bound.contract(layout(size), None)
    assert bool((np.sort(out[0].abs().double().numpy()) <= expanded(contract.magnitudes)).all())
    assert float(out.double().norm()) <= bound.norm * (1 + 1e-6)
    assert norm_of(contract) <= bound.norm * (1 + 1e-12)
    signs = torch.tensor(values).sign()
    assert bool((out[0].sign() * signs >= 0).all())  # no sign is turned


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("envelopes", [1, 6])
@pytest.mark.parametrize("encoder", ["clamp", "nearest"])
def test_it_is_the_corrected_algorithm(encoder, envelopes, dtype):
    """Sorted magnitudes beside every envelope, the most similar one taken, clamped (or replaced) rank by rank."""
    size, bound = 500, Encode(1.5, encoder, levels=9, envelopes=envelopes, seed=7)
    rows = torch.randn(8, size, dtype=dtype) * torch.tensor([1e-3, 0.02, 0.05, 0.07, 0.1, 1, 10, 1e4])[:, None]
    rows[0] = rows[0].abs() ** 3  # heavy tails, one sign
    psi = bound.start(layout(size)).astype(np.float64)
    found = bound.apply(rows.clone(), bound.start(layout(size)))
    for row, out in zip(rows.double().numpy(), found.double().numpy(), strict=True):
        order = np.argsort(np.abs(row), kind="stable")
        chosen = psi[np.argmax(psi @ np.abs(row)[order])]
        expected = np.empty(size)
        expected[order] = np.sign(row[order]) * chosen
        if encoder == "clamp":
            expected[order] = np.clip(row[order], -chosen, chosen)
        np.testing.assert_allclose(out, expected, rtol=2e-6, atol=1e-12)


def test_small_gradients_pass_the_clamp_and_zero_stays_zero():
    rows = torch.stack((torch.zeros(100), torch.full((100,), 1e-6)))
    for encoder in ("clamp", "nearest"):
        found = Encode(encoder=encoder).apply(rows.clone(), Encode().start(layout(100)))
        assert bool((found[0] == 0).all())
        assert (encoder == "clamp") == torch.equal(found[1], rows[1])


def test_the_envelopes_are_public_ascending_and_of_norm_one():
    drawn = sampled(2_000, 5, seed=1)
    assert np.array_equal(drawn, sampled(2_000, 5, seed=1))
    assert not np.array_equal(drawn, sampled(2_000, 5, seed=2))
    assert bool((np.diff(drawn, axis=1) >= 0).all())
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), 1)
    assert (drawn @ drawn.T).min() > 0.99  # choosing among them means nothing (docs/noises.md)
    one = half_normal(2_000, 48)
    assert one.norm == pytest.approx(1)
    assert drawn @ expanded(one) == pytest.approx(1, abs=0.01)
    over = covering(drawn, 512)
    assert bool((expanded(over) >= drawn.max(0)).all())
    assert over.norm < 1.1


def test_gaussian_noise_sees_only_the_norm_and_student_t_costs_at_most_what_domination_says():
    def epsilon(bound, noise):
        sampling = Poisson(examples=60_000, batch_size=256)
        return Plan(sampling=sampling, mechanism=Mechanism(bound, noise), steps=14_062, delta=1e-5).guarantee().epsilon

    assert epsilon(Encode(size=1000), Gaussian(1.1)) == epsilon(Clip(1.0), Gaussian(1.1))
    assert epsilon(Encode(size=1000, envelopes=4), Gaussian(1.1)) == epsilon(Clip(1.0), Gaussian(1.1))
    exact = epsilon(Encode(size=1000), StudentT(9, 1.0042))
    assert exact == pytest.approx(2.3804, abs=2e-3)
    dominated = epsilon(Clip(1.0), StudentT(9, 1.0042))
    assert exact < dominated <= epsilon(Clip(1.0), Gaussian(1.0042 / gaussian_rate(StudentT(9).law)))
    several = epsilon(Encode(size=1000, envelopes=4), StudentT(9, 1.0042))
    assert exact < several < exact * 1.1


def test_an_attached_model_of_another_size_is_refused():
    sampling = Poisson(examples=100, batch_size=10)
    plan = Plan(sampling=sampling, mechanism=Mechanism(Encode(size=7), StudentT(9, 1.0)), steps=3, delta=1e-5)
    with pytest.raises(ConfigError, match="made for 7 parameters"):
        attach(nn.Linear(4, 3), plan)
    assert math.isfinite(attach(nn.Linear(4, 3), plan.fit_to(nn.Linear(4, 3))).guarantee().epsilon)


@pytest.mark.parametrize(
    "settings", [{"norm": 0}, {"encoder": "nearly"}, {"levels": 0}, {"envelopes": 0}, {"seed": -1}, {"size": 0}]
)
def test_settings_are_checked(settings):
    with pytest.raises(ConfigError):
        Encode(**settings)


@pytest.mark.parametrize(
    "noise",
    [Gaussian(1.0), StudentT(9, 1.0), Laplace(1.0), Cauchy(1.0), Sech(1.0), Logistic(1.0), VarianceGamma(1.0),
     AirySquared(1.0)],
    ids=repr,
)  # fmt: skip
def test_every_noise_can_be_used_and_accounted(noise):
    """Also Airy-squared, for which nothing is proven with a norm bound alone."""
    sampling = Poisson(examples=100, batch_size=10)
    plan = Plan(sampling=sampling, mechanism=Mechanism(Encode(levels=4), noise), steps=3, delta=1e-5)
    model = nn.Linear(4, 3)
    private = attach(model, plan)
    for x, y in private.batches((torch.randn(100, 4), torch.randint(3, (100,)))):
        private.backward(nn.functional.cross_entropy(model(x), y, reduction="none"))
    assert bool(model.weight.grad.isfinite().all())
    assert 0 < private.guarantee().epsilon < 30
