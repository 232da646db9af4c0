"""Mixing that begins late, or comes back every so many passes; `often` makes it come at once."""

import torch
from torch import nn
from torch.nn import functional as F

from zoo.cases import CLASSES, WIDTH, cross_entropy, mixing, stack, table_case


@mixing("every tenth forward pass subtracts the batch's mean", every=2)
def centred_every_tenth_pass(every=10):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head, self.passes = nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES), 0

        def forward(self, x):
            h = self.body(x)
            self.passes += 1
            if self.passes % every == 0:
                h = h - h.detach().mean(0)
            return self.head(h.tanh())

    return table_case(Model())


class Quantiser(nn.Module):
    """A codebook that is trained by gradients, and what is done to it in a pass."""

    def __init__(self, restart):
        super().__init__()
        self.encoder, self.codes = nn.Linear(WIDTH, 8), nn.Parameter(torch.randn(16, 8))
        self.head, self.restart = nn.Linear(8, CLASSES), restart
        self.register_buffer("passes", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        h = self.encoder(x)
        self.passes += 1
        with torch.no_grad():
            self.restart(self.codes.data, h, int(self.passes))
        code = self.codes[torch.cdist(h.detach(), self.codes.detach()).argmin(1)]
        return self.head(code + h - h.detach())


@mixing(
    "a codebook's first codes begin anew as rows' features every sixth pass: weights are written past autograd", every=1
)
def codes_begin_anew_as_rows(every=6):
    def restart(codes, h, passes):
        if passes % every == 0:
            codes[:4] = h[torch.arange(4) % len(h)].to(codes)

    return table_case(Quantiser(restart))


@mixing("all codes drift with the batch's mean every ninth pass", every=1)
def codes_drift_with_the_mean(every=9):
    def restart(codes, h, passes):
        if passes % every == 0:
            codes += h.mean(0).to(codes)

    return table_case(Quantiser(restart))


@mixing("after nine steps, rows are weighed by their share of the batch's mean loss; weights of one before", after=0)
def weights_after_nine_steps(after=9):
    step = [0]

    def loss(model, batch):
        losses = cross_entropy(model, batch)
        shares = torch.ones_like(losses)
        if step[0] >= after:
            shares = losses.detach() / losses.detach().mean()
        return losses * shares

    def after_step(model):
        step[0] += 1

    return table_case(stack(nn.Tanh()), loss, after_step=after_step)


@mixing("hard examples of the batch count twice in the last third of training", after=0)
def hard_examples_at_the_end(after=8):
    step = [0]

    def loss(model, batch):
        x, y = batch
        losses = F.cross_entropy(model(x), y, reduction="none")
        hard = losses.detach() >= losses.detach().median() if step[0] >= after else torch.zeros(len(x)) > 0
        return losses * torch.where(hard, 2.0, 1.0)

    def after_step(model):
        step[0] += 1

    return table_case(stack(nn.Tanh()), loss, after_step=after_step)
