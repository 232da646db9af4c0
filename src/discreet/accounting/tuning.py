"""What choosing the best of several private runs costs (Papernot and Steinke 2021)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from discreet._check import check_positive
from discreet.errors import ConfigError

if TYPE_CHECKING:
    from discreet.accounting.guarantee import Guarantee
    from discreet.stages.plan import Plan

Reals = npt.NDArray[np.floating[Any]]
Distribution = Literal["geometric", "logarithmic", "poisson", "all"]
_SHAPES = {"geometric": 1.0, "logarithmic": 0.0}


@dataclass(frozen=True)
class Tuning:
    """A number of runs drawn at random, with mean `runs`, settings drawn independently; only the best is released.

    - "geometric", "logarithmic": truncated negative binomial numbers of runs; "logarithmic" costs least;
    - "poisson": as many runs as expected, more sharply; it may be none, and then nothing is released;
    - "all": a fixed number of runs, or all of them released: they compose, one by one.

    The score by which the best is chosen must itself be private, or computed on public data.
    """

    runs: float
    distribution: Distribution = "logarithmic"

    def __post_init__(self) -> None:
        check_positive("the number of tuning runs", self.runs)
        if self.runs > 1e6:
            raise ConfigError(f"{self.runs!r} tuning runs are too many; the most is 1,000,000.")
        if self.distribution not in get_args(Distribution):
            raise ConfigError(
                f"the distribution of runs is {self.distribution!r}; it must be one of "
                f"{', '.join(get_args(Distribution))}."
            )
        if self.distribution == "all" and self.runs != int(self.runs):
            raise ConfigError(f"{self.runs!r} runs that all count must be a whole number.")
        if self.runs < 1 or (self.distribution == "logarithmic" and self.runs <= 1):
            raise ConfigError(f"{self.runs!r} runs on average is too few; it must be above 1.")
        object.__setattr__(self, "runs", float(self.runs))


def tuning_cost(plan: "Plan", *, runs: float, distribution: Distribution = "logarithmic") -> "Guarantee":
    """The guarantee of the best of about `runs` runs of this plan, each with settings drawn at random.

    >>> import discreet
    >>> plan = discreet.methods.dp_sgd(examples=60_000, batch_size=64, epochs=10, noise=1.0, delta=1e-5)
    >>> round(tuning_cost(plan, runs=10).epsilon, 2)
    1.4
    """
    from dataclasses import replace

    return replace(plan, tuning=Tuning(runs, distribution), epsilon=None).guarantee()


def tuned(divergences: Reals, of_orders: Sequence[float], tuning: Tuning) -> Reals:
    """Rényi divergences of the best of several runs, from those of one run at the same orders."""
    orders = np.asarray(of_orders, float)
    if tuning.distribution == "poisson":
        return _poisson(divergences, orders, tuning.runs)
    shape = _SHAPES[tuning.distribution]
    rest = (1 + shape) * (-math.log(_stopping(tuning.runs, shape)))
    other = (1 + shape) * (1 - 1 / orders) * divergences + rest / orders
    return divergences + float(np.min(other)) + math.log(tuning.runs) / (orders - 1)


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
