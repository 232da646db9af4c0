"""How long a run is, and with what noise or at what epsilon: what every preset is asked."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from discreet._check import check_positive
from discreet.accounting.calibrate import calibrate
from discreet.accounting.events import Event
from discreet.errors import ConfigError
from discreet.stages.bounds import Clip
from discreet.stages.mechanism import Bound, Denoiser, Mechanism, Noise
from discreet.stages.noise import Gaussian
from discreet.stages.plan import Plan, Sampler
from discreet.stages.sampling import Poisson

Form = Literal["sound", "paper"]


@dataclass(frozen=True)
class Run:
    """How long a run is, and with what noise or at what epsilon: what every preset is asked."""

    delta: float
    epsilon: float | None
    noise: float | None
    epochs: float | None
    steps: int | None
    usual_epochs: float

    def __post_init__(self) -> None:
        if self.epochs is not None and self.steps is not None:
            raise ConfigError(f"steps={self.steps} and epochs={self.epochs} say the length twice; give one of them.")

    def plan(self, sampling: Sampler, mechanism: Mechanism) -> Plan:
        """The plan of a run with this mechanism."""
        steps = -1 if self.steps is None else self.steps
        epochs = self.usual_epochs if self.epochs is None and self.steps is None else self.epochs
        return Plan(sampling=sampling, mechanism=mechanism, steps=steps, epochs=epochs, delta=self.delta)

    def solved(self, sampling: Sampler, bound: Bound, family: Noise, denoise: Denoiser | None = None) -> Plan:
        """The plan with the noise that was given, or with that at which it has the epsilon."""
        self._check_one()
        plan = self.plan(sampling, Mechanism(bound, family, denoise=denoise))
        return plan if self.epsilon is None else calibrate(plan, self.epsilon)

    def _check_one(self) -> None:
        if (self.epsilon is None) == (self.noise is None):
            raise ConfigError(f"epsilon={self.epsilon!r} and noise={self.noise!r}: give one of them.")

    def noise_of_paper(
        self, sampling: Poisson, *, usual: float, queries: Callable[[float], list[float]] = lambda one: [one]
    ) -> float:
        """The noise that is given or usual, or that at which the papers' accounting says epsilon: Rényi divergences of
        Poisson samples, as if the sensitivity were 1, added up over `queries`, and Mironov's conversion."""
        if self.epsilon is None:
            return usual if self.noise is None else check_positive("noise", self.noise)
        self._check_one()
        from scipy.optimize import brentq

        from discreet.accounting import rdp

        steps = self.plan(sampling, Mechanism(Clip(1.0), Gaussian(1.0))).steps
        rate, target = sampling.contract().rate, check_positive("epsilon", self.epsilon)

        def excess(log_noise: float) -> float:
            events = [Event(rate, multiplier, steps) for multiplier in queries(math.exp(log_noise))]
            return rdp.classic(rdp.divergences(events), rdp.ORDERS, self.delta) - target

        low, high = math.log(0.05), math.log(1e4)
        if not excess(high) <= 0 <= excess(low):
            raise ConfigError(f"no noise from 0.05 to 10,000 has epsilon {self.epsilon:g} by the papers' accounting.")
        return math.exp(float(brentq(excess, low, high, xtol=1e-6)))


def is_published(form: Form) -> bool:
    """Whether the method is meant as it was published."""
    if form not in get_args(Form):
        raise ConfigError(f"form is {form!r}; it must be one of {', '.join(get_args(Form))}.")
    return form == "paper"
