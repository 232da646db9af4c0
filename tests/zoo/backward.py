"""B5: backward passes that use the batch, where the forward pass does not."""

import torch
from torch import nn
from torch.autograd import Function

from zoo.cases import CLASSES, WIDTH, Case, Lambda, cross_entropy, images, mixing, stack, table_case


class LinearBy(Function):
    """A linear layer whose weight gradient is computed from changed inputs."""

    @staticmethod
    def forward(ctx, x, weight, bias, change):
        ctx.save_for_backward(x, weight)
        ctx.change = change
        return x @ weight.T + bias

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.T @ ctx.change(x), grad.sum(0), None


class Custom(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.weight, self.bias = nn.Parameter(0.3 * torch.randn(8, WIDTH)), nn.Parameter(torch.zeros(8))
        self.change = change

    def forward(self, x):
        return LinearBy.apply(x, self.weight, self.bias, self.change)


def with_gradient_of(change):
    return table_case(nn.Sequential(Custom(change), nn.Tanh(), nn.Linear(8, CLASSES)))


@mixing("a linear layer's weight gradient is computed from inputs centred by the batch")
def weight_gradient_from_centred_inputs():
    return with_gradient_of(lambda x: x - x.mean(0))


@mixing("a linear layer's weight gradient is preconditioned by the batch's covariance, as K-FAC does")
def weight_gradient_preconditioned_by_the_batch():
    return with_gradient_of(
        lambda x: x @ torch.linalg.inv(x.T @ x / len(x) + 0.1 * torch.eye(x.shape[1], dtype=x.dtype))
    )


@mixing("a linear layer's weight gradient is divided by the batch's largest input")
def weight_gradient_scaled_by_the_batchs_range():
    return with_gradient_of(lambda x: x / x.abs().max())


@mixing("a linear layer's weight gradient uses the batch's inputs in eight bits, with one scale for all")
def weight_gradient_from_quantised_batch():
    def quantised(x):
        step = x.abs().max() / 7
        return (x / step).round() * step

    return with_gradient_of(quantised)


class ScaledBy(Function):
    """The identity, with a gradient scaled by something of the batch."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.scale(ctx.saved_tensors[0], grad), None


def scaled(scale):
    return table_case(stack(nn.Tanh(), Lambda(lambda x: ScaledBy.apply(x, scale))))


@mixing("an activation's gradient is divided by the batch's mean activation")
def gradient_scaled_by_mean_activation():
    return scaled(lambda x, grad: 1 / (0.1 + x.abs().mean(0)))


@mixing("gradient reversal with a strength that depends on the batch's spread")
def gradient_reversal_by_the_batchs_spread():
    return scaled(lambda x, grad: -x.std())


@mixing("an activation's gradient is divided by its norm over the whole batch")
def gradient_normalised_over_the_batch():
    return scaled(lambda x, grad: 1 / (grad.norm() + 1e-12))


@mixing("an activation's gradient is centred over the batch, as in gradient centralisation gone wrong")
def gradient_hook_that_centres():
    class Hooked(nn.Module):
        def forward(self, x):
            x = x * 1.0
            if x.requires_grad:
                x.register_hook(lambda grad: grad - grad.mean(0))
            return x

    return table_case(stack(nn.Tanh(), Hooked()))


@mixing("a full backward hook clips an activation's gradient by its norm over the batch")
def module_hook_that_clips_the_batch():
    model = stack(nn.Tanh(), nn.Linear(8, 8))
    model[2].register_full_backward_hook(
        lambda module, inputs, outputs: (inputs[0] * (0.2 / (inputs[0].norm() + 1e-12)).clamp(max=1),)
    )
    return table_case(model)


@mixing("a convolution's input gradient is sign-quantised at the batch's mean size")
def sign_gradient_at_the_batchs_scale():
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        Lambda(lambda x: ScaledBy.apply(x, lambda x, grad: x.abs().amax((0, 2, 3), keepdim=True))),
        nn.Flatten(),
        nn.Linear(4 * 36, CLASSES),
    )
    return Case(model, images(), cross_entropy)
