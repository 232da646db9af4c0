"""Which run it is: names that are random, in every line, and on disk before the first."""

import secrets
from dataclasses import dataclass, replace

from discreet.errors import ConfigError

HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True)
class Identity:
    """Which run it is: a random name that every line of it has, and the names of all who took it up from this folder.

    `attempts` are those that are on disk in the run's folder, the last one this process's own. A ledger whose last
    writer is none of them was continued from elsewhere: the folder is a copy. An empty `run` is one of an earlier
    version, which is told from others by its plan alone.
    """

    run: str
    attempts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in (self.run, *self.attempts):
            if not isinstance(name, str) or len(name) > 64 or set(name) - HEX:
                raise ConfigError(f"{name!r} names no run; it is what private.run or discreet.verify says.")

    def taken_up(self) -> "Identity":
        """The same run, with a new name for whoever takes it up now."""
        return replace(self, attempts=(*self.attempts, secrets.token_hex(4)))


def new_run() -> str:
    """A random name for a run."""
    return secrets.token_hex(8)
