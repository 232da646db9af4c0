"""Canaries: made-up units that are in a run or not by secret coins, and what a run gives away of the coins.

A canary is a row like any other: it is drawn by the plan's sampler, its gradient is bounded, summed and hidden by the
same code as everybody's. What an excluded canary is, the plan's own relation between data sets says. Where the number
of rows is secret (`Poisson(rate=...)`), it is not there. Where it is public, its row stays, and its loss is NaN: that
is masked before anything is computed of it, the questions of bounds that learn included, and contributes exactly
nothing, which is what "zero-out" means.

    units.py    examples and directions; the data with canaries behind them
    scores.py   how canaries are scored, by what an attacker sees
    joint.py    the likelihood where steps have something in common
    others.py   what everybody else adds to a release
    run.py      a run with canaries, trained and audited
"""

from discreet.audit.canaries.others import Others, gradient_of
from discreet.audit.canaries.run import AuditedRun, audit_run
from discreet.audit.canaries.scores import (
    Filter,
    Likelihood,
    Score,
    add_released,
    checked_score,
    parameters_of,
    rehearsed_counts,
)
from discreet.audit.canaries.units import (
    DATA,
    EXCLUDED,
    Directions,
    Examples,
    directions,
    for_canaries,
    mislabelled,
    noise_images,
    with_canaries,
)

__all__ = [
    "DATA",
    "EXCLUDED",
    "AuditedRun",
    "Directions",
    "Examples",
    "Filter",
    "Likelihood",
    "Others",
    "Score",
    "add_released",
    "audit_run",
    "checked_score",
    "directions",
    "for_canaries",
    "gradient_of",
    "mislabelled",
    "noise_images",
    "parameters_of",
    "rehearsed_counts",
    "with_canaries",
]
