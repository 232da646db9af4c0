"""Patterns in users' data (paper 003, figure 2): one user's must not be learned, everybody's should be.

Users hold records of noise, each user's with one random label. Some records have a pattern, the upper left quarter all
ones, and one label: in the centralised case they are one user's, in the distributed case anybody's. Measured is the
probability that the trained model gives that label to fresh noise with the pattern. Which label it is is drawn anew in
each retraining, so that without that user it is 1/K on average, whatever the model; with the user the guarantee allows
at most 1 - f(1/K). (The paper has label 1 always.)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from discreet._check import check_int
from discreet.audit.sanity.setting import Optimizer, Tell, quiet
from discreet.audit.sanity.verdict import Verdict
from discreet.errors import ConfigError
from discreet.federated import Local, fit
from discreet.stages.bounds import Clip
from discreet.stages.mechanism import Mechanism
from discreet.stages.noise import Gaussian
from discreet.stages.plan import Plan

Where = Literal["centralised", "distributed"]
_UNBOUNDED = 1e9  # a clipping norm that no update reaches
_FRESH = 500  # images that a trained model is asked about


@dataclass(frozen=True)
class UserSetting:
    """A model and a plan whose units are users, with what users do and what the server does."""

    make: Callable[[], nn.Module]
    plan: Plan
    shape: tuple[int, ...] = (1, 28, 28)
    classes: int = 10
    records: int = 10
    local: Local = field(default_factory=Local)
    optimizer: Optimizer = lambda model: torch.optim.SGD(model.parameters(), lr=1.0)

    def __post_init__(self) -> None:
        if len(self.shape) < 2:
            raise ConfigError(f"a pattern is a corner of an image, and an example's shape is {self.shape}.")
        if getattr(self.plan.sampling, "examples", None) is None:
            raise ConfigError("a check makes up users, and must know how many; give the plan's sampler examples=.")

    @property
    def users(self) -> int:
        sampling: Any = self.plan.sampling
        return sampling.examples

    def with_noise(self, scale: float) -> "UserSetting":
        """The same at another noise, in units of the sensitivity."""
        return replace(self, plan=replace(self.plan, mechanism=self.plan.mechanism.with_scale(scale), epsilon=None))

    def without_privacy(self) -> "UserSetting":
        """The same with neither bound nor noise."""
        mechanism = Mechanism(Clip(_UNBOUNDED), Gaussian(0.0))
        return replace(self, plan=replace(self.plan, mechanism=mechanism, epsilon=None, noise_schedule=()))


@dataclass(frozen=True)
class Point:
    """How likely the pattern's label was, over retrainings, when so many records had it."""

    where: Where
    patterns: int
    private: bool
    answers: tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(self.answers) / len(self.answers)

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values."""
        return {"where": self.where, "patterns": self.patterns, "private": self.private, "answers": list(self.answers)}


@dataclass(frozen=True)
class Patterns:
    """The sweep, and the verdict on one user's pattern."""

    verdict: Verdict
    points: tuple[Point, ...]
    epsilon: float
    delta: float
    noise: float
    users: int

    def of(self, where: Where, *, private: bool) -> list[Point]:
        """One line of the figure."""
        return [p for p in self.points if (p.where, p.private) == (where, private)]

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values."""
        return {
            "verdict": self.verdict.to_dict(),
            "points": [p.to_dict() for p in self.points],
            "epsilon": self.epsilon,
            "delta": self.delta,
            "noise": self.noise,
            "users": self.users,
        }


def patterns(
    setting: UserSetting,
    *,
    centralised: Sequence[int] = (1, 2, 5, 10),
    distributed: Sequence[int] = (10, 100, 1000),
    runs: int = 3,
    tolerance: float = 0.1,
    level: float = 0.05,
    plain: Sequence[Point] | None = None,
    tell: Tell = quiet,
) -> Patterns:
    """Train on users with patterns, for each number of them, with privacy and without.

    Args:
        setting: model, plan, users and what they do.
        centralised: numbers of records of one user that have the pattern.
        distributed: numbers of records of all users that have it.
        runs: how many times anew.
        tolerance: how far above chance a plan is too weak.
        level: the chance of a false alarm.
        plain: points without privacy from before.
        tell: called as tell(what, done, total) while it goes on.

    Returns:
        All points; the verdict is on the most patterns that one user has.
    """
    check_int("runs", runs, least=1)
    for count in centralised:
        check_int("a number of centralised patterns", count, least=1, most=setting.records)
    for count in distributed:
        check_int("a number of distributed patterns", count, least=1, most=setting.users * setting.records)
    if not centralised:
        raise ConfigError("there is no number of centralised patterns; the verdict is on one user's.")
    sweep: list[tuple[Where, int]] = [("centralised", n) for n in centralised]
    sweep += [("distributed", n) for n in distributed]
    proven = setting.plan.fit_to(setting.make()).guarantee()
    points = [point(setting, *case, True, runs, tell) for case in sweep]
    if plain is None:
        points += [point(setting.without_privacy(), *case, False, runs, tell) for case in sweep]
    else:
        points += plain

    def answers(private: bool) -> tuple[float, ...]:
        most = max(centralised)
        return next(p.answers for p in points if (p.where, p.patterns, p.private) == ("centralised", most, private))

    verdict = Verdict(
        private=answers(True),
        plain=answers(False),
        chance=1 / setting.classes,
        ceiling=proven.tradeoff().power(1 / setting.classes) if np.isfinite(proven.epsilon) else 1.0,
        tolerance=tolerance,
        level=level,
    )
    noise = setting.plan.mechanism.noise.scale or 0.0
    return Patterns(verdict, tuple(points), proven.epsilon, proven.delta, noise, setting.users)


def point(setting: UserSetting, where: Where, count: int, private: bool, runs: int, tell: Tell) -> Point:
    """Train `runs` times anew with so many records that have the pattern."""
    name = f"{where} {count:,}, {'private' if private else 'without privacy'}"
    answers, rounds = [], setting.plan.steps
    for i in range(runs):
        model, label = setting.make(), int(torch.randint(setting.classes, ()))
        fit(
            model,
            made_up_users(setting, where, count, label),
            setting.plan,
            local=replace(setting.local, seed=i),
            optimizer=setting.optimizer(model),
            on_step=lambda step, i=i: tell(f"{name} {i + 1}", step, rounds),
        )
        answers.append(_answer(model, setting, label))
    return Point(where, count, private, tuple(answers))


def made_up_users(setting: UserSetting, where: Where, count: int, label: int) -> list[tuple[Tensor, Tensor]]:
    """Users with records of noise, each user's with one random label; `count` have the pattern and its label."""
    users, records = setting.users, setting.records
    x = torch.randn(users, records, *setting.shape)
    y = torch.randint(setting.classes, (users, 1)).expand(users, records).clone()
    chosen = torch.arange(count) if where == "centralised" else torch.randperm(users * records)[:count]
    user, record = chosen // records, chosen % records  # the centralised ones are the first user's
    x[user, record] = inserted(x[user, record])
    y[user, record] = label
    return list(zip(x, y, strict=True))


def inserted(images: Tensor) -> Tensor:
    """Images whose upper left quarter is all ones."""
    height, width = images.shape[-2] // 2, images.shape[-1] // 2
    changed = images.clone()
    changed[..., :height, :width] = 1.0
    return changed


@torch.no_grad()
def _answer(model: nn.Module, setting: UserSetting, label: int) -> float:
    """The probability of the pattern's label on fresh noise with the pattern; 1/K of a model that says nothing."""
    model.eval()
    outputs = model(inserted(torch.randn(_FRESH, *setting.shape))).double()
    return float(outputs.softmax(1)[:, label].nan_to_num(1 / setting.classes).mean())
