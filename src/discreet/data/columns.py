"""The columns of a .csv or .parquet file: their names, their cells, and the number that a cell is."""

import csv
import math
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from discreet._check import limit, shown, within
from discreet.data.files import needed, reading, regular
from discreet.errors import ConfigError

Reals = npt.NDArray[np.float64]

TABLES = (".csv", ".parquet")
MISSING = ("", "nan", "na", "null")
_AT_ONCE, _NESTED_AT_ONCE = 4096, 64  # rows of a parquet file


def column_names(path: Path) -> list[str]:
    """The names of a table's columns; no row is read."""
    if path.suffix.lower() == ".csv":
        with _csv_rows(path) as rows:
            names = [name.strip() for name in next(rows, [])]
    else:
        with _parquet(path) as file:
            names = list(file.schema_arrow.names)
    if not names:
        raise ConfigError(f"{path} is empty; its first line must name the columns.")
    within("table_columns", len(names), f"{path} has {len(names):,} columns")
    doubled = sorted(name for name, count in Counter(names).items() if count > 1)
    if doubled:
        raise ConfigError(f"{path} has several columns called {shown(doubled[0])}; give each its own name.")
    return names


def read_columns(path: Path, wanted: Sequence[str]) -> dict[str, list[Any]]:
    """The cells of some columns."""
    if path.suffix.lower() != ".csv":
        return _parquet_columns(path, wanted)
    with _csv_rows(path) as rows:
        names = [name.strip() for name in next(rows, [])]
        places = [(name, names.index(name)) for name in wanted]
        out: dict[str, list[Any]] = {name: [] for name in wanted}
        most = limit("table_cells") // max(1, len(wanted))
        for number, row in enumerate((row for row in rows if row), 1):
            if number > most:
                within(
                    "table_cells", number * len(wanted), f"{path} has more than {most:,} rows of {len(wanted):,} cells"
                )
            if len(row) != len(names):
                raise ConfigError(f"{path}: row {number} has {len(row)} cells, but there are {len(names)} columns.")
            for name, place in places:
                out[name].append(row[place])
    return out


def _parquet_columns(path: Path, wanted: Sequence[str]) -> dict[str, list[Any]]:
    """The cells of some columns, a piece at a time: a file of a few bytes may announce, and hold, billions."""
    out: dict[str, list[Any]] = {name: [] for name in wanted}
    with _parquet(path) as file:
        kinds = {name: str(file.schema_arrow.field(name).type) for name in wanted}
    texts = [name for name, kind in kinds.items() if kind in ("string", "binary", "large_string", "large_binary")]
    nested = any(kind.startswith(("struct", "map", "list", "large_list", "fixed_size_list")) for kind in kinds.values())
    with _parquet(path, read_dictionary=texts) as file:
        rows, groups, size = file.metadata.num_rows, file.metadata.num_row_groups, 0
        within("table_cells", rows * len(wanted), f"{path} has {rows:,} rows of {len(wanted):,} cells")
        announced = sum(file.metadata.row_group(i).total_byte_size for i in range(groups))
        within("unpacked_bytes", announced, f"{path} unpacks to {announced:,} bytes")
        for piece in file.iter_batches(
            batch_size=_NESTED_AT_ONCE if nested else _AT_ONCE, columns=list(wanted), use_threads=False
        ):
            size += piece.nbytes
            within("unpacked_bytes", size, f"{path} unpacks to more than {limit('unpacked_bytes'):,} bytes")
            for name in wanted:
                out[name] += _cells(piece.column(name))
            held = len(out[wanted[0]]) * len(wanted)
            within("table_cells", held, f"{path} has more rows than it announces, {held:,} cells")
    return out


def _cells(column: Any) -> list[Any]:
    """A piece of a column; words that are repeated are there once, however often and however long."""
    if not hasattr(column, "dictionary"):
        return column.to_pylist()
    words = column.dictionary.to_pylist()
    return [None if number is None else words[number] for number in column.indices.to_pylist()]


def number_in(cell: Any) -> float:
    """A cell as a number, nan if it is missing; a ValueError or TypeError if it is something else."""
    if cell is None:
        return math.nan
    if isinstance(cell, str):
        text = cell.strip()
        if "_" in text:
            raise ValueError("no number has underscores")
        return math.nan if text.lower() in MISSING else float(text)
    if isinstance(cell, bytes):
        raise TypeError("bytes are no number")
    return float(cell)


@contextmanager
def _csv_rows(path: Path) -> Generator[Iterator[list[str]]]:
    errors = (csv.Error, UnicodeDecodeError)
    with reading(path, *errors), regular(path).open(encoding="utf-8-sig", newline="") as file:
        yield csv.reader(_lines(path, file), skipinitialspace=True, strict=True)


def _lines(path: Path, file: TextIO) -> Iterator[str]:
    """The lines of a file; one that does not end is a ConfigError, and not the machine's memory."""
    most = limit("line_bytes")
    while line := file.readline(most + 1):
        if len(line) > most:
            within("line_bytes", len(line), f"{path} has a line of more than {most:,} letters")
        yield line


@contextmanager
def _parquet(path: Path, **settings: Any) -> Generator[Any]:
    parquet = needed("pyarrow.parquet", str(path))
    errors = (needed("pyarrow", str(path)).ArrowException, ValueError, OverflowError)
    with reading(path, *errors), parquet.ParquetFile(regular(path), **settings) as file:
        yield file
