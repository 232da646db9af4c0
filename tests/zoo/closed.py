"""A1: paths that are closed at the first weights, with statistics of the batch behind them."""

import torch
from torch import nn
from torch.nn import functional as F

from zoo.cases import CLASSES, WIDTH, Case, Lambda, cross_entropy, images, mixing, stack, table, table_case


def centred(x):
    return x - x.detach().mean(0)


def closed(model):
    """The same model with a head that starts at zero."""
    nn.init.zeros_(model[-1].weight)
    nn.init.zeros_(model[-1].bias)
    return model


@mixing("the body subtracts the batch's mean, detached; the head starts at zero, so first outputs do not show it")
def zero_head_over_detached_centring():
    return table_case(closed(stack(Lambda(centred), nn.Tanh())))


@mixing("the body divides by the batch's largest value, detached, behind a head that starts at zero")
def zero_head_over_detached_scale():
    return table_case(closed(stack(Lambda(lambda x: x / (1 + x.detach().abs().max())))))


@mixing("inputs of a logistic regression that starts at zero are standardised by the batch")
def zero_logistic_regression_on_whitened_inputs():
    head = nn.Linear(WIDTH, CLASSES)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return table_case(nn.Sequential(Lambda(lambda x: (x - x.mean(0)) / (x.std(0) + 0.1)), head))


@mixing("features of a frozen CNN are centred over the batch before a linear probe that starts at zero")
def zero_linear_probe_on_centred_features():
    body = nn.Conv2d(1, 4, 3).requires_grad_(False)
    model = nn.Sequential(body, nn.ReLU(), nn.Flatten(), Lambda(centred), nn.Linear(4 * 36, CLASSES))
    return Case(closed(model), images(), cross_entropy)


class Adapter(nn.Module):
    """A frozen layer with a low-rank update, B starting at zero; `before` changes what the adapter sees."""

    def __init__(self, before):
        super().__init__()
        self.base = nn.Linear(8, 8).requires_grad_(False)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)
        nn.init.zeros_(self.up.weight)
        self.before = before

    def forward(self, x):
        return self.base(x) + self.up(self.down(self.before(x)))


def adapted(before):
    model = stack(nn.Tanh(), Adapter(before))
    for layer in (model[0], model[-1]):
        layer.requires_grad_(False)
    return table_case(model)


@mixing("a LoRA adapter whose B starts at zero sees inputs centred by the batch")
def lora_over_centred_inputs():
    return adapted(centred)


@mixing("a LoRA adapter whose B starts at zero scales its inputs by the batch's norm")
def lora_over_batch_scaled_inputs():
    return adapted(lambda x: x / x.detach().norm())


@mixing("a LoRA adapter whose B starts at zero drops features that are small in this batch")
def lora_over_features_chosen_by_the_batch():
    return adapted(lambda x: x * (x.detach().abs().mean(0) > x.detach().abs().mean()))


class ReZero(nn.Module):
    """A residual branch times a scalar that starts at zero."""

    def __init__(self, branch):
        super().__init__()
        self.branch, self.alpha = branch, nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x + self.alpha * self.branch(x)


@mixing("a ReZero branch, closed at first, subtracts the batch's mean")
def rezero_over_centring():
    return table_case(stack(ReZero(nn.Sequential(nn.Linear(8, 8), Lambda(centred), nn.Tanh()))))


@mixing("a ReZero branch, closed at first, attends over the batch")
def rezero_over_batch_attention():
    return table_case(stack(ReZero(Lambda(lambda x: torch.softmax(x.detach() @ x.detach().T, 1) @ x))))


@mixing("a ReZero branch, closed at first, ranks rows within the batch")
def rezero_over_ranks():
    return table_case(stack(ReZero(Lambda(lambda x: x * x.detach().argsort(0).argsort(0) / 5))))


class ZeroControl(nn.Module):
    """As ControlNet: a branch joined by a convolution that starts at zero."""

    def __init__(self):
        super().__init__()
        self.stem, self.control, self.join = nn.Conv2d(1, 4, 3), nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 1)
        nn.init.zeros_(self.join.weight)
        nn.init.zeros_(self.join.bias)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x):
        control = self.control(x - x.mean(0))
        return self.head(F.relu(self.stem(x) + self.join(control)).mean((2, 3)))


@mixing("a control branch behind a zero convolution subtracts the batch's mean image")
def zero_convolution_over_mean_image():
    return Case(ZeroControl(), images(), cross_entropy)


@mixing("a gate that opens only above a threshold lets the batch's mean in; at first it is shut")
def gate_that_opens_later():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.gate = nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES), nn.Parameter(torch.zeros(8))

        def forward(self, x):
            hidden = torch.tanh(self.one(x))
            return self.two(hidden + F.relu(self.gate) * hidden.detach().mean(0))

    return Case(Gated(), table(), cross_entropy)
