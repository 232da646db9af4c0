"""What several commands print: tables, figures, JSON."""

import json
import sys
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from discreet._check import inert
from discreet.runs.terminal import legible


def print_json(values: Any) -> None:
    """One line of JSON; infinite figures are the word "inf"."""
    from discreet.accounting.serialization import json_values

    plain = json_values(values)
    text = json.dumps(plain, ensure_ascii=False)
    shown = legible(inert(text), getattr(sys.stdout, "encoding", None) or "ascii")
    typer.echo(text if shown == text else json.dumps(plain))


def say(words: str) -> None:
    """A line of words; names in it cannot steer the terminal."""
    typer.echo(legible(inert(words), getattr(sys.stdout, "encoding", None) or "ascii"))


def table(first: str, *others: str) -> Table:
    """A table with a column of names, and columns of figures."""
    columns = Table(first, box=SIMPLE_HEAD, header_style="bold")
    for name in others:
        columns.add_column(name, justify="right")
    return columns
