import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from discreet import (
    Clip,
    ConfigError,
    FixedBatches,
    Gaussian,
    Mechanism,
    Plan,
    Poisson,
    RadialTanh,
    ScaledTanh,
    Tanh,
    attach,
)
from discreet.stages.sensitivity import Layout, norm_of

LAYOUT = Layout(("a", "b"), ((3, 4), (8,)))
numbers = st.floats(-(2.0**60), 2.0**60, width=32)


def plan(bound, noise, sampling=None):
    sampling = sampling or Poisson(examples=60_000, batch_size=256)
    return Plan(sampling=sampling, mechanism=Mechanism(bound, noise), steps=14_062, delta=1e-5)


@given(st.lists(numbers, min_size=1, max_size=20), st.floats(0.01, 10), st.floats(0.01, 100))
def test_the_published_filter_is_its_formula(values, c, k):
    rows = torch.tensor([values])
    expected = c * torch.tanh(rows.double() / k)
    torch.testing.assert_close(Tanh(c, k).apply(rows.clone(), None).double(), expected, rtol=1e-5, atol=1e-6)


@given(st.lists(numbers, min_size=1, max_size=20), st.floats(0.01, 10), st.floats(0.01, 100), st.floats(0.01, 10))
def test_sound_forms_bound_the_norm(values, c, k, norm):
    rows = torch.tensor([values])
    filtered = c * torch.tanh(rows.double() / k)
    found = Tanh(c, k, clip=norm).apply(rows.clone(), None).double()
    factor = min(1.0, norm / max(float(filtered.norm()), 1e-300))
    torch.testing.assert_close(found, filtered * factor, rtol=1e-4, atol=1e-6)
    assert float(found.norm()) <= norm * (1 + 1e-5)
    scaled = ScaledTanh(norm, k).apply(rows.clone(), None).double()
    torch.testing.assert_close(
        scaled, norm / math.sqrt(len(values)) * torch.tanh(rows.double() / k), rtol=1e-5, atol=1e-6
    )
    assert float(scaled.norm()) <= norm * (1 + 1e-5)


@given(st.lists(st.floats(0, 2.0**100, width=32), min_size=1, max_size=8), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_the_radial_form_keeps_directions_and_bounds_norms(squared, norm, k):
    norms = {"a": torch.tensor(squared), "b": torch.tensor(squared) * 0.5}
    weights = RadialTanh(norm, k).apply(norms, None)
    length = (norms["a"].double() + norms["b"].double()).sqrt()
    assert torch.equal(weights["a"], weights["b"])
    expected = torch.where(length > 0, norm * (length / k).tanh() / length, norm / k)
    torch.testing.assert_close(weights["a"].double(), expected, rtol=1e-4, atol=0)
    assert bool((weights["a"].double() * length <= norm * (1 + 1e-5)).all())


def test_small_gradients_pass_the_radial_form_unchanged_and_zero_stays_zero():
    weights = RadialTanh(2.0).apply({"a": torch.tensor([0.0, 1e-8, 4e4])}, None)["a"]
    assert weights[:2].tolist() == pytest.approx([1.0, 1.0], abs=1e-6)
    assert float(weights[2]) * 200 == pytest.approx(2.0)


def test_one_saturated_example_moves_the_published_sum_by_c_sqrt_n():
    bound, n = Tanh(2.0, 1.0), 20
    contract = bound.contract(LAYOUT, None)
    assert norm_of(contract) == pytest.approx(2 * math.sqrt(n))
    assert float(bound.apply(torch.full((1, n), 1e9), None).norm()) == pytest.approx(norm_of(contract))


@pytest.mark.slow
def test_what_is_proven_of_the_published_filter_and_its_claim_beside_it():
    """26,010 parameters, noise 1.1, 60 epochs: multiplier 0.0068; as DP-SGD it would be 3.008 (Mironov)."""
    made = plan(Tanh(1, 1, size=26_010), Gaussian(std=1.1))
    assert made.mechanism.multiplier(None) == pytest.approx(1.1 / math.sqrt(26_010))
    found = made.guarantee()
    assert 1e5 < found.epsilon < 3e6
    (claim,) = found.claims
    assert claim.epsilon == pytest.approx(3.008, abs=1e-3)
    assert claim.verdict == "false"
    assert "161.3" in claim.reason
    assert f"claims ε = {claim.epsilon:g}: false" in str(found)


def test_fixed_batches_do_not_get_the_claims_amplification():
    fixed = plan(Tanh(1, 1, size=26_010), Gaussian(std=1.1), FixedBatches(examples=60_000, batch_size=256))
    (claim,) = fixed.guarantee().claims
    assert claim.epsilon == pytest.approx(3.0, abs=0.01)
    assert fixed.guarantee().epsilon > 1e5


@pytest.mark.parametrize("bound", [Tanh(1, 1, clip=1.0), RadialTanh(1.0), ScaledTanh(1.0)])
def test_sound_forms_cost_what_dp_sgd_costs_and_claim_nothing(bound):
    found = plan(bound, Gaussian(1.1)).guarantee()
    assert found.epsilon == plan(Clip(1.0), Gaussian(1.1)).guarantee().epsilon
    assert found.claims == ()


def test_a_size_that_is_not_the_models_is_refused_and_can_be_fitted():
    model = nn.Linear(4, 3)
    made = plan(Tanh(1, 1, size=26_010), Gaussian(std=1.1))
    with pytest.raises(ConfigError, match=r"26,010 parameters, and the model has 15, .* use plan\.fit_to\(model\)"):
        attach(model, made)
    private = attach(model, made.fit_to(model))
    assert private.plan.mechanism.multiplier(private._aggregate.layout) == pytest.approx(1.1 / math.sqrt(15))


def test_without_a_size_the_published_form_proves_nothing_until_it_is_attached():
    made = plan(Tanh(1, 1), Gaussian(std=1.1))
    with pytest.raises(ConfigError, match="depends on the model"):
        made.guarantee()
    private = attach(nn.Linear(4, 3), made)
    assert private.guarantee().epsilon > 10
    assert private.guarantee().claims[0].verdict == "false"


@pytest.mark.parametrize("wrong", [0, -1, math.nan, math.inf, "1"])
@pytest.mark.parametrize(
    "make", [lambda v: Tanh(v), lambda v: Tanh(1, v), lambda v: Tanh(1, 1, v), RadialTanh, lambda v: ScaledTanh(1, v)]
)
def test_settings_are_positive_numbers(make, wrong):
    with pytest.raises(ConfigError, match="must be a finite number > 0"):
        make(wrong)
