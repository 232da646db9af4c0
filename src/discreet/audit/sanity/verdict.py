"""Whether a plan passes a check: against chance, against what the guarantee allows, and by a test that is valid."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from discreet.audit.one_run import OneRun
from discreet.errors import ConfigError

Word = Literal["pass", "too weak", "broken", "says nothing"]


@dataclass(frozen=True)
class Verdict:
    """How often something was known that only the data could tell, with privacy (`private`) and without (`plain`).

    Each figure is of one independent retraining with fresh data, from 0 to 1. Who knows nothing reaches `chance`; the
    guarantee allows at most `ceiling` on average (T8 of docs/theory.md). `single` are one-run tests of the same
    retrainings, where there are any.

    - "broken": more than the guarantee allows. The chance of a false alarm is at most `level`: half of it is
      Hoeffding's bound on the mean over retrainings, half is shared by the one-run tests. (A binomial test over the
      records of one run would not be valid, as they depend on each other.)
    - "too weak": above chance by more than `tolerance`, though the guarantee allows it.
    - "says nothing": not known without privacy either, so that not knowing it proves little; train longer.
    - "pass": none of these.
    """

    private: tuple[float, ...]
    plain: tuple[float, ...]
    chance: float
    ceiling: float
    tolerance: float
    level: float = 0.05
    single: tuple[OneRun, ...] = ()

    def __post_init__(self) -> None:
        if not self.private:
            raise ConfigError("a verdict needs at least one retraining.")
        if not 0 < self.level < 1:
            raise ConfigError(f"level is {self.level!r}; it is the chance of a false alarm, between 0 and 1.")
        if math.fsum(run.level for run in self.single) > self.level / 2 * (1 + 1e-9):
            raise ConfigError(f"the one-run tests' levels add up to more than half of the verdict's ({self.level:g}).")
        if not 0 <= self.tolerance <= 1:
            raise ConfigError(f"tolerance is {self.tolerance!r}; it must be from 0 to 1.")

    @property
    def mean(self) -> float:
        """With privacy, over the retrainings."""
        return math.fsum(self.private) / len(self.private)

    @property
    def least(self) -> float:
        """What the true mean is at least, with confidence 1 - level / 2 (Hoeffding, over retrainings)."""
        return max(0.0, self.mean - margin(len(self.private), self.level / 2))

    @property
    def broken(self) -> bool:
        """Whether more was found than the guarantee allows."""
        return self.least > self.ceiling or any(run.disproves for run in self.single)

    @property
    def word(self) -> Word:
        """The verdict in a word."""
        if self.broken:
            return "broken"
        if self.mean > self.chance + self.tolerance:
            return "too weak"
        learnable = not self.plain or math.fsum(self.plain) / len(self.plain) > self.chance + self.tolerance
        return "pass" if learnable else "says nothing"

    @property
    def epsilon_lower_bound(self) -> float | None:
        """The largest epsilon that a one-run test of these retrainings measured, at its share of the level."""
        return max((run.epsilon_lower_bound for run in self.single), default=None)

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values."""
        return {
            "verdict": self.word,
            "private": list(self.private),
            "plain": list(self.plain),
            "mean": self.mean,
            "chance": self.chance,
            "ceiling": self.ceiling,
            "tolerance": self.tolerance,
            "level": self.level,
            "one_run": [run.to_dict() for run in self.single],
            "epsilon_lower_bound": self.epsilon_lower_bound,
        }

    def __str__(self) -> str:
        test = f"mean of {len(self.private)} independent retrainings, Hoeffding at level {self.level / 2:g}"
        if self.single:
            test += f", and {len(self.single)} one-run tests at level {self.level / 2:g} together"
        shares = f"found {self.mean:.1%}, chance {self.chance:.1%}, allowed {self.ceiling:.1%}"
        return f"{_WORDS[self.word]} ({shares}; {test})."


@dataclass(frozen=True)
class Retrained:
    """What came of retrainings with privacy and without, and the verdict on it; `told` says in a word what that is."""

    told: ClassVar[str]

    verdict: Verdict
    private: tuple[Any, ...]
    plain: tuple[Any, ...]

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values."""
        own = {field.name: getattr(self, field.name) for field in fields(self)[3:]}
        both = {"private": list(self.private), "plain": list(self.plain)}
        return {"verdict": self.verdict.to_dict(), self.told: both, **own}


def margin(runs: int, level: float) -> float:
    """How far a mean of `runs` independent values from 0 to 1 may be off, but for a chance of `level` (Hoeffding).

    >>> round(margin(5, 0.025), 3)
    0.607
    """
    return math.sqrt(math.log(1 / level) / (2 * runs))


def worst(words: Sequence[Word]) -> Word:
    """The verdict of several checks together."""
    order: tuple[Word, ...] = ("broken", "too weak", "says nothing", "pass")
    return next(word for word in order if word in words)


_WORDS = {
    "pass": "Pass: nothing was learned that only the data could tell",
    "too weak": "Too weak: more was learned than chance explains, within what the guarantee allows",
    "broken": "Broken: more was learned than the guarantee allows, so the guarantee or the code is wrong",
    "says nothing": "Says nothing: it was not learned without privacy either; train longer, or at another rate",
}
