"""What went wrong in released versions of other libraries: one test each, named after the failure."""

import math
import os

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from discreet import Clip, ConfigError, Gaussian, Mechanism, Plan, Poisson, PrivacyError, attach
from discreet.stages.noise.random import KeyTree

N = 30
X, Y = torch.randn(N, 4, generator=torch.Generator().manual_seed(0)), torch.arange(N) % 3


def plan(batch_size=N, steps=3, noise=0.0, norm=1.0):
    sampling = Poisson(examples=N, batch_size=batch_size)
    return Plan(sampling=sampling, mechanism=Mechanism(Clip(norm), Gaussian(noise)), steps=steps, delta=1e-5)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def losses(model, x, y):
    return F.cross_entropy(model(x), y, reduction="none")


def released(model, x=X, y=Y, norm=1.0):
    """The sum released for a batch of all rows, without noise."""
    sampling = Poisson(rate=1.0, batch_size=1)
    private = attach(model, Plan(sampling=sampling, mechanism=Mechanism(Clip(norm), Gaussian(0)), steps=1, delta=1e-5))
    rows, labels = next(private.batches((x, y)))
    private.backward(losses(model, rows, labels))
    private.detach()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def test_breaking_out_of_a_chunked_batch_mixed_two_batches_in_one_noisy_step():
    model = network()
    private = attach(model, plan())
    for x, y in private.batches((X, Y), at_most=10):
        private.backward(losses(model, x, y))
        break
    rows, labels = next(private.batches((X, Y)))
    private.backward(losses(model, rows, labels))
    found = torch.cat([p.grad.flatten() for p in model.parameters()]) * N
    torch.testing.assert_close(found, released(network()), rtol=1e-4, atol=1e-5)


def test_ghost_clipping_did_not_clip():
    """There, removing one example moved the sum by 2342 with C = 1."""
    x = X.clone()
    x[0] *= 1e4
    moved = (released(network(), x) - released(network(), x[1:], Y[1:])).norm()
    assert 0.9 < moved <= 1 + 1e-5


def test_a_contrastive_loss_was_accepted():
    model = network()
    private = attach(model, plan())
    x, _ = next(private.batches((X, Y)))
    z = F.normalize(model(x), dim=1)
    with pytest.raises(PrivacyError, match="mixes examples"):
        private.backward(F.cross_entropy(z @ z.t(), torch.arange(N), reduction="none"))
    assert private.released == 0


def test_hand_written_batch_statistics_were_accepted():
    class Centred(nn.Module):
        def forward(self, h):
            return (h - h.mean(0)) / h.std(0)

    model = nn.Sequential(nn.Linear(4, 5), Centred(), nn.Linear(5, 3))
    private = attach(model, plan())
    x, y = next(private.batches((X, Y)))
    with pytest.raises(PrivacyError, match="mixes examples"):
        private.backward(losses(model, x, y))


def test_a_weight_also_used_through_f_linear_was_missed():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4, bias=False)
            torch.manual_seed(0)
            self.layer.reset_parameters()

        def forward(self, x):
            return F.linear(self.layer(x), self.layer.weight)

    moved = (released(Twice(), X * 100) - released(Twice(), X[1:] * 100, Y[1:])).norm()
    assert 0.9 < moved <= 1 + 1e-5


def test_one_infinite_example_ruined_the_parameters():
    x = X.clone()
    x[3] = math.inf
    others = torch.arange(N) != 3
    torch.testing.assert_close(released(network(), x), released(network(), X[others], Y[others]), rtol=1e-4, atol=1e-6)


def test_an_empty_batch_crashed():
    model = network()
    private = attach(model, plan(batch_size=1, steps=60))
    empty = 0
    for x, y in private.batches((X, Y)):
        private.backward(losses(model, x, y))
        empty += not x.any()
    assert empty > 0
    assert private.released == 60


def test_an_empty_step_dropped_all_parameters_from_training():
    model = network()
    private = attach(model, plan(batch_size=1, steps=60, noise=1.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in private.batches((X, Y)):
        before = [p.detach().clone() for p in model.parameters()]
        private.backward(losses(model, x, y))
        optimizer.step()
        optimizer.zero_grad()
        assert all(not torch.equal(b, p) for b, p in zip(before, model.parameters(), strict=True))


def test_shuffled_batches_were_accounted_as_poisson():
    with pytest.raises(ConfigError, match="draws its own batches"):
        attach(network(), plan()).batches(DataLoader(TensorDataset(X, Y), batch_size=10, shuffle=True))


def test_the_sampling_rate_was_one_over_the_number_of_batches():
    """With 30 examples in batches of 8 the rate is 8/30, not 1/4."""
    assert plan(batch_size=8).sampling.contract().rate == pytest.approx(8 / 30, abs=1e-15)
    assert "rate 0.266667" in plan(batch_size=8, noise=1.0).guarantee().proof


def test_runs_drew_different_numbers_of_batches():
    counts = set()
    for _ in range(3):
        model = network()
        private = attach(model, plan(batch_size=2, steps=20))
        counts.add(sum(private.backward(losses(model, x, y)) for x, y in private.batches((X, Y), at_most=1)))
    assert counts == {20}


def test_checkpoints_forgot_the_noise_and_the_sampler():
    state = attach(network(), plan(noise=1.7)).state_dict()
    assert state["plan"]["noise"]["multiplier"] == 1.7
    assert state["plan"]["sampling"] == {"type": "Poisson", "examples": N, "batch_size": N}
    assert state["released"] == 0


def test_state_was_kept_in_attributes_put_on_parameters():
    model = network()
    before = [set(vars(p)) for p in model.parameters()]
    released(model)
    assert [set(vars(p)) for p in model.parameters()] == before


def test_a_layer_called_twice_crashed():
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(4, 3))
    assert released(model).isfinite().all()


def test_the_order_in_which_layers_are_declared_decided_what_trains():
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.first = nn.Linear(5, 3), nn.Linear(4, 5)
            self.unused = nn.Linear(2, 2)

        def forward(self, x):
            return self.last(torch.tanh(self.first(x)))

    model = Backwards()
    released(model)
    assert all(p.grad is not None for p in model.parameters())
    assert all(p.grad.any() for p in [*model.first.parameters(), *model.last.parameters()])


def test_the_noise_had_a_31_bit_default_seed(monkeypatch):
    asked = []
    original = os.urandom
    monkeypatch.setattr(os, "urandom", lambda n: asked.append(n) or original(n))
    KeyTree()
    assert asked == [32]


def test_a_zero_update_divided_by_zero():
    model = nn.Linear(4, 3)
    nn.init.zeros_(model.weight)
    private = attach(model, plan())
    x, _ = next(private.batches((X * 0, Y)))
    private.backward(model(x).sum(1) * 0)
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in model.parameters())


def test_the_statement_was_prose_over_numbers_typed_in_by_hand():
    one, two = plan(noise=1.0, steps=100, batch_size=5), plan(noise=2.0, steps=100, batch_size=5)
    assert str(one.guarantee()) != str(two.guarantee())
    assert one.guarantee().epsilon > two.guarantee().epsilon
