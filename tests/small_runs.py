"""Small runs: a table in a file, data and models for a config to name, and watches that stop or kill them."""

import numpy as np
import torch
from torch import nn

from discreet.runs.config import from_dict
from discreet.runs.progress import Watch

ROWS, SIZE, CLASSES = 80, 5, 3  # 64 to train on


def table_at(folder):
    draw = np.random.default_rng(0)
    y = draw.integers(CLASSES, size=ROWS)
    x = draw.normal(size=(ROWS, SIZE)).astype("f4") + 3 * np.eye(SIZE, dtype="f4")[y]
    path = folder / "clouds.npz"
    np.savez(path, x=x, y=y)
    return path


def config(table, **sections):
    values = {
        "data": {"name": str(table)},
        "model": {"name": "linear"},
        "budget": {"noise": 2.0, "steps": 8, "batch_size": 16},
        "run": {"checkpoint_every": 0.0},
    }
    for name, section in sections.items():
        values[name] = values.get(name, {}) | section
    if not {"ledger", "dataset", "dataset_epsilon"} & set(values["run"]) and "tune" not in values:
        values["run"].setdefault("alone", True)  # its ledger is in its folder
    return from_dict(values)


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


def stopping(after):
    """A watch that stops a run after so many steps."""
    steps = []
    return Watch(step=steps.append, stop=lambda: len(steps) >= after)


class Killed(BaseException):
    """Stands for the end of a process: nothing may catch it."""


def killed(at):
    def die(step):
        if step == at:
            raise Killed

    return Watch(step=die)


def clouds(rows, pixels=0):
    """Data for a config to name."""
    torch.manual_seed(0)
    shape = (1, pixels, pixels) if pixels else (SIZE,)
    return torch.randn(rows, *shape), torch.arange(rows) % CLASSES


def numbers(rows):
    x = torch.randn(rows, SIZE)
    return x, x.sum(1)


def narrow(shape, outputs, width=4):
    """A model for a config to name."""
    return nn.Sequential(nn.Linear(*shape, width), nn.ReLU(), nn.Linear(width, outputs))


def tied(shape, outputs):
    """Two layers with the same weight."""
    first, second = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second, nn.Linear(SIZE, outputs))


def wide(shape, outputs):
    return nn.Linear(SIZE + 1, outputs)


def few(shape, outputs):
    return nn.Linear(SIZE, outputs - 1)


class Mixing(nn.Linear):
    def forward(self, x):
        return super().forward(x - x.detach().mean(0))


def mixing(shape, outputs):
    return Mixing(SIZE, outputs)
