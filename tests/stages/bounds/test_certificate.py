import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from discreet import ConfigError
from discreet.nn import BELU, BoundedTanh, TemperedSigmoid
from discreet.stages.bounds.bounded_network import BoundedNetwork
from discreet.stages.bounds.certificate import (
    Activation,
    Convolution,
    Flatten,
    Linear,
    Pool,
    belu_certificate,
    head_norm,
    network_certificate,
)
from discreet.stages.sensitivity import norm_of

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


@given(
    widths=st.lists(st.integers(1, 40), min_size=2, max_size=5),
    alpha=st.floats(0.1, 3),
    beta=st.just(0.0) | st.floats(1e-100, 20),
    radius=st.floats(0.1, 30),
    limit=st.floats(0.1, 5),
    head=st.sampled_from(HEADS[:2]),
)
def test_it_is_the_formula_of_the_theory(widths, alpha, beta, radius, limit, head):
    """THEORY section 3, term by term."""
    layers = len(widths) - 1
    found = belu_certificate(
        widths, alpha=alpha, beta=beta, input_norm=radius, weight_norms=[limit] * (layers - 1), head=head
    )
    slope = max(1, alpha)
    gradient = math.sqrt(2) * (slope if head == "belu cross-entropy" else 1)
    expected = []
    for i in reversed(range(layers)):
        inputs = radius if i == 0 else math.sqrt(widths[i]) * (alpha + beta)
        expected.append(gradient * math.sqrt(inputs**2 + 1))
        gradient *= slope * limit
    assert [b.norm for b in found.blocks] == pytest.approx(expected[::-1], rel=1e-12)
    assert [b.members for b in found.blocks] == [(f"layer {i + 1}",) for i in range(layers)]


# --- the attack: ascent over inputs, labels, weights and biases, within what is enforced -----------------------------

NETWORKS = {
    "belu": (
        lambda: nn.Sequential(nn.Linear(6, 5), BELU(1.0, 2.0), nn.Linear(5, 4), BELU(1.0, 2.0), nn.Linear(4, 3)),
        BoundedNetwork(2.0, 1.5),
    ),
    "steep belu, one layer without a bias": (
        lambda: nn.Sequential(nn.Linear(4, 6, bias=False), BELU(2.0, 1.0), nn.Linear(6, 3)),
        BoundedNetwork(0.5, 3.0),
    ),
    "tempered sigmoid and tanh": (
        lambda: nn.Sequential(
            nn.Linear(4, 5), TemperedSigmoid(3.0, 2.0, 1.0), nn.Linear(5, 4), BoundedTanh(2.0, 0.5), nn.Linear(4, 2)
        ),
        BoundedNetwork(1.0, (0.7, 2.0)),
    ),
    "belu outputs, cross-entropy": (
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), BELU(2.0, 1.0)),
        BoundedNetwork(1.0, 2.0, loss="belu cross-entropy"),
    ),
    "belu outputs, squared": (
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Sigmoid(), nn.Linear(5, 3), BELU(1.5, 2.0)),
        BoundedNetwork(1.0, 2.0, loss="belu squared"),
    ),
    "sigmoid outputs, squared": (
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.Sigmoid()),
        BoundedNetwork(1.0, 2.0, loss="belu squared"),
    ),
    "one layer": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), BoundedNetwork(1.5)),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3, padding=1),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Conv2d(2, 3, 2),
            BELU(1.0, 1.0),
            nn.Flatten(),
            nn.Linear(12, 3),
        ),
        BoundedNetwork(3.0, 1.2, input_shape=(1, 6, 6)),
    ),
    "strides, and pooling before the activation": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 3, 3, stride=2, padding="valid"),
            nn.MaxPool1d(2),
            nn.Tanh(),
            nn.Sequential(nn.Conv1d(3, 2, 2, padding="same"), nn.Sigmoid()),
            nn.Flatten(),
            nn.Linear(4, 2),
        ),
        BoundedNetwork(1.0, 2.0, input_shape=(2, 9)),
    ),
}


def loss_of(bound, outputs, label):
    if bound.loss == "belu squared":
        return 0.5 * (outputs[0] - F.one_hot(label, outputs.shape[1])[0]).square().sum()
    return F.cross_entropy(outputs, label)


def attacked(name, *, project=True, restarts=2, steps=30):
    """The largest gradient found for each layer, and the certificate."""
    build, bound = NETWORKS[name]
    torch.manual_seed(3)
    bound = bound.fit_to(build())
    certificate = bound.contract(bound.layout, None)
    largest = [0.0] * len(certificate.blocks)
    for restart in range(restarts):
        model = build().double()
        parameters = dict(model.named_parameters())
        limits = dict(zip([b.members[0] for b in certificate.blocks[1:]], bound.weight_norms, strict=True))
        shape = bound.input_shape or (model.get_parameter(bound.layout.names[0]).shape[1],)
        x = torch.randn(1, *shape, dtype=torch.float64, requires_grad=True)
        label = torch.tensor([restart])
        optimizer = torch.optim.Adam([*parameters.values(), x], lr=0.1)
        for _ in range(steps):
            with torch.no_grad():
                for weight, limit in limits.items() if project else ():
                    size = float(torch.linalg.matrix_norm(parameters[weight].flatten(1), 2))
                    parameters[weight].mul_(limit / size)
                x.mul_(min(1.0, bound.input_norm / float(x.norm())))
            gradients = torch.autograd.grad(
                loss_of(bound, model(x), label), list(parameters.values()), create_graph=True
            )
            each = dict(zip(parameters, gradients, strict=True))
            shares = [sum(each[n].square().sum() for n in b.members) / b.norm**2 for b in certificate.blocks]
            found = [math.sqrt(float(s.detach())) * b.norm for s, b in zip(shares, certificate.blocks, strict=True)]
            largest = [max(pair) for pair in zip(largest, found, strict=True)]
            optimizer.zero_grad()
            (-sum(shares).clamp_min(1e-12).log()).backward()
            optimizer.step()
    return largest, certificate


@pytest.mark.parametrize("name", NETWORKS)
def test_the_attack_does_not_break_the_certificate(name):
    largest, certificate = attacked(name)
    for found, block in zip(largest, certificate.blocks, strict=True):
        assert 0 < found <= block.norm
    assert max(f / b.norm for f, b in zip(largest, certificate.blocks, strict=True)) > 0.2  # the search is worth it


def test_the_attack_breaks_what_the_paper_claims():
    """alpha + beta bounds no layer's gradient."""
    largest, _ = attacked("belu")
    assert max(largest) > 1.0 + 2.0


def test_the_attack_breaks_the_certificate_where_weights_are_not_projected():
    largest, certificate = attacked("belu", project=False, steps=100)
    assert any(found > block.norm for found, block in zip(largest, certificate.blocks, strict=True))


# --- the lemmas ------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    size=st.integers(1, 7),
    other=st.integers(1, 7),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
)
def test_a_convolution_copies_a_value_into_as_many_patches_as_it_says_at_most(size, other, kernel, stride, padding):
    padding = tuple(min(p, k // 2) for p, k in zip(padding, kernel, strict=True))
    layer = Convolution("c", 1, 2, kernel, stride, tuple(2 * p for p in padding))
    shape = (1, max(size, kernel[0]), max(other, kernel[1]))
    values = torch.eye(math.prod(shape), dtype=torch.float64).view(-1, *shape)
    patches = F.unfold(values, kernel, stride=stride, padding=padding)
    counts = patches.flatten(1).sum(1)
    assert counts.max() <= layer.copies(shape)
    assert patches.shape[2] == math.prod(layer.after(shape)[1:])
    weight = torch.randn(2, 1, *kernel, dtype=torch.float64)
    columns = F.conv2d(values, weight, stride=stride, padding=padding).flatten(1)
    limit = math.sqrt(layer.copies(shape)) * float(torch.linalg.matrix_norm(weight.flatten(1), 2))
    assert float(torch.linalg.matrix_norm(columns, 2)) <= limit * (1 + 1e-12)


def test_the_number_of_copies_is_reached():
    layer = Convolution("c", 1, 1, (3, 4), (1, 2), (0, 0))
    counts = F.unfold(torch.eye(81).view(-1, 1, 9, 9), (3, 4), stride=(1, 2)).flatten(1).sum(1)
    assert counts.max() == layer.copies((1, 9, 9)) == 6


@pytest.mark.parametrize(("kind", "function"), [("average", F.avg_pool2d), ("max", F.max_pool2d)])
def test_pooling_shortens_as_it_says(kind, function):
    pool = Pool(kind, (2, 3), (3, 3))
    x = torch.randn(200, 2, 8, 9, dtype=torch.float64, requires_grad=True)
    pooled = function(x, (2, 3), stride=(3, 3))
    assert tuple(pooled.shape[1:]) == pool.after((2, 8, 9))
    assert bool((pooled.flatten(1).norm(dim=1) <= pool.gain * x.flatten(1).norm(dim=1)).all())
    back = torch.randn_like(pooled)
    (gradient,) = torch.autograd.grad(pooled, x, back)
    assert bool((gradient.flatten(1).norm(dim=1) <= pool.gain * back.flatten(1).norm(dim=1) * (1 + 1e-12)).all())
    assert pool.gain == pytest.approx(1 if kind == "max" else 6**-0.5)


@pytest.mark.parametrize(
    ("last", "function"),
    [(Activation("BELU", -1.5, 3.5, 1.5), BELU(1.5, 2.0)), (Activation("Sigmoid", 0.0, 1.0, 0.25), nn.Sigmoid())],
)
@pytest.mark.parametrize("loss", HEADS[1:])
def test_no_loss_has_a_larger_gradient_at_the_last_layer(loss, last, function):
    a = (torch.randn(20_000, 3, dtype=torch.float64) * 3).requires_grad_()
    labels = torch.randint(3, (20_000,))
    h = function(a)
    if loss == "belu squared":
        total = 0.5 * (h - F.one_hot(labels, 3)).square().sum()
    else:
        total = F.cross_entropy(h, labels, reduction="sum")
    (rows,) = torch.autograd.grad(total, a)
    share = float(rows.norm(dim=1).max()) / head_norm(loss, 3, last)
    assert 0.1 < share <= 1


def certificate_of(*stages, weights=1, shape=()):
    return network_certificate(stages, input_norm=1.0, weight_norms=[1.0] * weights, head_norm=1.0, input_shape=shape)


TANH = Activation("Tanh", -1.0, 1.0, 1.0)


def test_a_convolutional_network_worked_out_by_hand():
    found = certificate_of(
        Convolution("0", 1, 2, (3, 3), (1, 1), (2, 2)),
        TANH,
        Pool("average", (2, 2), (2, 2)),
        Flatten(),
        Linear("4", 8, 3, bias=False),
        shape=(1, 4, 4),
    )
    first = 0.5 * math.sqrt(9 * 1 + 16)  # the slope of average pooling; nine copies; sixteen positions
    second = math.sqrt(8)  # eight values of at most 1
    assert [b.norm for b in found.blocks] == pytest.approx([first, second])
    assert [b.members for b in found.blocks] == [("0.weight", "0.bias"), ("4.weight",)]
    assert [b.size for b in found.blocks] == [20, 24]


def test_patches_hold_no_more_than_their_entries():
    """A convolution without padding has fewer entries in its patches than copies of all its inputs."""
    stages = Linear("0", 4, 8), TANH, Convolution("c", 8, 1, (1,), (1,), (0,))
    with pytest.raises(ConfigError, match="takes 8 channels"):
        certificate_of(*stages)
    found = certificate_of(
        Convolution("a", 1, 1, (1,), (1,), (0,)),
        TANH,
        Convolution("b", 1, 1, (3,), (1,), (0,), bias=False),
        TANH,
        Flatten(),
        Linear("d", 2, 2),
        weights=2,
        shape=(1, 4),
    )
    assert found.blocks[1].norm == pytest.approx(math.sqrt(2 * 3))  # not sqrt(2 copies * 4 values)


@pytest.mark.parametrize(
    ("stages", "match"),
    [
        ((), "no Linear or convolutional layer"),
        ((Linear("0", 2, 2), Linear("1", 2, 2)), "layer '1' follows another one with no bounded activation"),
        ((Linear("0", 2, 2), TANH, Linear("1", 3, 2)), "takes 3 flat values"),
        ((Linear("0", 2, 2), TANH, Linear("1", 2, 2), TANH, TANH), "must end with a Linear layer"),
        ((Linear("0", 2, 2), TANH, Linear("1", 2, 2), Flatten()), "must end with a Linear layer"),
        ((Linear("0", 2, 2),), "1 layers need 0 weight norms"),
        ((Convolution("0", 1, 1, (2,), (1,), (0,)), TANH, Flatten(), Linear("1", 3, 2)), "give input_shape"),
    ],
)
def test_what_has_no_certificate(stages, match):
    with pytest.raises(ConfigError, match=match):
        certificate_of(*stages)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Pool("average", (3,), (2,)), "overlap"),
        (lambda: Pool("median", (3,), (3,)), "'average' or 'max'"),
        (lambda: Pool("max", (0,), (1,)), "whole number >= 1"),
        (lambda: Convolution("c", 1, 1, (3, 3), (1,), (0, 0)), "one or two numbers"),
        (lambda: Convolution("c", 1, 1, (3,), (1,), (0, 0)), "padding"),
        (lambda: Convolution("c", 1, 1, (3,), (1,), (-1,)), "whole number >= 0"),
        (lambda: Convolution("c", 1, 1, (3,), (1,), (0,)).after((1, 2)), "larger than what it gets"),
        (lambda: Linear("c", 0, 1), "whole number >= 1"),
        (lambda: Linear("c", 1, 1, "yes"), "true or false"),
        (lambda: Activation("f", -1.0, math.nan, 1.0), "finite number"),
        (lambda: Activation("f", 1.0, -1.0, 1.0), "from 1 to -1"),
        (lambda: Activation("f", -1.0, 1.0, math.inf), "finite number"),
        (lambda: head_norm("cross-entropy", 3, TANH), "Tanh follows the last layer"),
        (lambda: head_norm("belu squared", 3, None), "put a bounded activation"),
        (lambda: head_norm("hinge", 3, None), "not one of"),
    ],
)
def test_nonsense_is_refused(make, match):
    with pytest.raises(ConfigError, match=match):
        make()
