"""Runs on a small table in a file: their configuration, and watches that stop or kill them."""

import numpy as np

from discreet.runs.config import from_dict
from discreet.runs.run import Watch

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
