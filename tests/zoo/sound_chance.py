"""Chance, clocks, caches and gaps that are sound: rows do not meet, whatever falls."""

import random
import time
from functools import lru_cache

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from zoo.cases import (
    CLASSES,
    WIDTH,
    WORDS,
    Case,
    classifier,
    cross_entropy,
    ragged,
    sound,
    stack,
    table,
    table_case,
    to_longest,
)  # fmt: skip


@sound("which layers run is decided for the batch by coins of torch's, compared as tensors")
def layer_drop_by_coins():
    class Drop(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

        def forward(self, x):
            for layer in self.layers:
                if torch.rand(()) < 0.7:
                    x = torch.tanh(layer(x))
            return x

    return classifier(Drop())


@sound("a rare coin changes the scale of all inputs, whoever is in the batch", chance=0.5)
def rare_scale(chance=1e-3):
    return table_case(stack(nn.Tanh()), augment=lambda x: torch.where(torch.rand(()) < chance, 2 * x, x))


@sound("two coins together negate a batch's inputs, row by row", low=0.6)
def joint_coins_row_by_row(low=0.2):
    return table_case(
        stack(nn.Tanh()), augment=lambda x: torch.where((torch.rand(()) < low) & (torch.rand(()) > low), -x, x)
    )


@sound("MAE: some places of each row are hidden, by the order of its own random numbers")
def masked_by_order():
    def loss(model, batch):
        x = batch[0]
        place = torch.rand(len(x), WIDTH).argsort(1).argsort(1)
        hidden = (place < 2).to(x.dtype)
        return ((model(x * (1 - hidden)) - x).square() * hidden).sum(1)

    return table_case(stack(nn.Tanh(), out=WIDTH), loss)


@sound("BERT's masks: most chosen words become the mask, some another word, some stay")
def masked_words():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.head = nn.Embedding(WORDS + 1, 8), nn.Linear(8, WORDS)

        def forward(self, words):
            seen = self.words(words)
            return self.head(torch.tanh(seen + seen.mean(1, keepdim=True)))

    def loss(model, batch):
        words = batch[0]
        chosen, masked, other = (torch.rand(words.shape) < chance for chance in (0.3, 0.8, 0.5))
        random_words = torch.randint(1, WORDS, words.shape)
        seen = torch.where(chosen & masked, WORDS, words)
        seen = torch.where(chosen & ~masked & other, random_words, seen)
        each = F.cross_entropy(model(seen).transpose(1, 2), words, reduction="none")
        return (each * chosen).sum(1) / 5

    return Case(Model(), (torch.randint(1, WORDS, (48, 5)), torch.zeros(48)), loss)


@sound("the best two experts of each row, by gates with noise of its own")
def noisy_top_two_routing():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.experts = nn.Linear(8, 4), nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

        def forward(self, x):
            scores = self.gate(x)
            best, which = (scores + 0.1 * torch.randn_like(scores)).topk(2, dim=1)
            weights = torch.zeros_like(scores).scatter(1, which, best.softmax(1))
            return sum(weights[:, i : i + 1] * torch.tanh(e(x)) for i, e in enumerate(self.experts))

    return classifier(Experts())


@sound("mixout: some weights are those of the start, by coins for the whole batch")
def mixout():
    class Mixout(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.register_buffer("start", self.layer.weight.detach().clone())

        def forward(self, x):
            kept = torch.bernoulli(torch.full((8, 8), 0.8)).to(x.dtype)
            weight = (kept * self.layer.weight + (1 - kept) * self.start - 0.2 * self.start) / 0.8
            return F.linear(x, weight, self.layer.bias)

    return classifier(nn.Tanh(), Mixout())


@sound("random features of each row are shuffled within it by one order for the batch")
def shuffled_features():
    return table_case(stack(nn.Tanh()), augment=lambda x: x[:, torch.randperm(WIDTH)])


@sound("a public scale is drawn for the batch by a Python generator of one's own")
def scale_by_a_python_generator():
    own = random.Random(2)
    return table_case(stack(nn.Tanh()), augment=lambda x: x * (0.5 + own.random()))


@sound("a scale is drawn for the batch by a NumPy generator of one's own")
def scale_by_a_numpy_generator():
    own = np.random.default_rng(2)
    return table_case(stack(nn.Tanh()), augment=lambda x: x * own.uniform(0.5, 1.5))


@sound("a scale is drawn for the batch as a number, by torch")
def scale_as_a_number():
    return table_case(stack(nn.Tanh()), augment=lambda x: x * (0.5 + torch.rand(1).item()))


@sound("a loss that times itself: the clock changes nothing")
def timed_loss():
    took = []

    def loss(model, batch):
        start = time.perf_counter()
        losses = cross_entropy(model, batch)
        took.append(time.perf_counter() - start)
        return losses

    return table_case(stack(nn.Tanh()), loss)


@sound("losses are kept for a plot, which training does not read")
def loss_history():
    history = []

    def loss(model, batch):
        losses = cross_entropy(model, batch)
        history.append(losses.detach().mean().item())
        return losses

    return table_case(stack(nn.Tanh(), nn.Dropout(0.2)), loss)


@sound("the loop keeps each batch's size for a plot, which training does not read")
def history_of_the_loop():
    history = []
    return table_case(stack(nn.Tanh()), look=lambda batch: history.append(len(batch[0])))


@lru_cache(maxsize=4)
def waves(length):
    return torch.arange(length).sin()


@sound("functools.lru_cache holds positions by length alone")
def positions_in_an_lru_cache():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, CLASSES)

        def forward(self, words):
            mask = (words != 0).unsqueeze(2)
            seen = self.words(words)
            seen = torch.tanh(seen + waves(words.shape[1]).to(seen.dtype)[:, None])
            return self.head((seen * mask).sum(1) / mask.sum(1))

    return Case(Model(), ragged(), cross_entropy, collate_fn=to_longest)


def with_gaps():
    x, y = table()
    x[4::3, 2] = torch.nan
    return x, y


@sound("missing values are a constant, and a mark says where")
def missing_values_are_a_constant():
    def loss(model, batch):
        x = batch[0]
        return F.cross_entropy(
            model(x.nan_to_num(0.0)) + 0.1 * x.isnan().any(1, keepdim=True), batch[1], reduction="none"
        )

    return Case(stack(nn.Tanh()), with_gaps(), loss)


@sound("missing values are the mean of the row's own others")
def missing_values_from_the_row():
    def loss(model, batch):
        x = batch[0]
        return F.cross_entropy(model(torch.where(x.isnan(), x.nanmean(1, keepdim=True), x)), batch[1], reduction="none")

    return Case(stack(nn.Tanh()), with_gaps(), loss)


@sound("all rows are short but one, to which all are padded, with a mask")
def one_long_row_with_a_mask():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, CLASSES)

        def forward(self, words):
            mask = (words != 0).unsqueeze(2)
            return self.head((torch.tanh(self.words(words)) * mask).sum(1) / mask.sum(1))

    rows = [(torch.randint(1, WORDS, (11 if i == 0 else 4,)), i % CLASSES) for i in range(48)]
    return Case(Model(), rows, cross_entropy, collate_fn=to_longest, batch_size=12)
