"""Losses and the bound times one power of two: what is released is that many times the same, to the last bit."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import discreet
from discreet import Clip, Gaussian, Mechanism, PerLayerClip, Plan, Poisson

SCALE = 2.0**12


def released(bound, scale):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    data = torch.randn(20, 5), torch.arange(20) % 3
    mechanism = Mechanism(bound=bound, noise=Gaussian(1.0))
    plan = Plan(sampling=Poisson(examples=20, batch_size=10), mechanism=mechanism, steps=3, delta=1e-3)
    private = discreet.attach(model, plan, seed=1)
    found = []
    for inputs, targets in private.batches(data):
        private.backward(scale * F.cross_entropy(model(inputs), targets, reduction="none"))
        found += [p.grad / scale for p in model.parameters()]
    return found


@pytest.mark.parametrize("bound", [Clip, PerLayerClip])
def test_a_fixed_scale_changes_nothing(bound):
    plain, scaled = released(bound(0.1), 1.0), released(bound(0.1 * SCALE), SCALE)
    assert all(torch.equal(one, other) for one, other in zip(plain, scaled, strict=True))
