"""Checks of arguments: the value, or a ConfigError that names it, its bound and what was given."""

from discreet.errors import ConfigError


def check_positive(name: str, value: float, *, zero: bool = False) -> float:
    """Return `value` if it is a finite positive number (zero too, if `zero`), or raise a ConfigError naming it."""
    ok = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not ok or not (value >= 0 if zero else value > 0) or value > 1e300:
        raise ConfigError(f"{name} is {value!r}; it must be a finite number {'>= 0' if zero else '> 0'}.")
    return float(value)


def check_int(name: str, value: int, *, least: int, most: int = 10**15) -> int:
    """Return `value` if it is an integer from `least` to `most`, or raise a ConfigError naming it."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} is {value!r}; it must be a whole number >= {least}.")
    if value > most:
        raise ConfigError(f"{name} is too large; it must be at most {most:,}.")
    return value
