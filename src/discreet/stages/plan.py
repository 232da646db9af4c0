"""What will be done, declared before the data are seen: sampling, mechanism, steps and delta."""

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self

from discreet._check import check_int, check_positive, within
from discreet._documents import read_toml
from discreet.accounting.event_serialization import tuning_from_dict, tuning_to_dict
from discreet.accounting.events import Event, Participation, check_units
from discreet.accounting.guarantee import Guarantee
from discreet.accounting.serialization import build, describe, to_toml
from discreet.accounting.tuning import Tuning
from discreet.errors import ConfigError
from discreet.stages import bounds as _bounds
from discreet.stages import noise as _noise
from discreet.stages import sampling as _sampling
from discreet.stages.conditions import guarantee_of
from discreet.stages.denoise import DENOISERS
from discreet.stages.mechanism import Mechanism
from discreet.stages.participation import (
    alternatives,
    check,
    is_whole_run,
    rms_error,
    solved_anew,
    solved_for,
    theorem_of,
    whole_run_query,
    with_bands,
)
from discreet.stages.sensitivity import Layout


class Sampler(Protocol):
    """What a sampler must have; see discreet.stages.sampling."""

    @property
    def batch_size(self) -> float: ...
    @property
    def largest_batch_size(self) -> int: ...
    def contract(self) -> Participation: ...
    def participations(self, steps: int) -> int: ...
    def steps_for(self, epochs: float) -> int: ...
    def epochs_in(self, steps: int) -> float: ...
    def with_batch_size(self, batch_size: int) -> Self: ...
    def check_length(self, length: int) -> None: ...
    def draw(self, length: int, step: int, origin_step: int, streams: Any) -> Any: ...


_SAMPLER_MEMBERS = (
    "batch_size",
    "largest_batch_size",
    "contract",
    "participations",
    "steps_for",
    "epochs_in",
    "with_batch_size",
    "check_length",
    "draw",
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One frozen value that can be solved, saved and read aloud.

    `steps` is how many releases there will be (or `epochs`, from which it is computed); `epsilon`, if given, is a
    hard limit. `tuning` says that this run is the best of several, and its guarantee includes their cost.

    `noise_schedule` changes the noise on the way: the steps are split into as many equal stretches as it has factors,
    and in each the mechanism's noise is multiplied by its factor. It is for Gaussian noise.

    Noise that remembers (BandedGaussian, BLTGaussian) has its strategy solved here, for the run's length, and the plan
    keeps it: where `steps` are replaced, the strategy stays.
    """

    sampling: Sampler
    mechanism: Mechanism
    steps: int = -1
    delta: float
    epsilon: float | None = None
    tuning: Tuning | None = None
    noise_schedule: tuple[float, ...] = ()
    epochs: InitVar[float | None] = None

    def __post_init__(self, epochs: float | None) -> None:
        if isinstance(self.sampling, type) or any(not hasattr(self.sampling, m) for m in _SAMPLER_MEMBERS):
            raise ConfigError(f"{self.sampling!r} is not a sampler; use Poisson(examples=..., batch_size=...).")
        if not isinstance(self.mechanism, Mechanism):
            raise ConfigError(f"{self.mechanism!r} is not a mechanism; use Mechanism(bound=..., noise=...).")
        if epochs is not None:
            if self.steps != -1:
                raise ConfigError(f"steps={self.steps} and epochs={epochs} say the length twice; give one of them.")
            object.__setattr__(self, "steps", self.sampling.steps_for(check_positive("epochs", epochs)))
        if self.steps == -1:
            raise ConfigError("a plan needs its length, declared in advance; give steps= or epochs=.")
        within("steps", check_int("steps", self.steps, least=0), f"the plan has {self.steps:,} steps")
        check(self.sampling, self.mechanism)
        object.__setattr__(self, "mechanism", solved_for(self.mechanism, self.sampling, self.steps))
        if self.mechanism.microbatch > self.sampling.batch_size:
            raise ConfigError(
                f"microbatches of {self.mechanism.microbatch} are larger than a batch of {self.sampling.batch_size}."
            )
        check_positive("delta", self.delta)
        if not 1e-100 <= self.delta < 1:
            raise ConfigError(
                f"delta is {self.delta!r}; it must be from 1e-100 to below 1, usually below 1 / examples."
            )
        if self.epsilon is not None:
            check_positive("epsilon", self.epsilon)
        if self.tuning is not None and not isinstance(self.tuning, Tuning):
            raise ConfigError(f"{self.tuning!r} is no tuning; use Tuning(runs, distribution).")
        self._check_schedule()
        self._check_allocation()

    def _check_schedule(self) -> None:
        factors = self.noise_schedule
        if isinstance(factors, str) or not isinstance(factors, Sequence):
            raise ConfigError(f"noise_schedule is {factors!r}; give a few factors, as (1.2, 1.0, 0.8).")
        object.__setattr__(self, "noise_schedule", tuple(factors))
        if not factors:
            return
        for factor in factors:
            check_positive("a factor of noise_schedule", factor)
        if len(factors) > 64:
            raise ConfigError(f"noise_schedule has {len(factors)} factors; at most 64 stretches are accounted.")
        if not self.mechanism.noise.law.gaussian:
            raise ConfigError(f"noise_schedule is for Gaussian noise, not for {self.mechanism.noise!r}.")
        if self.charges(self.steps) != self.steps:
            raise ConfigError(
                f"noise_schedule is for samplers that draw each step on its own, not for {self.sampling!r}, with which "
                "it is not public at which noise a unit takes part."
            )

    def _check_allocation(self) -> None:
        """Refuse what the theorem on random allocation does not cover (C7)."""
        if self.sampling.contract().scheme != "allocation":
            return
        if not self.mechanism.noise.law.gaussian or self.mechanism.hardening != "idealised":
            raise ConfigError(
                f"{type(self.sampling).__name__} is analysed for Gaussian noise in real arithmetic, not for "
                f"{self.mechanism.noise!r} with {self.mechanism.hardening} arithmetic; use Gaussian(multiplier), or "
                "the sampler Poisson."
            )
        if getattr(self.mechanism.noise, "bands", 1) != 1 or self.mechanism.start_noise() is not None:
            raise ConfigError(
                f"{type(self.sampling).__name__} is analysed for noise that is independent from step to step, not for "
                f"{self.mechanism.noise!r}; use Gaussian(multiplier), or a sampler that is made for correlated noise."
            )

    def guarantee(self, *, group: int = 1, beside: Sequence[Event] = ()) -> Guarantee:
        """What this plan proves if it is carried out to its end. Needs neither data nor a model.

        Args:
            group: have any so many units protected together, in place of one.
            beside: other releases on the same data that protect the same unit, a private covariance say.
        """
        check_int("group", group, least=1, most=10**6)
        check_units(self.sampling.contract().unit, beside)
        return guarantee_of(self, None, [*self.events(group=group), *(replace(p, group=group) for p in beside)])

    def event(self, layout: Layout | None = None, steps: int | None = None, group: int = 1) -> Event:
        """What accounting sees of `steps` steps (all of them) at the mechanism's noise: the releases one unit can
        take part in.

        Args:
            layout: the parameters' names and shapes, where the bound depends on them.
            steps: how many steps are meant; all of them unless it is given.
            group: how many units are protected together.
        """
        count = self.charges(self.steps if steps is None else steps)
        query = whole_run_query(self, layout) if self.whole_run else self.mechanism.query(layout)
        return Event.of(self.sampling.contract(), query, count, group, theorem_of(self))

    @cached_property
    def whole_run(self) -> bool:
        """Whether the whole run is one release, charged with its first step."""
        return is_whole_run(self.sampling, self.mechanism)

    @property
    def rms_error(self) -> float:
        """The root mean squared error, over the steps, of the sum of all noisy means up to each: in clipping norms.

        It is what of the noise the model sees, if it learns at a constant rate, and by which plans are compared.
        """
        return rms_error(self)

    def alternatives(self) -> tuple[int, ...]:
        """The numbers of bands among which `calibrate` chooses where `bands="best"`; none where nothing is open."""
        return alternatives(self)

    def with_bands(self, bands: int, *, rough: bool = False) -> "Plan":
        """This plan with so many bands and groups.

        Args:
            bands: how many.
            rough: take coefficients that need not be solved.
        """
        return with_bands(self, bands, rough=rough)

    def solved_anew(self, before: "Plan") -> "Plan":
        """This plan with its noise's strategy solved for its own length.

        Args:
            before: the plan that this one was made from. Nothing is solved if its strategy was not for its length.
        """
        return solved_anew(self, before)

    @property
    def continues(self) -> bool:
        """Whether steps are counted by the ledger, so that a run that is taken up again goes on where it stopped."""
        return bool(getattr(self.sampling, "continues", False))

    def charges(self, steps: int, *, after: int = 0) -> int:
        """How many releases one unit is charged for in `steps` steps: what ledger, release and verification count by.

        Args:
            steps: how many steps are made.
            after: how many steps came before them in the same process. A process that takes a run up begins at 0: a
                pass over the data that was broken off is charged whole, and a new one counts anew. Of a plan that
                `continues`, all that the ledger has counted came before.
        """
        if self.charges_each_step:
            return steps
        if self.whole_run:
            return min(1, after + steps) - min(1, after)
        count = self.sampling.participations
        return count(after + steps) - count(after)

    @cached_property
    def charges_each_step(self) -> bool:
        """Whether a unit is charged for each step: then no pass is counted."""
        return not self.whole_run and self.sampling.participations(self.steps) == self.steps

    def events(self, layout: Layout | None = None, *, group: int = 1, after: int = 0) -> list[Event]:
        """What accounting sees of the whole plan, or of what is left of it.

        Args:
            layout: the parameters' names and shapes, where the bound depends on them.
            group: how many units are protected together.
            after: how many steps of a noise schedule are past.
        """
        one = self.event(layout, group=group)
        if not self.noise_schedule:
            return [one]
        left = []
        for steps, factor in self.stretches:
            count = max(0, steps - after)
            after = max(0, after - steps)
            left.append(replace(one, multiplier=one.multiplier * factor, steps=count))
        return left

    phases = events  # its former name, for one release

    @cached_property
    def stretches(self) -> tuple[tuple[int, float], ...]:
        """How many steps have which factor on the noise, in order."""
        factors = self.noise_schedule or (1.0,)
        edges = [round(self.steps * i / len(factors)) for i in range(len(factors) + 1)]
        return tuple((b - a, f) for a, b, f in zip(edges, edges[1:], factors, strict=False))

    def noise_factor(self, step: int) -> float:
        """The factor on the noise at a step.

        Args:
            step: its number, from 0.
        """
        for steps, factor in self.stretches:
            if step < steps:
                return factor
            step -= steps
        return (self.noise_schedule or (1.0,))[-1]

    def learning_rate(self, base: float, batch_size: int) -> float:
        """A learning rate that is good at another batch size, scaled to this plan's: in proportion, as large batches
        need (Goyal et al. 2017; the third of the three tools).

        Args:
            base: the learning rate that is good at that batch size.
            batch_size: that batch size.
        """
        return (
            check_positive("the learning rate", base)
            * self.sampling.batch_size
            / check_int("batch_size", batch_size, least=1)
        )

    def fit_to(self, model: Any) -> "Plan":
        """The same plan with a bound that knows this model; what is proven may depend on it.

        Args:
            model: the model that is to be trained.
        """
        return replace(self, mechanism=self.mechanism.fit_to(model))

    def save(self, path: str | Path) -> None:
        """Write the plan as TOML.

        Args:
            path: of the file, which is replaced if it is there.
        """
        try:
            Path(path).write_text(to_toml(self.to_dict()), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"the plan cannot be written to {path}: {error}") from error

    @classmethod
    def load(cls, path: str | Path, stages: Sequence[type[Any]] = ()) -> "Plan":
        """Read a plan from TOML, strictly.

        Args:
            path: of the file.
            stages: your own bounds, noises, samplers and denoisers, by class.
        """
        try:
            return cls.from_dict(read_toml(path), stages)
        except ConfigError as error:
            raise ConfigError(f"{path} cannot be read as a plan: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values."""
        mechanism = {"allocation": self.mechanism.allocation}
        if self.mechanism.microbatch != 1:
            mechanism["microbatch"] = self.mechanism.microbatch
        if self.mechanism.hardening != "idealised":
            mechanism["hardening"] = self.mechanism.hardening
        return {
            "format": "discreet-plan/1",
            "steps": self.steps,
            "delta": self.delta,
            **({} if self.epsilon is None else {"epsilon": self.epsilon}),
            **({"noise_schedule": list(self.noise_schedule)} if self.noise_schedule else {}),
            **mechanism,
            "sampling": describe(self.sampling),
            "bound": describe(self.mechanism.bound),
            "noise": describe(self.mechanism.noise),
            **({} if self.mechanism.denoise is None else {"denoise": describe(self.mechanism.denoise)}),
            **({} if self.tuning is None else {"tuning": tuning_to_dict(self.tuning)}),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], stages: Sequence[type] = ()) -> "Plan":
        """The plan that `to_dict` described; anything unknown or missing is a ConfigError.

        Args:
            values: the plan as plain values.
            stages: your own bounds, noises, samplers and denoisers, by class.
        """
        if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
            raise ConfigError(f"a plan is a table of named fields, not {type(values).__name__}.")
        needed = {"format", "steps", "delta", "allocation", "sampling", "bound", "noise"}
        missing, unknown = needed - set(values), set(values) - needed - _OPTIONAL
        if missing or unknown:
            raise ConfigError(f"a plan with {_listed(missing, 'missing')}{_listed(unknown, 'unknown')}fields.")
        if values["format"] != "discreet-plan/1":
            raise ConfigError(f"the plan's format is {values['format']!r}; this version reads 'discreet-plan/1'.")
        samplers, bounds, noises = ([getattr(m, name) for name in m.__all__] for m in (_sampling, _bounds, _noise))
        return cls(
            sampling=build(values["sampling"], [*samplers, *stages]),
            mechanism=Mechanism(
                build(values["bound"], [*bounds, *stages]),
                build(values["noise"], [*noises, *stages]),
                values["allocation"],
                values.get("microbatch", 1),
                values.get("hardening", "idealised"),
                build(values["denoise"], [*DENOISERS, *stages]) if "denoise" in values else None,
            ),
            steps=values["steps"],
            delta=values["delta"],
            epsilon=values.get("epsilon"),
            tuning=tuning_from_dict(values["tuning"], stages) if "tuning" in values else None,
            noise_schedule=values.get("noise_schedule", ()),
        )


_OPTIONAL = {"epsilon", "microbatch", "hardening", "denoise", "tuning", "noise_schedule"}


def known_stages() -> set[str]:
    """The names of the library's own samplers, bounds and noises."""
    return {*_sampling.__all__, *_bounds.__all__, *_noise.__all__, *(kind.__name__ for kind in DENOISERS)}


def _listed(names: set[str], word: str) -> str:
    return f"{word} {', '.join(sorted(names))} " if names else ""
