"""`attach` takes a model, or several that are trained together."""

import pytest
import torch
from torch import nn

from discreet import Clip, ConfigError, Gaussian, Mechanism, Plan, Poisson, PrivacyError, attach

X, ROWS = torch.randn(6, 4), 6


def plan_of(noise=1e-9, steps=2):
    sampling = Poisson(examples=ROWS, batch_size=ROWS)
    return Plan(sampling=sampling, mechanism=Mechanism(Clip(0.5), Gaussian(noise)), steps=steps, delta=1e-5)


def two():
    return nn.Linear(4, 3), nn.Linear(3, 2)


def losses_of(encoder, head, x):
    return head(encoder(x).tanh()).square().sum(1)


def expected(encoder, head):
    """The mean of gradients that are bounded over both modules."""
    parameters = [*encoder.parameters(), *head.parameters()]
    total = [torch.zeros_like(p) for p in parameters]
    for loss in losses_of(encoder, head, X):
        each = torch.autograd.grad(loss, parameters, retain_graph=True)
        scale = min(1.0, 0.5 / float(torch.cat([g.flatten() for g in each]).norm()))
        for sums, g in zip(total, each, strict=True):
            sums += g * scale / ROWS
    return total


@pytest.mark.parametrize("function", [True, False])
def test_several_modules_are_bounded_together(function):
    encoder, head = two()
    truth = expected(encoder, head)
    private = attach([encoder, head], plan_of(), seed=0)
    for x in private.batches(X, steps=1):
        if function:
            private.backward(lambda some: losses_of(encoder, head, some), x)
        else:
            private.backward(losses_of(encoder, head, x))
    found = [p.grad for p in (*encoder.parameters(), *head.parameters())]
    assert all(torch.allclose(f, t, atol=1e-6) for f, t in zip(found, truth, strict=True))
    private.detach()
    losses_of(encoder, head, X).sum().backward()  # they are as they were


def test_isolation_is_tested_over_all_of_them():
    encoder, head = two()
    private = attach([encoder, head], plan_of(), seed=0)

    def mixes(x):
        hidden = encoder(x).tanh()
        return head(hidden - hidden.detach().mean(0)).square().sum(1)

    for x in private.batches(X, steps=1):
        with pytest.raises(PrivacyError, match="mixes"):
            private.backward(mixes, x)


def test_a_module_with_a_plan_is_not_attached_with_another_beside():
    encoder, head = two()
    private = attach(encoder, plan_of(), seed=0)
    with pytest.raises(PrivacyError):
        attach([encoder, head], plan_of(), seed=0)
    private.detach()


@pytest.mark.parametrize("models", [[], [two()[0], "head"], [nn.Linear(1, 1)] * 2])
def test_what_is_no_list_of_modules_is_refused(models):
    with pytest.raises(ConfigError):
        attach(models, plan_of())
