"""What is known of a column without looking, and the numbers that its cells become: of one row, by that row alone."""

import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import lru_cache
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from discreet.data.columns import MISSING, Reals, number_in

Asked = Literal["range", "dates", "categories"]

BUCKETS = 4096  # that words are hashed to, where which of them are frequent is asked for in private
_WORD = re.compile(r"\w+")
_YEAR = 365.25  # days
_LARGE = math.log1p(1e6)  # a number of that size is 1 where no range is known
_SMALL, _DOUBLINGS = 1e-6, 8  # from that size on numbers go round a circle, once in a factor of 2^8


class BadCell(ValueError):
    """A cell that is not what its column's rule says; it tells the row, not what is in it."""

    def __init__(self, row: int, wanted: str) -> None:
        super().__init__(row, wanted)
        self.row, self.wanted = row, wanted


class Rule(Protocol):
    """What a column's cells become."""

    @property
    def width(self) -> int:
        """How many numbers a row has of it."""
        ...

    def encoded(self, cells: Sequence[Any]) -> Tensor:
        """Numbers [rows, width], each row's from its own cell; a BadCell where a cell is of another kind."""
        ...


@dataclass(frozen=True)
class Range:
    """Numbers from low to high as -1 to 1; those outside are cut, missing ones are 0."""

    low: float
    high: float

    def scaled(self, values: Reals) -> Tensor:
        """Values as -1 to 1."""
        return torch.from_numpy(np.nan_to_num(self._scaled(values)).astype(np.float32))

    def _scaled(self, values: Reals) -> Reals:
        return 2 * ((np.clip(values, self.low, self.high) - self.low) / (self.high - self.low)) - 1

    @property
    def width(self) -> int:
        return 1

    def encoded(self, cells: Sequence[Any]) -> Tensor:
        """One column."""
        return self.scaled(numbers(cells))[:, None]


@dataclass(frozen=True)
class Bins:
    """Numbers by the bin that they lie in, one column each: below the first edge, from one edge to the next, above."""

    edges: tuple[float, ...]

    @property
    def width(self) -> int:
        return len(self.edges) + 1

    def encoded(self, cells: Sequence[Any]) -> Tensor:
        """A column for each bin; nothing for a missing number. A number that is an edge is in the bin above it."""
        values = numbers(cells)
        found = np.searchsorted(np.asarray(self.edges), values, side="right")
        return _one_of(np.where(np.isnan(values), -1, found).tolist(), self.width)


@dataclass(frozen=True)
class Unscaled:
    """Numbers of which no range is known: the logarithm of their size, with their sign, as -1 to 1.

    Beside it the same logarithm on a circle that a factor of 256 goes round once, as days go round the year: numbers
    that are close to each other for their size, as 11 and 14, are told apart there.
    """

    @property
    def width(self) -> int:
        return 3

    def encoded(self, cells: Sequence[Any]) -> Tensor:
        """Three columns."""
        values = np.nan_to_num(numbers(cells), posinf=1e300, neginf=-1e300)
        signs, sizes = np.sign(values), np.abs(values)
        turns = np.log1p(sizes / _SMALL) / math.log(2) / _DOUBLINGS * 2 * math.pi
        parts = [np.minimum(np.log1p(sizes) / _LARGE, 1.0), np.sin(turns), np.cos(turns)]
        return torch.from_numpy(np.stack([signs * part for part in parts], 1).astype(np.float32))


@dataclass(frozen=True)
class Dates:
    """Days from low to high as -1 to 1, and the time of the year on a circle; missing ones are 0."""

    low: date
    high: date

    @property
    def width(self) -> int:
        return 3

    def encoded(self, cells: Sequence[Any]) -> Tensor:
        """Three columns."""
        values = days(cells)
        scaled = Range(self.low.toordinal(), self.high.toordinal()).scaled(values)
        turns = torch.from_numpy(values / _YEAR * 2 * math.pi)
        around = torch.stack([turns.sin(), turns.cos()], 1).nan_to_num().float()
        return torch.cat([scaled[:, None], around], 1)


@dataclass(frozen=True)
class Words:
    """Words by number: of a feature one column each, of the label the classes."""

    words: tuple[str, ...]

    def numbers(self, cells: Iterable[Any]) -> list[int]:
        """Each cell's number, -1 if it is none of the words."""
        number_of = {word: number for number, word in enumerate(self.words)}
        return [number_of.get(word_in(cell), -1) for cell in cells]

    @property
    def width(self) -> int:
        return len(self.words)

    def encoded(self, cells: Sequence[Any]) -> Tensor:
        """A column for each word."""
        return _one_of(self.numbers(cells), len(self.words))


@dataclass(frozen=True)
class Classes(Words):
    """The words that a label may be, and perhaps how much each one's loss counts: a public constant."""

    weights: tuple[float, ...] = ()


@dataclass(frozen=True)
class Hashed:
    """Words, each in one of so many columns by its hash: for those that nobody can list."""

    columns: int

    @property
    def width(self) -> int:
        return self.columns

    def encoded(self, cells: Sequence[Any]) -> Tensor:
        """A column for each value of the hash."""
        return _one_of(
            [-1 if is_missing(cell) else bucket(word_in(cell)) % self.columns for cell in cells], self.columns
        )


@dataclass(frozen=True)
class Buckets:
    """Words, a column for each bucket of their hashes that was found to be frequent, and one for all others."""

    buckets: tuple[int, ...]

    @property
    def width(self) -> int:
        return len(self.buckets) + 1

    def encoded(self, cells: Sequence[Any]) -> Tensor:
        """A column for each bucket, and one."""
        place, others = {found: i for i, found in enumerate(self.buckets)}, len(self.buckets)
        numbered = [-1 if is_missing(cell) else place.get(bucket(word_in(cell)), others) for cell in cells]
        return _one_of(numbered, others + 1)


@dataclass(frozen=True)
class Text:
    """Free text: its words counted in so many columns by their hashes, the row of length 1."""

    columns: int

    @property
    def width(self) -> int:
        return self.columns

    def encoded(self, cells: Sequence[Any]) -> Tensor:
        """A column for each value of the hash."""
        out = np.zeros((len(cells), self.columns), np.float32)
        for row, cell in enumerate(cells):
            for word in _WORD.findall("" if cell is None else str(cell).lower()):
                out[row, bucket(word) % self.columns] += 1.0
        return torch.nn.functional.normalize(torch.from_numpy(out), dim=1)


@dataclass(frozen=True)
class WithMissing:
    """Another rule's columns, and one that is 1 where the cell is missing."""

    rule: Rule

    @property
    def width(self) -> int:
        return self.rule.width + 1

    def encoded(self, cells: Sequence[Any]) -> Tensor:
        """One column more."""
        missing = torch.tensor([float(is_missing(cell)) for cell in cells])
        return torch.cat([self.rule.encoded(cells), missing[:, None]], 1)


@dataclass(frozen=True)
class Private:
    """What nobody has declared: a run asks for it with noise."""

    asked: Asked

    @property
    def width(self) -> int:
        return NOTHING_FOUND[self.asked].width

    def encoded(self, cells: Sequence[Any]) -> Tensor:
        """As if nothing had been found: a run that tries its data before it asks."""
        return NOTHING_FOUND[self.asked].encoded(cells)


NOTHING_FOUND: dict[Asked, Rule] = {
    "range": Unscaled(),
    "dates": Dates(date(1900, 1, 1), date(2100, 1, 1)),
    "categories": Hashed(32),
}


# --- cells -----------------------------------------------------------------------------------------------------------


def word_in(cell: Any) -> str:
    """A cell as a category's name: 3 and 3.0 are the same."""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return "" if cell is None else str(cell).strip()


def is_missing(cell: Any) -> bool:
    """Whether a cell holds nothing, nan, na or null."""
    if cell is None or cell != cell:
        return True
    word = word_in(cell)
    return len(word) <= 4 and word.lower() in MISSING  # a long one is not gone through


@lru_cache(maxsize=1 << 16)
def bucket(word: str) -> int:
    """A word's hash, one of BUCKETS; the same everywhere and always."""
    return int.from_bytes(hashlib.blake2b(word.encode(errors="surrogatepass"), digest_size=8).digest()) % BUCKETS


def day_in(cell: Any) -> float:
    """A cell's day as a number, nan if it is missing; a ValueError if it is no date, as 2026-01-31."""
    if is_missing(cell):
        return math.nan
    if isinstance(cell, datetime):
        return float(cell.date().toordinal())
    if isinstance(cell, date):
        return float(cell.toordinal())
    return float(datetime.fromisoformat(str(cell).strip()).toordinal())


def numbers(cells: Sequence[Any]) -> Reals:
    """Cells as numbers; a BadCell where one is something else."""
    return _each(cells, number_in, "number")


def days(cells: Sequence[Any]) -> Reals:
    """Cells as days; a BadCell where one is something else."""
    return _each(cells, day_in, "date")


def _each(cells: Sequence[Any], read: Any, wanted: str) -> Reals:
    out = np.empty(len(cells))
    for row, cell in enumerate(cells):
        try:
            out[row] = read(cell)
        except (TypeError, ValueError, OverflowError) as error:
            raise BadCell(row, wanted) from error
    return out


def _one_of(numbered: Sequence[int], width: int) -> Tensor:
    """1 in the column of each row's number; nothing for -1."""
    found = torch.tensor(numbered, dtype=torch.int64)
    out = torch.zeros(len(found), width)
    rows = torch.nonzero(found >= 0)[:, 0]
    out[rows, found[rows]] = 1.0
    return out
