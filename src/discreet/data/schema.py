"""What is known of a table's columns without looking: a range, or words, or that a column is not to be used."""

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from discreet.data.columns import Reals
from discreet.data.files import reading
from discreet.errors import ConfigError

Schema = Mapping[str, Any]


@dataclass(frozen=True)
class Range:
    """Numbers from low to high as -1 to 1; those outside are cut, missing ones are 0."""

    low: float
    high: float

    def scaled(self, values: Reals) -> Tensor:
        part = (np.clip(values, self.low, self.high) - self.low) / (self.high - self.low)
        return torch.from_numpy(np.nan_to_num(2 * part - 1).astype(np.float32))


@dataclass(frozen=True)
class Words:
    """Words by number: of a feature one column each, of the label the classes."""

    words: tuple[str, ...]

    def numbers(self, cells: Iterable[Any]) -> list[int]:
        """Each cell's number, -1 if it is none of the words."""
        number_of = {word: number for number, word in enumerate(self.words)}
        return [number_of.get(_word(cell), -1) for cell in cells]


class Classes(Words):
    """The words that a label may be."""


def read_schema(schema: Schema | str | Path) -> tuple[str, Schema]:
    """What to call a schema, and its content."""
    if isinstance(schema, Mapping):
        return "the schema", schema
    if not isinstance(schema, (str, Path)):
        raise ConfigError(f"a schema is {schema!r}; give a mapping or the path of a TOML file.")
    with reading(schema, tomllib.TOMLDecodeError, UnicodeDecodeError), Path(schema).open("rb") as file:
        return str(schema), tomllib.load(file)


def rules_of(where: str, content: Schema) -> dict[str, Range | Words]:
    """What a schema says of each column, checked."""
    rules: dict[str, Range | Words] = {}
    for column, rule in content.items():
        if column == "ignore" and isinstance(rule, (list, tuple)):
            continue
        keys = set(rule) if isinstance(rule, Mapping) else set()
        if keys == {"low", "high"}:
            rules[column] = _range(f"{where}: column {column!r}", rule["low"], rule["high"])
        elif keys in ({"categories"}, {"classes"}):
            rules[column] = _words(f"{where}: column {column!r}", *keys, rule[next(iter(keys))])
        else:
            raise ConfigError(
                f"{where}: column {column!r} is {rule!r}; say low and high, or categories, or for the label classes."
            )
    return rules


def ignored_columns(where: str, content: Schema) -> list[str]:
    """The columns that a schema says are not to be used."""
    ignored = content.get("ignore", [])
    if isinstance(ignored, Mapping):  # a column of that name
        return []
    if not isinstance(ignored, (list, tuple)) or not all(isinstance(name, str) for name in ignored):
        raise ConfigError(f"{where}: ignore is {ignored!r}; it must be a list of columns' names.")
    return list(ignored)


def _range(where: str, low: Any, high: Any) -> Range:
    numbers = all(isinstance(end, (int, float)) and not isinstance(end, bool) for end in (low, high))
    if not numbers or not 0 < high - low < math.inf or not math.isfinite(low):
        raise ConfigError(f"{where} has low {low!r} and high {high!r}; they must be finite numbers, low below high.")
    return Range(float(low), float(high))


def _words(where: str, key: str, words: Any) -> Words:
    least = 2 if key == "classes" else 1
    listed = isinstance(words, (list, tuple)) and all(isinstance(w, (str, int, float)) for w in words)
    listed_words = tuple(_word(word) for word in words) if listed else ()
    if len(listed_words) < least or len(set(listed_words)) < len(listed_words):
        raise ConfigError(f"{where} has {key} {words!r}; give a list of {least} or more that differ.")
    return Classes(listed_words) if key == "classes" else Words(listed_words)


def _word(cell: Any) -> str:
    """A cell as a category's name: 3 and 3.0 are the same."""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return "" if cell is None else str(cell).strip()
