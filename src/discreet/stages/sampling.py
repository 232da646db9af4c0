"""Who takes part in a step.

A sampler is a frozen value with these members (nothing registers it): `contract()` says who takes part in a release and
under which relation it is analysed; `participations(steps)` how many releases of `steps` in a row one unit can
take part in; `draw` draws one step; `batch_size` is the public constant the sum is divided by. `steps_for`,
`epochs_in`, `with_batch_size`, `largest_batch_size` and `check_length` serve plans and calibration.

It may have three more: `continues`, whether steps are counted by the ledger, so that a run that is taken up again goes
on where it stopped (else `origin_step` is where this process took over); `taking_part`, who took part, in the
guarantee's words; and `attend(released)`, where who takes part next depends on who did before.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_args

from discreet._check import check_int
from discreet.accounting.events import Adjacency, Participation, check_unit
from discreet.errors import ConfigError, PrivacyError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from discreet.stages.attendance import Attendance
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
            _check_sizes(self)
        elif isinstance(self.rate, bool) or not (isinstance(self.rate, (int, float)) and 1e-100 <= self.rate <= 1):
            raise ConfigError(f"Poisson's rate is {self.rate!r}; it must be a number in (0, 1].")
        if self.adjacency == "zero-out" and self.examples is None:
            raise ConfigError("Poisson's adjacency 'zero-out' needs a public number of examples; give examples=.")
        if self.cap is not None:
            check_int("Poisson's cap", self.cap, least=self.batch_size)
            if self.examples is None:
                raise ConfigError("Poisson's cap needs a public number of examples; give examples= instead of rate=.")
        _check_words(self, *get_args(Adjacency))

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
            _check_length(self.examples, length, "or use Poisson(rate=..., batch_size=...) if it is secret")

    def draw(self, length: int, step: int, origin_step: int, streams: "Streams") -> "Indices":
        """The indices that take part in one step: each of `length` independently, with exactly the rate."""
        stream = streams(step)
        chosen = stream.chosen(length, self.exact_rate)
        if self.cap is not None and len(chosen) > self.cap:
            chosen = chosen[stream.subset(len(chosen), self.cap)]
            chosen.sort()
        return chosen


@dataclass(frozen=True)
class _OfPublicSize:
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
        _check_length(self.examples, length)


@dataclass(frozen=True)
class FixedSize(_OfPublicSize):
    """Each step takes a fresh set of exactly `batch_size` of the `examples`, without replacement.

    The set's size hides nobody who is added or removed, so it is analysed for one example replaced by another. That is
    another relation than Poisson's, and a stronger demand: the two epsilons cannot be compared.
    """

    replacement: bool = False
    unit: str = "example"

    def __post_init__(self) -> None:
        _check_sizes(self)
        if self.replacement is not False:
            raise ConfigError(
                "FixedSize with replacement is refused: an example can be drawn several times into one batch and then "
                "counts several times in the sum, which no proof here covers. Use FixedSize without it, or Poisson."
            )
        _check_words(self)

    def contract(self) -> Participation:
        return Participation(self.batch_size / self.examples, "replace", self.unit, "fixed-size")

    def participations(self, steps: int) -> int:
        return steps

    def steps_for(self, epochs: float) -> int:
        return round(epochs * self.examples / self.batch_size)

    def epochs_in(self, steps: int) -> float:
        return steps * self.batch_size / self.examples

    def draw(self, length: int, step: int, origin_step: int, streams: "Streams") -> "Indices":
        """A uniformly random set of the batch size."""
        import numpy as np

        return np.sort(streams(step).subset(length, self.batch_size))


@dataclass(frozen=True)
class Shuffled(_OfPublicSize):
    """Passes over the data in a random order, `batch_size` examples at a time: what ordinary loaders do.

    Nothing is proven to be gained by the order (T7 of docs/theory.md): an example takes part once in each pass, and
    that is what is counted. Expect a far larger epsilon than with Poisson. `Allocation` is an epoch in which everybody
    is seen once, too, and costs no more than Poisson in most cases: use it instead.
    """

    adjacency: Adjacency = "zero-out"
    unit: str = "example"

    def __post_init__(self) -> None:
        _check_sizes(self)
        _check_words(self, "zero-out", "replace")

    @property
    def steps_in_a_pass(self) -> int:
        return -(-self.examples // self.batch_size)

    def contract(self) -> Participation:
        return Participation(1.0, self.adjacency, self.unit)

    def participations(self, steps: int) -> int:
        """Passes that were begun."""
        return -(-steps // self.steps_in_a_pass)

    def steps_for(self, epochs: float) -> int:
        return round(epochs * self.steps_in_a_pass)

    def epochs_in(self, steps: int) -> float:
        return steps / self.steps_in_a_pass

    def draw(self, length: int, step: int, origin_step: int, streams: "Streams") -> "Indices":
        """The next examples of this pass's order; passes are counted from the step at which this process `begun`."""
        import numpy as np

        passes, place = divmod(step - origin_step, self.steps_in_a_pass)
        order = streams(origin_step + passes * self.steps_in_a_pass).permutation(length)
        return np.sort(order[place * self.batch_size : (place + 1) * self.batch_size])


@dataclass(frozen=True)
class Allocation:
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
        _check_words(self)

    @property
    def batch_size(self) -> float:
        """N / batches, how many examples a batch has on average: the public constant that sums are divided by."""
        whole, rest = divmod(self.examples, self.batches)
        return self.examples / self.batches if rest else whole

    def contract(self) -> Participation:
        return Participation(1 / self.batches, "zero-out", self.unit, "allocation")

    def participations(self, steps: int) -> int:
        """Epochs that were begun."""
        return -(-steps // self.batches)

    def steps_for(self, epochs: float) -> int:
        return round(epochs * self.batches)

    def epochs_in(self, steps: int) -> float:
        return steps / self.batches

    def with_batch_size(self, batch_size: float) -> Self:
        """The same data in as many batches as have about this size."""
        return replace(self, batches=max(1, round(self.examples / batch_size)))

    @property
    def largest_batch_size(self) -> int:
        """The batch size at which every example takes part in every step."""
        return self.examples

    def check_length(self, length: int) -> None:
        """Raise unless data of this length may be drawn from."""
        _check_length(self.examples, length)

    def draw(self, length: int, step: int, origin_step: int, streams: "Streams") -> "Indices":
        """Those who picked this batch of the epoch; epochs are counted from the step at which this process began."""
        epochs, batch = divmod(step - origin_step, self.batches)
        picked = streams(origin_step + epochs * self.batches).below(self.batches, length)
        return (picked == batch).nonzero()[0]


@dataclass(frozen=True)
class FixedBatches(_OfPublicSize):
    """The data is cut once into batches, by position; each step takes one of them at random (paper 000's sampling).

    Which batch ran can be seen from its sum, so epsilon gains nothing from the choice (T7 of docs/theory.md); only the
    number of times an example takes part is random.
    """

    adjacency: Adjacency = "zero-out"
    unit: str = "example"

    def __post_init__(self) -> None:
        _check_sizes(self)
        _check_words(self, "zero-out", "replace")

    @property
    def number(self) -> int:
        return -(-self.examples // self.batch_size)

    def contract(self) -> Participation:
        return Participation(1 / self.number, self.adjacency, self.unit, "fixed-batches")

    def participations(self, steps: int) -> int:
        return steps

    def steps_for(self, epochs: float) -> int:
        return round(epochs * self.number)

    def epochs_in(self, steps: int) -> float:
        return steps / self.number

    def draw(self, length: int, step: int, origin_step: int, streams: "Streams") -> "Indices":
        """Every `number`-th example, from a random start."""
        import numpy as np

        return np.arange(int(streams(step).below(self.number, 1)[0]), length, self.number)


@dataclass(frozen=True)
class CyclicPoisson(_OfPublicSize):
    """Examples are in groups that have their turn one after the other; in its group's steps each has its own coin.

    Example i is in group i mod `groups`, and step t takes from group t mod `groups`, each member by a secret coin of
    probability exactly groups * batch_size / examples. With banded noise (BandedGaussian), and at least as many groups
    as bands, T steps cost what ceil(T / groups) Poisson steps do at that rate (C4 of docs/theory-correlated.md).

    Steps are counted by the ledger, so that a run that is taken up again goes on with the group that is due (C6). The
    order of the examples must not depend on what is to be protected; their number is public (zero-out adjacency).
    """

    groups: int = 1
    unit: str = "example"

    continues: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_sizes(self)
        _check_words(self)
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

    def steps_for(self, epochs: float) -> int:
        return round(epochs * self.examples / self.batch_size)

    def epochs_in(self, steps: int) -> float:
        return steps * self.batch_size / self.examples

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
class FixedOrder(_OfPublicSize):
    """Passes over the data in one order, the same in each: `batch_size` examples at a time, by their place.

    Nothing is hidden by the order, and nothing is gained by it but that an example's steps are as far apart as can be:
    for correlated noise (BLTGaussian, BandedGaussian), where coins are not to be had. Steps are counted by the ledger:
    a run that is taken up again goes on where it stopped.
    """

    unit: str = "example"

    continues: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_sizes(self)
        _check_words(self)

    @property
    def steps_in_a_pass(self) -> int:
        return -(-self.examples // self.batch_size)

    @property
    def taking_part(self) -> str:
        return f"each {{unit}} took part in every {self.steps_in_a_pass}th step, and in no other"

    def contract(self) -> Participation:
        return Participation(1.0, "zero-out", self.unit, separation=self.steps_in_a_pass)

    def participations(self, steps: int) -> int:
        """Passes that were begun."""
        return -(-steps // self.steps_in_a_pass)

    def steps_for(self, epochs: float) -> int:
        return round(epochs * self.steps_in_a_pass)

    def epochs_in(self, steps: int) -> float:
        return steps / self.steps_in_a_pass

    def draw(self, length: int, step: int, origin_step: int, streams: "Streams") -> "Indices":
        """The examples whose turn it is."""
        import numpy as np

        first = step % self.steps_in_a_pass * self.batch_size
        return np.arange(first, min(first + self.batch_size, length))


@dataclass(frozen=True)
class MinSeparation(_OfPublicSize):
    """Up to `batch_size` users a round: nobody twice within `separation` rounds, nobody more than `most` times.

    For federated rounds whose server cannot sample by coins: who is there takes part. Nothing is gained by chance; the
    whole run is one release, whose sensitivity follows from the noise's strategy (C1, C3 of docs/theory-correlated.md).
    The server remembers who took part. Where it cannot know that of some rounds (they were released after the last
    checkpoint), everybody counts as having taken part in them, and waits.
    """

    separation: int = 1
    most: int = 1
    unit: str = "user"

    continues: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_sizes(self)
        _check_words(self)
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

    def steps_for(self, epochs: float) -> int:
        return round(epochs * self.examples / self.batch_size)

    def epochs_in(self, steps: int) -> float:
        return steps * self.batch_size / self.examples

    def attend(self, released: int) -> "Attendance":
        """Who took part when, in a run that has released so many rounds of which nothing is known."""
        from discreet.stages.attendance import Attendance

        return Attendance(self, released)

    def draw(self, length: int, step: int, origin_step: int, streams: "Streams") -> "Indices":
        """Not to be had without knowing who took part before: see `attend`."""
        raise PrivacyError("who takes part next depends on who took part before; draw by attend().")


def _check_sizes(sampler: Any) -> None:
    name, examples = type(sampler).__name__, sampler.examples or 0
    check_int(f"{name}'s batch_size", sampler.batch_size, least=1)
    check_int(f"{name}'s examples", examples, least=1)
    if sampler.batch_size > examples:
        raise ConfigError(
            f"{name}'s batch_size is {sampler.batch_size}, larger than the {examples} {sampler.unit}s; "
            f"the largest is {examples} (every {sampler.unit} in every step)."
        )


def _check_words(sampler: Any, *relations: str) -> None:
    name, adjacency = type(sampler).__name__, getattr(sampler, "adjacency", None)
    if adjacency is not None and adjacency not in relations:
        raise ConfigError(f"{name}'s adjacency is {adjacency!r}; it must be one of {', '.join(relations)}.")
    check_unit(f"{name}'s unit", sampler.unit)


def _check_length(expected: int, length: int, remedy: str = "") -> None:
    if length != expected:
        raise ConfigError(
            f"the data has {length} examples, the plan says {expected}; the rate would be wrong. Make the "
            f"plan with the data's length{', ' + remedy if remedy else ''}."
        )
