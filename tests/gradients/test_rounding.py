"""Gradients in which float32 would lose what is measured: terms that cancel, squares that underflow."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from discreet import Clip, Gaussian, Mechanism, Plan, Poisson, attach
from discreet.gradients.forms import base


def moved_by_the_last(make, x, loss, bound=None, kernel=None):
    """How far the released sum moves if the last unit is left out; with a kernel, in the step that has a plan."""

    def total(rows):
        torch.manual_seed(0)
        model = make()
        sampling = Poisson(rate=1.0, batch_size=1)
        steps = 1 if kernel is None else 2
        plan = Plan(sampling=sampling, mechanism=Mechanism(bound or Clip(1.0), Gaussian(0)), steps=steps, delta=1e-5)
        private = attach(model, plan, kernels=None if kernel is None else {"weight": kernel})
        for (batch,) in private.batches(TensorDataset(rows)):
            private.backward(loss(model, batch))
        found = torch.cat([p.grad.double().flatten() for p in model.parameters()])
        private.detach()
        return found

    return float((total(x) - total(x[:-1])).norm())


class Siamese(nn.Module):
    """One layer called twice: a pair of equal rows has gradient zero, made of two long terms."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64, bias=False)

    def forward(self, x):
        return self.layer(x[:, 0]) - self.layer(x[:, 1])


class Centred(nn.Module):
    """Rows of the weight are centred: what is constant in an input has no influence."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 64) / 8)

    def forward(self, x):
        return F.linear(x[:, 0], self.weight - self.weight.mean(1, keepdim=True))


class TwoKinds(nn.Module):
    """A weight used by two kinds of op, whose gradients cancel."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 64) / 8)

    def forward(self, x):
        return F.linear(x[:, 0], self.weight) - (x[:, 1, None] * self.weight).sum(2)


class Words(nn.Module):
    """The same word twice, with opposite signs."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 8)

    def forward(self, x):
        return (
            self.table(torch.zeros(len(x), 2, dtype=torch.long)) * x[:, :, :8] * torch.tensor([1, -1])[:, None]
        ).sum(1)


@pytest.mark.parametrize("size", [1e5, 1e7, 1e9])
@pytest.mark.parametrize("make", [Siamese, Centred, TwoKinds, Words])
def test_a_unit_that_cancels_in_itself_does_not_take_the_others_with_it(make, size):
    """Sums are float32: terms a billion times longer than what is left of them would wipe out everybody else's."""
    x = torch.randn(1, 2, 64, generator=torch.Generator().manual_seed(1)).repeat(32, 1, 1)
    x[:-1, 1] = 0
    x[-1] = size * (torch.ones(64) if make is Centred else torch.randn(64, generator=torch.Generator().manual_seed(2)))
    assert moved_by_the_last(make, x, lambda model, rows: model(rows).sum(1)) <= 1 + 1e-5


class Standardised(nn.Module):
    """Filters of mean 0 and variance 1, for several places of an example."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 64, 1) / 8)

    def forward(self, x):
        variance, mean = torch.var_mean(self.weight, (1, 2), correction=0, keepdim=True)
        return F.conv1d(x.transpose(1, 2), (self.weight - mean) * torch.rsqrt(variance)).flatten(1)


@pytest.mark.parametrize("kernel", ["unfold", "unfold+keep", "unfold+chunked"])
@pytest.mark.parametrize("size", [1e5, 1e7, 1e9])
def test_a_unit_of_which_little_is_left_by_a_preparation_is_made_whatever_the_kernel(kernel, size, monkeypatch):
    monkeypatch.setattr(base, "CHUNK_BYTES", 5 * 4 * 3 * 64)
    x = torch.randn(1, 2, 64, generator=torch.Generator().manual_seed(1)).repeat(32, 1, 1)
    x[-1] = size
    assert moved_by_the_last(Standardised, x, lambda model, rows: model(rows).sum(1), kernel=kernel) <= 1 + 1e-5


def test_a_tiny_gradient_times_a_huge_input_is_clipped():
    """Squares of the one underflow and those of the other do not: their product is not zero."""

    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(256, 256, bias=False)

        def forward(self, x):
            return self.layer(x).flatten(1)

    for rows in (1, 40):
        x = torch.zeros(3, rows, 256)
        x[-1] = 1e19 / 16
        found = moved_by_the_last(Wide, x, lambda model, batch: model(batch).sum(1) * 2.6e-23, Clip(1e-4))
        assert 0.9e-4 < found <= 1e-4 * (1 + 1e-4)
