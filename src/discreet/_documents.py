"""TOML and JSON that nobody vouches for: read up to a size and a depth, or refused as a ConfigError of one line."""

import json
import os
import re
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from discreet._check import limit, within
from discreet.errors import ConfigError

_LARGEST = 2**63  # whole numbers of TOML have 64 bits
_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.){0,250}+"|'[^'\n]{0,250}+')"""


def read_bytes(path: str | Path, most: str = "text_bytes") -> bytes:
    """What a regular file holds, of at most so many bytes (the limit of this name).

    Raises:
        ConfigError: it cannot be opened, is a device, a pipe or a folder, or is larger.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise ConfigError(f"{path} cannot be read: it is no regular file, but a folder, a device or a pipe.")
            within(most, found.st_size, f"{path} has {found.st_size:,} bytes")
            return file.read(limit(most) + 1)
    except ConfigError:
        raise
    except (OSError, ValueError) as error:  # a name with NUL, or that the file system cannot hold
        raise ConfigError(f"{path} cannot be read: {error}") from error


def read_text(path: str | Path, most: str = "text_bytes") -> str:
    """A regular file as UTF-8 text, of at most so many bytes."""
    try:
        return read_bytes(path, most).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def read_toml(path: str | Path) -> dict[str, Any]:
    """A TOML file as plain values."""
    try:
        return parse_toml(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    except ConfigError as error:
        raise error if str(error).startswith(str(path)) else ConfigError(f"{path}: {error}") from error


def parse_toml(text: str) -> dict[str, Any]:
    """TOML as plain values; a ConfigError where it is nested too deep, or has numbers that no machine has.

    Raises:
        tomllib.TOMLDecodeError: it is no TOML.
        ConfigError: a limit is exceeded.
    """
    within("text_bytes", len(text), f"the text has {len(text):,} characters")
    depth = limit("depth")
    dotted = rf"(?<![A-Za-z0-9_-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{depth}}}"
    if re.search(dotted, text):  # before it is parsed, which takes time that grows with the square
        within("depth", depth + 1, f"a key has more than {depth} parts")
    try:
        values = tomllib.loads(text)
    except RecursionError as error:
        raise ConfigError(f"tables or lists are nested more than {depth} deep.") from error
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # a whole number with thousands of digits
        raise ConfigError(f"it has a number that is none: {error}") from error
    for value in _leaves(values):
        _check_size(value)
        if isinstance(value, str) and "\0" in value:
            raise ConfigError(f"the text {value[:40]!r} has the character NUL, which no name can have.")
    return values


def parse_json(text: str | bytes) -> Any:
    """JSON as plain values; a ValueError where it is none, is nested too deep, or holds half a character."""
    try:
        values = json.loads(text)
    except RecursionError as error:
        raise ConfigError("it is nested too deep.") from error
    for value in _leaves(values):
        _check_size(value)
        if isinstance(value, str) and not value.isascii():
            value.encode()  # lone surrogates are a UnicodeEncodeError, which is a ValueError
    return values


def check_writable(path: str | Path) -> None:
    """Refuse a place where no file can be written, before what is to stand in it is computed."""
    try:
        place = Path(path)
        if "\0" in str(path):
            raise ValueError("no name has the character NUL")
        if place.exists() and not place.is_file():
            raise ConfigError(f"{path} cannot be written: it is no regular file, but a folder, a device or a pipe.")
        if not place.parent.is_dir():
            raise ConfigError(f"{path} cannot be written: there is no folder {place.parent}.")
    except (OSError, ValueError) as error:
        raise error if isinstance(error, ConfigError) else ConfigError(f"{path} cannot be written: {error}") from error


def _check_size(value: Any) -> None:
    if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        raise ConfigError(f"it has a whole number of {value.bit_length():,} bits; at most 64 are taken.")


def _leaves(value: Any) -> Iterator[Any]:
    """Keys and plain values, wherever they are; a ConfigError where that is too deep."""
    most, waiting = limit("depth"), [(value, 0)]
    while waiting:
        inner, depth = waiting.pop()
        if depth > most:
            within("depth", depth, f"tables or lists are nested more than {most} deep")
        if isinstance(inner, dict):
            yield from inner
            waiting += [(each, depth + 1) for each in inner.values()]
        elif isinstance(inner, list):
            waiting += [(each, depth + 1) for each in inner]
        else:
            yield inner
