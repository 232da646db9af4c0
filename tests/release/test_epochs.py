import pytest
import torch
from torch import nn
from torch.nn import functional as F

import discreet
from discreet import ConfigError
from discreet.accounting import cost

X, Y = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2


@pytest.fixture
def private():
    plan = discreet.methods.dp_sgd(examples=40, batch_size=10, steps=10, noise=2.0, delta=1e-5)
    attached = discreet.attach(nn.Linear(3, 2), plan, preflight=False)
    yield attached
    attached.detach()


def step(private, batch):
    private.backward(F.cross_entropy(private._model(batch[0]), batch[1], reduction="none"))


def test_batches_have_a_length_and_are_handed_out_once(private):
    batches = private.batches((X, Y), steps=4)
    assert len(batches) == 4
    step(private, next(batches))
    assert len([step(private, batch) for batch in batches]) == 3
    assert next(batches, None) is None
    assert len(private.batches((X, Y))) == 6
    with pytest.raises(TypeError, match="in chunks"):
        len(private.batches((X, Y), at_most=4))


def test_epochs_are_as_many_steps_as_an_example_takes_part_in_once(private):
    epochs = private.epochs((X, Y))
    assert len(epochs) == 3
    seen = []
    for batches in epochs:
        seen.append(len(batches))
        for batch in batches:
            step(private, batch)
    assert seen == [4, 4, 2]
    assert private.remaining == 0
    assert list(private.epochs((X, Y))) == []


def test_epochs_end_also_where_nobody_takes_their_batches(private):
    assert len(list(private.epochs((X, Y)))) == 3
    assert private.released == 0


def test_a_handle_says_what_it_is(private):
    assert repr(private) == "<Private: Poisson, Clip, Gaussian; 0 of 10 steps released, ε = 0 at δ = 1e-05>"
    for batch in private.batches((X, Y), steps=1):
        step(private, batch)
    assert "1 of 10 steps released, ε = 0." in repr(private)


def test_a_guarantee_at_another_delta_and_by_one_accountant(private):
    proven = private.guarantee()
    other = private.guarantee(delta=1e-7)
    assert (other.delta, other.epsilon) == (1e-7, cost(proven.events, 1e-7).epsilon)
    assert other.conditions == proven.conditions
    renyi = private.guarantee(accountant="rdp")
    assert renyi.epsilon == proven.figures()["Rényi, improved conversion"] >= proven.epsilon
    assert renyi.proof.endswith("accounted by Rényi, improved conversion")
    for wrong in ({"delta": 0.0}, {"delta": 1.0}, {"accountant": "moments"}):
        with pytest.raises(ConfigError):
            private.guarantee(**wrong)
