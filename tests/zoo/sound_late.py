"""What begins late, or comes back every so many passes, and is each row's own or the weights'."""

import torch
from torch import nn
from torch.nn import functional as F

from zoo.cases import CLASSES, WIDTH, cross_entropy, sound, stack, table_case
from zoo.late import Quantiser


@sound("every tenth forward pass subtracts a row's own mean")
def row_centred_every_tenth_pass():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head, self.passes = nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES), 0

        def forward(self, x):
            h = self.body(x)
            self.passes += 1
            if self.passes % 10 == 0:
                h = h - h.detach().mean(1, keepdim=True)
            return self.head(h.tanh())

    return table_case(Model())


@sound("a codebook's first codes become shorter every sixth pass, by a constant")
def codes_shrink():
    def restart(codes, h, passes):
        if passes % 6 == 0:
            codes[:4] *= 0.9

    return table_case(Quantiser(restart))


@sound("weights are cut to a largest norm in the forward pass, past autograd (EEGNet)")
def weights_of_a_largest_norm():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES)

        def forward(self, x):
            self.body.weight.data = torch.renorm(self.body.weight.data, p=2, dim=0, maxnorm=0.9)
            return self.head(F.elu(self.body(x)))

    return table_case(Model())


@sound("after nine steps a row's loss counts twice if it is above a constant; weights of one before")
def weights_by_a_constant_after_nine_steps():
    step = [0]

    def loss(model, batch):
        losses = cross_entropy(model, batch)
        shares = torch.ones_like(losses)
        if step[0] >= 9:
            shares = torch.where(losses.detach() > 0.7, 2.0, 1.0)
        return losses * shares

    def after_step(model):
        step[0] += 1

    return table_case(stack(nn.Tanh()), loss, after_step=after_step)
