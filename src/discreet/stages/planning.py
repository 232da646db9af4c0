"""Budget against noise, batch size and length, before any data is touched."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from discreet._check import check_int, check_positive
from discreet.accounting import cost
from discreet.accounting.calibrate import calibrate, largest
from discreet.errors import ConfigError
from discreet.stages.bounds import Clip
from discreet.stages.mechanism import Mechanism, Noise
from discreet.stages.noise import BandedGaussian, BLTGaussian, Gaussian
from discreet.stages.plan import Plan, Sampler
from discreet.stages.sampling import Allocation, CyclicPoisson, FixedBatches, FixedOrder, FixedSize, Poisson, Shuffled

SAMPLINGS: dict[str, Callable[..., Sampler]] = {
    "poisson": Poisson,
    "fixed-size": FixedSize,
    "shuffled": Shuffled,
    "allocation": lambda examples, batch_size, unit: Allocation(examples, 1, unit).with_batch_size(batch_size),
    "fixed-batches": FixedBatches,
}


def solve(
    *,
    examples: int,
    delta: float,
    batch_size: int | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    noise: float | None = None,
    epsilon: float | None = None,
    sampling: str = "poisson",
    unit: str = "example",
    law: Noise | None = None,
    group: int = 1,
) -> Plan:
    """The plan that three of (noise, batch size, epochs or steps, epsilon) determine: the fourth is solved.

    `law` is the noise's law, Gaussian unless another is given; `noise` is its scale in units of the sensitivity. With
    `group`, epsilon is that of groups of so many.

    >>> plan = solve(examples=60_000, batch_size=256, epochs=60, epsilon=3, delta=1e-5)
    >>> round(plan.mechanism.noise.multiplier, 2)
    0.97
    """
    check_int("examples", examples, least=1)
    if steps is not None:
        check_int("steps", steps, least=1)
    if epochs is not None and steps is not None:
        raise ConfigError(f"epochs={epochs} and steps={steps} say the length twice; give one of them.")
    missing = [
        name
        for name, value in (
            ("noise", noise),
            ("batch size", batch_size),
            ("epochs or steps", epochs if steps is None else steps),
            ("epsilon", epsilon),
        )
        if value is None
    ]
    if len(missing) != 1:
        raise ConfigError(
            "give three of noise, batch size, epochs (or steps) and epsilon; the fourth is solved. "
            + (f"Missing: {', '.join(missing)}." if missing else "All four were given.")
        )
    family: Noise = Gaussian() if law is None else law

    def plan(size: int, length: float | None, count: int | None) -> Plan:
        mechanism = Mechanism(Clip(1.0), family if noise is None else family.scaled(noise))
        who = _sampler(sampling, examples, size, unit)
        return Plan(sampling=who, mechanism=mechanism, epochs=length, steps=-1 if count is None else count, delta=delta)

    if epsilon is None:
        assert batch_size is not None
        return plan(batch_size, epochs, steps)
    if batch_size is None:
        if epochs is not None:
            return _largest_batch(lambda size: plan(size, epochs, None), examples, epsilon, group)
        return calibrate(plan(1, None, steps), epsilon, solve_for="batch_size", group=group)
    if noise is None:
        return calibrate(plan(batch_size, epochs, steps), epsilon, group=group)
    return calibrate(plan(batch_size, 1.0, None), epsilon, solve_for="steps", group=group)


def _sampler(name: str, examples: int, batch_size: int, unit: str) -> Sampler:
    if name not in SAMPLINGS:
        raise ConfigError(f"sampling is {name!r}; it must be one of {', '.join(SAMPLINGS)}.")
    return SAMPLINGS[name](examples=examples, batch_size=batch_size, unit=unit)


def _largest_batch(plan_of: Callable[[int], Plan], examples: int, epsilon: float, group: int) -> Plan:
    """The largest batch size at a fixed number of epochs that fits: its steps follow from it."""
    size = largest(lambda n: _spent(plan_of(n), group), epsilon, examples, min(examples, 256))
    if size == 0:
        raise ConfigError(f"not even batch size 1 fits epsilon {epsilon:g}; add noise or take fewer epochs.")
    return replace(plan_of(size), epsilon=epsilon)


def _spent(plan: Plan, group: int) -> float:
    return cost(plan.events(group=group), plan.delta, plan.tuning, thorough=False).epsilon


@dataclass(frozen=True)
class Alternative:
    """A way to spend the same epsilon: its error beside DP-SGD's, both as `plan.rms_error`."""

    name: str
    plan: Plan
    ratio: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"name": self.name, "ratio": self.ratio, "rms_error": self.plan.rms_error, "plan": self.plan.to_dict()}

    def row(self) -> tuple[str, str, str]:
        """A line of a table: what it is, its noise multiplier, and its error beside DP-SGD's."""
        bands = getattr(self.plan.mechanism.noise, "bands", None)
        name = self.name if bands is None else f"{bands} {self.name}"
        return name, f"{self.plan.mechanism.noise.scale or 0.0:.4g}", f"{self.ratio:.3f}"


def correlated(plan: Plan, epsilon: float) -> tuple[Alternative, ...]:
    """What correlated noise would gain a DP-SGD plan at this epsilon: its length, batch size, bound and delta.

    Args:
        plan: Poisson sampling of a public number of examples, or passes in an order, with Gaussian noise.
        epsilon: what is spent.

    Returns:
        DP-SGD itself (ratio 1, the yardstick), the best bands with cyclic Poisson sampling, and BLT in a fixed order,
        which needs no coins. Empty where the plan is of another kind.
    """
    sampling, noise = plan.sampling, plan.mechanism.noise
    examples = getattr(sampling, "examples", None)
    usual = isinstance(sampling, (Poisson, CyclicPoisson, Shuffled)) and sampling.contract().adjacency == "zero-out"
    simple = type(noise) is Gaussian and plan.mechanism.microbatch == 1 and plan.mechanism.denoise is None
    simple = simple and plan.mechanism.hardening == "idealised" and not sampling.contract().overflow
    if examples is None or not usual or not simple or plan.noise_schedule or plan.steps == 0:
        return ()
    unit, size = sampling.contract().unit, sampling.batch_size
    coins = Poisson(examples=examples, batch_size=size, unit=unit)
    order = FixedOrder(examples=examples, batch_size=size, unit=unit)
    kinds: tuple[tuple[str, Sampler, Noise], ...] = (
        ("DP-SGD", coins, Gaussian()),
        ("bands", coins, BandedGaussian()),
        ("BLT, no coins", order, BLTGaussian()),
    )
    alternatives = []
    for name, who, law in kinds:
        free = replace(plan, sampling=who, mechanism=replace(plan.mechanism, noise=law), epsilon=None)
        solved = calibrate(free, epsilon)
        alternatives.append(
            Alternative(
                name, solved, solved.rms_error / (alternatives[0].plan.rms_error if alternatives else solved.rms_error)
            )
        )
    return tuple(alternatives)


def advice(alternatives: tuple[Alternative, ...]) -> str:
    """In a sentence, whether correlated noise gains anything; empty if there is nothing to compare."""
    if not alternatives:
        return ""
    banded = next(a for a in alternatives if a.name == "bands")
    bands = getattr(banded.plan.mechanism.noise, "bands", 1)
    if bands == 1 or banded.ratio > 0.99:
        return (
            "Correlated noise gains nothing here: batches are so large, or epsilon so small, that sampling hides more "
            "than noise can take back."
        )
    return (
        f"Correlated noise with {bands} bands has {banded.ratio:.2f} of DP-SGD's root mean squared error at the same "
        f"epsilon: BandedGaussian(bands={bands}) with CyclicPoisson(groups={bands}), or methods.band_mf. Tune the "
        "learning rate anew."
    )


@dataclass(frozen=True)
class Size:
    """What another batch size would need, at the same epsilon and number of epochs."""

    batch_size: int
    steps: int
    noise: float
    noise_per_example: float
    learning_rate: float | None


def sizes(plan: Plan, epsilon: float, learning_rate: float | None = None, group: int = 1) -> Iterator[Size]:
    """Batch sizes around the plan's, at its number of epochs, each with its noise solved (paper 003, figure 5).

    Noise an example is multiplier / batch size, which falls as batches grow; the learning rate grows with them. Sizes
    for which nothing fits are left out.
    """
    if learning_rate is not None:
        check_positive("the learning rate", learning_rate)
    base, epochs = plan.sampling.batch_size, plan.sampling.epochs_in(plan.steps)
    for factor in (0.125, 0.25, 0.5, 1, 2, 4, 8, 16):
        size = round(base * factor)
        if not 1 <= size <= plan.sampling.largest_batch_size:
            continue
        sampling = plan.sampling.with_batch_size(size)
        free = replace(plan, sampling=sampling, steps=sampling.steps_for(epochs), epsilon=None)
        try:
            scale = calibrate(free, epsilon, group=group).mechanism.noise.scale
        except ConfigError:
            continue
        assert scale is not None
        rate = None if learning_rate is None else learning_rate * size / base
        yield Size(size, free.steps, scale, scale / size, rate)


def over_epochs(plan: Plan, points: int = 24, group: int = 1) -> Iterator[tuple[float, float]]:
    """Epsilon after a growing number of epochs, up to all of them: (epochs, epsilon)."""
    for k in range(1, points + 1):
        steps = max(1, round(plan.steps * k / points))
        yield plan.sampling.epochs_in(steps), _spent(replace(plan, steps=steps, epsilon=None), group)
