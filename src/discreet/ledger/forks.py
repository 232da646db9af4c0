"""Whether two ledgers are two continuations of one run: a folder was copied, and both copies went on."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from discreet import _storage as storage
from discreet.errors import ConfigError
from discreet.ledger.file import read


@dataclass(frozen=True)
class Fork:
    """One run in two files that agree for some lines, and then differ: what each has released, and both before."""

    run: str
    files: tuple[str, str]
    common_lines: int
    released: tuple[int, int]
    released_before: int

    def __str__(self) -> str:
        first, second = self.released
        return (
            f"{self.files[0]} and {self.files[1]} are one run ({self.run}) up to line {self.common_lines}, and then "
            f"each its own: a folder was copied, and both were continued. They have released {first:,} and {second:,} "
            f"steps, {self.released_before:,} of them the same, so {first + second - self.released_before:,} in all, "
            "which neither counts: what either proves does not hold."
        )


def forks(paths: Sequence[str | Path]) -> list[Fork]:
    """Each pair of these ledgers in which one run was continued twice; a ledger whose chain does not hold is an error.

    A file that is the beginning of another is an earlier copy of it, and no fork.
    """
    files = list(dict.fromkeys(Path(path).resolve() for path in paths))
    contents = {file: read(file)[0] for file in files}
    found = [
        _parted(run, one, other, (contents[one].runs[run].released, contents[other].runs[run].released))
        for one, other in combinations(files, 2)
        for run in contents[one].runs
        if run in contents[other].runs
    ]
    return [fork for fork in found if fork is not None]


def _parted(run: str, one: Path, other: Path, released: tuple[int, int]) -> Fork | None:
    before = 0
    for common, (line, beside) in enumerate(zip(_lines(one), _lines(other), strict=False)):
        if line != beside:
            return Fork(run, (str(one), str(other)), common, released, before)
        if b'"kind": "release"' in line:
            content = json.loads(line)
            before = content["step"] + content["count"] if content["run"] == run else before
    return None


def _lines(path: Path) -> Iterator[bytes]:
    rest = b""
    try:
        for piece in storage.pieces(path):
            *lines, rest = (rest + piece).split(b"\n")
            yield from lines
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
