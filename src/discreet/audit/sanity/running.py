"""The checks of a run's config, small enough for a few minutes or at full size; no data is read but a stand-in's."""

import json
import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import nn

from discreet._check import check_int, check_positive
from discreet.audit.sanity.generalisation import Generalisation, generalisation
from discreet.audit.sanity.memorisation import Memorisation, memorisation, plain_run
from discreet.audit.sanity.patterns import Patterns, Point, UserSetting, patterns, point
from discreet.audit.sanity.search import Tried, smallest_noise
from discreet.audit.sanity.setting import Pair, Setting, Tell, quiet, resized
from discreet.audit.sanity.verdict import Verdict, Word, worst
from discreet.data import load
from discreet.errors import ConfigError
from discreet.models.networks import build
from discreet.release.batching import as_tensors
from discreet.runs.build import local_of, make_optimizer
from discreet.runs.config import EXAMPLES, SHAPES, Config, merged
from discreet.stages.plan import Plan

_EXAMPLES, _EPOCHS = 1_000, 20.0  # of a small check
_USERS, _ROUNDS = 200, 100
_MOST = 10  # records with a pattern that one user has
_NOISE = 0.05, 8.0  # where the smallest that passes is looked for, in units of the sensitivity


@dataclass(frozen=True)
class Asked:
    """How a config is to be checked.

    `shape` and `classes` are of the private data, of which nothing else is known; those of well-known data sets are.
    `full` takes as many examples (or users) and steps as the plan; else they are few, at its epsilon and batch size.
    """

    shape: tuple[int, ...] | None = None
    classes: int | None = None
    examples: int | None = None
    full: bool = False
    runs: int = 3
    epochs: float | None = None
    stand_in: str | None = None
    stand_in_folder: str | None = None
    plain_learning_rate: float | None = None
    tolerance: float | None = None
    level: float = 0.05

    def __post_init__(self) -> None:
        check_int("runs", self.runs, least=1)
        if self.epochs is not None:
            check_positive("--check-epochs", self.epochs)
        if self.plain_learning_rate is not None:
            check_positive("--plain-learning-rate", self.plain_learning_rate)
        if not 0 < self.level < 1:
            raise ConfigError(f"level is {self.level!r}; it is the chance of a false alarm, between 0 and 1.")
        if self.tolerance is not None and not 0 <= self.tolerance <= 1:
            raise ConfigError(f"tolerance is {self.tolerance!r}; it must be from 0 to 1.")

    def refuse_for_users(self) -> None:
        """Options that a check at user level would ignore are a mistake."""
        given = {
            "--check-epochs": self.epochs,
            "--plain-learning-rate": self.plain_learning_rate,
            "--stand-in": self.stand_in,
            "--examples": self.examples,
        }
        for name, value in given.items():
            if value is not None:
                raise ConfigError(f"{name} is for checks at example level; leave it out with --users.")


@dataclass(frozen=True)
class Checked:
    """What the checks of a plan found."""

    plan: Plan
    memorisation: Memorisation | None = None
    generalisation: Generalisation | None = None
    patterns: Patterns | None = None

    @property
    def word(self) -> Word:
        """The worst verdict."""
        parts = (self.memorisation, self.generalisation, self.patterns)
        return worst([part.verdict.word for part in parts if part is not None])

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against the plan."""
        return self.word not in ("too weak", "broken")

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values."""
        proven = json.loads(self.plan.guarantee().to_json())
        values: dict[str, Any] = {"verdict": self.word, "plan": self.plan.to_dict(), "guarantee": proven}
        for name in ("memorisation", "generalisation", "patterns"):
            part = getattr(self, name)
            values[name] = None if part is None else part.to_dict()
        return values


@dataclass(frozen=True)
class Calibrated:
    """The smallest noise that passed, the plan with it, and all that were tried."""

    noise: float | None
    plan: Plan | None
    tried: tuple[Tried, ...]
    epsilons: tuple[float, ...]  # of the whole plan at each noise that was tried

    @property
    def passed(self) -> bool:
        """Whether any noise did."""
        return self.noise is not None

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values."""
        tried = [t.to_dict() | {"epsilon": e} for t, e in zip(self.tried, self.epsilons, strict=True)]
        plan = None if self.plan is None else self.plan.to_dict()
        return {"noise": self.noise, "plan": plan, "tried": tried}


def check(config: Config, asked: Asked, tell: Tell = quiet) -> Checked:
    """Check a config's model and plan before any private data is touched."""
    plan = _whole_plan(config, asked)
    setting = _sized(config, asked, plan)
    if isinstance(setting, UserSetting):
        return Checked(plan, patterns=_patterns(setting, asked, None, tell))
    stand_in = None if asked.stand_in is None else _stand_in(asked.stand_in, asked)
    if stand_in is not None:
        asked = replace(asked, level=asked.level / 2)  # two tests share it
    memory, gap = _memorisation(setting, asked, None, tell), None
    if stand_in is not None and asked.stand_in is not None:
        shape, classes, train, test = stand_in
        own = replace(setting, make=_maker(config, shape, classes), shape=shape, classes=classes)
        more = {"runs": asked.runs, "tolerance": memory.verdict.tolerance, "level": asked.level}
        gap = generalisation(own, train, test, name=asked.stand_in, tell=tell, **more)
    return Checked(plan, memory, gap)


def _stand_in(name: str, asked: Asked) -> tuple[tuple[int, ...], int, Pair, Pair]:
    """Public data, as much of it as a check takes."""
    data = load(name, folder=asked.stand_in_folder)
    if data.classes is None or data.test is None:
        raise ConfigError(f"the stand-in {name!r} must have classes, and examples to test on.")
    train, test = as_tensors(data.train), as_tensors(data.test)
    if not asked.full:
        train, test = (train[0][:_EXAMPLES], train[1][:_EXAMPLES]), (test[0][:_EXAMPLES], test[1][:_EXAMPLES])
    return data.shape, data.classes, train, test


def calibrate(config: Config, asked: Asked, *, tries: int = 6, tell: Tell = quiet) -> Calibrated:
    """The smallest noise at which the memorisation check passes (for users: one user's pattern is not learned)."""
    check_int("tries", tries, least=2)
    if asked.stand_in is not None:
        raise ConfigError("--stand-in says nothing about the smallest noise; leave it out with --calibrate.")
    plan, plain = _whole_plan(config, asked), _without_privacy(config, asked, tell)

    def at(noise: float) -> Plan:
        return replace(plan, mechanism=plan.mechanism.with_scale(noise), epsilon=None)

    def verdict(noise: float) -> Verdict:
        setting = _sized(config, asked, at(noise))
        if isinstance(setting, UserSetting):
            return _patterns(setting, asked, plain, tell).verdict
        return _memorisation(setting, asked, plain, tell).verdict

    noise, tried = smallest_noise(verdict, *_NOISE, tries=tries)
    epsilons = tuple(at(t.noise).guarantee().epsilon for t in tried)
    return Calibrated(noise, None if noise is None else at(noise), tried, epsilons)


def _without_privacy(config: Config, asked: Asked, tell: Tell) -> list[Any]:
    """Training without privacy, once for all noises."""
    setting = _sized(config, asked, _whole_plan(config, asked))
    if isinstance(setting, UserSetting):
        plain = setting.without_privacy()
        return [point(plain, "centralised", _MOST, False, asked.runs, tell)]
    return [plain_run(setting, tell)]


def _maker(config: Config, shape: tuple[int, ...], classes: int) -> Any:
    def make() -> nn.Module:
        return build(config.model.name, shape, classes, **config.model.settings)

    return make


def _facts(config: Config, asked: Asked) -> tuple[tuple[int, ...], int]:
    """The shape and the classes of the private data, without looking at it."""
    usual = SHAPES.get(config.data.name)
    shape = asked.shape or (None if usual is None else usual[0])
    classes = asked.classes or (None if usual is None else usual[1])
    if shape is None or classes is None:
        raise ConfigError(
            f"the shape and classes of {config.data.name!r} are not known without reading it; say them, as "
            "--shape 1,28,28 --classes 10."
        )
    check_int("classes", classes, least=2)
    return shape, classes


def _whole_plan(config: Config, asked: Asked) -> Plan:
    """The plan for the private data, of which only the size is known."""
    if config.features is not None:
        raise ConfigError("[features] are of images, and a check's made-up examples are none; check without them.")
    shape, classes = _facts(config, asked)
    units = asked.examples or config.data.examples or EXAMPLES.get(config.data.name)
    if config.federated is not None:
        asked.refuse_for_users()
        units = config.federated.users
    if units is None:
        what = "--examples" if config.federated is None else "--users"
        raise ConfigError(f"how many {what[2:]} {config.data.name!r} has is not known without reading it; say {what}.")
    return config.plan(units, _maker(config, shape, classes)())


def _sized(config: Config, asked: Asked, plan: Plan) -> Setting | UserSetting:
    """What is trained to check a plan: all of it, or a smaller run that proves the same."""
    shape, classes = _facts(config, asked)
    make, optimizer = _maker(config, shape, classes), partial(make_optimizer, config)
    sampling: Any = plan.sampling
    if config.federated is not None:
        users = UserSetting(make, plan, shape, classes, local=local_of(config.federated), optimizer=optimizer)
        count = min(_USERS, sampling.examples)
        small = (count, min(plan.sampling.batch_size, count), min(plan.steps, _ROUNDS))
        return users if asked.full else replace(users, plan=resized(plan, *small))
    plain = None
    if asked.plain_learning_rate is not None:
        plain = partial(make_optimizer, merged(config, {"optimizer.learning_rate": asked.plain_learning_rate}))
    setting = Setting(make, plan, shape, classes, optimizer, plain)
    if asked.full:
        return setting if asked.epochs is None else setting.resized(sampling.examples, asked.epochs)
    few = min(sampling.examples, max(_EXAMPLES, math.ceil(2 * plan.sampling.batch_size)))
    return setting.resized(few, _EPOCHS if asked.epochs is None else asked.epochs)


def _memorisation(setting: Setting, asked: Asked, plain: list[Any] | None, tell: Tell) -> Memorisation:
    tolerance = 0.05 if asked.tolerance is None else asked.tolerance
    return memorisation(setting, runs=asked.runs, tolerance=tolerance, level=asked.level, plain=plain, tell=tell)


def _patterns(setting: UserSetting, asked: Asked, plain: list[Point] | None, tell: Tell) -> Patterns:
    """The sweep of figure 2, its ends alone in a small check, or one user's most where the rest was seen before."""
    one, anybody = ((1, 2, 5, _MOST), (10, 100, 1000)) if asked.full else ((_MOST,), (10, 1000))
    most = setting.users * setting.records
    return patterns(
        setting,
        centralised=one if plain is None else (_MOST,),
        distributed=tuple(n for n in anybody if n <= most) if plain is None else (),
        runs=asked.runs,
        tolerance=0.1 if asked.tolerance is None else asked.tolerance,
        level=asked.level,
        plain=plain,
        tell=tell,
    )


__all__ = ["Asked", "Calibrated", "Checked", "calibrate", "check"]
