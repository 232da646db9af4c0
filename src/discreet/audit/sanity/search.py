"""The smallest noise at which a check passes, as the paper's workflow has it; and what epsilon that is."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from discreet._check import check_int, check_positive
from discreet.audit.sanity.verdict import Verdict
from discreet.errors import ConfigError


@dataclass(frozen=True)
class Tried:
    """One noise, and how the check went."""

    noise: float
    verdict: Verdict

    @property
    def passed(self) -> bool:
        return self.verdict.word == "pass"

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values."""
        return {"noise": self.noise, "verdict": self.verdict.to_dict()}


def smallest_noise(
    check: Callable[[float], Verdict], low: float, high: float, *, tries: int = 6
) -> tuple[float | None, tuple[Tried, ...]]:
    """The smallest noise from `low` to `high` at which `check(noise)` passes.

    Found by halving the ratio between a noise that does not pass and one that does. What passes is measured on a few
    runs: it is a choice, and proves nothing.

    Args:
        check: the verdict at a noise multiplier.
        low: the smallest that is tried.
        high: the largest.
        tries: how many are tried at most.

    Returns:
        The noise, None if `high` does not pass; and all that were tried, in order.
    """
    if not 0 < check_positive("low", low) < check_positive("high", high):
        raise ConfigError(f"noise is searched from {low:g} to {high:g}; the second must be larger.")
    check_int("tries", tries, least=2)
    tried = [Tried(high, check(high))]
    if not tried[0].passed:
        return None, tuple(tried)
    tried.append(Tried(low, check(low)))
    if tried[1].passed:
        return low, tuple(tried)
    passing, failing = high, low
    while len(tried) < tries:
        middle = math.sqrt(passing * failing)
        tried.append(Tried(middle, check(middle)))
        passing, failing = (middle, failing) if tried[-1].passed else (passing, middle)
    return passing, tuple(tried)
