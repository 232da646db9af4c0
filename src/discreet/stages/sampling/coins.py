"""Draws anew in each step: by coins, or sets of a fixed size."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Self, get_args

from discreet._check import check_int
from discreet.accounting.events import Adjacency, Participation
from discreet.errors import ConfigError
from discreet.stages.sampling.sizes import OfPublicSize, check_length, check_sizes, check_words

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from discreet.stages.noise.random import SecureStream

    Indices = npt.NDArray[np.intp]
    Streams = Callable[[int], SecureStream]


@dataclass(frozen=True)
class Poisson:
    """Each example takes part in each step by its own secret coin.

    `Poisson(examples=N, batch_size=B)`: the rate is exactly B / N and N is public (zero-out adjacency).
    `Poisson(rate=q, batch_size=B)`: N is secret (add-remove adjacency), B a constant declared without the data.
    The sum is divided by `batch_size`, never by the number that took part, which is private.

    `adjacency="replace"` has the same run analysed for one example replaced by another. `cap` is the largest batch the
    machine can hold: a larger draw is cut down at random, which costs next to nothing. `unit` is what
    the data holds one of for each index ("example", "user").
    """

    examples: int | None = None
    batch_size: int = 0
    rate: float | None = None
    adjacency: Adjacency | None = None
    cap: int | None = None
    unit: str = "example"

    def __post_init__(self) -> None:
        if (self.examples is None) == (self.rate is None):
            raise ConfigError(
                f"Poisson(examples={self.examples!r}, rate={self.rate!r}): give examples= where their number is "
                "public, or rate= where it is secret, not both."
            )
        check_int("Poisson's batch_size", self.batch_size, least=1)
        if self.examples is not None:
            check_sizes(self)
        elif isinstance(self.rate, bool) or not (isinstance(self.rate, (int, float)) and 1e-100 <= self.rate <= 1):
            raise ConfigError(f"Poisson's rate is {self.rate!r}; it must be a number in (0, 1].")
        if self.adjacency == "zero-out" and self.examples is None:
            raise ConfigError("Poisson's adjacency 'zero-out' needs a public number of examples; give examples=.")
        if self.cap is not None:
            check_int("Poisson's cap", self.cap, least=self.batch_size)
            if self.examples is None:
                raise ConfigError("Poisson's cap needs a public number of examples; give examples= instead of rate=.")
        check_words(self, *get_args(Adjacency))

    @cached_property
    def exact_rate(self) -> Fraction:
        if self.examples is not None:
            return Fraction(self.batch_size, self.examples)
        assert self.rate is not None
        return Fraction(self.rate)

    def contract(self) -> Participation:
        adjacency = self.adjacency or ("add-remove" if self.examples is None else "zero-out")
        crowded, crowded_rate = (0.0, 0.0) if adjacency == "add-remove" else self._crowding()
        return Participation(
            float(self.exact_rate),
            adjacency,
            self.unit,
            overflow=self._overflow(),
            crowded=crowded,
            crowded_rate=crowded_rate,
        )

    def _overflow(self) -> float:
        """The chance that a draw is larger than the cap."""
        if self.cap is None or self.examples is None or self.cap >= self.examples:
            return 0.0
        from scipy.stats import binom

        return float(binom.sf(self.cap, self.examples, float(self.exact_rate))) * (1 + 1e-9) + 1e-300

    def _crowding(self) -> tuple[float, float]:
        """How likely the others leave just one place, rounded up, and how likely a given unit then has it."""
        if self.cap is None or self.examples is None or self.cap >= self.examples:
            return 0.0, 0.0
        import numpy as np
        from scipy.stats import binom

        others, rate = self.examples - 1, float(self.exact_rate)
        top = min(others, self.cap + 40 * int(1 + (others * rate) ** 0.5))
        more = np.arange(self.cap, top + 1)
        exactly = float(binom.pmf(self.cap - 1, others, rate))  # so many of the others were drawn
        cut = float((binom.pmf(more, others, rate) * self.cap / (more + 1)).sum() + binom.sf(top, others, rate))
        has, leaves = rate * (exactly + cut), (1 - rate) * exactly
        if has + leaves < 1e-280:
            return 1e-280, 1.0
        return min(1.0, (has + leaves) * (1 + 1e-9)), min(1.0, has / (has + leaves) * (1 + 1e-9))

    def participations(self, steps: int) -> int:
        return steps

    def steps_for(self, epochs: float) -> int:
        """The number of steps in which an example takes part `epochs` times on average."""
        return round(epochs / self.exact_rate)

    def epochs_in(self, steps: int) -> float:
        """How often an example takes part in so many steps, on average."""
        return float(steps * self.exact_rate)

    def with_batch_size(self, batch_size: int) -> Self:
        """The same data with another batch size, the rate in proportion."""
        rate = None if self.rate is None else min(1.0, self.rate * batch_size / self.batch_size)
        return replace(self, batch_size=batch_size, rate=rate)

    @property
    def largest_batch_size(self) -> int:
        """The batch size at which every example takes part in every step."""
        return (
            self.examples if self.examples is not None else int(self.batch_size / self.exact_rate + Fraction(1, 10**9))
        )

    def check_length(self, length: int) -> None:
        """Raise unless data of this length may be drawn from."""
        if self.examples is not None:
            check_length(self.examples, length, "or use Poisson(rate=..., batch_size=...) if it is secret")

    def draw(self, length: int, step: int, origin_step: int, streams: "Streams") -> "Indices":
        """The indices that take part in one step: each of `length` independently, with exactly the rate."""
        stream = streams(step)
        chosen = stream.chosen(length, self.exact_rate)
        if self.cap is not None and len(chosen) > self.cap:
            chosen = chosen[stream.subset(len(chosen), self.cap)]
            chosen.sort()
        return chosen


@dataclass(frozen=True)
class FixedSize(OfPublicSize):
    """Each step takes a fresh set of exactly `batch_size` of the `examples`, without replacement.

    The set's size hides nobody who is added or removed, so it is analysed for one example replaced by another. That is
    another relation than Poisson's, and a stronger demand: the two epsilons cannot be compared.
    """

    replacement: bool = False
    unit: str = "example"

    def __post_init__(self) -> None:
        check_sizes(self)
        if self.replacement is not False:
            raise ConfigError(
                "FixedSize with replacement is refused: an example can be drawn several times into one batch and then "
                "counts several times in the sum, which no proof here covers. Use FixedSize without it, or Poisson."
            )
        check_words(self)

    def contract(self) -> Participation:
        return Participation(self.batch_size / self.examples, "replace", self.unit, "fixed-size")

    def draw(self, length: int, step: int, origin_step: int, streams: "Streams") -> "Indices":
        """A uniformly random set of the batch size."""
        import numpy as np

        return np.sort(streams(step).subset(length, self.batch_size))
