"""The one-run test: how often guesses of who was in a single training run may be right under (epsilon, delta).

Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run" (2023). Their term for
delta is repaired where it is too small, and beside it stands the exact one, which is smaller where tests are made.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, expit, gammaln, log_expit

from discreet._check import check_int, check_positive, shown
from discreet.accounting.serialization import json_values
from discreet.errors import ConfigError

MOST_CANARIES = 10**7
_PRECISION = 1e-9  # of a lower bound, which is rounded down by it


@dataclass(frozen=True)
class OneRun:
    """What one run with canaries showed, beside what was proven of it.

    `canaries` were each included by a fair secret coin; of `guesses`, a number fixed before the run, `correct` were
    right. `epsilon` and `delta` are what is proven; the test's chance of a false alarm is at most `level`.

    >>> run = OneRun(canaries=1000, guesses=100, correct=95, epsilon=4.0, delta=1e-5)
    >>> round(run.epsilon_lower_bound, 3), run.disproves
    (2.172, False)
    """

    canaries: int
    guesses: int
    correct: int
    epsilon: float
    delta: float
    level: float = 0.05

    def __post_init__(self) -> None:
        check_counts(self.canaries, self.guesses, self.correct, self.delta)
        check_level(self.level)
        if not isinstance(self.epsilon, (int, float)) or not self.epsilon >= 0:
            raise ConfigError(f"the audited epsilon is {self.epsilon!r}; it must be a number >= 0.")

    @property
    def p_value(self) -> float:
        """The chance of so many correct guesses or more, at most, if what is proven holds."""
        return exact_p_value(self.canaries, self.guesses, self.correct, self.epsilon, self.delta)

    @property
    def epsilon_lower_bound(self) -> float:
        """What epsilon is at least, at the run's delta, with confidence 1 - level."""
        return exact_epsilon_lower_bound(self.canaries, self.guesses, self.correct, self.delta, self.level)

    @property
    def disproves(self) -> bool:
        """Whether the proven epsilon is rejected: then the proof or the code is wrong."""
        return self.p_value < self.level

    def __str__(self) -> str:
        verdict = (
            "This contradicts the proof: the proof or the code is wrong."
            if self.disproves
            else "This does not contradict the proof, and proves nothing."
        )
        return (
            f"Of {self.guesses:,} guesses about {self.canaries:,} canaries {self.correct:,} were right. So ε is at "
            f"least {math.floor(self.epsilon_lower_bound * 1000) / 1000:.3f} at δ = {self.delta:g}, with confidence "
            f"{1 - self.level:g}; ε = {self.epsilon:.4g} is proven (p-value {self.p_value:.3g}). {verdict}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values, for a run folder's audit.json."""
        return {
            "canaries": self.canaries,
            "guesses": self.guesses,
            "correct": self.correct,
            "epsilon": json_values(self.epsilon),
            "delta": self.delta,
            "level": self.level,
            "p_value": self.p_value,
            "epsilon_lower_bound": self.epsilon_lower_bound,
        }


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """An upper bound on the chance of at least `correct` right guesses under (epsilon, delta), as it was published.

    Of m canaries, each in or out by a fair coin, r are guessed by looking at what was released:

        Pr[correct >= v] <= beta + 2 m delta alpha,   p = e^epsilon / (1 + e^epsilon),
        beta = Pr[Bin(r, p) >= v],   alpha = max over 1 <= i <= v of Pr[v - i <= Bin(r, p) < v] / i.

    That is too small where v is far below r p: with m = r = 2, v = 1, epsilon 1.5 and delta 0.1 there is a mechanism
    with .98829, and it says .98003. There `exact_p_value`, the chance under the worst mechanism, is returned instead.

    Args:
        canaries: m.
        guesses: r.
        correct: v.
        epsilon: that is claimed.
        delta: that is claimed.

    >>> round(p_value(100, 100, 75, math.log(3), 0.0), 4)
    0.5535
    """
    exact = exact_p_value(canaries, guesses, correct, epsilon, delta)
    if exact == 1 or delta == 0:
        return exact
    published = _beta(guesses, correct, epsilon) + 2 * canaries * delta * _alpha(guesses, correct, epsilon)
    return min(1.0, max(published, exact))


def exact_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The chance of at least `correct` right guesses under the worst mechanism that is (epsilon, delta)-private.

        max Pr[correct >= v] = beta + m delta beta (1 - beta) / (v b),   b = Pr[Bin(r, p) = v],

    or 1 if that is more. Proof: let P_k be the chance of k right guesses, b_k the binomial's, x_k = P_k / b_k. Turning
    a random canary's coin gives sum over k of k b_k (x_k - x_(k-1))+ <= m delta. And Pr[correct >= v] - beta is the sum
    over j < v <= k of b_j b_k (x_k - x_j), which is at most the sum over i of (x_i - x_(i-1))+ times
    Pr[Bin >= max(v, i)] Pr[Bin < min(v, i)]; relative to i b_i that is largest at i = v, as the binomial law is
    log-concave. It is reached by x_k that has two values, one below v and one from v on.

    >>> round(exact_p_value(2, 2, 1, 1.5, 0.1), 5)
    0.98829
    """
    check_counts(canaries, guesses, correct, delta)
    if math.isnan(epsilon) or epsilon < 0:
        raise ConfigError(f"epsilon is {epsilon!r}; it must be a number >= 0.")
    if correct == 0 or math.isinf(epsilon):
        return 1.0
    beta = _beta(guesses, correct, epsilon)
    if delta == 0:
        return beta
    return min(1.0, beta + canaries * delta / correct * _spread(guesses, correct, epsilon))


def epsilon_lower_bound(canaries: int, guesses: int, correct: int, delta: float, level: float = 0.05) -> float:
    """The largest epsilon whose p-value, as published, is below `level`, rounded down; 0 if there is none.

    Guarantee: if the run is (epsilon, delta)-private, this exceeds epsilon with probability at most `level`. For that
    the p-value need not be monotone: a larger epsilon is true as well, so whichever of them is rejected with the fewest
    correct guesses bounds the chance that any of them is.

    Args:
        canaries: how many were in or out by a coin.
        guesses: how many coins were guessed.
        correct: how many guesses were right.
        delta: of the claim.
        level: the chance that a true claim is rejected.

    >>> round(epsilon_lower_bound(1000, 100, 75, 1e-4), 3)
    0.673
    """
    check_level(level)
    return largest(lambda epsilon: p_value(canaries, guesses, correct, epsilon, delta) < level)


def exact_epsilon_lower_bound(canaries: int, guesses: int, correct: int, delta: float, level: float = 0.05) -> float:
    """The same by the exact p-value: never less, and much more where canaries * delta is not small.

    >>> round(exact_epsilon_lower_bound(1000, 100, 75, 1e-4), 3)
    0.695
    """
    check_level(level)
    return largest(lambda epsilon: exact_p_value(canaries, guesses, correct, epsilon, delta) < level)


def largest(rejected: Callable[[float], bool]) -> float:
    """The largest value >= 0 that is rejected, by bisection from below; 0 if none is."""
    if not rejected(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while rejected(high):
        low, high = high, 2 * high
    while high - low > _PRECISION * max(1.0, high):
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


def check_level(level: float) -> float:
    """Return a chance of false alarm if it is one, or raise."""
    if not isinstance(level, (int, float)) or isinstance(level, bool) or not 0 < level < 1:
        raise ConfigError(f"level is {shown(level)}; it is 1 - confidence, between 0 and 1, usually 0.05.")
    return level


def _beta(guesses: int, correct: int, epsilon: float) -> float:
    """Pr[Bin(r, p) >= v]."""
    return float(betainc(correct, guesses - correct + 1, expit(epsilon)))


def _spread(guesses: int, correct: int, epsilon: float) -> float:
    """beta (1 - beta) / b, or a little more where b is too small for a float."""
    ways = gammaln(guesses + 1.0) - gammaln(correct + 1.0) - gammaln(guesses - correct + 1.0)
    log_b = float(ways + correct * log_expit(epsilon) + (guesses - correct) * log_expit(-epsilon))
    if log_b > -600:
        below = float(betainc(guesses - correct + 1, correct, expit(-epsilon)))
        return _beta(guesses, correct, epsilon) * below / math.exp(log_b)
    # from v on the binomial's probabilities fall at least by this factor each, so beta / b is at most 1 / (1 - factor)
    factor = (guesses - correct) / (correct + 1) * math.exp(min(epsilon, 600.0))
    return 1 / (1 - factor) if factor < 1 else math.inf


def _alpha(guesses: int, correct: int, epsilon: float) -> float:
    """The largest mean of Bin(r, p)'s probabilities at v - 1, v - 2, ..., v - i."""
    counts, choices = _choices(guesses, correct)
    logs = choices + counts * log_expit(epsilon) + (guesses - counts) * log_expit(-epsilon)
    means = np.cumsum(np.exp(logs)) / np.arange(1, correct + 1)
    return float(means.max())


@lru_cache(maxsize=4)
def _choices(guesses: int, correct: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The counts v - 1, ..., 0, and the logarithm of the number of ways to each."""
    counts = np.arange(correct - 1, -1, -1, dtype=np.float64)
    ways = gammaln(guesses + 1.0) - gammaln(counts + 1) - gammaln(guesses - counts + 1)
    return counts, ways


def check_counts(canaries: int, guesses: int, correct: int, delta: float) -> None:
    """Raise unless so many guesses about so many canaries can be right, and delta is one."""
    check_int("the number of canaries", canaries, least=1, most=MOST_CANARIES)
    check_int("the number of guesses", guesses, least=0)
    check_int("the number of correct guesses", correct, least=0)
    if not correct <= guesses <= canaries:
        raise ConfigError(
            f"{correct} of {guesses} guesses about {canaries} canaries cannot be right; count each canary once at most."
        )
    check_positive("delta", delta, zero=True)
    if delta > 1:
        raise ConfigError(f"delta is {delta!r}; it must be from 0 to 1.")
