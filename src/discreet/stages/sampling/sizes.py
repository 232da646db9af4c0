"""What samplers from a public number of examples share."""

from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

from discreet._check import check_int
from discreet.accounting.events import check_unit
from discreet.errors import ConfigError


class Sizes(Protocol):
    """A public number of examples, and the public constant that sums are divided by."""

    @property
    def examples(self) -> int: ...
    @property
    def batch_size(self) -> float: ...


class Steps:
    """How many steps make an epoch, where examples / batch_size of them do, and each step may be a participation."""

    def participations(self, steps: int) -> int:
        """In how many releases of so many in a row one unit can take part."""
        return steps

    def steps_for(self: Sizes, epochs: float) -> int:
        """The number of steps in which as many examples take part as there are, `epochs` times, on average."""
        return round(epochs * self.examples / self.batch_size)

    def epochs_in(self: Sizes, steps: int) -> float:
        """How often an example takes part in so many steps, on average."""
        return steps * self.batch_size / self.examples

    def check_length(self: Sizes, length: int) -> None:
        """Raise unless data of this length may be drawn from."""
        check_length(self.examples, length)


@dataclass(frozen=True)
class OfPublicSize(Steps):
    """What samplers from a public number of examples share; each has a `unit`."""

    examples: int
    batch_size: int

    def with_batch_size(self, batch_size: int) -> Self:
        """The same data with another batch size."""
        return replace(self, batch_size=batch_size)

    @property
    def largest_batch_size(self) -> int:
        """The batch size at which every example takes part in every step."""
        return self.examples


class Passes(Steps):
    """How many steps make an epoch, where each is a pass over the data, charged when it begins."""

    @property
    def steps_in_a_pass(self) -> int:
        """How many batches the data makes."""
        raise NotImplementedError

    def participations(self, steps: int) -> int:
        """Passes that were begun."""
        return -(-steps // self.steps_in_a_pass)

    def steps_for(self, epochs: float) -> int:
        """The number of steps that so many passes have."""
        return round(epochs * self.steps_in_a_pass)

    def epochs_in(self, steps: int) -> float:
        """How many passes so many steps are."""
        return steps / self.steps_in_a_pass


@dataclass(frozen=True)
class InPasses(Passes, OfPublicSize):
    """What samplers share that cut the data into batches, of which the last may be smaller."""

    def __post_init__(self) -> None:
        check_sizes(self)
        check_words(self, "zero-out", "replace")

    @property
    def steps_in_a_pass(self) -> int:
        """How many batches the data makes."""
        return -(-self.examples // self.batch_size)


def check_sizes(sampler: Any) -> None:
    """Raise unless batch size and number of examples are whole numbers that fit each other."""
    name, examples = type(sampler).__name__, sampler.examples or 0
    check_int(f"{name}'s batch_size", sampler.batch_size, least=1)
    check_int(f"{name}'s examples", examples, least=1)
    if sampler.batch_size > examples:
        raise ConfigError(
            f"{name}'s batch_size is {sampler.batch_size}, larger than the {examples} {sampler.unit}s; "
            f"the largest is {examples} (every {sampler.unit} in every step)."
        )


def check_words(sampler: Any, *relations: str) -> None:
    """Raise unless the adjacency is one of these, and the unit a short word."""
    name, adjacency = type(sampler).__name__, getattr(sampler, "adjacency", None)
    if adjacency is not None and adjacency not in relations:
        raise ConfigError(f"{name}'s adjacency is {adjacency!r}; it must be one of {', '.join(relations)}.")
    check_unit(f"{name}'s unit", sampler.unit)


def check_length(expected: int, length: int, remedy: str = "") -> None:
    """Raise unless the data is as long as the plan says."""
    if length != expected:
        raise ConfigError(
            f"the data has {length} examples, the plan says {expected}; the rate would be wrong. Make the "
            f"plan with the data's length{', ' + remedy if remedy else ''}."
        )
