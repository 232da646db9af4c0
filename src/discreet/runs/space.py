"""A space of settings: lists to choose from and ranges, of which settings are drawn, or made one by one."""

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from discreet._check import check_positive
from discreet.errors import ConfigError

Settings = dict[str, Any]  # by field, as "optimizer.learning_rate"

_FREE = ("optimizer.", "schedule.", "averaging.", "model.", "augmentation.", "method.settings.norm")
_COSTLY = ("budget.epochs", "budget.steps", "budget.batch_size", "budget.batch_share")
_MOST = 64  # settings that differ in cost


@dataclass(frozen=True)
class Between:
    """A range from which numbers are drawn evenly, or their logarithms."""

    low: float
    high: float
    log: bool = False

    def draw(self, source: random.Random) -> float:
        """A number."""
        if self.log:
            return math.exp(source.uniform(math.log(self.low), math.log(self.high)))
        return source.uniform(self.low, self.high)


@dataclass(frozen=True)
class Space:
    """Fields of a run's file, each with what it may be."""

    choices: Mapping[str, tuple[Any, ...]]
    ranges: Mapping[str, Between]

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> "Space":
        """The space that a table describes: lists, and ranges as {low = 0.1, high = 4.0, log = true}.

        Raises:
            ConfigError: a field is neither, or the space is empty.
        """
        choices: dict[str, tuple[Any, ...]] = {}
        ranges: dict[str, Between] = {}
        for field, value in _leaves(table, ""):
            if isinstance(value, (list, tuple)):
                if not value:
                    raise ConfigError(f"the space's {field} is an empty list; name what it may be.")
                choices[field] = tuple(value)
            else:
                ranges[field] = _between(field, value)
        if not choices and not ranges:
            raise ConfigError(
                "the space is empty; name settings, as optimizer.learning_rate = {low = 0.1, high = 4.0}."
            )
        return cls(choices, ranges)

    @property
    def fields(self) -> tuple[str, ...]:
        """All fields, in the file's order."""
        return (*self.choices, *self.ranges)

    def draw(self, source: random.Random) -> Settings:
        """Settings drawn at random, each field by itself."""
        chosen: Settings = {field: source.choice(values) for field, values in self.choices.items()}
        return chosen | {field: within.draw(source) for field, within in self.ranges.items()}

    def grid(self) -> list[Settings]:
        """All settings, one by one."""
        if self.ranges:
            raise ConfigError(f"{next(iter(self.ranges))} is a range, which has no grid; list its values.")
        return [dict(zip(self.choices, values, strict=True)) for values in product(*self.choices.values())]

    def costly(self) -> list[Settings]:
        """All settings of the fields that a run's cost depends on; what it cannot depend on may be anything.

        Raises:
            ConfigError: a field may not be drawn, or there are too many settings.
        """
        for field in self.fields:
            if field not in _COSTLY and not field.startswith(_FREE):
                raise ConfigError(
                    f"{field} cannot be drawn: a trial's cost must be known for every setting. Of these it is: "
                    f"{', '.join(_COSTLY)}, and {', '.join(name.rstrip('.') for name in _FREE)}."
                )
        drawn = next((field for field in self.ranges if field in _COSTLY), None)
        if drawn is not None:
            raise ConfigError(f"{drawn} is a range, and what a run costs depends on it; list its values.")
        several = {field: values for field, values in self.choices.items() if field in _COSTLY}
        if math.prod(len(values) for values in several.values()) > _MOST:
            raise ConfigError(f"there are more than {_MOST} settings that differ in cost; list fewer.")
        return [dict(zip(several, values, strict=True)) for values in product(*several.values())]


def _leaves(table: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """Each field with its list or range; dots in names and tables in tables mean the same."""
    for name, value in table.items():
        field = f"{path}{name}"
        if isinstance(value, Mapping) and not {"low", "high"} & set(value):
            yield from _leaves(value, f"{field}.")
        else:
            yield field, value


def _between(field: str, value: Any) -> Between:
    known = {"low", "high", "log"}
    if not isinstance(value, Mapping) or set(value) - known or not {"low", "high"} <= set(value):
        raise ConfigError(f"the space's {field} is {value!r}; give a list, or a range as {{low = 0.1, high = 4.0}}.")
    low, high, log = value["low"], value["high"], value.get("log", False)
    plain = all(isinstance(end, (int, float)) and not isinstance(end, bool) for end in (low, high))
    if not plain or not isinstance(log, bool) or not low < high or math.isinf(high - low):
        raise ConfigError(f"the space's {field} is {value!r}; low must be a number below high, and log true or false.")
    if log:
        check_positive(f"the space's {field}, whose logarithm is drawn, low", low)
    return Between(float(low), float(high), log)
