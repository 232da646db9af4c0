"""discreet schema."""

from pathlib import Path
from typing import Annotated

import typer

from discreet.cli.printing import say
from discreet.errors import ConfigError


def schema(
    table: Annotated[Path, typer.Argument(help="A .csv or .parquet file.")],
    label: Annotated[str, typer.Option(help="The column that is to be predicted.")],
    out: Annotated[Path | None, typer.Option(help="Where it goes; people.schema.toml beside people.csv.")] = None,
    regression: Annotated[
        bool, typer.Option("--regression", help="The label is a number, whatever it looks like.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over a schema that is there.")] = False,
) -> None:
    """Write a table's schema to edit: what is known of each column without looking, and private for what is not.

    For example: discreet schema people.csv --label income, and then: discreet train people.csv --label income
    --epsilon 1
    """
    from discreet.data.columns import TABLES
    from discreet.data.describe import describe
    from discreet.data.schema import schema_beside
    from discreet.ledger import storage

    if table.suffix.lower() not in TABLES:
        raise ConfigError(f"{table} is no table; give a .csv or .parquet file.")
    target = schema_beside(table) if out is None else out
    if target.exists() and not force:
        raise ConfigError(f"{target} is there already and is left alone; say --force to write over it, or --out.")
    text = describe(table, label, regression=regression)
    try:
        storage.replace(target, text, durable=False)
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error}") from error
    say(str(target))
    named = "" if target == schema_beside(table) else f" --schema {target}"
    marked = text.count('"private"')
    say(
        f"{marked} columns are marked private: state what you know, and the rest is paid for. Then: discreet train "
        f"{table} --label {label}{named} --epsilon 1"
    )
