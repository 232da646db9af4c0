"""What samplers from a public number of examples share."""

from dataclasses import dataclass, replace
from typing import Any, Self

from discreet._check import check_int
from discreet.accounting.events import check_unit
from discreet.errors import ConfigError


@dataclass(frozen=True)
class OfPublicSize:
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

    def check_length(self, length: int) -> None:
        """Raise unless data of this length may be drawn from."""
        check_length(self.examples, length)


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
