"""Stages of one's own by name: `module:Class` in a config, and a module's classes for `discreet verify --stages`."""

import inspect
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from discreet._check import shown
from discreet.errors import ConfigError

_MEMBERS = ("contract", "law", "draw")  # a bound, a noise, a sampler has one of them


def stage_class(name: str) -> type[Any]:
    """The class that `module:Class` names."""
    where, _, called = name.partition(":")
    named = getattr(_module(where), called, None)
    if not inspect.isclass(named):
        raise ConfigError(f"the module {shown(where)} has no class {shown(called)}; name one as module:Class.")
    return named


def stage_classes(names: Sequence[str]) -> tuple[type[Any], ...]:
    """Classes by name, and all stages of those modules that are named without a class."""
    classes: list[type[Any]] = []
    for name in names:
        if ":" in name:
            classes.append(stage_class(name))
            continue
        own = [kind for kind in vars(_module(name)).values() if inspect.isclass(kind) and kind.__module__ == name]
        stages = [kind for kind in own if any(hasattr(kind, member) for member in _MEMBERS)]
        if not stages:
            raise ConfigError(f"the module {shown(name)} defines no bound, noise or sampler; name one as module:Class.")
        classes += stages
    return tuple(classes)


def named_here(tables: Sequence[Mapping[str, Any] | None]) -> tuple[type[Any], ...]:
    """The classes that tables of stages name as `type = "module:Class"`."""
    names = [str(table.get("type", "")) for table in tables if table is not None]
    return tuple(stage_class(name) for name in names if ":" in name)


def by_class_name(table: Mapping[str, Any]) -> dict[str, Any]:
    """A stage's table with its class's name alone, as a plan writes it down."""
    return {key: str(value).rpartition(":")[2] if key == "type" else value for key, value in table.items()}


def _module(name: str) -> ModuleType:
    try:
        return import_module(name)
    except (Exception, SystemExit) as error:
        words = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(
            f"the module {shown(name)} cannot be imported ({words}); its folder must be on PYTHONPATH."
        ) from error
