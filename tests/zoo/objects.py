"""B2: what a model returns is an object into which no one looks."""

from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.cases import CLASSES, WIDTH, mixing, table_case


@dataclass
class Output:
    logits: Tensor
    hidden: Tensor


class Answer:
    def __init__(self, logits):
        self._logits = logits

    def logits(self):
        return self._logits


class Slotted:
    """As a named tuple is used, without being one."""

    __slots__ = ("hidden", "logits")

    def __init__(self, logits, hidden):
        self.logits, self.hidden = logits, hidden


class Model(nn.Module):
    def __init__(self, wrap, mix):
        super().__init__()
        self.one, self.two, self.wrap, self.mix = nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES), wrap, mix

    def forward(self, x):
        hidden = self.mix(torch.tanh(self.one(x)))
        return self.wrap(self.two(hidden), hidden)


def centred(x):
    return x - x.detach().mean(0)


def case(wrap, read, mix=centred):
    def loss(model, batch):
        return F.cross_entropy(read(model(batch[0])), batch[1], reduction="none")

    return table_case(Model(wrap, mix), loss)


@mixing("a dataclass holds logits of features that were centred by the batch")
def dataclass_output_of_centred_features():
    return case(Output, lambda out: out.logits)


@mixing("a dataclass holds logits of features scaled by the batch's deviation")
def dataclass_output_of_scaled_features():
    return case(Output, lambda out: out.logits, lambda x: x / (0.1 + x.detach().std(0)))


@mixing("an object with methods holds logits of features that were centred by the batch")
def custom_object_output():
    return case(lambda logits, hidden: Answer(logits), lambda out: out.logits())


@mixing("a slotted record holds logits to which the row before was added")
def slotted_record_output():
    return case(Slotted, lambda out: out.logits, lambda x: x + 0.5 * x.detach().roll(1, 0))


@mixing("a namespace holds logits of features that were centred by the batch")
def namespace_output():
    return case(lambda logits, hidden: SimpleNamespace(logits=logits), lambda out: out.logits)


@mixing("the model returns a distribution whose logits were centred by the batch")
def distribution_output():
    def loss(model, batch):
        return -model(batch[0]).log_prob(batch[1])

    model = Model(lambda logits, hidden: torch.distributions.Categorical(logits=logits), centred)
    return table_case(model, loss)


@mixing("the model returns a function that gives logits of centred features when it is called")
def closure_output():
    return case(lambda logits, hidden: lambda: logits, lambda out: out())
