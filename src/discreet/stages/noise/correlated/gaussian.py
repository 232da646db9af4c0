"""Gaussian noise that takes back a part of what earlier steps added, so that sums over many steps are less noisy."""

import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from discreet._check import check_int, check_positive
from discreet.errors import ConfigError
from discreet.stages.noise.correlated.banded import optimised_bands
from discreet.stages.noise.correlated.blt import BLT, optimised_blt
from discreet.stages.noise.correlated.sensitivity import Pattern
from discreet.stages.noise.correlated.toeplitz import Toeplitz
from discreet.stages.noise.correlated.workload import Workload
from discreet.stages.noise.gaussian import Normal

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.stages.mechanism import NoiseMemory
    from discreet.stages.noise.random import SecureStream


class CorrelatedGaussian(Normal):
    """What both have in common: C with columns of length 1 at most, and noise C^-1 z.

    Guarantee: the noise of all steps is a filter of independent normal noise of `multiplier` sensitivities, whose
    inverse moves by `sensitivity` at most when one unit's shares, each at most 1 long, follow a pattern (C1).
    """

    def sample(self, out: "Tensor", scale: float, source: "SecureStream") -> None:
        """Fresh noise, before the filter."""
        source.fill_normal(out, scale)

    @property
    @abstractmethod
    def strategy(self) -> Toeplitz | BLT | None:
        """C before its columns are normalised; None where it is to be solved by a plan."""

    @property
    @abstractmethod
    def width(self) -> float:
        """How many diagonals of C are not zero: 1 is independent noise, infinite where there is no end of them."""

    @property
    def correlated(self) -> bool:
        """Whether a step's noise has anything to do with earlier ones'."""
        return self.width > 1

    @property
    @abstractmethod
    def column_norm(self) -> float:
        """The length of the longest column of the strategy, by which C is divided."""

    def sensitivity(self, steps: int, pattern: Pattern) -> float:
        """How far one unit moves C G, for C with columns of length 1.

        Args:
            steps: the length of the run.
            pattern: in which steps a unit can take part.
        """
        return self._known.sensitivity(steps, pattern) / self.column_norm

    def error(self, steps: int, workload: Workload | None = None) -> float:
        """The root mean squared error of the workload's sums, at a multiplier of 1.

        Args:
            steps: the length of the run.
            workload: what the optimiser makes of the stream.
        """
        return self._known.error(steps, workload or Workload()) * self.column_norm

    @property
    def _known(self) -> Toeplitz | BLT:
        if self.strategy is None:
            raise ConfigError(f"{self!r} is solved for a run's length: make a Plan with it, and read plan.mechanism.")
        return self.strategy

    @abstractmethod
    def for_run(self, steps: int, pattern: Pattern) -> Self:
        """The same, solved for a run of so many steps, unless its coefficients were given."""

    @abstractmethod
    def resolved(self, steps: int, pattern: Pattern) -> Self:
        """The same, solved anew for another run."""


@dataclass(frozen=True)
class BandedGaussian(CorrelatedGaussian):
    """Noise of which each step takes back a part of the last `bands - 1` steps' (banded matrix factorisation).

    With `CyclicPoisson(groups=bands)` or more groups, T steps cost what ceil(T / groups) Poisson steps of Gaussian
    noise do (C4 of docs/theory-correlated.md). With `bands=1` it is `Gaussian`, bit for bit.

    Args:
        multiplier: fresh noise in units of the sensitivity, as for Gaussian: C's columns are of length 1. None is to
            be solved by `calibrate`.
        bands: how many steps share noise; "best" is to be solved by `calibrate`, together with the multiplier.
        coefficients: C's first column up to its length, one a band. They are solved by the plan unless they are given.
        momentum: of the optimiser, for which they are solved.

    >>> from discreet import Clip, CyclicPoisson, Mechanism, Plan
    >>> sampling = CyclicPoisson(examples=50_000, batch_size=256, groups=16)
    >>> plan = Plan(sampling=sampling, mechanism=Mechanism(Clip(1.0), BandedGaussian(1.042, 16)), steps=390, delta=1e-5)
    >>> plan.charges(390), round(plan.guarantee().epsilon, 1)
    (25, 3.0)
    """

    multiplier: float | None = None
    bands: int | Literal["best"] = "best"
    coefficients: tuple[float, ...] = field(default=(), repr=False)
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if self.multiplier is not None:
            check_positive("BandedGaussian's multiplier", self.multiplier, zero=True)
        if self.bands != "best":
            check_int("BandedGaussian's bands", self.bands, least=1, most=100_000)
        Workload(momentum=self.momentum)
        given = Toeplitz(self.coefficients).coefficients if len(self.coefficients) else ()
        object.__setattr__(self, "coefficients", given)
        if given and len(given) != self.bands:
            raise ConfigError(f"BandedGaussian has {self.bands} bands and {len(given)} coefficients; give one a band.")

    @property
    def scale(self) -> float | None:
        """The multiplier; None also where the bands are to be solved with it."""
        return None if self.bands == "best" else self.multiplier

    def scaled(self, scale: float) -> Self:
        return replace(self, multiplier=scale)

    @property
    def strategy(self) -> Toeplitz | None:
        return Toeplitz(self.coefficients) if self.coefficients else None

    @property
    def width(self) -> float:
        return 1 if self.bands == "best" else self.bands

    @property
    def column_norm(self) -> float:
        return math.sqrt(math.fsum(c * c for c in self.coefficients))

    def for_run(self, steps: int, pattern: Pattern) -> Self:
        return self if self.coefficients or self.bands == "best" else self.resolved(steps, pattern)

    def resolved(self, steps: int, pattern: Pattern) -> Self:
        if self.bands == "best":
            return self
        found = optimised_bands(max(1, steps), self.bands, Workload(momentum=self.momentum)).coefficients
        return replace(self, coefficients=found + (0.0,) * (self.bands - len(found)))

    def start(self) -> "NoiseMemory | None":
        """The filter's memory; none for one band."""
        if not self.correlated:
            return None
        from discreet.stages.noise.correlated.memory import BandMemory

        return BandMemory(self._known.column(int(self.width)).tolist(), self.column_norm)


@dataclass(frozen=True)
class BLTGaussian(CorrelatedGaussian):
    """Noise of which each step takes back a part of all earlier ones', by a few decaying buffers (BLT).

    For data that cannot be sampled by coins: `FixedOrder`, or `MinSeparation` in federated rounds. Sampling does not
    amplify it; the whole run is one release (C1 of docs/theory-correlated.md).

    Args:
        multiplier: fresh noise in units of the sensitivity of one participation; None is to be solved by `calibrate`.
        buffers: how many numbers are remembered a parameter.
        decay: of each buffer, below 1; solved by the plan, with the weights, unless they are given.
        weight: of each buffer.
        steps: the run's length, by which C's columns are normalised; the plan says it.
    """

    multiplier: float | None = None
    buffers: int = 3
    decay: tuple[float, ...] = field(default=(), repr=False)
    weight: tuple[float, ...] = field(default=(), repr=False)
    steps: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        if self.multiplier is not None:
            check_positive("BLTGaussian's multiplier", self.multiplier, zero=True)
        check_int("BLTGaussian's buffers", self.buffers, least=1, most=20)
        check_int("BLTGaussian's steps", self.steps, least=0)
        given = BLT(self.decay, self.weight)
        object.__setattr__(self, "decay", given.decay)
        object.__setattr__(self, "weight", given.weight)
        if given.decay and len(given.decay) != self.buffers:
            raise ConfigError(f"BLTGaussian has {self.buffers} buffers and {len(given.decay)} decays; give one each.")

    @property
    def scale(self) -> float | None:
        return self.multiplier

    def scaled(self, scale: float) -> Self:
        return replace(self, multiplier=scale)

    @property
    def strategy(self) -> BLT | None:
        return BLT(self.decay, self.weight) if self.decay else None

    @property
    def width(self) -> float:
        return 1 if self.decay and not any(self.weight) else math.inf

    @property
    def column_norm(self) -> float:
        return float(np.linalg.norm(self._known.column(max(1, self.steps))))

    def for_run(self, steps: int, pattern: Pattern) -> Self:
        return replace(self, steps=steps) if self.decay else self.resolved(steps, pattern)

    def resolved(self, steps: int, pattern: Pattern) -> Self:
        found = optimised_blt(max(1, steps), self.buffers, pattern)
        return replace(self, decay=found.decay, weight=found.weight, steps=steps)

    def start(self) -> "NoiseMemory | None":
        """The filter's memory."""
        if not self.correlated:
            return None
        from discreet.stages.noise.correlated.memory import BufferMemory

        known = self._known
        assert isinstance(known, BLT)
        return BufferMemory(known.decay, known.weight, self.column_norm)
