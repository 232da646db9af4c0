"""What can go wrong, in three words: the guarantee would break, the budget is spent, the call is wrong.

Each has the exit code of a process that ends with it (discreet.cli.exits has them all).
"""


class PrivacyError(RuntimeError):
    """Something would break the guarantee. Nothing was released."""

    exit_code = 3


class BudgetExhausted(PrivacyError):
    """The plan's steps or its epsilon are spent."""

    exit_code = 4


class ConfigError(ValueError):
    """A value that makes no sense, with its bound and the remedy."""

    exit_code = 2
