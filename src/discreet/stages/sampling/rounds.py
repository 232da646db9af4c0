"""Rounds for noise that remembers: who takes part again is some steps away."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

from discreet._check import check_int
from discreet.accounting.events import Participation
from discreet.errors import ConfigError, PrivacyError
from discreet.stages.sampling.sizes import InPasses, OfPublicSize, check_sizes, check_words

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from discreet.stages.attendance import Attendance
    from discreet.stages.noise.random import SecureStream

    Indices = npt.NDArray[np.intp]
    Streams = Callable[[int], SecureStream]


class Rounds(OfPublicSize):
    """What samplers share whose steps are counted by the ledger."""

    continues: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_sizes(self)
        check_words(self)


@dataclass(frozen=True)
class CyclicPoisson(Rounds):
    """Examples are in groups that have their turn one after the other; in its group's steps each has its own coin.

    Example i is in group i mod `groups`, and step t takes from group t mod `groups`, each member by a secret coin of
    probability exactly groups * batch_size / examples. With banded noise (BandedGaussian), and at least as many groups
    as bands, T steps cost what ceil(T / groups) Poisson steps do at that rate (C4 of docs/theory-correlated.md).

    Steps are counted by the ledger, so that a run that is taken up again goes on with the group that is due (C6). The
    order of the examples must not depend on what is to be protected; their number is public (zero-out adjacency).
    """

    groups: int = 1
    unit: str = "example"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("CyclicPoisson's groups", self.groups, least=1)
        if self.groups * self.batch_size > self.examples:
            raise ConfigError(
                f"CyclicPoisson's groups are {self.groups}, of {self.examples // self.groups} {self.unit}s each, fewer "
                f"than a batch of {self.batch_size}; the most groups are {self.examples // self.batch_size}."
            )

    @property
    def exact_rate(self) -> Fraction:
        """Of a group's members, in the group's steps."""
        return Fraction(self.groups * self.batch_size, self.examples)

    @property
    def taking_part(self) -> str:
        if self.groups == 1:
            return "each {unit} took part in each step by its own secret coin"
        return f"each {{unit}} took part in every {self.groups}th step only, there by its own secret coin"

    def contract(self) -> Participation:
        return Participation(float(self.exact_rate), "zero-out", self.unit, separation=self.groups)

    def participations(self, steps: int) -> int:
        """Rounds through all groups that were begun."""
        return -(-steps // self.groups)

    @property
    def largest_batch_size(self) -> int:
        """The batch size at which every example takes part in every step of its group."""
        return self.examples // self.groups

    def draw(self, length: int, step: int, origin_step: int, streams: "Streams") -> "Indices":
        """The members of the step's group whose coins came up."""
        group = step % self.groups
        members = len(range(group, length, self.groups))
        return streams(step).chosen(members, self.exact_rate) * self.groups + group


@dataclass(frozen=True)
class FixedOrder(InPasses):
    """Passes over the data in one order, the same in each: `batch_size` examples at a time, by their place.

    Nothing is hidden by the order, and nothing is gained by it but that an example's steps are as far apart as can be:
    for correlated noise (BLTGaussian, BandedGaussian), where coins are not to be had. Steps are counted by the ledger:
    a run that is taken up again goes on where it stopped.
    """

    unit: str = "example"

    continues: ClassVar[bool] = True

    @property
    def taking_part(self) -> str:
        return f"each {{unit}} took part in every {self.steps_in_a_pass}th step, and in no other"

    def contract(self) -> Participation:
        return Participation(1.0, "zero-out", self.unit, separation=self.steps_in_a_pass)

    def draw(self, length: int, step: int, origin_step: int, streams: "Streams") -> "Indices":
        """The examples whose turn it is."""
        import numpy as np

        first = step % self.steps_in_a_pass * self.batch_size
        return np.arange(first, min(first + self.batch_size, length))


@dataclass(frozen=True)
class MinSeparation(Rounds):
    """Up to `batch_size` users a round: nobody twice within `separation` rounds, nobody more than `most` times.

    For federated rounds whose server cannot sample by coins: who is there takes part. Nothing is gained by chance; the
    whole run is one release, whose sensitivity follows from the noise's strategy (C1, C3 of docs/theory-correlated.md).
    The server remembers who took part. Where it cannot know that of some rounds (they were released after the last
    checkpoint), everybody counts as having taken part in them, and waits.
    """

    separation: int = 1
    most: int = 1
    unit: str = "user"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("MinSeparation's separation", self.separation, least=1)
        check_int("MinSeparation's most", self.most, least=1)

    @property
    def taking_part(self) -> str:
        return (
            f"no {{unit}} took part more than {self.most} time{'s' * (self.most > 1)}, nor twice within "
            f"{self.separation} steps"
        )

    def contract(self) -> Participation:
        return Participation(1.0, "zero-out", self.unit, separation=self.separation, most=self.most)

    def participations(self, steps: int) -> int:
        """How often a user can take part; a plan counts the whole run as one release."""
        return min(self.most, -(-steps // self.separation))

    def attend(self, released: int) -> "Attendance":
        """Who took part when, in a run that has released so many rounds of which nothing is known."""
        from discreet.stages.attendance import Attendance

        return Attendance(self, released)

    def draw(self, length: int, step: int, origin_step: int, streams: "Streams") -> "Indices":
        """Not to be had without knowing who took part before: see `attend`."""
        raise PrivacyError("who takes part next depends on who took part before; draw by attend().")
