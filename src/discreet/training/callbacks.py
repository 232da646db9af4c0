"""Callbacks: who is told how a run goes, as a tracker of experiments wants it."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from discreet._check import shown
from discreet.errors import ConfigError

if TYPE_CHECKING:
    from discreet.training.state import FitResult


class Callback:
    """Is told how a run goes. Each method does nothing; a tracker overrides those that it needs.

    What a callback is told has been released, or was measured on held-out data, which is not protected. An error in one
    ends the run, with all that was released counted and saved as after a crash.
    """

    def begin(self, done: int, steps: int) -> None:
        """Training begins.

        Args:
            done: steps that an earlier process has made.
            steps: how many there are in all.
        """

    def step(self, step: int) -> None:
        """A step was released.

        Args:
            step: how many have been released by now.
        """

    def record(self, record: Mapping[str, Any]) -> None:
        """Something was measured.

        Args:
            record: what, by name: step, epoch, epsilon so far, seconds, loss, accuracy.
        """

    def end(self, result: "FitResult") -> None:
        """Training is over, or was stopped.

        Args:
            result: what `fit` returns.
        """


def callbacks(names: Sequence[str]) -> list[Callback]:
    """Callbacks by name, as a run's file has them: module:Class or module:function, called without arguments."""
    return [_made(name) for name in names]


def _made(name: str) -> Callback:
    where, _, called = name.partition(":")
    try:
        make = getattr(import_module(where), called)
        made = make()
    except (Exception, SystemExit) as error:
        words = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"the callback {shown(name)} cannot be made ({words}); name it as module:Class.") from error
    check(made)
    return made


def check(callback: object) -> None:
    """Refuse what has not all the methods."""
    missing = [name for name in ("begin", "step", "record", "end") if not callable(getattr(callback, name, None))]
    if missing:
        raise ConfigError(
            f"the callback {type(callback).__name__} has no {missing[0]}; derive it from discreet.training.Callback."
        )
