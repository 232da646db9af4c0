"""What can go wrong, in three words: the guarantee would break, the budget is spent, the call is wrong."""


class PrivacyError(RuntimeError):
    """Something would break the guarantee. Nothing was released."""


class BudgetExhausted(PrivacyError):
    """The plan's steps or its epsilon are spent."""


class ConfigError(ValueError):
    """A value that makes no sense, with its bound and the remedy."""
