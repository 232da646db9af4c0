"""What can go wrong, in three words: the guarantee would break, the budget is spent, the call is wrong."""


class PrivacyError(RuntimeError):
    """Something would break the guarantee. Nothing was released."""


class BudgetExhausted(PrivacyError):
    """The plan's steps or its epsilon are spent."""


class ConfigError(ValueError):
    """A value that makes no sense, with its bound and the remedy."""


def positive(name: str, value: float, *, zero: bool = False) -> float:
    """Return `value` if it is a finite positive number (zero too, if `zero`), or raise a ConfigError naming it."""
    ok = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not ok or not (value >= 0 if zero else value > 0) or value > 1e300:
        raise ConfigError(f"{name} is {value!r}; it must be a finite number {'>= 0' if zero else '> 0'}.")
    return float(value)


def whole(name: str, value: int, *, least: int, most: int = 10**15) -> int:
    """Return `value` if it is an integer from `least` to `most`, or raise a ConfigError naming it."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} is {value!r}; it must be a whole number >= {least}.")
    if value > most:
        raise ConfigError(f"{name} is too large; it must be at most {most:,}.")
    return value
