"""Exact hardening: whole numbers from bounded contributions to the release."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

from discreet import Clip, ConfigError, Gaussian, Laplace, Mechanism, PerLayerClip, Plan, Poisson, attach
from discreet.accounting import cost, rdp
from discreet.accounting.events import Event
from discreet.stages.sensitivity import GRID

N = 30


def data(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N, 4, generator=generator), torch.randint(3, (N,), generator=generator)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def plan(noise=1.0, bound=None, steps=1, **settings):
    mechanism = Mechanism(bound or Clip(0.5), Gaussian(noise), hardening="exact", **settings)
    return Plan(sampling=Poisson(examples=N, batch_size=N), mechanism=mechanism, steps=steps, delta=1e-5)


def released(made, rows, seed=3):
    model = network()
    private = attach(model, made, seed=seed, preflight=False)
    for x, y in private.batches(rows):
        private.backward(F.cross_entropy(model(x), y, reduction="none"))
    return torch.cat([p.grad.flatten() for p in model.parameters()]).double(), private


def test_the_release_is_the_usual_one_up_to_the_grid():
    exact, _ = released(plan(noise=1e-9), data())
    usual = Plan(
        sampling=Poisson(examples=N, batch_size=N), mechanism=Mechanism(Clip(0.5), Gaussian(0.0)), steps=1, delta=1e-5
    )
    expected, _ = released(usual, data())
    assert float((exact - expected).abs().max()) <= 0.5 * GRID * 0.5 + 1e-7


@pytest.mark.parametrize("bound", [Clip(0.5), PerLayerClip({"0": 0.3, "2": 0.4})])
def test_neighbours_move_the_sum_by_at_most_the_contract_in_whole_numbers(bound):
    x, y = data()
    base, private = released(plan(1e-9, bound), (x, y))
    contract = private.plan.mechanism.contract(private._aggregate.layout, private._aggregate.state)
    limit = math.hypot(*(b.norm for b in contract.blocks))
    assert limit == pytest.approx(0.5, rel=1e-4)
    for i in range(0, N, 5):
        for factor in (0.0, -3.0, 1e6, math.nan):
            changed = x.clone()
            changed[i] = changed[i] * factor
            moved, _ = released(plan(1e-9, bound), (changed, y))
            assert moved.isfinite().all()
            one = 1 + (factor != 0)  # another gradient in its place moves it by twice as much
            assert float((moved - base).norm()) * N <= one * limit * (1 + 1e-6)


def test_the_noise_is_a_discrete_gaussian_of_the_stated_scale():
    """20,000 values through attach: on the grid, and normal in the large; alarm below 1e-6 of chance."""
    torch.manual_seed(0)
    model = nn.Linear(4_000, 1, bias=False).double()
    made = plan(0.7, Clip(0.5), steps=5)
    private = attach(model, made, seed=2)
    drawn = []
    for (x,) in private.batches(torch.utils.data.TensorDataset(torch.zeros(N, 4_000, dtype=torch.float64))):
        private.backward(model(x)[:, 0])
        drawn.append(model.weight.grad.flatten() * N)
    steps = torch.cat(drawn).numpy() / (0.5 * GRID)
    assert np.abs(steps - steps.round()).max() < 1e-5
    scale = 0.7 * (1 + GRID * math.sqrt(4_000) / 2) / GRID
    assert stats.kstest(steps / scale, "norm").pvalue > 1e-6


def test_chunks_and_microbatches_work_too():
    one, _ = released(plan(1e-9, microbatch=3), data())
    assert one.isfinite().all()
    model = network()
    private = attach(model, plan(1e-9), seed=3, preflight=False)
    for x, y in private.batches(data(), at_most=7):
        private.backward(F.cross_entropy(model(x), y, reduction="none"))
    chunked = torch.cat([p.grad.flatten() for p in model.parameters()]).double()
    whole, _ = released(plan(1e-9), data())
    torch.testing.assert_close(chunked, whole, atol=2 * GRID, rtol=0)


def test_it_is_accounted_by_whole_order_divergences_alone():
    usual, hard = Event(0.01, 1.0, 500), Event(0.01, 1.0, 500, hardening="exact")
    found = cost([hard], 1e-5)
    assert "Rényi" in found.accountant
    assert found.epsilon > cost([usual], 1e-5).epsilon
    whole = tuple(float(a) for a in range(2, 65))
    np.testing.assert_allclose(rdp.divergences([hard], whole), rdp.divergences([usual], whole), rtol=1e-12)
    assert rdp.divergences([hard], (2.5,))[0] >= rdp.divergences([usual], (2.5,))[0]


def test_the_guarantee_names_its_hardening(tmp_path):
    made = plan(2.0, steps=10)
    said = str(made.guarantee())
    assert "discrete Gaussian releases" in said
    assert "noise was drawn exactly" in said
    assert "exact real arithmetic" not in said
    made.save(tmp_path / "plan.toml")
    assert Plan.load(tmp_path / "plan.toml") == made
    assert "exact real arithmetic" in str(
        Plan(sampling=made.sampling, mechanism=Mechanism(Clip(1.0), Gaussian(1.0)), steps=1, delta=1e-5).guarantee()
    )


def test_other_noise_cannot_be_exact():
    for noise in (Laplace(1.0), Gaussian(std=1.0)):
        with pytest.raises(ConfigError, match="exact hardening is for"):
            Mechanism(Clip(1.0), noise, hardening="exact")
    with pytest.raises(ConfigError, match="must be one of"):
        Mechanism(Clip(1.0), Gaussian(1.0), hardening="soft")


@pytest.mark.parametrize("made", [plan(0.0), plan(2.0**21), plan(1.0, PerLayerClip({"0": 1.0, "2": 1e-7}))])
def test_noise_that_cannot_be_drawn_exactly_is_refused_before_anything_is_counted(made):
    with pytest.raises(ConfigError, match="drawn exactly"):
        attach(network(), made)
