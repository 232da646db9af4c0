"""What an optimiser makes of the stream of gradients: the weighted sums whose error should be small."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from discreet._check import check_int, check_positive
from discreet.errors import ConfigError

Reals = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Workload:
    """The model after step t is a sum of the gradients up to t, with these weights.

    SGD weighs all alike: prefix sums. Nothing here changes what is proven, only how good the result is.

    Args:
        momentum: of SGD's velocity, from 0 to below 1. Weights are divided by the gain 1 / (1 - momentum).
        shrinkage: what weight decay leaves of the model at each step, 1 - learning rate * decay.
        schedule: a factor on the learning rate for each step; empty where it is constant.
        averaging: how many of the last models are averaged; 1 for none.
    """

    momentum: float = 0.0
    shrinkage: float = 1.0
    schedule: tuple[float, ...] = ()
    averaging: int = 1

    def __post_init__(self) -> None:
        if check_positive("momentum", self.momentum, zero=True) >= 1:
            raise ConfigError(f"momentum is {self.momentum!r}; it must be below 1.")
        if check_positive("shrinkage", self.shrinkage) > 1:
            raise ConfigError(f"shrinkage is {self.shrinkage!r}; it must be above 0 and at most 1.")
        if not isinstance(self.schedule, Sequence) or isinstance(self.schedule, str):
            raise ConfigError(f"schedule is {self.schedule!r}; give a factor for each step.")
        object.__setattr__(self, "schedule", tuple(self.schedule))
        for factor in self.schedule:
            check_positive("a factor of the schedule", factor, zero=True)
        if self.schedule and not any(self.schedule):
            raise ConfigError("the schedule is zero everywhere, so that nothing is learned.")
        check_int("averaging", self.averaging, least=1)

    @property
    def toeplitz(self) -> bool:
        """Whether a gradient's weight depends on its age alone."""
        return not self.schedule and self.averaging == 1

    def coefficients(self, steps: int) -> Reals:
        """The weights by age, of a workload for which that is all: the first column of its matrix.

        >>> Workload().coefficients(3)
        array([1., 1., 1.])
        """
        if not self.toeplitz:
            raise ConfigError("with a schedule or averaging a gradient's weight depends on more than its age.")
        from scipy.signal import lfilter

        one = np.zeros(steps)
        one[:1] = 1.0
        poles = np.convolve([1.0, -self.shrinkage], [1.0, -self.momentum])
        return (1 - self.momentum) * lfilter([1.0], poles, one)

    def matrix(self, steps: int) -> Reals:
        """All weights: entry (t, i) is what gradient i has in the model after step t."""
        rates = np.ones(steps) if not self.schedule else np.asarray(self.schedule)
        if len(rates) != steps:
            raise ConfigError(f"the schedule has {len(rates)} factors, and there are {steps} steps.")
        age = np.subtract.outer(np.arange(steps), np.arange(steps))
        velocity = np.where(age >= 0, self.momentum ** np.maximum(age, 0), 0.0) * (1 - self.momentum)
        moved = np.where(age >= 0, self.shrinkage ** np.maximum(age, 0), 0.0) * rates
        models = moved @ velocity
        if self.averaging == 1:
            return models
        window = (age >= 0) & (age < self.averaging)
        return (window / window.sum(1, keepdims=True)) @ models
