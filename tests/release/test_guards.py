import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import discreet
from discreet import PrivacyError

PLAN = discreet.methods.dp_sgd(examples=20, batch_size=10, steps=2, noise=2.0, delta=1e-5)
DATA = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2


def steps(model, optimizer, features=None):
    private = discreet.attach(model, PLAN, preflight=False)
    try:
        for x, y in private.batches(DATA):
            private.backward(F.cross_entropy(model(x if features is None else features(x)), y, reduction="none"))
            optimizer.step()
    finally:
        private.detach()


def test_an_optimizer_that_also_holds_what_no_plan_covers_is_warned_of_once():
    head, other = nn.Linear(3, 2), nn.Linear(3, 3)
    optimizer = torch.optim.SGD([*head.parameters(), *other.parameters()], lr=0.1)
    with pytest.warns(
        UserWarning, match=r"2 trainable parameters that no plan covers, of shapes \(3, 3\), \(3,\)"
    ) as said:
        steps(head, optimizer)
    assert len(said) == 1


def test_an_optimizer_of_the_model_or_of_frozen_parts_or_of_another_model_is_none():
    head, other = nn.Linear(3, 2), nn.Linear(3, 3).requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps(head, torch.optim.SGD([*head.parameters(), *other.parameters()], lr=0.1))
        elsewhere = nn.Linear(2, 2)
        optimizer = torch.optim.Adam(elsewhere.parameters())
        private = discreet.attach(head, PLAN, preflight=False)
        elsewhere(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        private.detach()


def test_a_generator_learns_through_an_attached_model_by_the_remedy_that_the_error_names():
    discriminator, generator = nn.Linear(3, 2), nn.Linear(2, 3)
    private = discreet.attach(discriminator, PLAN, preflight=False)
    with pytest.raises(PrivacyError, match=r"loss.backward\(inputs=\[\*other.parameters\(\)\]\)"):
        discriminator(generator(torch.ones(4, 2))).sum().backward()
    generator.zero_grad()
    discriminator(generator(torch.ones(4, 2))).sum().backward(inputs=[*generator.parameters()])
    assert all(p.grad is not None for p in generator.parameters())
    assert all(p.grad is None for p in discriminator.parameters())
    private.detach()


def test_batch_normalisation_is_refused_with_the_conversion_that_helps():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    with pytest.raises(PrivacyError, match=r"discreet\.nn\.convert\(model, batch_norm='group'\)"):
        discreet.attach(model, PLAN)
    discreet.attach(discreet.nn.convert(model, batch_norm="group"), PLAN).detach()
