"""What the runs on one data set have spent together, and what is left of its cap."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from discreet.accounting import cost
from discreet.accounting import gaussian as gdp
from discreet.accounting.events import Event, units_of
from discreet.accounting.guarantee import Condition, Guarantee, guarantee
from discreet.errors import ConfigError, PrivacyError
from discreet.ledger.reading import read
from discreet.ledger.state import LedgerState, Run


@dataclass(frozen=True)
class Spent:
    """What one run, or one query beside runs, has spent of a data set.

    `epsilon` is that of its whole declared horizon, alone, at the data set's delta. `place` is the folder of a run as
    it was when it began, beside the registry.
    """

    name: str
    what: str
    at: str
    by: str
    place: str
    released: int
    planned: int
    epsilon: float
    state: str


@dataclass(frozen=True)
class Budget:
    """All that is counted of one data set: `total` is proven of everything together, `cap` what it may come to.

    `left` is what one more run could spend by itself, at the same delta, so that everything together, composed, stays
    within the cap: a run whose releases are as hard to tell apart as a single one with Gaussian noise. None without a
    cap. It is more than the cap less the total. Other runs may fit a little less or more; the ledger decides by theirs.
    """

    dataset: str
    ledger: Path
    delta: float
    cap: float | None
    total: Guarantee
    spent: tuple[Spent, ...]
    left: float | None = None


def read_budget(ledger: str | Path, stages: Sequence[type[Any]] = ()) -> Budget:
    """What a data set's ledger counts; the chain of its lines is checked.

    Args:
        ledger: the file, as datasets/people.jsonl beside the runs' folders.
        stages: bounds, noises and samplers of your own that its runs have, by class.

    Raises:
        ConfigError: the file is no data set's ledger.
        PrivacyError: it was changed.
    """
    path = Path(ledger)
    if not path.is_file():
        raise ConfigError(f"{path} is no ledger: there is no such file.")
    content, _ = read(path, None, stages)
    dataset = content.dataset
    if dataset is None:
        raise ConfigError(f"{path} is the ledger of one run, and no data set's; see it with: discreet verify {path}")
    delta = float(dataset["delta"])
    runs = [_of_run(name, run, content, delta) for name, run in content.runs.items() if not run.withdrawn]
    asked = zip(content.queries, content.askers, content.times, strict=True)
    others = [
        Spent("", what, at, "", "", 1, 1, _alone([event], delta), "released")
        for (what, event), run, at in asked
        if run not in content.runs
    ]
    spent = tuple(sorted([*runs, *others], key=lambda one: one.at))
    cap, total = dataset["epsilon"], total_of(content)
    left = None if cap is None else _left(content.horizon(), total, delta, float(cap))
    return Budget(str(dataset["dataset"]), path, delta, cap, total, spent, left)


def total_of(content: LedgerState, conditions: Sequence[Condition] | None = None) -> Guarantee:
    """What is proven of everything in a data set's ledger together; nothing where it does not add up."""
    assert content.dataset is not None
    rests_on = tuple(content.conditions if conditions is None else conditions)
    horizon = content.horizon()
    try:
        return guarantee(horizon, float(content.dataset["delta"]), conditions=rests_on)
    except PrivacyError as error:
        units = units_of(horizon)
        unknown = Condition("what was released of this data set does not add up", "broken")
        return Guarantee(
            math.inf, float(content.dataset["delta"]), units[0], "zero-out", str(error), (*rests_on, unknown)
        )


def _of_run(name: str, run: Run, content: LedgerState, delta: float) -> Spent:
    opening = run.opening
    bound, noise = (str(opening["plan"].get(stage, {}).get("type", "?")) for stage in ("bound", "noise"))
    state = "ended" if run.end is not None else "all released" if run.released >= run.steps else "not ended"
    events = [*run.horizon(), *content.queries_of(name)]
    noted = (str(opening.get(what, "")) for what in ("at", "by", "place"))
    return Spent(name, f"{bound}, {noise}", *noted, run.released, run.steps, _alone(events, delta), state)


def _left(horizon: Sequence[Event], total: Guarantee, delta: float, cap: float) -> float:
    """The epsilon, alone, of the largest single Gaussian release that fits under the cap; to 0.2 %, and below."""
    if not total.epsilon < cap:
        return 0.0
    first = Event(rate=1.0, multiplier=1.0, steps=1) if not horizon else horizon[0]
    low, high, fits = 0.0, 2 * gdp.mu(cap, delta), 0.0
    while high - low > 2e-3 * high:
        middle = (low + high) / 2
        one = Event(rate=1.0, multiplier=1 / middle, steps=1, unit=first.unit, adjacency=first.adjacency)
        alone = cost([one], delta).epsilon
        if alone <= cap and cost([*horizon, one], delta).epsilon <= cap:
            low, fits = middle, alone
        else:
            high = middle
    return fits


def _alone(events: Sequence[Event], delta: float) -> float:
    try:
        return cost(events, delta).epsilon
    except PrivacyError:
        return math.inf
