"""What every reader of files needs: errors that name the file, packages that may be missing, whole files or none."""

import gzip
import io
import os
import stat
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from discreet._check import limit, within
from discreet.errors import ConfigError

Progress = Callable[[int, int], None]


def needed(module: str, what: str, *, extra: str = "data") -> ModuleType:
    """A module that only some data or work needs, or a ConfigError that says how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        package = {"PIL": "Pillow"}.get(module.split(".")[0], module.split(".")[0])
        raise ConfigError(
            f"{what} is {'read' if extra == 'data' else 'made'} with {package}, which is not installed; pip install "
            f"'discreet[{extra}]'."
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


def regular(path: str | Path) -> Path:
    """The path of a regular file, or of a link to one; anything else, which might never end, is a ConfigError."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:  # ValueError: a name with NUL
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{path} cannot be read: it is no regular file, but a folder, a device or a pipe.")
    return Path(path)


class Unpacked(io.RawIOBase):
    """What a gzipped file holds, up to the limit of unpacked_bytes; beyond it a ConfigError."""

    def __init__(self, path: Path) -> None:
        self._path, self._file, self._read = path, gzip.GzipFile(path, "rb"), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._file.read(len(buffer))
        self._read += len(piece)
        within("unpacked_bytes", self._read, f"{self._path} unpacks to more than {limit('unpacked_bytes'):,} bytes")
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        self._file.close()
        super().close()


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
