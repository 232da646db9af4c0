"""The papers' tables and figures, run again: one file a paper, and an experiment is a few lines over the public API.

experiment.py    what an experiment is: its cases, what is measured, and what the paper states
course.py        one training of a case, private or not
running.py       all cases of an experiment, on every core, resumable
showing.py       results as CSV, charts, and a page
verdicts.py      four words, what they rest on, and the rule about sizes
small.py         a small network, and settings chosen on held-out rows, for 000 and 004
alexnet.py, alpha.py, distances.py, membership.py, belu_readings.py, *_verdicts.py    parts of the papers' files
tanh_filter.py   000    dp_sgd.py    001    belu.py    002    three_tools.py    003    encoding.py    004
"""

from importlib import import_module

from discreet.errors import ConfigError
from discreet.papers.experiment import Experiment, Paper

FILES = {"000": "tanh_filter", "001": "dp_sgd", "002": "belu", "003": "three_tools", "004": "encoding"}


def paper(number: str) -> Paper:
    """The experiments of a paper."""
    if number not in FILES:
        raise ConfigError(f"paper {number!r} is not one of {', '.join(FILES)}.")
    return import_module(f"discreet.papers.{FILES[number]}").PAPER


def experiment(number: str, name: str) -> Experiment:
    """One of them, by its name."""
    known = {e.name: e for e in paper(number).experiments}
    if name not in known:
        raise ConfigError(f"paper {number} has no experiment {name!r}; it has {', '.join(known)}.")
    return known[name]


__all__ = ["FILES", "Experiment", "Paper", "experiment", "paper"]
