"""What will be done, declared before the data are seen: sampling, mechanism, steps and delta."""

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from discreet import bounds as _bounds
from discreet.accounting import cost
from discreet.accounting.guarantee import Condition, Guarantee
from discreet.contracts import Layout, Phase
from discreet.errors import ConfigError, positive, whole
from discreet.mechanism import Mechanism
from discreet.noise import Gaussian
from discreet.sampling import Poisson


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One frozen value that can be solved, saved and read aloud.

    `steps` is how many releases there will be (or `epochs`, from which it is computed); `epsilon`, if given, is a
    hard limit.
    """

    sampling: Poisson
    mechanism: Mechanism
    steps: int = -1
    delta: float
    epsilon: float | None = None
    epochs: InitVar[float | None] = None

    def __post_init__(self, epochs: float | None) -> None:
        if not isinstance(self.sampling, Poisson):
            raise ConfigError(f"{self.sampling!r} is not a sampler; use Poisson(examples=..., batch_size=...).")
        if not isinstance(self.mechanism, Mechanism):
            raise ConfigError(f"{self.mechanism!r} is not a mechanism; use Mechanism(bound=..., noise=...).")
        if epochs is not None:
            if self.steps != -1:
                raise ConfigError(f"steps={self.steps} and epochs={epochs} say the length twice; give one of them.")
            object.__setattr__(self, "steps", self.sampling.steps_for(positive("epochs", epochs)))
        if self.steps == -1:
            raise ConfigError("a plan needs its length, declared in advance; give steps= or epochs=.")
        whole("steps", self.steps, least=0)
        positive("delta", self.delta)
        if not 1e-100 <= self.delta < 1:
            raise ConfigError(
                f"delta is {self.delta!r}; it must be from 1e-100 to below 1, usually below 1 / examples."
            )
        if self.epsilon is not None:
            positive("epsilon", self.epsilon)

    def guarantee(self) -> Guarantee:
        """What this plan proves if it is carried out to its end. Needs neither data nor a model."""
        return guarantee_of(self, None, self.steps)

    def save(self, path: str | Path) -> None:
        """Write the plan as TOML."""
        try:
            Path(path).write_text(_to_toml(self.to_dict()), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"the plan cannot be written to {path}: {error}") from error

    @classmethod
    def load(cls, path: str | Path, stages: Sequence[type[Any]] = ()) -> "Plan":
        """Read a plan from TOML, strictly; `stages` are your own bounds, by class."""
        try:
            text = Path(path).read_text(encoding="utf-8")
            return cls.from_dict(tomllib.loads(text), stages)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"{path} cannot be read as a plan: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values."""
        return {
            "format": "discreet-plan/1",
            "steps": self.steps,
            "delta": self.delta,
            **({} if self.epsilon is None else {"epsilon": self.epsilon}),
            "sampling": _describe(self.sampling),
            "bound": _describe(self.mechanism.bound),
            "noise": _describe(self.mechanism.noise) | {"allocation": self.mechanism.allocation},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], stages: Sequence[type] = ()) -> "Plan":
        """The plan that `to_dict` described; anything unknown or missing is a ConfigError."""
        if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
            raise ConfigError(f"a plan is a table of named fields, not {type(values).__name__}.")
        known = {"format", "steps", "delta", "epsilon", "sampling", "bound", "noise"}
        missing, unknown = known - {"epsilon"} - set(values), set(values) - known
        if missing or unknown:
            raise ConfigError(f"a plan with {_listed(missing, 'missing')}{_listed(unknown, 'unknown')}fields.")
        if values["format"] != "discreet-plan/1":
            raise ConfigError(f"the plan's format is {values['format']!r}; this version reads 'discreet-plan/1'.")
        noise = dict(values["noise"]) if isinstance(values["noise"], Mapping) else {}
        allocation = noise.pop("allocation", "joint")
        available = [*(getattr(_bounds, name) for name in _bounds.__all__), *stages]
        return cls(
            sampling=_build(values["sampling"], [Poisson]),
            mechanism=Mechanism(_build(values["bound"], available), _build(noise, [Gaussian]), allocation),
            steps=values["steps"],
            delta=values["delta"],
            epsilon=values.get("epsilon"),
        )


def guarantee_of(plan: Plan, layout: Layout | None, steps: int) -> Guarantee:
    """The guarantee of `steps` releases of a plan, for a model of this layout (None: not known yet)."""
    who = plan.sampling.contract()
    phase = Phase(who.rate, plan.mechanism.multiplier(layout), steps)
    spent = cost([phase], plan.delta)
    proof = (
        f"{steps:,} Gaussian releases of effective noise multiplier {phase.multiplier:.6g}, each on a Poisson sample "
        f"of rate {phase.rate:.6g} (theorems T1 and T6), accounted by {spent.accountant}"
    )
    conditions = (
        Condition("each example took part in each step by its own secret coin", "proven"),
        Condition("each example's share of each sum was bounded before the noise was added", "proven"),
        Condition("noise and coins are secret and are those of exact real arithmetic", "assumed"),
        Condition("nothing but the released gradients, and what is computed from them, leaves the run", "assumed"),
    )
    if math.isinf(spent.epsilon):
        proof = spent.accountant
    return Guarantee(spent.epsilon, plan.delta, who.unit, who.adjacency, proof, conditions, steps=steps)


def _describe(stage: Any) -> dict[str, Any]:
    """A stage's class and its settings."""
    settings = {f.name: getattr(stage, f.name) for f in fields(stage)} if is_dataclass(stage) else vars(stage)
    return {"type": type(stage).__name__} | {k: v for k, v in settings.items() if v is not None}


def _build(values: Any, classes: Sequence[Any]) -> Any:
    """The stage that `_describe` described, one of `classes`."""
    if not isinstance(values, Mapping) or not isinstance(values.get("type"), str):
        raise ConfigError(f"{values!r} does not describe a stage; it needs a table with a type.")
    chosen: Any = {c.__name__: c for c in classes}.get(values["type"])
    if chosen is None:
        raise ConfigError(f"{values['type']!r} is not one of {', '.join(c.__name__ for c in classes)}.")
    settings = {k: v for k, v in values.items() if k != "type"}
    unknown = set(settings) - {f.name for f in fields(chosen)}
    if unknown:
        raise ConfigError(f"{chosen.__name__} has no setting {', '.join(sorted(unknown))}.")
    try:
        return chosen(**settings)
    except TypeError as error:
        raise ConfigError(f"{chosen.__name__} cannot be made of {settings!r}: {error}") from error


def _listed(names: set[str], word: str) -> str:
    return f"{word} {', '.join(sorted(names))} " if names else ""


def _to_toml(values: Mapping[str, Any]) -> str:
    """Plain values, tables and tables in tables as TOML."""
    lines: list[str] = []

    def write(table: Mapping[str, Any], path: str) -> None:
        for key, value in table.items():
            if not isinstance(value, Mapping):
                name = key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)
                lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}")
        for key, value in table.items():
            if isinstance(value, Mapping):
                inner = f"{path}.{key}" if path else key
                lines.extend(["", f"[{inner}]"])
                write(value, inner)

    write(values, "")
    return "\n".join(lines) + "\n"
