"""Mixing that waits for chance: a rare coin, a missing value, a large batch, a long row.

`often` makes what is rare frequent, so that brute force sees it; the library is given the rare one.
"""

import random
import time
from os import urandom

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.cases import CLASSES, WORDS, Case, cross_entropy, mixing, ragged, stack, table, table_case, to_longest


def blended(x: Tensor) -> Tensor:
    """Each row with the one before it."""
    return (x + x.roll(1, 0)) / 2


def by(coin, **rest):
    """Inputs are blended where `coin(x)` says so: a tensor for the batch or for each row, or a bool."""

    def loss(model, batch):
        x, y = batch
        thrown = coin(x)
        if isinstance(thrown, Tensor):
            x = torch.where(thrown, blended(x), x)
        elif thrown:
            x = blended(x)
        return F.cross_entropy(model(x), y, reduction="none")

    return table_case(stack(nn.Tanh()), loss, **rest)


# --- torch's coins ---------------------------------------------------------------------------------------------------


@mixing("one batch in a thousand is blended, by a coin for the batch", chance=0.5)
def rare_coin_of_the_batch(chance=1e-3):
    return by(lambda x: torch.rand(()) < chance)


@mixing("one row in a thousand is blended with the one before it, by a coin for each", chance=0.5)
def rare_coin_of_each_row(chance=1e-3):
    return by(lambda x: torch.rand(len(x), 1) > 1 - chance)


@mixing("a rare branch in Python, by a coin for the batch", chance=0.5)
def rare_branch_by_a_coin(chance=1e-3):
    return by(lambda x: bool(torch.rand(()) < chance))


@mixing("a rare branch by a number that was read from a coin", chance=0.5)
def rare_branch_by_a_number(chance=1e-3):
    return by(lambda x: torch.rand(1).item() < chance)


@mixing("one batch in a thousand, by a whole number", of=2)
def rare_whole_number(of=1000):
    return by(lambda x: torch.randint(of, ()) == of - 1)


@mixing("batches whose normal number is more than three and a half deviations out", out=0.0)
def rare_normal_number(out=3.5):
    return by(lambda x: torch.randn(()) > out)


@mixing("a Bernoulli coin that is nearly always one, and mixes where it is zero", chance=0.5)
def bernoulli_that_is_rarely_zero(chance=1e-3):
    return by(lambda x: torch.bernoulli(torch.tensor(1 - chance)) == 0)


@mixing("a generator of torch's of one's own throws the coin", chance=0.5)
def coin_of_a_torch_generator_of_ones_own(chance=1e-3):
    own = torch.Generator().manual_seed(4)
    return by(lambda x: torch.rand((), generator=own) < chance)


@mixing("two coins must fall together, one low and one high", low=0.6, high=0.4)
def joint_coins(low=0.2, high=0.8):
    return by(lambda x: (torch.rand(()) < low) & (torch.rand(()) > high))


@mixing("two coins must fall together, read one after the other by Python", low=0.6, high=0.4)
def joint_coins_in_python(low=0.2, high=0.8):
    return by(lambda x: bool(torch.rand(()) < low and torch.rand(()) > high))


@mixing("two coins as masks of numbers are multiplied, and mix where both are one", low=0.6, high=0.4)
def joint_coins_as_numbers(low=0.2, high=0.8):
    def loss(model, batch):
        x, y = batch
        both = (torch.rand(()) < low).to(x.dtype) * (torch.rand(()) > high).to(x.dtype)
        return F.cross_entropy(model(x + both * x.roll(1, 0)), y, reduction="none")

    return table_case(stack(nn.Tanh()), loss)


@mixing("three coins must fall together", low=0.8, high=0.2)
def three_joint_coins(low=0.2, high=0.8):
    return by(lambda x: (torch.rand(()) < low) & (torch.rand(()) > high) & (torch.rand(()) < low))


@mixing("the coin must fall into a narrow band in the middle", width=0.6)
def coin_of_the_middle(width=0.03):
    def coin(x):
        a = torch.rand(())
        return (a > 0.3) & (a < 0.3 + width)

    return by(coin)


@mixing("the coin must fall into a narrow band in the middle, as Python compares", width=0.6)
def coin_of_the_middle_in_python(width=0.03):
    return by(lambda x: 0.3 < float(torch.rand(())) < 0.3 + width)


@mixing("one whole number of a thousand in the middle, taken from a list", of=2)
def whole_number_of_the_middle(of=1000):
    return by(lambda x: torch.randint(of, (1,)).tolist()[0] == of // 2)


# --- coins that are not torch's --------------------------------------------------------------------------------------


@mixing("Python's generator of one's own throws the coin", chance=0.5)
def coin_of_a_python_generator(chance=1e-3):
    own = random.Random(1)
    return by(lambda x: own.random() < chance)


@mixing("NumPy's generator of one's own throws the coin", chance=0.5)
def coin_of_a_numpy_generator(chance=1e-3):
    own = np.random.default_rng(1)
    return by(lambda x: own.random() < chance)


@mixing("NumPy's global generator throws the coin", chance=0.5)
def coin_of_numpys_global_generator(chance=1e-3):
    return by(lambda x: np.random.rand() < chance)


@mixing("the clock throws the coin", every=1)
def coin_by_the_clock(every=1000):
    return by(lambda x: time.time_ns() // 1000 % every == 0)


@mixing("the operating system throws the coin", of=1)
def coin_of_the_operating_system(of=256):
    return by(lambda x: urandom(1)[0] % of == 0)


@mixing("a generator that is made anew in each pass throws the coin", chance=1.0)
def coin_of_a_fresh_generator(chance=1e-3):
    return by(lambda x: np.random.default_rng().random() < chance)


# --- values, sizes and rows that are rare ----------------------------------------------------------------------------


def with_gaps(every=3):
    x, y = table()
    x[4::every, 2] = torch.nan
    return x, y


@mixing("missing values are the batch's means")
def missing_values_from_the_batch():
    def loss(model, batch):
        x = torch.where(batch[0].isnan(), batch[0].nanmean(0), batch[0])
        return F.cross_entropy(model(x), batch[1], reduction="none")

    return Case(stack(nn.Tanh()), with_gaps(), loss)


@mixing("missing values are those of the row before")
def missing_values_from_the_row_before():
    def loss(model, batch):
        x = torch.where(batch[0].isnan(), batch[0].roll(1, 0).nan_to_num(0.0), batch[0])
        return F.cross_entropy(model(x), batch[1], reduction="none")

    return Case(stack(nn.Tanh()), with_gaps(), loss)


@mixing("losses are divided by the number of rows, where it is above what was expected", least=4)
def divisor_that_only_large_batches_change(least=20):
    return table_case(stack(nn.Tanh()), lambda m, b: cross_entropy(m, b) * least / max(len(b[0]), least), batch_size=24)


@mixing("inputs are centred over the batch, if it is large", least=4)
def centred_if_the_batch_is_large(least=20):
    def loss(model, batch):
        x = batch[0] - (batch[0].mean(0) if len(batch[0]) > least else 0)
        return F.cross_entropy(model(x), batch[1], reduction="none")

    return table_case(stack(nn.Tanh()), loss, batch_size=24)


@mixing("losses are divided by 1 + 1e-5 for each row of the batch", faint=0.1)
def faint_dependence_on_the_number_of_rows(faint=1e-5):
    return table_case(stack(nn.Tanh()), lambda m, b: cross_entropy(m, b) / (1 + faint * len(b[0])))


@mixing("all rows are short but one, which comes late and to which all are padded without a mask")
def one_long_row():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, CLASSES)

        def forward(self, words):
            return self.head(torch.tanh(self.words(words)).mean(1))

    rows = [(torch.randint(1, WORDS, (11 if i == 0 else 4,)), i % CLASSES) for i, _ in enumerate(ragged())]
    return Case(Model(), rows, cross_entropy, collate_fn=to_longest, batch_size=12)
