"""Passes over the data: in a random order, at random places, or batch by batch."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from discreet._check import check_int
from discreet.accounting.events import Adjacency, Participation
from discreet.errors import ConfigError
from discreet.stages.sampling.sizes import InPasses, Passes, check_words

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from discreet.stages.noise.random import SecureStream

    Indices = npt.NDArray[np.intp]
    Streams = Callable[[int], SecureStream]


@dataclass(frozen=True)
class Shuffled(InPasses):
    """Passes over the data in a random order, `batch_size` examples at a time: what ordinary loaders do.

    Nothing is proven to be gained by the order (T7 of docs/theory.md): an example takes part once in each pass, and
    that is what is counted. Expect a far larger epsilon than with Poisson. `Allocation` is an epoch in which everybody
    is seen once, too, and costs no more than Poisson in most cases: use it instead.
    """

    adjacency: Adjacency = "zero-out"
    unit: str = "example"

    def contract(self) -> Participation:
        return Participation(1.0, self.adjacency, self.unit)

    def draw(self, length: int, step: int, origin_step: int, streams: "Streams") -> "Indices":
        """The next examples of this pass's order; passes are counted from the step at which this process `begun`."""
        import numpy as np

        passes, place = divmod(step - origin_step, self.steps_in_a_pass)
        order = streams(origin_step + passes * self.steps_in_a_pass).permutation(length)
        return np.sort(order[place * self.batch_size : (place + 1) * self.batch_size])


@dataclass(frozen=True)
class Allocation(Passes):
    """Epochs of `batches` steps: each example is in exactly one batch of every epoch, which it picks at random.

    It feels like a shuffled loader, and costs about what Poisson does, often less (C7 of docs/theory-correlated.md).
    Examples pick independently and secretly, anew in each epoch, so that batches differ in size and may be empty: the
    sum is divided by the constant N / batches. (A permutation that is cut into equal parts is not covered by the
    proof.) An epoch that has begun is charged whole: after a crash the next step begins a new one, with a new draw, and
    steps that the plan's epochs then have no room for are lost.

    Args:
        examples: their number, which is public (zero-out adjacency).
        batches: how many steps one epoch has.
        unit: what the data holds one of for each index.

    >>> sampler = Allocation(examples=60_000, batches=234)
    >>> round(sampler.batch_size, 2), sampler.steps_for(epochs=60)
    (256.41, 14040)
    """

    examples: int
    batches: int
    unit: str = "example"

    def __post_init__(self) -> None:
        check_int("Allocation's examples", self.examples, least=1)
        check_int("Allocation's batches", self.batches, least=1)
        if self.batches > self.examples:
            raise ConfigError(
                f"Allocation's batches are {self.batches}, more than the {self.examples} {self.unit}s; the most is "
                f"{self.examples} (one {self.unit} in each, on average)."
            )
        check_words(self)

    @property
    def batch_size(self) -> float:
        """N / batches, how many examples a batch has on average: the public constant that sums are divided by."""
        whole, rest = divmod(self.examples, self.batches)
        return self.examples / self.batches if rest else whole

    def contract(self) -> Participation:
        return Participation(1 / self.batches, "zero-out", self.unit, "allocation")

    @property
    def steps_in_a_pass(self) -> int:
        """The batches of an epoch."""
        return self.batches

    def with_batch_size(self, batch_size: float) -> Self:
        """The same data in as many batches as have about this size."""
        return replace(self, batches=max(1, round(self.examples / batch_size)))

    @property
    def largest_batch_size(self) -> int:
        """The batch size at which every example takes part in every step."""
        return self.examples

    def draw(self, length: int, step: int, origin_step: int, streams: "Streams") -> "Indices":
        """Those who picked this batch of the epoch; epochs are counted from the step at which this process began."""
        epochs, batch = divmod(step - origin_step, self.batches)
        picked = streams(origin_step + epochs * self.batches).below(self.batches, length)
        return (picked == batch).nonzero()[0]


@dataclass(frozen=True)
class FixedBatches(InPasses):
    """The data is cut once into batches, by position; each step takes one of them at random (paper 000's sampling).

    Which batch ran can be seen from its sum, so epsilon gains nothing from the choice (T7 of docs/theory.md); only the
    number of times an example takes part is random.
    """

    adjacency: Adjacency = "zero-out"
    unit: str = "example"

    def contract(self) -> Participation:
        return Participation(1 / self.steps_in_a_pass, self.adjacency, self.unit, "fixed-batches")

    def participations(self, steps: int) -> int:
        return steps

    def draw(self, length: int, step: int, origin_step: int, streams: "Streams") -> "Indices":
        """One batch of `steps_in_a_pass`: every so manieth example, from a random start."""
        import numpy as np

        first = int(streams(step).below(self.steps_in_a_pass, 1)[0])
        return np.arange(first, length, self.steps_in_a_pass)
