"""What several commands print: tables, figures, JSON."""

import json
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table


def print_json(values: Any) -> None:
    """One line of JSON; infinite figures are the word "inf"."""
    from discreet.accounting.serialization import json_values

    typer.echo(json.dumps(json_values(values), ensure_ascii=False))


def table(first: str, *others: str) -> Table:
    """A table with a column of names, and columns of figures."""
    columns = Table(first, box=SIMPLE_HEAD, header_style="bold")
    for name in others:
        columns.add_column(name, justify="right")
    return columns
