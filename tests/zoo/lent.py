"""What the loop works out of a batch and the loss or the model only holds: in a closure, a global, a cache."""

from functools import cache, lru_cache

import torch
from torch import nn
from torch.nn import functional as F

from zoo.cases import CLASSES, WIDTH, cross_entropy, mixing, stack, table_case

spread_of_the_batch, hard, seen_before = 1.0, False, []  # as a script has them


def tempered(of_step, **rest):
    """Logits are divided by `of_step()`."""

    def loss(model, batch):
        return F.cross_entropy(model(batch[0]) / (0.1 + of_step()), batch[1], reduction="none")

    return table_case(stack(nn.Tanh()), loss, **rest)


@mixing("the batch's spread stands in a global of the script, and the loss divides by it")
def spread_in_a_global():
    def look(batch):
        global spread_of_the_batch
        spread_of_the_batch = float(batch[0].std())

    def loss(model, batch):
        return F.cross_entropy(model(batch[0]) / spread_of_the_batch, batch[1], reduction="none")

    return table_case(stack(nn.Tanh()), loss, look=look)


def scaled(outputs):
    return outputs / spread_of_the_batch


@mixing("the batch's spread stands in a global, and a helper of the loss divides by it")
def spread_in_a_global_of_a_helper():
    def look(batch):
        global spread_of_the_batch
        spread_of_the_batch = float(batch[0].std())

    def loss(model, batch):
        return F.cross_entropy(scaled(model(batch[0])), batch[1], reduction="none")

    return table_case(stack(nn.Tanh()), loss, look=look)


@mixing("the batch's spread stands in a global, and the model's forward divides by it")
def spread_in_a_global_of_forward():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = stack(nn.Tanh())

        def forward(self, x):
            return self.cooled(self.net(x))

        def cooled(self, outputs):
            return outputs / spread_of_the_batch

    def look(batch):
        global spread_of_the_batch
        spread_of_the_batch = float(batch[0].std())

    return table_case(Model(), look=look)


@mixing("batches' means are appended to a global list, and the loss subtracts the last")
def means_in_a_global_list():
    seen_before.clear()

    def look(batch):
        seen_before.append(batch[0].mean(0))

    def loss(model, batch):
        return F.cross_entropy(model(batch[0] - seen_before[-1].to(batch[0].dtype)), batch[1], reduction="none")

    return table_case(stack(nn.Tanh()), loss, look=look)


@mixing("a bool says whether the batch is a hard one, and weighs its losses")
def flag_of_the_batch():
    def look(batch):
        global hard
        hard = bool(batch[0].mean() > 0)

    def loss(model, batch):
        return cross_entropy(model, batch) * (2.0 if hard else 0.1)

    return table_case(stack(nn.Tanh()), loss, look=look)


@mixing("the loop lends the model the batch's spread for a step and takes it back")
def spread_lent_to_the_model():
    model = stack(nn.Tanh())
    model.spread = 1.0

    def look(batch):
        model.spread = float(batch[0].std())

    def back(model):
        model.spread = 1.0

    def loss(model, batch):
        return F.cross_entropy(model(batch[0]) / model.spread, batch[1], reduction="none")

    return table_case(model, loss, look=look, after_step=back)


@mixing("the loop divides by the batch's size, which is in the loss's closure")
def size_of_the_batch_in_a_closure():
    size = [1]

    def look(batch):
        size[0] = len(batch[0])

    return tempered(lambda: size[0], look=look)


@mixing("a run of one step, whose loss holds the batch's spread: nothing to compare it with")
def one_step_with_a_spread():
    held = [1.0]

    def look(batch):
        held[0] = float(batch[0].std())

    return tempered(lambda: held[0], look=look, steps=1)


class OfStep:
    """A batch that is known by its step's number alone."""

    def __init__(self, step, batch):
        self.step, self.x = step, batch[0]

    def __hash__(self):
        return self.step

    def __eq__(self, other):
        return self.step == other.step


@mixing("functools.lru_cache holds the spread of the step's batch, which the loop asked for first")
def spread_in_an_lru_cache():
    step = [0]

    @lru_cache(maxsize=1)
    def spread(batch):
        return batch.x.std()

    def look(batch):
        step[0] += 1
        spread(OfStep(step[0], batch))

    def loss(model, batch):
        return F.cross_entropy(model(batch[0]) / spread(OfStep(step[0], batch)), batch[1], reduction="none")

    return table_case(stack(nn.Tanh()), loss, look=look)


@cache
def centre(model):
    return {"mean": torch.zeros(WIDTH)}


@mixing("functools.cache holds the batch's mean in a dictionary that forward reads")
def mean_in_a_cached_dictionary():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(WIDTH, CLASSES)

        def forward(self, x):
            return self.net(x - centre(self)["mean"].to(x.dtype))

    model = Model()

    def look(batch):
        centre(model)["mean"] = batch[0].mean(0)

    return table_case(model, look=look)
