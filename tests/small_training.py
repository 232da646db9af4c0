"""A small model, its data and its plans, for tests of training."""

import torch
from torch import nn

from discreet import (
    Clip,
    Gaussian,
    Mechanism,
    Plan,
    Poisson,
    methods,
)

ROWS, SIZE, CLASSES = 60, 5, 3


def data(rows=ROWS, seed=1):
    """Three clouds that a linear model can tell apart."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (rows,), generator=generator)
    return torch.randn(rows, SIZE, generator=generator) + 3 * torch.eye(SIZE)[y], y


def linear(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(SIZE, CLASSES)


def plan(steps=12, noise=1.5, batch_size=20):
    return methods.dp_sgd(examples=ROWS, batch_size=batch_size, steps=steps, noise=noise, delta=1e-5)


def silent(steps, rows=ROWS, norm=1.0):
    """Everybody takes part and nothing is added: what a step does can be computed by hand."""
    sampling = Poisson(rate=1.0, batch_size=rows)
    return Plan(sampling=sampling, mechanism=Mechanism(Clip(norm), Gaussian(0.0)), steps=steps, delta=1e-5)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])
