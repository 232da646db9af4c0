"""The checks of a run's config, small enough for a few minutes or at full size; no data is read but a stand-in's."""

import json
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import nn

from discreet.checks.generalisation import Generalisation, generalisation
from discreet.checks.memorisation import Memorisation, memorisation, plain_run
from discreet.checks.patterns import Patterns, Point, UserSetting, patterns
from discreet.checks.search import Tried, smallest_noise
from discreet.checks.setting import Setting, Tell, quiet
from discreet.checks.verdict import Verdict, Word, worst
from discreet.config import EXAMPLES, SHAPES, Config, merged
from discreet.data import load
from discreet.errors import ConfigError, whole
from discreet.loading import as_tensors
from discreet.models import build
from discreet.plan import Plan
from discreet.runs import local_of, make_optimizer

_EXAMPLES, _EPOCHS = 1_000, 20.0  # of a small check
_USERS, _ROUNDS = 200, 100
_NOISE = 0.05, 8.0  # where the smallest that passes is looked for, in units of the sensitivity


@dataclass(frozen=True)
class Asked:
    """How a config is to be checked.

    `shape` and `classes` are of the private data, of which nothing else is known; those of well-known data sets are.
    `full` takes as many examples (or users) and steps as the plan; else they are few, at its noise and batch size.
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
    centralised: tuple[int, ...] = (10,)
    distributed: tuple[int, ...] = (10, 1000)
    tolerance: float | None = None
    level: float = 0.05


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
        found: dict[str, Any] = {"verdict": self.word, "plan": self.plan.to_dict(), "guarantee": proven}
        for name in ("memorisation", "generalisation", "patterns"):
            part = getattr(self, name)
            found[name] = None if part is None else part.to_dict()
        return found


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
    if config.federated is not None:
        setting, plan = _user_setting(config, asked)
        return Checked(plan, patterns=_patterns(setting, asked, None, tell))
    setting, plan = _setting(config, asked)
    tolerance = 0.05 if asked.tolerance is None else asked.tolerance
    memory = memorisation(setting, runs=asked.runs, tolerance=tolerance, level=asked.level, tell=tell)
    gap = None
    if asked.stand_in is not None:
        data = load(asked.stand_in, folder=asked.stand_in_folder)
        if data.classes is None or data.test is None:
            raise ConfigError(f"the stand-in {asked.stand_in!r} must have classes, and examples to test on.")
        train, test = as_tensors(data.train), as_tensors(data.test)
        if not asked.full:
            train, test = (train[0][:_EXAMPLES], train[1][:_EXAMPLES]), (test[0][:_EXAMPLES], test[1][:_EXAMPLES])
        own = replace(setting, make=_maker(config, data.shape, data.classes), shape=data.shape, classes=data.classes)
        gap = generalisation(own, train, test, name=asked.stand_in, tolerance=tolerance, level=asked.level, tell=tell)
    return Checked(plan, memory, gap)


def calibrate(config: Config, asked: Asked, *, tries: int = 6, tell: Tell = quiet) -> Calibrated:
    """The smallest noise at which the memorisation check passes (for users: one user's pattern is not learned)."""
    check_at, plan = _at_noise(config, asked, tell)
    found, tried = smallest_noise(check_at, *_NOISE, tries=tries)

    def whole_plan(noise: float) -> Plan:
        return replace(plan, mechanism=plan.mechanism.with_scale(noise), epsilon=None)

    epsilons = tuple(whole_plan(t.noise).guarantee().epsilon for t in tried)
    return Calibrated(found, None if found is None else whole_plan(found), tried, epsilons)


def _at_noise(config: Config, asked: Asked, tell: Tell) -> tuple[Any, Plan]:
    """A check as a function of the noise, training without privacy once for all."""
    if config.federated is not None:
        users, plan = _user_setting(config, asked)
        plain = _patterns(users, replace(asked, distributed=()), None, tell).of("centralised", private=False)

        def pattern(noise: float) -> Verdict:
            return _patterns(users.with_noise(noise), replace(asked, distributed=()), plain, tell).verdict

        return pattern, plan
    setting, plan = _setting(config, asked)
    before = [plain_run(setting, tell)]
    tolerance = 0.05 if asked.tolerance is None else asked.tolerance

    def memory(noise: float) -> Verdict:
        more = {"runs": asked.runs, "tolerance": tolerance, "level": asked.level, "plain": before, "tell": tell}
        return memorisation(setting.with_noise(noise), **more).verdict

    return memory, plan


def _maker(config: Config, shape: tuple[int, ...], classes: int) -> Any:
    def make() -> nn.Module:
        return build(config.model.name, shape, classes, **config.model.settings)

    return make


def _facts(config: Config, asked: Asked) -> tuple[tuple[int, ...], int]:
    """The shape and the classes of the private data, without looking at it."""
    known = SHAPES.get(config.data.name)
    shape = asked.shape or (None if known is None else known[0])
    classes = asked.classes or (None if known is None else known[1])
    if shape is None or classes is None:
        raise ConfigError(
            f"the shape and classes of {config.data.name!r} are not known without reading it; say them, as "
            "--shape 1,28,28 --classes 10."
        )
    whole("classes", classes, least=2)
    return shape, classes


def _setting(config: Config, asked: Asked) -> tuple[Setting, Plan]:
    shape, classes = _facts(config, asked)
    examples = asked.examples or config.data.examples or EXAMPLES.get(config.data.name)
    if examples is None:
        raise ConfigError(f"how many examples {config.data.name!r} has is not known; say --examples.")
    make = _maker(config, shape, classes)
    plan = config.plan(examples, make())
    plain = None
    if asked.plain_learning_rate is not None:
        plain = partial(make_optimizer, merged(config, {"optimizer.learning_rate": asked.plain_learning_rate}))
    whole_run = Setting(make, plan, shape, classes, partial(make_optimizer, config), plain)
    if asked.full and asked.epochs is None:
        return whole_run, plan
    length = plan.sampling.epochs_in(plan.steps) if asked.full else _EPOCHS
    few = examples if asked.full else min(examples, max(_EXAMPLES, 2 * plan.sampling.batch_size))
    return whole_run.resized(few, asked.epochs or length), plan


def _user_setting(config: Config, asked: Asked) -> tuple[UserSetting, Plan]:
    section = config.federated
    assert section is not None
    shape, classes = _facts(config, asked)
    if section.users is None:
        raise ConfigError("how many users there are is not known without reading the data; say --users.")
    make = _maker(config, shape, classes)
    plan = config.plan(section.users, make())
    whole_run = UserSetting(
        make, plan, shape, classes, local=local_of(section), optimizer=partial(make_optimizer, config)
    )
    if asked.full:
        return whole_run, plan
    sampling: Any = plan.sampling
    users = min(_USERS, section.users)
    smaller = replace(sampling, examples=users, batch_size=min(sampling.batch_size, users))
    few = replace(plan, sampling=smaller, steps=min(plan.steps, _ROUNDS), epsilon=None)
    return replace(whole_run, plan=few), plan


def _patterns(setting: UserSetting, asked: Asked, plain: list[Point] | None, tell: Tell) -> Patterns:
    most = setting.users * setting.records
    return patterns(
        setting,
        centralised=asked.centralised,
        distributed=tuple(n for n in asked.distributed if n <= most),
        runs=asked.runs,
        tolerance=0.1 if asked.tolerance is None else asked.tolerance,
        level=asked.level,
        plain=plain,
        tell=tell,
    )


__all__ = ["Asked", "Calibrated", "Checked", "calibrate", "check"]
