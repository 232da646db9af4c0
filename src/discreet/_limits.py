"""How much input is taken: one table of limits, each checked before work begins, and each to be overridden.

DISCREET_LIMITS="table_columns=50000, unpacked_bytes=4e9" in the environment replaces two of them.
"""

import os
from typing import NamedTuple

from discreet.errors import ConfigError

VARIABLE = "DISCREET_LIMITS"


class Limit(NamedTuple):
    """The most that is taken of something, and what that is."""

    most: int
    what: str


LIMITS = {
    "text_bytes": Limit(1 << 20, "bytes of a config, schema, plan or key, and of other texts that are read at once"),
    "depth": Limit(64, "tables and lists inside one another, and parts of a dotted key, in TOML and JSON"),
    "record_bytes": Limit(1 << 28, "bytes of a run's metrics, guarantee and other records"),
    "line_bytes": Limit(1 << 24, "bytes of a line of a ledger, or of the first line of a .csv file"),
    "table_columns": Limit(10_000, "columns of a table"),
    "table_cells": Limit(10_000_000, "cells of a .csv or .parquet table that are read, rows times columns"),
    "categories": Limit(100_000, "categories or classes of a column, or classes that an array's labels announce"),
    "input_values": Limit(250_000_000, "values of a table's encoded inputs, rows times width"),
    "unpacked_bytes": Limit(640 << 20, "bytes that a compressed file (.npz, .gz, .parquet) may become"),
    "pixels": Limit(50_000_000, "pixels of one image"),
    "images": Limit(200_000, "rows that an IDX file announces"),
    "example_values": Limit(10_000_000, "values of one example, the product of its shape"),
    "layers": Limit(1_000, "hidden layers of a network that is named"),
    "parameters": Limit(250_000_000, "parameters of a network that is named"),
    "steps": Limit(1_000_000_000, "steps of a plan"),
    "extractors": Limit(100, "extractors of features"),
    "copies": Limit(1_000, "changed copies of an example"),
    "group": Limit(10_000, "examples that are protected together"),
    "users": Limit(10_000_000, "made-up users of a federated run"),
    "noise_schedule": Limit(10_000, "factors of a noise schedule"),
}


def limit(name: str) -> int:
    """The limit of this name: the environment's, or the table's."""
    return _overridden().get(name, LIMITS[name].most)


def within(name: str, value: int, where: str) -> int:
    """Return `value` if it is within a limit, or raise a ConfigError that names the limit and how it is overridden.

    Args:
        name: of the limit.
        value: what was announced or counted.
        where: what has so many, as "data.csv has 20,000 columns".
    """
    most = limit(name)
    if value > most:
        raise ConfigError(f"{where}; at most {most:,} are taken. If it is meant, set {VARIABLE}={name}=N.")
    return value


def _overridden() -> dict[str, int]:
    """The limits that the environment names."""
    found = {}
    for part in filter(None, (part.strip() for part in os.environ.get(VARIABLE, "").split(","))):
        name, _, value = part.partition("=")
        try:
            number = float(value)
            most = int(number)
        except (ValueError, OverflowError):
            most = 0
        if name.strip() not in LIMITS or most < 1:
            raise ConfigError(
                f"{VARIABLE} says {part!r}; write name=number with commas between, of {', '.join(sorted(LIMITS))}."
            )
        found[name.strip()] = most
    return found
