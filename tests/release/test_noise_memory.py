"""A noise that remembers what it added: the seat, with a noise of one's own that takes half of the last step's back."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from discreet import Clip, Gaussian, Mechanism, Plan, Poisson, PrivacyError, attach
from discreet.release import sums


class Halves:
    """x_t = z_t - x_(t-1) / 2, elementwise."""

    def __init__(self):
        self.past, self.now = {}, {}

    def filter(self, drawn, key, first):
        if (key, first) in self.past:
            drawn.sub_(self.past[key, first], alpha=0.5)
        self.now[key, first] = drawn.clone()

    def advance(self):
        self.past, self.now = self.now, {}


@dataclass(frozen=True)
class Returning(Gaussian):
    def start(self):
        return Halves()


def released(noise, steps=4, **more):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    data = torch.zeros(10, 3), torch.zeros(10, dtype=torch.long)
    sampling, mechanism = Poisson(examples=10, batch_size=1), Mechanism(Clip(1.0), noise, **more)
    plan = Plan(sampling=sampling, mechanism=mechanism, steps=steps, delta=1e-5)
    private = attach(model, plan, seed=1)
    found = []
    for inputs, _ in private.batches(data):
        private.backward(model(inputs).sum(1) * 0)  # no gradient: what is released is noise
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    return found


def test_later_noise_takes_back_a_part_of_what_was_added():
    plain, remembered = released(Gaussian(2.0)), released(Returning(2.0))
    past = torch.zeros_like(plain[0])
    for fresh, made in zip(plain, remembered, strict=True):
        past = fresh - past / 2
        assert torch.allclose(made, past, atol=1e-6)


def test_noise_is_remembered_piece_by_piece(monkeypatch):
    whole = released(Returning(2.0))
    monkeypatch.setattr(sums, "PIECE", 5)
    pieces = released(Returning(2.0))
    past = [torch.zeros_like(whole[0])] * 2
    for fresh, one in zip(released(Gaussian(2.0)), pieces, strict=True):  # drawn in the same pieces
        past = fresh - past[0] / 2, past[1]
        assert torch.allclose(one, past[0], atol=1e-6)


def test_a_step_whose_noise_failed_is_no_past():
    memories = []

    @dataclass(frozen=True)
    class Failing(Gaussian):
        def start(self):
            memories.append(Halves())
            return memories[-1]

        def sample(self, out, scale, source):
            if len(memories[-1].past) == 1:
                raise OSError("no randomness")
            super().sample(out, scale, source)

    with pytest.raises(OSError, match="no randomness"):
        released(Failing(2.0))
    assert len(memories) == 2
    assert not memories[1].past


def test_whole_numbers_have_no_such_noise():
    with pytest.raises(PrivacyError, match="whole numbers"):
        released(Returning(2.0), hardening="exact")
