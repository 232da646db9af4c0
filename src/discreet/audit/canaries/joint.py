"""What releases say of canaries where steps have something in common: their noise, or the one batch that a unit is in.

Where noise remembers, a release is row t of G + C^-1 Z. Row by row, C (G + C^-1 Z) = C G + Z is independent noise
again, which the attacker can compute, as C is public and causal. A canary that took part in step t moves the rows from
t on by the t-th column of C; the best that can be made of them is the product with that column (a matched filter).
"""

import math
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.fft import irfft, rfft
from scipy.special import logsumexp

from discreet.audit.guessing import Reals, log_likelihood
from discreet.stages.plan import Plan
from discreet.stages.sampling import Allocation, CyclicPoisson, FixedOrder


class Joint(Protocol):
    """One process's releases, seen along each canary: N(0, 1) where noise is fresh, `mu` more where it took part."""

    def note(self, step: int, seen: Reals) -> None:
        """What was seen along each canary in a step."""

    def scores(self) -> Reals:
        """The log-likelihood ratio of each canary, given all that was noted."""
        ...


def joint(plan: Plan, mu: Reals) -> "Joint | None":
    """How a plan's canaries are scored, which are the last rows of its data; None where it is not by their places.

    Args:
        plan: its sampler says when a canary takes part, its noise what steps share.
        mu: what each canary moves its own sum by, in standard deviations of the noise.
    """
    sampling, noise = plan.sampling, plan.mechanism.noise
    if plan.noise_schedule:
        return None
    if isinstance(sampling, Allocation):
        return Picked(mu, sampling.batches)
    if not isinstance(sampling, (CyclicPoisson, FixedOrder)):
        return None
    rows = np.arange(sampling.examples - len(mu), sampling.examples)
    column = np.ones(1)
    if getattr(noise, "correlated", False):
        remembers: Any = noise
        column = np.asarray(remembers.strategy.column(max(1, plan.steps))) / remembers.column_norm
    if isinstance(sampling, CyclicPoisson):
        return Whitened(mu, column, rows % sampling.groups, sampling.groups, float(sampling.exact_rate))
    return Whitened(mu, column, rows // sampling.batch_size, sampling.steps_in_a_pass, 1.0)


@dataclass(eq=False)
class Picked:
    """Each canary in one of an epoch's batches, it is not known which: the mean of the batches' likelihood ratios."""

    mu: Reals
    batches: int
    rows: list[Reals] = field(default_factory=list)

    def note(self, step: int, seen: Reals) -> None:
        self.rows.append(self.mu * seen - np.square(self.mu) / 2)

    def scores(self) -> Reals:
        found = np.zeros(len(self.mu))
        for start in range(0, len(self.rows), self.batches):
            epoch = self.rows[start : start + self.batches]
            unseen = self.batches - len(epoch)  # of batches that are still to come nothing is known
            found += logsumexp([*epoch, *[np.zeros(len(self.mu))] * unseen], axis=0) - math.log(self.batches)
        return found


@dataclass(eq=False)
class Whitened:
    """Canaries that may take part in step `first`, and every `period` steps after that, by a coin of `rate`.

    The process's first release begins with an empty memory. `column` is the first of C, of length 1 at most.
    """

    mu: Reals
    column: Reals
    first: npt.NDArray[np.intp]
    period: int
    rate: float
    began: int = 0
    rows: list[Reals] = field(default_factory=list)

    def note(self, step: int, seen: Reals) -> None:
        self.began = self.began if self.rows else step
        self.rows.append(seen)

    def scores(self) -> Reals:
        found, count = np.zeros(len(self.mu)), len(self.rows)
        if not count:
            return found
        column = np.zeros(count)
        column[: len(self.column)] = self.column[:count]
        # C^T C times what was seen: along the columns of C, of what is independent noise again
        along = _filtered(column, _filtered(column, np.stack(self.rows))[::-1])[::-1]
        sizes = np.sqrt(np.cumsum(column**2))[::-1]  # of each column, as far as the rows go
        for phase in np.unique(self.first):
            who = self.first == phase
            mu, steps = self.mu[who], np.arange((phase - self.began) % self.period, count, self.period)
            if self.rate < 1:  # columns of one canary do not overlap
                size = sizes[steps, None]
                found[who] = log_likelihood(along[steps][:, who] / size, self.rate, mu * size).sum(0)
            else:
                moved = np.zeros((count, 1))
                moved[steps] = 1.0
                size = float(np.square(_filtered(column, moved)).sum())
                found[who] = mu * along[steps][:, who].sum(0) - np.square(mu) * size / 2
        return found


def _filtered(column: Reals, rows: Reals) -> Reals:
    """C times rows: each is the sum of those up to it, weighted by the column."""
    length = 2 * len(rows)
    return irfft(rfft(column, length)[:, None] * rfft(rows, length, axis=0), length, axis=0)[: len(rows)]
