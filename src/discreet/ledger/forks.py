"""Whether two ledgers are two continuations of one run: a folder was copied, and both copies went on."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from discreet.errors import ConfigError
from discreet.ledger import storage
from discreet.ledger.reading import read


@dataclass(frozen=True)
class Fork:
    """One run in two files that agree for some lines, and then differ: what each has released, and both before.

    Where neither has released anything else of that run, it is the files of a `dataset` that part: other runs went on.
    """

    run: str
    files: tuple[str, str]
    common_lines: int
    released: tuple[int, int]
    released_before: int
    dataset: str | None = None

    def __str__(self) -> str:
        first, second = self.released
        if self.dataset is not None and not self.continued:
            return (
                f"a ledger was copied, and both were continued: {self.files[0]} and {self.files[1]} are one file up to "
                f"line {self.common_lines}. So what either proves of all of data set {self.dataset!r} together leaves "
                "the other's releases out, and does not hold."
            )
        return (
            f"a folder was copied, and both were continued: they have released {first:,} and {second:,} steps, "
            f"{self.released_before:,} of them the same, so {first + second - self.released_before:,} in all, which "
            f"neither counts, and what either proves does not hold. {self.files[0]} and {self.files[1]} are one run "
            f"({self.run}) up to line {self.common_lines}."
        )

    @property
    def continued(self) -> bool:
        """Whether more was released of the run than either file counts."""
        return sum(self.released) - self.released_before > max(self.released)


def forks(paths: Sequence[str | Path]) -> list[Fork]:
    """Each run that two of these ledgers continued, each for itself; a ledger whose chain does not hold is an error.

    Of a data set's ledgers also a pair that parted with other runs. A file that is the beginning of another is an
    earlier copy of it, and no fork.
    """
    files = list(dict.fromkeys(Path(path).resolve() for path in paths))
    contents = {file: read(file)[0] for file in files}
    found = []
    for one, other in combinations(files, 2):
        first, second = contents[one], contents[other]
        parted = [
            _parted(run, one, other, (first.runs[run].released, second.runs[run].released))
            for run in first.runs
            if run in second.runs
        ]
        each = [fork for fork in parted if fork is not None]
        whole = [replace(fork, dataset=str(first.dataset["dataset"])) for fork in each[:1] if first.dataset is not None]
        found += [fork for fork in each if fork.continued] or whole
    return found


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
