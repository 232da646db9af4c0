"""The papers' tables and figures, run again: a folder a paper, and an experiment is a few lines over the public API.

tanh_filter/   000, Amian
dp_sgd/        001, Abadi et al. 2016
belu/          002, Jung et al. 2021
three_tools/   003, van der Veen et al. 2018
encoding/      004, Nasr, Shokri and Houmansadr 2020

claims.py       what the papers claim, beside what is proven
experiment.py   what an experiment is: its cases, what is measured, and what the paper states
verdicts.py     four words, what they rest on, and the rule about sizes
train_case.py   one training of a case, private or not
held_out.py     settings chosen on held-out rows, and the small network of 000 and 004
running.py      all cases of an experiment, on every core, resumable
render.py       results as CSV, charts, and a page

Nobody imports this room but the command line and the benchmarks, and it imports only public names
(tests/papers/test_room.py has the list).
"""

from importlib import import_module

from discreet import ConfigError
from discreet.papers.experiment import Experiment, Paper

FILES = {"000": "tanh_filter", "001": "dp_sgd", "002": "belu", "003": "three_tools", "004": "encoding"}


def paper(number: str) -> Paper:
    """The experiments of a paper.

    Args:
        number: of the paper, as "001".
    """
    if number not in FILES:
        raise ConfigError(f"paper {number!r} is not one of {', '.join(FILES)}.")
    return import_module(f"discreet.papers.{FILES[number]}").PAPER


def experiment(number: str, name: str) -> Experiment:
    """One of them, by its name.

    Args:
        number: of the paper, as "001".
        name: of the experiment.
    """
    experiments = {e.name: e for e in paper(number).experiments}
    if name not in experiments:
        raise ConfigError(f"paper {number} has no experiment {name!r}; it has {', '.join(experiments)}.")
    return experiments[name]


__all__ = ["FILES", "Experiment", "Paper", "experiment", "paper"]
