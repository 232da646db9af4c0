"""Sound members that keep things where few look, or deal rows out in ways that leave somebody none."""

from decimal import Decimal
from itertools import count

import torch
from torch import nn
from torch.nn import functional as F

from zoo import settings
from zoo.cases import CLASSES, WIDTH, WORDS, Case, cross_entropy, ragged, sentences, sound, stack, table_case, to_fixed


class Bag(nn.Module):
    """Words' vectors, pooled, and a head."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, CLASSES)

    def forward(self, words):
        return self.head(self.words(words).mean(1))


@sound("a dictionary of the class holds masks by length alone")
def masks_in_the_class():
    class Model(Bag):
        masks = {}  # noqa: RUF012 (all models share them)

        def forward(self, words):
            length = words.shape[1]
            if length not in self.masks:
                self.masks[length] = torch.ones(length, length).tril()
            return self.head((self.masks[length].to(self.words.weight) @ self.words(words))[:, 0])

    return Case(Model(), sentences(), cross_entropy)


@sound("the class counts forward passes")
def passes_in_the_class():
    class Model(nn.Module):
        passes = 0

        def __init__(self):
            super().__init__()
            self.net = stack(nn.ReLU())

        def forward(self, x):
            type(self).passes += 1
            return self.net(x)

    return table_case(Model())


@sound("an iterator counts forward passes, and cannot be put back")
def passes_in_an_iterator():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.passes = stack(nn.ReLU()), count()

        def forward(self, x):
            next(self.passes)
            return self.net(x)

    return table_case(Model())


@sound("a collate function counts its calls")
def collate_that_counts():
    class Counting:
        def __init__(self):
            self.calls = 0

        def __call__(self, rows):
            self.calls += 1
            return to_fixed(rows)

    return Case(Bag(), ragged(), cross_entropy, collate_fn=Counting())


@sound("rows go to the best of six experts, of which most get none")
def experts_without_rows():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.experts = nn.Linear(WIDTH, 6), nn.ModuleList(nn.Linear(WIDTH, CLASSES) for _ in range(6))

        def forward(self, x):
            best, chosen = self.gate(4 * x).softmax(1).max(1)
            out = x.new_zeros(len(x), CLASSES)
            for k, expert in enumerate(self.experts):
                mine = (chosen == k).nonzero().squeeze(1)
                out = out.index_add(0, mine, best[mine].unsqueeze(1) * expert(x[mine]))
            return out

    return table_case(Experts())


@sound("words lie end to end, and each row's are a difference of the running sum, which rounds as it may")
def differences_of_a_running_sum():
    class Model(Bag):
        def forward(self, batch):
            words, lengths = batch
            ends = lengths.cumsum(0) - 1
            totals = self.words(words).tanh().cumsum(0)[ends]
            return self.head(torch.cat([totals[:1], totals[1:] - totals[:-1]]))

    def collate(rows):
        words = torch.cat([words for words, _ in rows])
        return words, torch.tensor([len(w) for w, _ in rows]), torch.tensor([y for _, y in rows])

    def loss(model, batch):
        return F.cross_entropy(model(batch[:2]), batch[2], reduction="none")

    return Case(Model(), ragged(), loss, collate_fn=collate)


@sound("a Decimal counts forward passes")
def passes_as_a_decimal():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.passes = stack(nn.ReLU()), Decimal(0)

        def forward(self, x):
            self.passes += 1
            return self.net(x / (1 + float(self.passes)))

    return table_case(Model())


@sound("a factor is kept in a module of settings")
def factor_in_a_settings_module():
    settings.factor = 0.5

    def loss(model, batch):
        return settings.factor * cross_entropy(model, batch)

    return table_case(stack(nn.ReLU()), loss)
