"""What choosing the best of several private runs costs (Papernot and Steinke 2021)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from discreet._check import check_positive
from discreet.errors import ConfigError

if TYPE_CHECKING:
    from discreet.accounting.events import Event
    from discreet.accounting.guarantee import Guarantee
    from discreet.stages.plan import Plan

Reals = npt.NDArray[np.floating[Any]]
Distribution = Literal["geometric", "logarithmic", "poisson", "all"]
Score = Literal["held-out", "noisy"]
_MOST_RUNS = 10**7  # so many are drawn with a probability that nothing here can tell from none
_SHAPES = {"geometric": 1.0, "logarithmic": 0.0}


@dataclass(frozen=True)
class Tuning:
    """A number of runs drawn at random, with mean `runs`, settings drawn independently; only the best is released.

    - "geometric", "logarithmic": truncated negative binomial numbers of runs; "logarithmic" costs least;
    - "poisson": as many runs as expected, more sharply; it may be none, and then nothing is released;
    - "all": a fixed number of runs, or all of them released: they compose, one by one.

    The score by which the best is chosen must itself be private, or computed on public data: of "held-out" rows nothing
    is proven, and a "noisy" one is counted, so that it is among the `candidates`.

    Where settings differ in what a run costs, `candidates` are the releases of each: the divergence of a run with
    settings drawn at random, at any order, is at most the largest of theirs, as the settings do not depend on the data.
    """

    runs: float
    distribution: Distribution = "logarithmic"
    score: Score = "held-out"
    candidates: "tuple[tuple[Event, ...], ...]" = ()

    def __post_init__(self) -> None:
        check_positive("the number of tuning runs", self.runs)
        if self.runs > 1e6:
            raise ConfigError(f"{self.runs!r} tuning runs are too many; the most is 1,000,000.")
        if self.distribution not in get_args(Distribution):
            raise ConfigError(
                f"the distribution of runs is {self.distribution!r}; it must be one of "
                f"{', '.join(get_args(Distribution))}."
            )
        if self.score not in get_args(Score):
            raise ConfigError(f"the score is {self.score!r}; it must be one of {', '.join(get_args(Score))}.")
        if self.distribution == "all" and self.candidates:
            raise ConfigError("where all runs count each is accounted for itself; candidates are of a choice.")
        if self.distribution == "all" and self.runs != int(self.runs):
            raise ConfigError(f"{self.runs!r} runs that all count must be a whole number.")
        if self.runs < 1 or (self.distribution == "logarithmic" and self.runs <= 1):
            raise ConfigError(f"{self.runs!r} runs on average is too few; it must be above 1.")
        object.__setattr__(self, "runs", float(self.runs))


def tuning_cost(plan: "Plan", *, runs: float, distribution: Distribution = "logarithmic") -> "Guarantee":
    """The guarantee of the best of about `runs` runs of this plan, each with settings drawn at random.

    Args:
        plan: that of each run.
        runs: how many there are on average.
        distribution: of their number: "geometric", "logarithmic" or "poisson", drawn secretly; "all" for a fixed
            number, all published.

    >>> import discreet
    >>> plan = discreet.methods.dp_sgd(examples=60_000, batch_size=64, epochs=10, noise=1.0, delta=1e-5)
    >>> round(tuning_cost(plan, runs=10).epsilon, 2)
    1.4
    """
    from dataclasses import replace

    return replace(plan, tuning=Tuning(runs, distribution), epsilon=None).guarantee()


def draw_runs(tuning: Tuning, uniform: float) -> int:
    """A number of runs by the tuning's law, from a number that was drawn evenly from 0 to 1.

    >>> [draw_runs(Tuning(10, law), 0.5) for law in ("logarithmic", "geometric", "poisson")]
    [4, 7, 10]
    """
    if tuning.distribution == "all":
        return int(tuning.runs)
    count, below = (0, 0.0) if tuning.distribution == "poisson" else (1, 0.0)
    while count < _MOST_RUNS:
        below += _chance(tuning, count)
        if uniform < below:
            return count
        count += 1
    return count


def _chance(tuning: Tuning, count: int) -> float:
    """The probability of so many runs."""
    mean = tuning.runs
    if tuning.distribution == "poisson":
        return math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))
    stop = _stopping(mean, _SHAPES[tuning.distribution])
    if tuning.distribution == "geometric":
        return stop * (1 - stop) ** (count - 1)
    return (1 - stop) ** count / (count * math.log(1 / stop))


def of_the_best(tuning: Tuning, own: "Sequence[Event]" = ()) -> Reals:
    """Rényi divergences of the best of several runs, at rdp.ORDERS: of the candidates, and of one's own releases.

    Nothing is proven (infinity) where a run's draws may not be as their scheme says.
    """
    from discreet.accounting import rdp

    several = [events for events in (tuple(own), *tuning.candidates) if events]
    if any(event.slack or event.best is not None for events in several for event in events):
        return np.full(len(rdp.ORDERS), math.inf)
    if not several:
        return np.zeros(len(rdp.ORDERS))
    return tuned(np.max([rdp.divergences(events) for events in several], axis=0), rdp.ORDERS, tuning)


def tuned(divergences: Reals, of_orders: Sequence[float], tuning: Tuning) -> Reals:
    """Rényi divergences of the best of several runs, from those of one run at the same orders."""
    orders = np.asarray(of_orders, float)
    if tuning.distribution == "poisson":
        return _poisson(divergences, orders, tuning.runs)
    shape = _SHAPES[tuning.distribution]
    rest = (1 + shape) * (-math.log(_stopping(tuning.runs, shape)))
    other = (1 + shape) * (1 - 1 / orders) * divergences + rest / orders
    return divergences + float(np.min(other)) + math.log(tuning.runs) / (orders - 1)


@lru_cache(maxsize=64)
def _stopping(runs: float, shape: float) -> float:
    """The parameter gamma at which the mean number of runs is `runs`."""
    if shape == 1:
        return 1 / runs
    return float(brentq(lambda g: (1 / g - 1) / math.log(1 / g) - runs, 1e-12, 1 - 1e-12, xtol=1e-15))


def _poisson(divergences: Reals, orders: Reals, mean: float) -> Reals:
    """eps(a) + mean * delta' + log(mean) / (a - 1), where one run is (log(1 + 1 / (a - 1)), delta')-private."""
    allowed = np.log1p(1 / (orders - 1))
    # delta at each allowed epsilon, by the improved conversion at the best order
    with np.errstate(over="ignore", invalid="ignore"):
        exponents = (orders - 1) * (divergences + np.log1p(-1 / orders) - allowed[:, None]) - np.log(orders)
        deltas = np.exp(np.minimum(np.min(np.where(np.isnan(exponents), 0.0, exponents), axis=1), 0.0))
    return divergences + mean * deltas + math.log(mean) / (orders - 1)
