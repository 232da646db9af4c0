"""A run from a configuration: files in, a folder out.

schema.py       what a run's file may say, field by field
config.py       the file and flags, read strictly
resolve.py      from a config to a plan, its noise solved
recipes.py      configs that come with the package
tables.py       a table's schema in a run: what is private in it is asked for once
build.py        what a config names: data, model, optimizer, schedule, ledger
registry.py     which ledger counts a run: its data set's
space.py        settings to draw from, or to try one by one
tuned.py        the plan of one trial of a search
validation.py   what is refused before anything is made
run.py          training and resuming
features.py     features in place of images: statistics that are asked for once
outcome.py      what a run leaves behind, and what its folder says afterwards
folder.py       the folder: its name, its files, its lock
trained/        a run's model in use: predictions, its card, exports
progress.py     bars, lines and signals: who is told how anything goes
terminal.py     what is printed, on any terminal
"""

from importlib import import_module
from typing import Any

_HOMES = {"Outcome": "outcome", "Watch": "progress", "read_end": "outcome", "resume": "run", "train": "run"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'discreet.runs' has no attribute {name!r}")
    return getattr(import_module(f"discreet.runs.{_HOMES[name]}"), name)
