"""Normalisation over the batch, in the forms in which users write it."""

import torch
from torch import nn
from torch.nn import functional as F

from zoo.cases import CLASSES, Case, Lambda, classifier, cross_entropy, images, mixing, stack, table_case


@mixing("batch norm in training mode uses statistics of the batch, and keeps them")
def batch_norm():
    return classifier(nn.BatchNorm1d(8), nn.ReLU())


@mixing("batch norm without running statistics uses the batch's in eval mode, too")
def batch_norm_without_running_statistics():
    model = stack(nn.BatchNorm1d(8, track_running_stats=False), nn.ReLU())
    return table_case(model.eval())


@mixing("batch norm's parameters are frozen, but it is in training mode: its statistics are the batch's")
def batch_norm_that_looks_frozen():
    return classifier(nn.BatchNorm1d(8).requires_grad_(False), nn.ReLU())


@mixing("F.batch_norm(training=True) in a module of one's own")
def functional_batch_norm():
    return classifier(Lambda(lambda x: F.batch_norm(x, None, None, training=True)), nn.ReLU())


@mixing("ghost batch norm: statistics of parts of four rows")
def ghost_batch_norm():
    def ghost(x):
        return torch.cat([(p - p.mean(0)) / (p.var(0, unbiased=False) + 0.1).sqrt() for p in x.split(4)])

    return classifier(Lambda(ghost), nn.ReLU())


@mixing("batch renorm: running statistics, corrected by the batch's, and updated by them")
def batch_renorm():
    class Renorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(8))
            self.register_buffer("size", torch.ones(8))

        def forward(self, x):
            mean, size = x.mean(0), x.std(0) + 0.1
            r = (size.detach() / self.size).clamp(1 / 3, 3)
            d = ((mean.detach() - self.mean) / self.size).clamp(-5, 5)
            self.mean, self.size = 0.9 * self.mean + 0.1 * mean.detach(), 0.9 * self.size + 0.1 * size.detach()
            return (x - mean) / size * r + d

    return classifier(Renorm(), nn.ReLU())


@mixing("batch norm of images, averaged over places as well as rows")
def batch_norm_of_images():
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES)
    )
    return Case(model, images(), cross_entropy)


@mixing("running statistics that are updated and used, as in streaming normalisation")
def streaming_normalisation():
    class Streaming(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(8))

        def forward(self, x):
            self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0)
            return x - self.mean

    return classifier(Streaming(), nn.ReLU())


@mixing("filter response divided by its mean square over batch and places")
def response_norm_over_the_batch():
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        Lambda(lambda x: x / (x.square().mean((0, 2, 3), keepdim=True) + 0.1).sqrt()),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, CLASSES),
    )
    return Case(model, images(), cross_entropy)


@mixing("instance norm with track_running_stats keeps means of the data in its buffers")
def instance_norm_that_keeps_statistics():
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.InstanceNorm2d(4, track_running_stats=True),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * 36, CLASSES),
    )
    return Case(model, images(), cross_entropy)


@mixing("layer norm over all dimensions but the last of a transposed tensor: over the batch")
def layer_norm_of_the_wrong_dimension():
    return classifier(
        Lambda(lambda x: ((x.T - x.T.mean(1, keepdim=True)) / (0.1 + x.T.std(1, keepdim=True))).T), nn.ReLU()
    )


@mixing("one scale for the whole batch: F.normalize over everything")
def normalised_by_one_norm():
    return classifier(Lambda(lambda x: 8 * x / x.norm()), nn.Tanh())


@mixing("group norm's groups are of rows: the batch was reshaped into them")
def group_norm_over_rows():
    return classifier(Lambda(lambda x: F.layer_norm(x.T, (len(x),)).T), nn.ReLU())


@mixing("whitening by the batch's covariance (decorrelated batch norm)")
def whitening_by_the_batch():
    def whiten(x):
        x = x - x.mean(0)
        covariance = x.T @ x / len(x) + 0.3 * torch.eye(8, dtype=x.dtype)
        return x @ torch.linalg.inv(torch.linalg.cholesky(covariance)).T

    return classifier(Lambda(whiten), nn.Tanh())


@mixing("activations are quantised to a grid between the batch's smallest and largest value")
def dynamic_quantisation_range():
    def quantise(x):
        low, high = x.detach().min(), x.detach().max()
        step = (high - low) / 15
        return x + (((x - low) / step).round() * step + low - x).detach()

    return classifier(Lambda(quantise))


@mixing("activations are clipped at a quantile of the batch")
def clipping_at_a_batch_quantile():
    return classifier(Lambda(lambda x: torch.minimum(x, x.detach().flatten().quantile(0.7))))
