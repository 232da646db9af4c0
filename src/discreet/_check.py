"""Checks of arguments and of amounts: the value, or a ConfigError that names it, its bound and what was given.

How much input is taken is one table of limits, each checked before work begins. The environment replaces any of them:
DISCREET_LIMITS="table_columns=50000, unpacked_bytes=4e9".
"""

import math
import os
import re
from typing import Any, NamedTuple

from discreet.errors import ConfigError

_SMALLEST, _LARGEST = 1e-100, 1e100  # beyond which squares are nothing, or no number
_STEERING = re.compile(  # controls but tab and newline, marks that turn the direction of reading, halves of characters
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def check_positive(name: str, value: float, *, zero: bool = False) -> float:
    """Return `value` if it is a finite positive number (zero too, if `zero`), or raise a ConfigError naming it."""
    ok = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not ok or not (value >= 0 if zero else value > 0) or value == math.inf:
        raise ConfigError(f"{name} is {shown(value)}; it must be a finite number {'>= 0' if zero else '> 0'}.")
    if value and not _SMALLEST <= value <= _LARGEST:
        raise ConfigError(f"{name} is {shown(value)}; it must be from {_SMALLEST:g} to {_LARGEST:g}.")
    return float(value)


def check_share(name: str, value: float) -> float:
    """Return `value` if it is a number from 0 to below 1, or raise a ConfigError naming it."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1:
        raise ConfigError(f"{name} is {shown(value)}; it must be a number from 0 to below 1.")
    return float(value)


def check_int(name: str, value: int, *, least: int, most: int = 10**15) -> int:
    """Return `value` if it is an integer from `least` to `most`, or raise a ConfigError naming it."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} is {shown(value)}; it must be a whole number >= {least}.")
    if value > most:
        raise ConfigError(f"{name} is too large; it must be at most {most:,}.")
    return value


def shown(value: Any, most: int = 80) -> str:
    """A value as an error shows it: the beginning of a long one, the size of a number with hundreds of digits.

    >>> shown("a" * 1000, 10)
    "'aaaaaaaaa..."
    """
    if isinstance(value, int) and value.bit_length() > 300:
        return f"a whole number of {value.bit_length():,} bits"
    if isinstance(value, (str, bytes)):
        return repr(value) if len(value) <= most else f"{value[: most - 1]!r}"[:-1] + "..."
    if isinstance(value, (list, tuple, dict)) and len(value) > most:
        return f"a {type(value).__name__} of {len(value):,}"
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__}"
    return text if len(text) <= most else f"{text[:most]}..."


def listed(names: Any, most: int = 8) -> str:
    """Names with commas between: the first few, and how many there are in all."""
    found = [str(name)[:60] for name in names]
    return ", ".join(found) if len(found) <= most else f"{', '.join(found[:most])}, ... ({len(found):,} in all)"


def inert(text: str) -> str:
    """The text with characters that steer a terminal written out, as \\x1b.

    >>> print(inert("a\\x1b[31mb"))
    a\\x1b[31mb
    """
    return _STEERING.sub(lambda found: ascii(found.group())[1:-1], text)


# --- how much input is taken ------------------------------------------------------------------------------------------

VARIABLE = "DISCREET_LIMITS"


class Limit(NamedTuple):
    """The most that is taken of something, and what that is."""

    most: int
    what: str


LIMITS = {
    "text_bytes": Limit(1 << 20, "bytes of a config, schema, plan or key, and of other texts that are read at once"),
    "depth": Limit(64, "tables and lists inside one another, and parts of a dotted key, in TOML and JSON"),
    "record_bytes": Limit(1 << 28, "bytes of a run's metrics, guarantee and other records"),
    "line_bytes": Limit(1 << 24, "bytes of a line of a ledger, or of the first line of a .csv file"),
    "table_columns": Limit(10_000, "columns of a table"),
    "table_cells": Limit(10_000_000, "cells of a .csv or .parquet table that are read, rows times columns"),
    "categories": Limit(100_000, "categories or classes of a column, or classes that an array's labels announce"),
    "input_values": Limit(250_000_000, "values of a table's encoded inputs, rows times width"),
    "unpacked_bytes": Limit(640 << 20, "bytes that a compressed file (.npz, .gz, .parquet) may become"),
    "pixels": Limit(50_000_000, "pixels of one image"),
    "images": Limit(200_000, "rows that an IDX file announces"),
    "example_values": Limit(10_000_000, "values of one example, the product of its shape"),
    "layers": Limit(1_000, "hidden layers of a network that is named"),
    "parameters": Limit(250_000_000, "parameters of a network that is named"),
    "steps": Limit(1_000_000_000, "steps of a plan"),
    "extractors": Limit(100, "extractors of features"),
    "copies": Limit(1_000, "changed copies of an example"),
    "group": Limit(10_000, "examples that are protected together"),
    "users": Limit(10_000_000, "made-up users of a federated run"),
    "noise_schedule": Limit(10_000, "factors of a noise schedule"),
}


def limit(name: str) -> int:
    """The limit of this name: the environment's, or the table's."""
    return _overridden().get(name, LIMITS[name].most)


def within(name: str, value: int, where: str) -> int:
    """Return `value` if it is within a limit, or raise a ConfigError that names the limit and how it is overridden.

    Args:
        name: of the limit.
        value: what was announced or counted.
        where: what has so many, as "data.csv has 20,000 columns".
    """
    most = limit(name)
    if value > most:
        raise ConfigError(f"{where}; at most {most:,} are taken. If it is meant, set {VARIABLE}={name}=N.")
    return value


def _overridden() -> dict[str, int]:
    """The limits that the environment names."""
    found = {}
    for part in filter(None, (part.strip() for part in os.environ.get(VARIABLE, "").split(","))):
        name, _, value = part.partition("=")
        try:
            number = float(value)
            most = int(number)
        except (ValueError, OverflowError):
            most = 0
        if name.strip() not in LIMITS or most < 1:
            raise ConfigError(
                f"{VARIABLE} says {part!r}; write name=number with commas between, of {', '.join(sorted(LIMITS))}."
            )
        found[name.strip()] = most
    return found
