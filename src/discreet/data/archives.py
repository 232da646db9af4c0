"""Arrays of an .npz file, whose sizes are looked at before any of them is unpacked; nothing pickled is read."""

import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from discreet._check import listed, shown, within
from discreet.data.files import reading, regular
from discreet.errors import ConfigError

_ERRORS = (
    ValueError, TypeError, EOFError, KeyError, RuntimeError, MemoryError, OverflowError, SyntaxError, zlib.error,
    zipfile.BadZipFile, struct.error, tokenize.TokenError,
)  # fmt: skip
_HEADS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_arrays(name: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays x, y and perhaps test_x, test_y of a file.

    Raises:
        ConfigError: the file is no archive of such arrays, or what it announces is too large or is not there.
    """
    with _members(name) as (packed, members):
        if not {"x", "y"} <= set(members) <= {"x", "y", "test_x", "test_y"} or len(members) == 3:
            raise ConfigError(
                f"{name} has the arrays {listed(sorted(members)) or 'none'}; it must have x and y, and perhaps test_x "
                "and test_y."
            )
        return _unpacked(name, packed, members)


def read_inputs(name: str) -> npt.NDArray[Any]:
    """The array of a .npy file, or x of an .npz file, whatever else is in it."""
    if name.lower().endswith(".npy"):
        path = regular(name)
        with reading(name, *_ERRORS), path.open("rb") as file:
            _announced(name, "it", file, path.stat().st_size)
            file.seek(0)
            return _array(file)
    with _members(name) as (packed, members):
        if "x" not in members:
            raise ConfigError(f"{name} has no array x; it has {listed(sorted(members)) or 'none'}.")
        return _unpacked(name, packed, {"x": members["x"]})["x"]


@contextmanager
def _members(name: str) -> Generator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]]:
    path = regular(name)
    with reading(name, *_ERRORS), zipfile.ZipFile(path) as packed:
        yield packed, {member.filename.removesuffix(".npy"): member for member in packed.infolist()}


def _unpacked(
    name: str, packed: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo]
) -> dict[str, npt.NDArray[Any]]:
    """The arrays of some members, once it is known that they are there and not too large."""
    packs = [member for member in members.values() if member.compress_type != zipfile.ZIP_STORED]
    size = sum(member.file_size for member in packs)
    within("unpacked_bytes", size, f"{name} unpacks to {size:,} bytes")
    shapes = {}
    for key, member in members.items():
        stored = member.compress_type == zipfile.ZIP_STORED
        if stored and member.file_size > regular(name).stat().st_size:
            raise ConfigError(f"{name}: {key} announces {member.file_size:,} bytes, which are not there.")
        with packed.open(member) as file:
            shapes[key] = _announced(name, key, file, member.file_size)
    for inputs, labels in (("x", "y"), ("test_x", "test_y")):
        if inputs in shapes and labels in shapes:
            _check_lengths(name, shapes[inputs], shapes[labels])
    found = {}
    for key in sorted(members, key=lambda key: not key.endswith("y")):
        with packed.open(members[key]) as file:
            found[key] = _array(file)
    return found


def _array(file: IO[bytes]) -> npt.NDArray[Any]:
    return np.lib.format.read_array(file, allow_pickle=False)


def _announced(name: str, key: str, file: IO[bytes], most: int) -> tuple[int, ...]:
    """The shape that an array announces, if its bytes are all there is, of so many bytes with its head."""
    version = np.lib.format.read_magic(file)
    if version not in _HEADS:
        raise ConfigError(f"{name}: {key} is of a structure with names; it must be an array of numbers.")
    shape, _, kind = _HEADS[version](file)
    size = file.tell() + math.prod(shape) * kind.itemsize
    if kind.hasobject:
        raise ConfigError(f"{name}: {key} is of pickled objects, which are not read; it must be an array of numbers.")
    if size != most or min(shape, default=0) < 0:
        raise ConfigError(f"{name}: {key} announces {shown(size)} bytes, which are not there; save it again.")
    return shape


def _check_lengths(name: str, inputs: tuple[int, ...], labels: tuple[int, ...]) -> None:
    if inputs and labels and inputs[0] != labels[0]:
        raise ConfigError(f"{name} has {inputs[0]} inputs and {labels[0]} labels; it must have as many, and some.")
