"""Ranges of a table's columns that nobody can state: asked for with noise, as one counted query."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet._check import check_positive
from discreet.accounting.events import Adjacency, Event
from discreet.data.columns import TABLES, Reals, column_names, number_in, read_columns
from discreet.errors import ConfigError
from discreet.ledger import Ledger
from discreet.stages.noise.random import KeyTree

_STANDS_OUT = 100.0  # one in so many times, at most, is a bin of nothing but noise taken for one with rows


def private_ranges(
    table: str | Path | Mapping[str, Any],
    columns: Sequence[str],
    *,
    noise: float,
    ledger: str | Path | Ledger,
    low: float = 1e-6,
    high: float = 1e6,
    tail: float = 0.01,
    adjacency: Adjacency = "zero-out",
    seed: int | None = None,
) -> dict[str, dict[str, float]]:
    """Ranges of a table's columns for a schema, from noisy counts: one query for all columns together.

    Public bins grow by factors of two from `low` to `high` in size, on both sides of zero. How many rows fall into
    each is counted, Gaussian noise of standard deviation noise * sqrt(number of columns) is put on every count, and a
    column's range goes from the bin with its `tail` quantile to the bin with its 1 - tail quantile, of those bins that
    stand out of the noise. A column of which none does is left out of the answer: with so few rows or so much noise
    its range must be stated.

    Guarantee: a row is in at most one bin of each column, so it moves the counts, which are whole numbers, by at most
    sqrt(number of columns) in l2, and this is one Gaussian query of multiplier `noise`. The cost is in the ledger
    before a row is read (only the columns' names are), and a cap that it does not fit under raises BudgetExhausted.
    Values that are missing or no numbers are in no bin, and cause no error. One row is one unit.

    Args:
        table: a .csv or .parquet file, or a mapping from columns to their values.
        columns: whose ranges are asked for.
        noise: the multiplier of the one query.
        ledger: where it is counted.
        low: the magnitude at which the bins begin.
        high: the magnitude at which they end.
        tail: the quantile at which a range begins; it ends at 1 - tail.
        adjacency: that of the run's plan.
        seed: makes the noise reproducible; whoever knows it can take the noise off again, so that nothing is private.

    Returns:
        For each column its low and high, as a schema has them.

    Raises:
        BudgetExhausted: if the cost does not fit under the ledger's cap.
    """
    names = _distinct(columns)
    event = ranges_cost(noise, adjacency)
    edges = doubling_edges(low, high)
    if not 0 <= tail < 0.5:
        raise ConfigError(f"tail is {tail!r}; it must be from 0 to below 0.5.")
    if isinstance(ledger, (str, Path)):
        ledger = Ledger(ledger)
    if not isinstance(ledger, Ledger):
        raise ConfigError(f"{ledger!r} is no ledger to count the ranges in; give a path or a Ledger.")
    source = table if isinstance(table, Mapping) else _table_path(table)
    available = list(source) if isinstance(source, Mapping) else column_names(source)
    missing = [name for name in names if name not in available]
    if missing:
        raise ConfigError(f"the table has no column {missing[0]!r}; it has {', '.join(map(str, available))}.")
    broken = "" if seed is None else "the noise on the columns' ranges came from a fixed seed"
    ledger.query(f"ranges of {len(names)} columns, noise {noise:g}", event, broken=broken)
    counts = _counts(source if isinstance(source, Mapping) else read_columns(source, names), names, edges)
    scale = noise * math.sqrt(len(names))
    drawn = KeyTree(seed).stream("ranges", 0).fill_normal(torch.empty(counts.size, dtype=torch.float64), scale)
    noisy = counts + drawn.numpy().reshape(counts.shape)
    least = scale * math.sqrt(2 * math.log(_STANDS_OUT * counts.size))
    ranges = {name: _between(row, edges, least, tail) for name, row in zip(names, noisy, strict=True)}
    return {name: {"low": ends[0], "high": ends[1]} for name, ends in ranges.items() if ends is not None}


def ranges_cost(noise: float, adjacency: Adjacency = "zero-out") -> Event:
    """The one release that `private_ranges` makes, to be accounted together with the training, under its adjacency.

    Args:
        noise: the standard deviation on each count.
        adjacency: the relation under which the training is analysed.

    >>> from discreet.accounting import cost
    >>> round(cost([ranges_cost(noise=10.0)], 1e-5).epsilon, 3)
    0.341
    """
    check_positive("private_ranges' noise", noise)
    # A row that is replaced leaves one bin of each column and comes into another, which moves the counts by
    # sqrt(2 * columns). Accounting takes a replacement to move them by twice what a removal does, so here it is told of
    # more noise: 2 / sqrt(2) times.
    told = 2 / math.sqrt(2) if adjacency == "replace" else 1.0
    return Event(rate=1.0, multiplier=told * noise, steps=1, adjacency=adjacency)


def _distinct(columns: Sequence[str]) -> list[str]:
    names = [] if isinstance(columns, str) else list(columns)
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"columns are {columns!r}; give a list of names, each once.")
    return names


def _table_path(table: str | Path) -> Path:
    if not isinstance(table, (str, Path)) or Path(table).suffix.lower() not in TABLES:
        raise ConfigError(f"{table!r} is no table; give a .csv or .parquet file, or a mapping of columns.")
    return Path(table)


def doubling_edges(low: float, high: float) -> Reals:
    """The bins' ends: minus the sizes, and the sizes, that double from low until they are high or more."""
    if not check_positive("low", low) < check_positive("high", high):
        raise ConfigError(f"low is {low!r} and high is {high!r}; they are sizes, and low must be below high.")
    sizes = low * 2.0 ** np.arange(math.ceil(math.log2(high) - math.log2(low)) + 1)
    return np.concatenate((-sizes[::-1], sizes))


def _counts(table: Mapping[str, Any], names: Sequence[str], edges: Reals) -> npt.NDArray[np.int64]:
    """How many rows are in each bin of each column [columns, bins].

    Guarantee: whatever a row holds, it counts once or not at all in each column.
    """
    out = np.zeros((len(names), len(edges) - 1), np.int64)
    lengths = set()
    for number, name in enumerate(names):
        values = lenient_numbers(name, table[name])
        lengths.add(len(values))
        bins = np.searchsorted(edges[1:-1], values[~np.isnan(values)], side="right")
        out[number] = np.bincount(bins, minlength=out.shape[1])
    if len(lengths) > 1:
        raise ConfigError(
            f"the columns have different lengths ({sorted(lengths)}); each must have a cell for each row."
        )
    return out


def lenient_numbers(name: str, cells: Any) -> Reals:
    """A column's numbers, nan for what is none."""
    if isinstance(cells, Tensor):
        cells = cells.detach().cpu().numpy()
    if isinstance(cells, np.ndarray):
        if cells.ndim != 1:
            raise ConfigError(f"column {name!r} is of shape {cells.shape}; it must have one value for each row.")
        if cells.dtype.kind in "biuf":
            return cells.astype(np.float64)
    out = np.full(len(cells), math.nan)
    for row, cell in enumerate(cells):
        try:
            out[row] = number_in(cell)
        except (TypeError, ValueError, OverflowError):
            continue
    return out


def _between(noisy: Reals, edges: Reals, least: float, tail: float) -> tuple[float, float] | None:
    """The ends of a column's range, from noisy counts; None if no bin stands out."""
    mass = np.cumsum(np.where(noisy > least, noisy, 0.0))
    if mass[-1] == 0:
        return None
    first = np.searchsorted(mass, tail * mass[-1], side="right")
    last = np.searchsorted(mass, (1 - tail) * mass[-1])
    return float(edges[first]), float(edges[last + 1])
