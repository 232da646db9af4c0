"""Complex parameters: each unit's gradient is that of real and imaginary parts, its norm the length of both."""

import pytest
import torch
from oracle import assert_equal, each_loss, square_loss
from torch import nn

import discreet
from discreet.gradients import Engine
from discreet.gradients.forms.complex_parts import real_parts

R = torch.randn


class Fourier(nn.Module):
    """A layer of a Fourier neural operator between two real ones: a product for each frequency."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 4), nn.Linear(4, 2)
        self.weight = nn.Parameter(R(4, 4, 3, dtype=torch.complex128))
        self.phase = nn.Parameter(R(4, 1, dtype=torch.complex128))

    def forward(self, x):
        modes = torch.fft.rfft(self.inner(x).transpose(1, 2))[..., :3]
        modes = torch.einsum("bim,iom->bom", modes, self.weight) + self.phase
        modes = modes * torch.exp(1j * self.phase.abs())
        return self.outer(torch.fft.irfft(modes, n=x.shape[1]).transpose(1, 2).tanh())


class Twice(nn.Module):
    """A complex matrix that is used twice, once conjugated, and a real one that meets complex values."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(R(3, 3, dtype=torch.complex128))
        self.real = nn.Parameter(R(3, 3).double())

    def forward(self, x):
        hidden = x.to(torch.complex128) @ self.weight
        hidden = (hidden @ self.weight.conj().t()) @ self.real.to(torch.complex128)
        return torch.view_as_real(hidden).flatten(1)


MODELS = {"fourier": (Fourier, (5, 6, 3)), "used twice": (Twice, (5, 3))}


@pytest.mark.parametrize(("make", "shape"), MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("units", [1, 5])
def test_complex_parameters_are_exact(make, shape, units):
    model, x = make().double(), R(shape).double()[:units]
    engine = Engine(model)
    for _ in range(2):
        losses = square_loss(model(x))
        expected = {name: real_parts(each) for name, each in each_loss(model, losses).items()}
        assert_equal(engine.gradients(losses, units), expected, 1e-12)


def test_what_is_released_is_the_bounded_sum_and_real_noise():
    model, x = Fourier().double(), R(6, 6, 3).double()
    mechanism = discreet.Mechanism(discreet.Clip(0.5), discreet.Gaussian(1e-9))
    plan = discreet.Plan(sampling=discreet.Poisson(rate=1.0, batch_size=6), mechanism=mechanism, steps=1, delta=1e-5)
    expected = each_loss(model, square_loss(model(x)))
    lengths = torch.stack([each.flatten(1).abs().square().sum(1) for each in expected.values()]).sum(0).sqrt()
    private = discreet.attach(model, plan)
    for (rows,) in private.batches((x,)):
        assert private.backward(lambda batch: square_loss(model(batch)), rows)
    for name, parameter in model.named_parameters():
        each = expected[name] * (0.5 / lengths).clamp(max=1).view(-1, *[1] * parameter.dim())
        assert parameter.grad is not None
        assert parameter.grad.dtype == parameter.dtype
        assert torch.allclose(parameter.grad, each.sum(0) / 6, atol=1e-8)
