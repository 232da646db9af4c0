"""The columns of a .csv or .parquet file: their names, their cells, and the number that a cell is."""

import csv
import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from discreet.data.files import needed, reading
from discreet.errors import ConfigError

Reals = npt.NDArray[np.float64]

TABLES = (".csv", ".parquet")
MISSING = ("", "nan", "na", "null")


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
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ConfigError(f"{path} has several columns called {doubled[0]!r}; give each its own name.")
    return names


def read_columns(path: Path, wanted: Sequence[str]) -> dict[str, list[Any]]:
    """The cells of some columns."""
    if path.suffix.lower() != ".csv":
        with _parquet(path) as file:
            read = file.read(columns=list(wanted))
            return {name: read.column(name).to_pylist() for name in wanted}
    with _csv_rows(path) as rows:
        names = [name.strip() for name in next(rows, [])]
        places = [(name, names.index(name)) for name in wanted]
        out: dict[str, list[Any]] = {name: [] for name in wanted}
        for number, row in enumerate((row for row in rows if row), 1):
            if len(row) != len(names):
                raise ConfigError(f"{path}: row {number} has {len(row)} cells, but there are {len(names)} columns.")
            for name, place in places:
                out[name].append(row[place])
    return out


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
    with reading(path, *errors), path.open(encoding="utf-8-sig", newline="") as file:
        yield csv.reader(file, skipinitialspace=True, strict=True)


@contextmanager
def _parquet(path: Path) -> Generator[Any]:
    parquet = needed("pyarrow.parquet", str(path))
    errors = (needed("pyarrow", str(path)).ArrowException, ValueError, OverflowError)
    with reading(path, *errors), parquet.ParquetFile(path) as file:
        yield file
