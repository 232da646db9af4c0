"""Random models, drawn by hypothesis, against autograd one example at a time."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import norms, one_by_one, square_loss
from torch import nn

from discreet.gradients import Engine


class Residual(nn.Module):
    def __init__(self, inner, in_place):
        super().__init__()
        self.inner, self.in_place = inner, in_place

    def forward(self, x):
        h = self.inner(x)
        if self.in_place:
            h += x
            return h
        return h + x


class Twice(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(torch.tanh(self.inner(x)))


class Scaled(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.randn(shape)), nn.Parameter(torch.randn(shape))

    def forward(self, x):
        return x * self.scale + self.shift


activations = st.sampled_from([nn.Tanh(), nn.ReLU(inplace=True), nn.GELU(), nn.Sigmoid()])


@st.composite
def vector_models(draw):
    """Layers on [batch, rows..., 4]."""
    layers = []
    shared = nn.Linear(4, 4)
    for _ in range(draw(st.integers(1, 5))):
        layer = draw(
            st.sampled_from(
                [
                    lambda: nn.Linear(4, 4, bias=draw(st.booleans())),
                    lambda: nn.LayerNorm(4, eps=1e-2),
                    # a sizeable constant: dead inputs would magnify the rounding between two forward passes
                    lambda: nn.RMSNorm(4, eps=1e-2),
                    lambda: Residual(nn.Linear(4, 4), draw(st.booleans())),
                    lambda: Twice(nn.Linear(4, 4)),
                    lambda: Scaled(draw(st.sampled_from([(4,), (1, 4), ()]))),
                    lambda: shared,
                    lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4)),
                ]
            )
        )()
        layers.append(layer.requires_grad_(draw(st.sampled_from([True, True, True, False]))))
        layers.append(draw(activations))
    layers.append(nn.Linear(4, 3))
    return nn.Sequential(*layers)


@st.composite
def image_models(draw):
    """Layers on [batch, 4, 6, 6]."""
    layers = []
    for _ in range(draw(st.integers(1, 3))):
        groups = draw(st.sampled_from([1, 2, 4]))
        dilation = draw(st.integers(1, 2))
        layer = draw(
            st.sampled_from(
                [
                    lambda: nn.Conv2d(4, 4, 3, padding=dilation, dilation=dilation, groups=groups),  # noqa: B023
                    lambda: nn.Conv2d(4, 4, (1, 3), padding="same", groups=groups, bias=False),  # noqa: B023
                    lambda: nn.GroupNorm(groups, 4),  # noqa: B023
                    lambda: Twice(nn.Conv2d(4, 4, 3, padding=1)),
                    lambda: Residual(nn.Conv2d(4, 4, 1), draw(st.booleans())),
                    lambda: nn.ConvTranspose2d(4, 4, 3, padding=1, groups=groups),  # noqa: B023
                    lambda: Scaled((4, 1, 1)),
                ]
            )
        )()
        layers += [layer, draw(activations)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))


def assert_exact_jointly(model, x):
    """Errors relative to an example's whole gradient: a random model may have parameters whose own all but vanishes."""
    model = model.double()
    expected = one_by_one(model, [x])
    engine = Engine(model)
    for _ in range(2):
        gradients = engine.gradients(square_loss(model(x)), len(x))
        whole = torch.stack([norms(e) for e in expected.values()]).norm(dim=0)
        for name, each in gradients.each(0, len(x)).items():
            assert ((norms(each - expected[name]) / whole).max()) < 1e-11, name
        for name, squared in gradients.norms().items():
            assert ((squared.sqrt() - norms(expected[name])).abs() / whole).max() < 1e-11, name


@given(vector_models(), st.integers(2, 5), st.sampled_from([(), (1,), (3,), (2, 3)]), st.integers(0, 2**20))
def test_random_networks_on_vectors_and_sequences(model, batch, rows, seed):
    torch.manual_seed(seed)
    assert_exact_jointly(model, torch.randn(batch, *rows, 4).double())


@given(image_models(), st.integers(2, 4), st.integers(0, 2**20))
def test_random_networks_on_images(model, batch, seed):
    torch.manual_seed(seed)
    assert_exact_jointly(model, torch.randn(batch, 4, 6, 6).double())
