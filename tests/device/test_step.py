"""A step on a device: what is released is what the CPU releases; the host waits two times at most, three in chunks."""

import math

import pytest
import torch
from elsewhere import DEVICE, there, waits
from torch import nn
from torch.nn import functional as F

import discreet
from discreet import AdaptiveClip, AutomaticClip, Clip, Encode, Gaussian, JamesStein, Laplace, Mechanism, PerLayerClip
from discreet.gradients.forms import base
from discreet.stages.noise.random import SecureStream

ROWS, STEPS = 24, 8
PROBED = (1, 2, 3, 5, STEPS)  # of the steps, isolation is probed in these


class Words(nn.Module):
    """A table of words, attention over them, and a linear layer on their mean."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(30, 8)
        self.mix = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x):
        h = self.words(x)
        return self.head(self.norm(h + self.mix(h, h, h, need_weights=False)[0]).mean(1))


class Standardised(nn.Conv2d):
    """A convolution whose weight is made zero-mean and of unit variance."""

    def forward(self, x):
        w = self.weight
        w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.var((1, 2, 3), keepdim=True) + 1e-5).sqrt()
        return F.conv2d(x, w, self.bias, self.stride, self.padding)


def vectors():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(ROWS, 6)


def images():
    layers = nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.Flatten(), nn.Linear(80, 3)
    return nn.Sequential(*layers), torch.randn(ROWS, 2, 8, 8)


def standardised():
    layers = Standardised(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
    return nn.Sequential(*layers), torch.randn(ROWS, 2, 8, 8)


def words():
    return Words(), torch.randint(30, (ROWS, 12))


CASES = {case.__name__: case for case in (vectors, images, standardised, words)}
KERNELS = {"gram": "words", "product+chunked": "words", "grouped+chunked": "images"}


def plan(mechanism=None, steps=STEPS):
    mechanism = Mechanism(bound=Clip(1.0), noise=Gaussian(1.0)) if mechanism is None else mechanism
    sampling = discreet.Poisson(examples=ROWS, batch_size=12)
    return discreet.Plan(sampling=sampling, mechanism=mechanism, steps=steps, delta=1e-3)


def train(model, data, plan, **options):
    """What is released, step by step, and how often a host waited in each step."""
    private = discreet.attach(model, plan, seed=3, **options)
    found, counted = [], []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in private.batches(data):
        with waits() as counts:
            private.backward(lambda b: F.cross_entropy(model(b[0]), b[1], reduction="none"), batch)
            optimizer.step()
        counted.append(dict(counts))
        found.append({name: p.grad.cpu() for name, p in model.named_parameters()})
    private.detach()
    return found, counted


def made(case, place, spoil=None):
    """A model and its data, at a place."""
    torch.manual_seed(0)
    model, inputs = CASES[case]()
    if spoil is not None:
        inputs[::5] = spoil
    return place(model), (place(inputs), place(torch.arange(ROWS) % 3))


@pytest.fixture
def _no_noise(monkeypatch):
    """The noise is drawn and taken for zero: a device's values are others than the CPU's."""
    monkeypatch.setattr(SecureStream, "fill_normal", lambda stream, out, scale: out.zero_())


def assert_waits_seldom(case, most=2, **options):
    _, counted = train(*made(case, there), plan(), **options)
    steady = [sum(step.values()) for number, step in enumerate(counted, 1) if number not in (*PROBED, STEPS)]
    assert max(steady) <= most, counted


@pytest.mark.parametrize("case", CASES)
def test_a_steady_step_waits_for_the_device_at_most_twice(case):
    assert_waits_seldom(case)


@pytest.mark.parametrize("kernel", KERNELS)
def test_it_waits_seldom_with_other_kernels_and_in_many_chunks(kernel, monkeypatch):
    monkeypatch.setattr(base, "CHUNK_BYTES", 2_000)
    assert_waits_seldom(KERNELS[kernel], most=3 if "chunked" in kernel else 2, kernels={"*": kernel})


def assert_same(case, spoil=None):
    (on_cpu, _), (elsewhere, _) = (train(*made(case, at, spoil), plan(steps=3)) for at in (lambda here: here, there))
    for one, other in zip(on_cpu, elsewhere, strict=True):
        for name in one:
            torch.testing.assert_close(other[name], one[name], rtol=2e-4, atol=2e-6)


@pytest.mark.usefixtures("_no_noise")
@pytest.mark.parametrize("case", CASES)
def test_what_is_released_is_what_the_cpu_releases(case):
    assert_same(case)


@pytest.mark.usefixtures("_no_noise")
@pytest.mark.parametrize("spoil", [math.nan, 1e30])
@pytest.mark.parametrize("case", ["vectors", "images"])
def test_examples_that_are_not_finite_contribute_nothing_there_either(case, spoil, monkeypatch):
    monkeypatch.setattr(base, "CHUNK_BYTES", 2_000)
    assert_same(case, spoil)


MECHANISMS = {
    "adaptive clipping": Mechanism(bound=AdaptiveClip(1.0), noise=Gaussian(2.0)),
    "clipping by layers": Mechanism(bound=PerLayerClip(1.0), noise=Gaussian(1.0)),
    "automatic clipping": Mechanism(bound=AutomaticClip(), noise=Gaussian(1.0)),
    "element by element": Mechanism(bound=Encode(), noise=Gaussian(1.0)),
    "another law": Mechanism(bound=Clip(1.0), noise=Laplace(1.0)),
    "in whole numbers": Mechanism(bound=Clip(1.0), noise=Gaussian(1.0), hardening="exact"),
    "a denoiser": Mechanism(bound=Clip(1.0), noise=Gaussian(1.0), denoise=JamesStein()),
    "microbatches": Mechanism(bound=Clip(1.0), noise=Gaussian(1.0), microbatch=2),
}


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_kind_of_mechanism_runs_there(name):
    model, data = made("vectors", there)
    found, _ = train(model, data, plan(MECHANISMS[name], steps=2))
    assert all(g.isfinite().all() for step in found for g in step.values())
    assert all(p.grad.device == DEVICE for p in model.parameters())
