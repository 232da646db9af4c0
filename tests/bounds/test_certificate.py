import math
from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

from discreet import ConfigError
from discreet.bounds.certificate import belu_certificate
from discreet.contracts import norm_of

HEADS = ("cross-entropy", "belu cross-entropy", "belu squared")


def test_the_test_vector():
    """THEORY section 10."""
    found = belu_certificate([6, 5, 4, 3], alpha=1, beta=2, input_norm=2, weight_norms=[1.5, 1.5])
    assert [b.norm for b in found.blocks] == pytest.approx([7.115, 14.387, 8.602], abs=6e-4)
    assert norm_of(found) == pytest.approx(18.211, abs=6e-4)
    assert [b.size for b in found.blocks] == [35, 24, 15]


@pytest.mark.parametrize(("beta", "bound"), [(2, 81.5), (5, 91.4), (20, 185)])
def test_the_papers_network(beta, bound):
    found = belu_certificate([1024, 32, 10], alpha=1, beta=beta, input_norm=28, weight_norms=[1.96])
    assert norm_of(found) == pytest.approx(bound, rel=6e-3)


def belu(x, alpha, beta):
    low = alpha * torch.expm1(x.clamp(max=0))
    high = beta - alpha * torch.expm1(-(x - beta).clamp(min=0))
    return torch.where(x < 0, low, torch.where(x <= beta, x, high))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 2.0), (0.5, 1.0), (2.0, 1.0)])
def test_no_gradient_an_adversary_finds_is_larger(head, alpha, beta):
    """Ascent over weights, biases and the input, within their limits: every layer stays below its bound."""
    widths, limit, radius = [6, 5, 4, 3], 1.5, 2.0
    certificate = belu_certificate(
        widths, alpha=alpha, beta=beta, input_norm=radius, weight_norms=[limit, limit], head=head
    )
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(o, i, generator=generator, dtype=torch.float64) for i, o in pairwise(widths)]
    biases = [torch.randn(o, generator=generator, dtype=torch.float64) for o in widths[1:]]
    x = torch.randn(widths[0], generator=generator, dtype=torch.float64)
    leaves = [t.requires_grad_() for t in (*weights, *biases, x)]
    optimizer = torch.optim.Adam(leaves, lr=0.05)
    largest = [0.0] * 3
    for _ in range(120):
        with torch.no_grad():
            for weight in weights[1:]:
                weight.mul_(min(1.0, limit / float(torch.linalg.matrix_norm(weight, 2))))
            x.mul_(min(1.0, radius / float(x.norm())))
        h = x
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            h = weight @ h + bias
            if i < 2 or head != "cross-entropy":
                h = belu(h, alpha, beta)
        target = torch.tensor([0])
        if head == "belu squared":
            loss = 0.5 * (h - F.one_hot(target, 3)[0].double()).square().sum()
        else:
            loss = F.cross_entropy(h[None], target)
        gradients = torch.autograd.grad(loss, weights + biases, create_graph=True)
        squared = [gradients[i].square().sum() + gradients[3 + i].square().sum() for i in range(3)]
        largest = [max(a, math.sqrt(float(b.detach()))) for a, b in zip(largest, squared, strict=True)]
        optimizer.zero_grad()
        (-sum(squared).clamp_min(1e-12).log()).backward()
        optimizer.step()
    for found, block in zip(largest, certificate.blocks, strict=True):
        assert 0 < found <= block.norm
    assert math.hypot(*largest) > 0.1 * norm_of(certificate)  # the search is worth something


def test_widths_and_norms_must_fit():
    with pytest.raises(ConfigError, match="need 1 weight norms"):
        belu_certificate([4, 3, 2], alpha=1, beta=2, input_norm=1, weight_norms=[])
    with pytest.raises(ConfigError, match="loss 'hinge'"):
        belu_certificate([4, 3], alpha=1, beta=2, input_norm=1, weight_norms=[], head="hinge")
