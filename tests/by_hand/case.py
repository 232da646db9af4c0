"""Networks as people write them, small: of each, the model, examples, how a batch is made of them, and a loss for each.

`CASES` are sound; `MIXING` make one example's gradient depend on others, and must be refused.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence, pad_sequence
from torch.utils.data import default_collate

WIDTH, UNITS = 6, 4
R = torch.randn


@dataclass(frozen=True)
class Case:
    """How a network, its examples, their batches and its losses are made."""

    name: str
    group: str
    home: str  # the module that has it
    build: Callable[[], tuple[nn.Module, list, Callable, Callable]]


class Net(nn.Module):
    """Parts, and a function of them and of a batch."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, batch):
        return self.function(self, batch)


def squares(model, batch):
    """One loss for each row of what comes out, with a gradient that is different everywhere."""
    out = model(batch).flatten(1)
    return (out**2).sum(1) + out.sum(1)


def itself(model, batch):
    """Of a model that makes the losses."""
    return model(batch)


# --- examples and their batches ------------------------------------------------------------------------------------


def vectors(*shape):
    shape = shape or (WIDTH,)
    return lambda: [R(*shape) for _ in range(UNITS)]


def words(length=5, most=9):
    return lambda: [torch.randint(most, (length,)) for _ in range(UNITS)]


def sets():
    return [R(2 + 3 * (i % 3), WIDTH) for i in range(UNITS)]


def lists_of_words():
    return [torch.randint(9, (1 + 2 * (i % 3),)) for i in range(UNITS)]


def graphs():
    """Nodes, and edges from node to node."""
    sizes = [3, 5, 2, 4]
    return [(R(n, WIDTH), torch.randint(n, (2, 2 * n))) for n in sizes]


def flat(rows):
    """Rows of all side by side, and whose each is."""
    lengths = torch.tensor([len(row) for row in rows])
    return torch.cat(rows), torch.arange(len(rows)).repeat_interleave(lengths), len(rows)


def one_graph(rows):
    """Graphs as PyTorch Geometric batches them: nodes side by side, edges moved on, and the graph of each node."""
    nodes, owner, units = flat([x for x, _ in rows])
    starts = torch.tensor([0, *(len(x) for x, _ in rows[:-1])]).cumsum(0)
    return nodes, torch.cat([edges + start for (_, edges), start in zip(rows, starts, strict=True)], 1), owner, units


def bags(rows):
    """Words side by side, and where each bag begins."""
    lengths = torch.tensor([len(row) for row in rows])
    return torch.cat(rows), lengths.cumsum(0) - lengths


def time_first(rows):
    return torch.stack(rows, 1)


def packed(rows):
    return pack_sequence(rows, enforce_sorted=False)


def jagged(rows):
    return torch.nested.nested_tensor(rows, layout=torch.jagged)


def padded(rows):
    mask = pad_sequence([torch.ones(len(row)) for row in rows], batch_first=True)
    return pad_sequence(rows, batch_first=True), mask


CASES, MIXING = [], []


def case(rows=None, collate=default_collate, loss=squares, mixes=False):
    """Note a network by its function's name; the function makes it."""

    def note(function):
        def build():
            torch.manual_seed(1)
            return function(), (rows or vectors())(), collate, loss

        name = function.__name__.replace("_", " ")
        (MIXING if mixes else CASES).append(Case(name, "mixing" if mixes else "by hand", function.__module__, build))
        return function

    return note


def summed(values, owner, units):
    return values.new_zeros(units, *values.shape[1:]).index_add(0, owner, values)


def head(width=WIDTH):
    return nn.Linear(width, 3)
