"""What nobody has declared of a table's columns, asked for with noise: ranges, dates, frequent words."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from discreet._check import check_positive
from discreet.accounting.events import Adjacency, Event
from discreet.data.columns import Reals, read_columns
from discreet.data.dataset import Split
from discreet.data.ranges import doubling_edges, lenient_numbers, ranges_cost
from discreet.data.rules import BUCKETS, Asked, bucket, day_in, is_missing, word_in
from discreet.data.schema import Schema, known, read_schema
from discreet.data.tables import found_schema
from discreet.errors import ConfigError
from discreet.ledger import Ledger
from discreet.stages.noise.random import KeyTree, SecureStream

Counts = npt.NDArray[np.int64]

_STANDS_OUT = 100.0  # one in so many times, at most, is a bin of nothing but noise taken for one with rows
_FINE = 32  # bins of the second look, of equal size between the ends that the first one found
_MOST_OF = 0.8  # of the rows between these ends must stand out in the second look, or bins are taken together
_TAIL = 0.01  # of the rows that may lie outside a range at either end
_MOST_WORDS = 64  # that get a column of their own
_FIRST_DAY, _LAST_DAY, _DAYS = date(1800, 1, 1).toordinal(), date(2200, 1, 1).toordinal(), 25 * 365.25
_USUAL_DATES = {"low": date(1900, 1, 1), "high": date(2100, 1, 1)}


def private_schema(
    table: str | Path,
    *,
    noise: float,
    ledger: str | Path | Ledger,
    schema: Schema | str | Path | None = None,
    adjacency: Adjacency = "zero-out",
    test_fraction: float = 0.2,
    split_seed: int = 0,
    seed: int | None = None,
    key: bytes | None = None,
) -> dict[str, Any]:
    """A table's schema with what it marks as private found out: one counted query for all those columns together.

    Two looks are taken at the training rows. The first counts, for each of k columns, in which of a public list of bins
    a row's cell is: of numbers by size, growing by factors of two; of dates by 25 years; of words by their hash. The
    second counts for the k' columns of numbers and dates in which of 32 equal bins between the ends that the first
    found. Each count gets Gaussian noise of standard deviation noise * sqrt(k + k'), and only bins that stand out of it
    are used (of the second look bins are taken together by twos until most rows do): a range goes from the 1 % to the
    99 % quantile, and words whose bins stand out get a column of their own. Where nothing stands out, numbers are taken
    by the logarithm of their size, words by their hash to 32 columns, and dates from 1900 to 2100.

    Guarantee: a row's cell is in one bin of a column or in none, so a row moves the first counts by at most sqrt(k) in
    l2 and the second by at most sqrt(k'), whatever the first were. Noise of sqrt(k + k') * noise hides both together as
    one Gaussian release of multiplier `noise` does: 1 / noise^2 = k / s^2 + k' / s^2 (T6, Gaussian noise composes by
    squares). The cost is in the ledger before a row is read, and a cap that it does not fit under raises
    BudgetExhausted. Cells that are missing or of another kind are in no bin, and cause no error. One row is one unit.

    Args:
        table: a .csv or .parquet file.
        noise: the multiplier of the query.
        ledger: where it is counted.
        schema: with marks; the one beside the table if not given.
        adjacency: that of the run's plan.
        test_fraction: the rows that are kept to test, and not looked at.
        split_seed: of their draw.
        seed: makes the noise reproducible; whoever knows it can take the noise off again, so that nothing is private.
        key: 32 secret bytes that the noise is drawn from. With the same rows they give the same answer again, which is
            counted once, and they must never be used with others.

    Returns:
        The schema's content, without marks.

    Raises:
        ConfigError: the schema marks nothing, or is wrong.
        BudgetExhausted: the cost does not fit under the ledger's cap.
    """
    path, split = Path(table), Split(test_fraction, split_seed)
    where, content = read_schema(found_schema(path, schema))
    marked = {name: rule.asked for name, rule in known(where, content).private.items()}
    if not marked:
        raise ConfigError(f"{where} marks nothing as private, so there is nothing to ask for.")
    event = private_schema_cost(noise, adjacency)
    if isinstance(ledger, (str, Path)):
        ledger = Ledger(ledger)
    broken = "" if seed is None else "the noise on what is asked of the table came from a fixed seed"
    answer = "" if key is None else hashlib.blake2b(b"answer", key=key, digest_size=8).hexdigest()
    what = f"ranges and frequent words of {len(marked)} columns, noise {noise:.6g}"
    ledger.query(what, event, broken=broken, answer=answer)
    cells = read_columns(path, list(marked))
    rows = split.parts(str(path), len(next(iter(cells.values()))))[0].tolist()
    columns = {name: _Column(asked, [cells[name][row] for row in rows]) for name, asked in marked.items()}
    found = _ask(columns, noise, KeyTree(seed, key).stream("schema", 0))
    return {name: _answered(rule, found[name]) if name in found else rule for name, rule in content.items()}


def private_schema_cost(noise: float, adjacency: Adjacency = "zero-out") -> Event:
    """The one release that `private_schema` makes, to be accounted together with the training, under its adjacency.

    A row that is replaced leaves one bin of each column and comes into another, as in `private_ranges`.
    """
    check_positive("private_schema's noise", noise)
    return ranges_cost(noise, adjacency)


def _answered(rule: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    return {**found, **({"missing": True} if rule.get("missing") else {})}


def _ask(columns: "Mapping[str, _Column]", noise: float, source: SecureStream) -> dict[str, dict[str, Any]]:
    """What noisy counts say of each column."""
    measured = {name: column for name, column in columns.items() if column.asked != "categories"}
    scale = noise * math.sqrt(len(columns) + len(measured))
    first, least = _noisy({name: column.first() for name, column in columns.items()}, scale, source)
    found: dict[str, dict[str, Any]] = {}
    ends: dict[str, tuple[float, float]] = {}
    for name, column in columns.items():
        if column.asked == "categories":
            found[name] = _frequent(_standing_out(first[name], least))
        else:
            low_high = _between(_standing_out(first[name], least), column.edges)
            found[name] = column.said(low_high)
            if low_high is not None:
                ends[name] = low_high
    fine = {name: np.linspace(*ends.get(name, (0.0, 1.0)), _FINE + 1) for name in measured}
    second, finer = _noisy({name: column.within(fine[name]) for name, column in measured.items()}, scale, source)
    for name in ends:
        mass = _MOST_OF * _standing_out(first[name], least).sum()
        low_high = _refined(second[name], fine[name], finer, mass)
        if low_high is not None:
            found[name] = columns[name].said(low_high)
    return found


def _refined(noisy: Reals, edges: Reals, least: float, mass: float) -> tuple[float, float] | None:
    """Ends by the finest bins, taken together by twos, of which so much stands out; None if none do."""
    for together in (1, 2, 4, 8):
        counts = _standing_out(noisy.reshape(-1, together).sum(1), least * math.sqrt(together))
        if counts.sum() >= mass:
            return _between(counts, edges[::together])
    return None


class _Column:
    """A column's cells as what is counted of them."""

    def __init__(self, asked: Asked, cells: Sequence[Any]) -> None:
        self.asked: Asked = asked
        self.edges: Reals = np.empty(0)
        if asked == "categories":
            self._buckets = [bucket(word_in(cell)) for cell in cells if not is_missing(cell)]
        elif asked == "dates":
            self._values = np.array([_lenient_day(cell) for cell in cells])
            self.edges = np.arange(_FIRST_DAY, _LAST_DAY + _DAYS, _DAYS)
        else:
            self._values = lenient_numbers("", cells)
            self.edges = doubling_edges(1e-6, 1e9)

    def first(self) -> Counts:
        """How many rows are in each public bin."""
        if self.asked == "categories":
            return np.bincount(self._buckets, minlength=BUCKETS)
        return self.within(self.edges)

    def within(self, edges: Reals) -> Counts:
        """How many rows are in each bin between these edges; those outside are in none."""
        inside = self._values[(self._values >= edges[0]) & (self._values <= edges[-1])]
        bins = np.searchsorted(edges[1:-1], inside, side="right")
        return np.bincount(bins, minlength=len(edges) - 1)

    def said(self, ends: tuple[float, float] | None) -> dict[str, Any]:
        """A range as a schema has it."""
        if self.asked == "dates":
            if ends is None:
                return dict(_USUAL_DATES)
            low, high = math.floor(ends[0]), math.ceil(ends[1])
            return {"low": date.fromordinal(low), "high": date.fromordinal(max(high, low + 1))}
        return {"range": "unknown"} if ends is None else {"low": ends[0], "high": ends[1]}


def _lenient_day(cell: Any) -> float:
    try:
        return day_in(cell)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _noisy(counts: Mapping[str, Counts], scale: float, source: SecureStream) -> tuple[dict[str, Reals], float]:
    """Counts with noise, and what a count must exceed to stand out of it."""
    size = sum(len(each) for each in counts.values())
    drawn = source.fill_normal(torch.empty(size, dtype=torch.float64), scale).numpy()
    found, start = {}, 0
    for name, each in counts.items():
        found[name], start = each + drawn[start : start + len(each)], start + len(each)
    return found, scale * math.sqrt(2 * math.log(_STANDS_OUT * max(size, 1)))


def _standing_out(noisy: Reals, least: float) -> Reals:
    """Noisy counts, those that do not stand out as 0."""
    return np.where(noisy > least, noisy, 0.0)


def _frequent(counts: Reals) -> dict[str, Any]:
    """The buckets of frequent words, the most frequent ones if there are many."""
    order = np.argsort(-counts, kind="stable")[:_MOST_WORDS]
    frequent = sorted(int(number) for number in order if counts[number] > 0)
    return {"buckets": frequent} if frequent else {"hashed": 32}


def _between(counts: Reals, edges: Reals) -> tuple[float, float] | None:
    """The ends of a range; None if no bin stands out."""
    mass = np.cumsum(counts)
    if len(mass) == 0 or mass[-1] == 0:
        return None
    first = np.searchsorted(mass, _TAIL * mass[-1], side="right")
    last = np.searchsorted(mass, (1 - _TAIL) * mass[-1])
    return float(edges[first]), float(edges[last + 1])
