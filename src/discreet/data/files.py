"""What every reader of files needs: errors that name the file, packages that may be missing, whole files or none."""

import os
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

from discreet.errors import ConfigError

Progress = Callable[[int, int], None]

MOST_ROWS = 1_000_000  # that a header may announce: no file makes a reader ask for more memory than that


def needed(module: str, what: str) -> ModuleType:
    """A module that only some data needs, or a ConfigError that says how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        package = {"PIL": "Pillow"}.get(module.split(".")[0], module.split(".")[0])
        raise ConfigError(
            f"{what} is read with {package}, which is not installed; pip install 'discreet[data]'."
        ) from error


@contextmanager
def reading(path: str | Path, *errors: type[Exception]) -> Generator[None]:
    """A failure to read the file is a ConfigError of one line that names it."""
    try:
        yield
    except ConfigError:
        raise
    except (OSError, *errors) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"{path} cannot be read: {reason}") from error


@contextmanager
def whole_file(path: Path) -> Generator[BinaryIO]:
    """A file that is there when everything has been written, or not at all."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as out:
            yield out
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
