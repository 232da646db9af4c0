"""State where few look for it: in classes, attributes of functions and weights, iterators and collate functions."""

from contextvars import ContextVar
from decimal import Decimal
from functools import cache
from queue import SimpleQueue

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from zoo import settings
from zoo.cases import CLASSES, WIDTH, WORDS, Case, cross_entropy, mixing, ragged, stack, table, table_case, to_fixed

means = {}  # as a script has them, by model


def first_mean(key, x):
    if key not in means:
        means[key] = x.detach().mean(0)
    return means[key]


class Centred(nn.Module):
    """Inputs have something taken off that `mean(x)` gives."""

    def __init__(self):
        super().__init__()
        self.net = stack(nn.ReLU())

    def mean(self, x):
        raise NotImplementedError

    def forward(self, x):
        return self.net(x - self.mean(x.detach()))


@mixing("the first batch's mean is kept by the class, not by the object")
def mean_in_the_class():
    class Model(Centred):
        first = None

        def mean(self, x):
            if type(self).first is None:
                type(self).first = x.mean(0)
            return type(self).first

    return table_case(Model())


@mixing("means are appended to a list that the class holds, and used when there are three")
def means_in_a_list_of_the_class():
    class Model(Centred):
        seen = []  # noqa: RUF012 (the mistake)

        def mean(self, x):
            if len(self.seen) < 3:
                self.seen.append(x.mean(0))
                return torch.zeros_like(x[0])
            return self.seen[0]

    return table_case(Model())


@mixing("an autograd.Function of one's own keeps the largest activation as its attribute, and rounds by it")
def range_in_a_function_class():
    class Rounded(torch.autograd.Function):
        top = 0.1

        @staticmethod
        def forward(ctx, x):
            Rounded.top = max(Rounded.top, float(x.abs().max()))
            return (x / Rounded.top * 8).round() * Rounded.top / 8

        @staticmethod
        def backward(ctx, grad):
            return grad

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES)

        def forward(self, x):
            return self.outer(Rounded.apply(self.inner(x)))

    return table_case(Model())


@mixing("the first batch's spread is an attribute of the weight, as quantisers keep it")
def spread_on_the_weight():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES)

        def forward(self, x):
            weight = self.inner.weight
            if not hasattr(weight, "spread"):
                weight.spread = x.detach().std(0)
            return self.outer(self.inner(x / weight.spread).relu())

    return table_case(Model())


@mixing("the loss keeps the first batch's mean as its own attribute")
def mean_on_the_loss():
    def loss(model, batch):
        if not hasattr(loss, "mean"):
            loss.mean = batch[0].mean(0)
        return F.cross_entropy(model(batch[0] - loss.mean), batch[1], reduction="none")

    return table_case(stack(nn.ReLU()), loss)


@mixing("the loss keeps means in a list that is the default of a keyword")
def means_in_a_keyword():
    def loss(model, batch, *, seen=[]):  # noqa: B006 (the mistake)
        mean = seen[-1] if len(seen) > 6 else 0
        seen.append(batch[0].mean(0))
        return F.cross_entropy(model(batch[0] - mean), batch[1], reduction="none")

    return table_case(stack(nn.ReLU()), loss)


@mixing("a generator keeps the first batch's mean in a local variable")
def mean_in_a_generator():
    def first():
        x = yield
        mean = x.mean(0)
        while True:
            x = yield mean

    class Model(Centred):
        def __init__(self):
            super().__init__()
            self.first = first()
            next(self.first)

        def mean(self, x):
            return self.first.send(x)

    return table_case(Model())


@mixing("a context variable keeps the first batch's mean")
def mean_in_a_context_variable():
    kept = ContextVar("kept", default=None)

    class Model(Centred):
        def mean(self, x):
            if kept.get() is None:
                kept.set(x.mean(0))
            return kept.get()

    return table_case(Model())


@mixing("functools.cache keeps the first batch's mean, which the loop asks for before its first loss")
def mean_cached_by_the_loop():
    batches = []

    @cache
    def mean():
        return batches[0].mean(0)

    def look(batch):
        batches[:] = [batch[0]]
        mean()

    def loss(model, batch):
        return F.cross_entropy(model(batch[0] - mean().to(batch[0].dtype)), batch[1], reduction="none")

    return table_case(stack(nn.ReLU()), loss, look=look)


@mixing("a method beside forward, which the loss calls, keeps the first batch's mean in a global")
def mean_in_a_global_of_a_method():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = stack(nn.ReLU())

        def encode(self, x):
            return self.net(x - first_mean(self, x))

    return table_case(Model(), lambda model, batch: F.cross_entropy(model.encode(batch[0]), batch[1], reduction="none"))


@mixing("what is checkpointed is a lambda, and the method that it calls keeps the first batch's mean in a global")
def mean_in_a_global_behind_a_lambda():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES)

        def inner(self, x):
            return self.first(x - first_mean(self, x))

        def forward(self, x):
            return self.last(checkpoint(lambda x: self.inner(x), x, use_reentrant=False).relu())

    return table_case(Model())


@mixing("a collate function pads to the longest row that it has ever seen, without a mask")
def collate_that_remembers_the_longest():
    class Padded:
        def __init__(self):
            self.longest = 0

        def __call__(self, rows):
            self.longest = max(self.longest, *(len(words) for words, _ in rows), 0)
            return to_fixed(rows, self.longest)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, CLASSES)

        def forward(self, words):
            return self.head(self.words(words).mean(1))

    return Case(Model(), ragged(), cross_entropy, collate_fn=Padded())


@mixing("a collate function takes the first batch's mean off all others")
def collate_that_remembers_a_mean():
    class Centring:
        mean = None

        def __call__(self, rows):
            x = torch.stack([x for x, _ in rows])
            if self.mean is None:
                self.mean = x.mean(0)
            return x - self.mean, torch.stack([y for _, y in rows])

    return Case(stack(nn.ReLU()), table(), cross_entropy, collate_fn=Centring())


@mixing("inputs have the mean of the same user's rows of the batch taken off, and few users have two", users=7)
def centred_within_a_user(users=24):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = stack(nn.ReLU())

        def forward(self, x, user):
            same = (user[:, None] == user[None]).to(x.dtype)
            return self.net(x - 0.5 * (same @ x.detach()) / same.sum(1, keepdim=True))

    def loss(model, batch):
        x, user, y = batch
        return F.cross_entropy(model(x, user), y, reduction="none")

    x, y = table()
    return Case(Model(), (x, torch.arange(len(x)) % users, y), loss)


@mixing("a Decimal, whose value is in compiled code, follows the mean of the batches")
def mean_as_a_decimal():
    class Model(Centred):
        slow = Decimal(0)

        def mean(self, x):
            slow = self.slow
            self.slow = slow * Decimal("0.5") + Decimal(float(x.mean())) * Decimal(4)
            return float(slow)

    return table_case(Model())


@mixing("a queue in compiled code hands features of earlier batches back")
def features_in_a_queue():
    class Model(Centred):
        def __init__(self):
            super().__init__()
            self.queue = SimpleQueue()

        def mean(self, x):
            self.queue.put(x.mean(0))
            return self.queue.get() if self.queue.qsize() > 1 else torch.zeros_like(x[0])

    return table_case(Model())


@mixing("settings are kept in a module, and with them the first batch's mean")
def mean_in_a_settings_module():
    class Model(Centred):
        def mean(self, x):
            if self not in settings.means:  # by model, as other members have theirs
                settings.means[self] = x.mean(0)
            return settings.means[self].to(x)

    return table_case(Model())
