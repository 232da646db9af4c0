"""Who takes part in a step."""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from discreet.contracts import Participation
from discreet.errors import ConfigError, whole

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from discreet.noise.source import Source


@dataclass(frozen=True)
class Poisson:
    """Each example takes part in each step by its own secret coin.

    `Poisson(examples=N, batch_size=B)`: the rate is exactly B / N and N is public (zero-out adjacency).
    `Poisson(rate=q, batch_size=B)`: N is secret (add-remove adjacency), B a constant declared without the data.
    The sum is divided by `batch_size`, never by the number that took part, which is private.
    """

    examples: int | None = None
    batch_size: int = 0
    rate: float | None = None

    def __post_init__(self) -> None:
        if (self.examples is None) == (self.rate is None):
            raise ConfigError(
                f"Poisson(examples={self.examples!r}, rate={self.rate!r}): give examples= where their number is "
                "public, or rate= where it is secret, not both."
            )
        whole("Poisson's batch_size", self.batch_size, least=1)
        if self.examples is not None:
            whole("Poisson's examples", self.examples, least=1)
            if self.batch_size > self.examples:
                raise ConfigError(
                    f"Poisson's batch_size is {self.batch_size}, larger than the {self.examples} examples; "
                    f"the largest is {self.examples} (every example in every step)."
                )
        elif isinstance(self.rate, bool) or not (isinstance(self.rate, (int, float)) and 1e-100 <= self.rate <= 1):
            raise ConfigError(f"Poisson's rate is {self.rate!r}; it must be a number in (0, 1].")

    @property
    def exact_rate(self) -> Fraction:
        if self.examples is not None:
            return Fraction(self.batch_size, self.examples)
        assert self.rate is not None
        return Fraction(self.rate)

    def contract(self) -> Participation:
        adjacency = "add-remove" if self.examples is None else "zero-out"
        return Participation(rate=float(self.exact_rate), adjacency=adjacency, unit="example")

    def steps_for(self, epochs: float) -> int:
        """The number of steps in which an example takes part `epochs` times on average."""
        return round(epochs / self.exact_rate)

    def with_batch_size(self, batch_size: int) -> "Poisson":
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
        if self.examples is not None and length != self.examples:
            raise ConfigError(
                f"the data has {length} examples, the plan says {self.examples}; the rate would be wrong. Make the "
                "plan with the data's length, or use Poisson(rate=..., batch_size=...) if it is secret."
            )

    def draw(self, length: int, source: "Source") -> "npt.NDArray[np.intp]":
        """The indices that take part in one step: each of `length` independently, with exactly the rate."""
        import numpy as np

        return np.flatnonzero(source.bernoulli(length, self.exact_rate))
