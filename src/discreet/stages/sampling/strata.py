"""Draws anew in each step by coins whose chances differ: rare classes, or parts of the data, seen more often."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Self

from discreet._check import check_int
from discreet.accounting.events import Adjacency, Participation
from discreet.errors import ConfigError
from discreet.stages.sampling.coins import Poisson
from discreet.stages.sampling.sizes import Steps, check_words

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from discreet.stages.noise.random import SecureStream

    Indices = npt.NDArray[np.intp]
    Streams = Callable[[int], SecureStream]


@dataclass(frozen=True)
class WeightedPoisson(Steps):
    """Each example takes part by its own secret coin, as in Poisson, whose chance is that of its stratum.

    The data are in order: the first `sizes[0]` examples are the first stratum, and so on; of stratum j each example
    takes part with a chance of exactly `batch_sizes[j] / sizes[j]`. Which stratum a row is in, and so the sizes, is
    public: for strata that are classes, that is the label. Sums are divided by the expected batch, over all strata.

    Guarantee: every example is protected as by Poisson sampling at the largest chance, which is what is charged; those
    of a stratum as by `of_stratum(j)`, which for the stratum of the largest chance is the same.

    Args:
        sizes: how many examples each stratum has.
        batch_sizes: how many of them take part in a step, on average.
        adjacency: "zero-out" unless one example replaced by another of its stratum is meant ("replace").
        unit: what the data holds one of for each index.

    >>> balanced = WeightedPoisson(sizes=(9_000, 1_000), batch_sizes=(50, 50))
    >>> balanced.examples, balanced.batch_size, balanced.contract().rate
    (10000, 100, 0.05)
    >>> balanced.of_stratum(0).contract().rate
    0.005555555555555556
    """

    sizes: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    adjacency: Adjacency = "zero-out"
    unit: str = "example"

    def __post_init__(self) -> None:
        for name in ("sizes", "batch_sizes"):
            values = getattr(self, name)
            if not isinstance(values, (tuple, list)) or not values:
                raise ConfigError(f"WeightedPoisson's {name} is {values!r}; it must have a number for each stratum.")
            least = int(name == "sizes")
            checked = tuple(check_int(f"WeightedPoisson's {name}", value, least=least) for value in values)
            object.__setattr__(self, name, checked)
        if len(self.sizes) != len(self.batch_sizes):
            raise ConfigError(
                f"WeightedPoisson has {len(self.sizes)} sizes and {len(self.batch_sizes)} batch_sizes; give one of "
                "each for every stratum."
            )
        for size, taken in zip(self.sizes, self.batch_sizes, strict=True):
            if taken > size:
                raise ConfigError(
                    f"WeightedPoisson takes {taken} of a stratum of {size} {self.unit}s; the most is {size} (each of "
                    "them in every step)."
                )
        if self.batch_size == 0:
            raise ConfigError("WeightedPoisson's batch_sizes are all 0; one at least must be above it.")
        check_words(self, "zero-out", "replace")

    @property
    def examples(self) -> int:
        """How many there are in all strata."""
        return sum(self.sizes)

    @property
    def batch_size(self) -> int:
        """The expected batch, which sums are divided by."""
        return sum(self.batch_sizes)

    @property
    def rates(self) -> tuple[Fraction, ...]:
        """The chance of taking part, by stratum."""
        return tuple(Fraction(taken, size) for taken, size in zip(self.batch_sizes, self.sizes, strict=True))

    @property
    def taking_part(self) -> str:
        return "each {unit} took part in each step by its own secret coin, whose chance depends on its place alone"

    @property
    def assumes(self) -> str:
        """What the guarantee rests on beside."""
        return "which stratum each {unit} is in is public, and does not change"

    def of_stratum(self, stratum: int) -> Poisson:
        """The sampler by which an example of this stratum is protected: what a plan with it costs is theirs.

        Args:
            stratum: its number, from 0.
        """
        check_int("stratum", stratum, least=0, most=len(self.sizes) - 1)
        if self.batch_sizes[stratum] == 0:
            raise ConfigError(f"nobody of stratum {stratum} ever takes part, so there is nothing to protect.")
        size, taken = self.sizes[stratum], self.batch_sizes[stratum]
        return Poisson(examples=size, batch_size=taken, adjacency=self.adjacency, unit=self.unit)

    def contract(self) -> Participation:
        return Participation(float(max(self.rates)), self.adjacency, self.unit)

    def with_batch_size(self, batch_size: int) -> Self:
        """The same data with another batch size, shared among the strata in the same proportion, in whole numbers."""
        check_int("WeightedPoisson's batch_size", batch_size, least=1)
        wanted = [Fraction(taken * batch_size, self.batch_size) for taken in self.batch_sizes]
        whole = [math.floor(w) for w in wanted]
        order = sorted(range(len(wanted)), key=lambda j: (whole[j] - wanted[j], j))
        for j in order[: batch_size - sum(whole)]:
            whole[j] += 1
        return replace(self, batch_sizes=tuple(whole))

    @property
    def largest_batch_size(self) -> int:
        """The batch size at which every example of some stratum takes part in every step."""
        return math.floor(self.batch_size / max(self.rates))

    def draw(self, length: int, step: int, origin_step: int, streams: "Streams") -> "Indices":
        """The indices that take part in one step."""
        import numpy as np

        stream, taken, first = streams(step), [], 0
        for size, rate in zip(self.sizes, self.rates, strict=True):
            taken.append(stream.chosen(size, rate) + first)
            first += size
        return np.concatenate(taken)
