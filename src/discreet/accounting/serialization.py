"""Stages as plain values and back: what plans, ledgers and guarantees write down of them."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from discreet.errors import ConfigError


def describe(stage: Any) -> dict[str, Any]:
    """A stage's class and those of its settings that are not the usual ones."""
    if not is_dataclass(stage):
        return {"type": type(stage).__name__} | {k: v for k, v in vars(stage).items() if v is not None}
    settings = {f.name: (getattr(stage, f.name), f.default) for f in fields(stage)}
    return {"type": type(stage).__name__} | {k: v for k, (v, usual) in settings.items() if v is not None and v != usual}


def build(values: Any, classes: Sequence[Any]) -> Any:
    """The stage that `describe` described, one of `classes`."""
    if not isinstance(values, Mapping) or not isinstance(values.get("type"), str):
        raise ConfigError(f"{values!r} does not describe a stage; it needs a table with a type.")
    chosen: Any = {c.__name__: c for c in classes}.get(values["type"])
    if chosen is None:
        raise ConfigError(f"{values['type']!r} is not one of {', '.join(c.__name__ for c in classes)}.")
    settings = {k: v for k, v in values.items() if k != "type"}
    unknown = set(settings) - {f.name for f in fields(chosen)} if is_dataclass(chosen) else set()
    if unknown:
        raise ConfigError(f"{chosen.__name__} has no setting {', '.join(sorted(unknown))}.")
    try:
        return chosen(**settings)
    except TypeError as error:
        raise ConfigError(f"{chosen.__name__} cannot be made of {settings!r}: {error}") from error


def to_toml(values: Mapping[str, Any]) -> str:
    """Plain values, tables and tables in tables as TOML."""
    lines: list[str] = []

    def write(table: Mapping[str, Any], path: str) -> None:
        names = {
            key: key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False) for key in table
        }
        for key, value in table.items():
            if not isinstance(value, Mapping):
                lines.append(f"{names[key]} = {_inline(value)}")
        for key, value in table.items():
            if isinstance(value, Mapping):
                inner = f"{path}.{names[key]}" if path else names[key]
                lines.extend(["", f"[{inner}]"])
                write(value, inner)

    write(values, "")
    return "\n".join(lines) + "\n"


def _inline(value: Any) -> str:
    """A value on one line; tables within lists too."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(k))} = {_inline(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_inline(inner) for inner in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def json_values(value: Any) -> Any:
    """The same without the numbers that JSON does not have: infinite ones are "inf" and "-inf", NaN is None.

    >>> json_values({"epsilon": math.inf, "interval": (-math.inf, math.nan, 1.5)})
    {'epsilon': 'inf', 'interval': ['-inf', None, 1.5]}
    """
    if isinstance(value, Mapping):
        return {key: json_values(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_values(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value
