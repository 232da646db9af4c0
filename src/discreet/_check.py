"""Checks of arguments: the value, or a ConfigError that names it, its bound and what was given."""

import math
from typing import Any

from discreet.errors import ConfigError

_SMALLEST, _LARGEST = 1e-100, 1e100  # beyond which squares are nothing, or no number


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
