"""Tables as inputs and labels, by a schema that somebody states."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from discreet.data.columns import MISSING, Reals, column_names, number_in, read_columns
from discreet.data.dataset import Data, Split
from discreet.data.schema import Classes, Range, Schema, Words, ignored_columns, read_schema, rules_of
from discreet.errors import ConfigError


def table(
    path: str | Path,
    *,
    label: str | None = None,
    schema: Schema | str | Path | None = None,
    user: str | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Data:
    """A .csv (with a header, comma-separated, UTF-8) or .parquet file as inputs and labels.

    `schema` says what is known of each column without looking:

    | column            | rule                     | becomes                                                |
    | ----------------- | ------------------------ | ------------------------------------------------------ |
    | a number          | low = 0, high = 120      | one value from -1 to 1; what is outside is cut         |
    | a word            | categories = ["a", "b"]  | one value a category, 1 for the one it is, else 0      |
    | the label         | classes = ["no", "yes"]  | the number of the class                                |
    | the label, a number | low = 0, high = 10     | one value from -1 to 1, cut                            |
    | not to be used    | ignore = ["id"]          | nothing; it is not read                                |

    Missing values (nothing, nan, na or null) and unknown categories are zeros; a label may not be missing or unknown.

    Args:
        path: the file.
        label: the column to predict; None is the one with `classes`.
        schema: a mapping or a TOML file.
        user: the column that says whose a row is; it is no input, and whole users are held out.
        test_fraction: the share of rows, or of users, that is kept to test.
        seed: of their draw.

    Returns:
        Inputs in the schema's order, and labels.

    Raises:
        ConfigError: if a column is missing, or the schema says nothing of it.
    """
    path = Path(path)
    if schema is None:
        raise ConfigError(
            f"{path} needs a schema that states the columns' ranges and categories, as they are not read off private "
            "data; give schema=, with private_ranges(...) for ranges that nobody can state."
        )
    split = Split(test_fraction, seed)
    where, content = read_schema(schema)
    rules, ignored = rules_of(where, content), ignored_columns(where, content)
    label = _label_column(path, label, rules)
    target = rules.pop(label)
    names = column_names(path)
    if user is not None and user in (*rules, label):
        raise ConfigError(f"{path}: the schema describes the user column {user!r}, which is no input; leave it out.")
    asked = [*rules, label] if user is None else [*rules, label, user]
    _check_columns(path, names, asked, [name for name in ignored if name != user])
    columns = read_columns(path, asked)
    if not columns[label]:
        raise ConfigError(f"{path} has no rows.")
    x = torch.cat([_encoded(path, name, columns[name], rule) for name, rule in rules.items()], 1)
    y = _labels(path, label, columns[label], target)
    owners: Tensor | None = None
    if user is None:
        train, test = split.of_pair(str(path), x, y)
    else:
        train, test, owners = split.of_users(str(path), x, y, _owners(path, user, columns[user]))
    classes = len(target.words) if isinstance(target, Words) else None
    return Data(str(path), train, test, tuple(train[0].shape[1:]), classes, owners=owners)


def _owners(path: Path, name: str, cells: Sequence[Any]) -> Tensor:
    """Whose each row is, by number; spaces around a name do not count, upper and lower case do."""
    names = ["" if cell is None else str(cell).strip() for cell in cells]
    for row, owner in enumerate(names):
        if owner.lower() in MISSING:
            raise ConfigError(f"{path}: row {row + 1} has no user in column {name!r}; leave the row out.")
    _, numbers = np.unique(names, return_inverse=True)
    return torch.from_numpy(numbers)


def _label_column(path: Path, label: str | None, rules: Mapping[str, Range | Words]) -> str:
    """Which column is the label, checked against its rule."""
    with_classes = [column for column, rule in rules.items() if isinstance(rule, Classes)]
    if label is None:
        if len(with_classes) != 1:
            raise ConfigError(f"{path}: {len(with_classes)} columns have classes; name the label column with label=.")
        label = with_classes[0]
    if label not in rules:
        raise ConfigError(f"{path}: the schema says nothing of the label column {label!r}; give its classes, or range.")
    if isinstance(rules[label], Words) and not isinstance(rules[label], Classes):
        raise ConfigError(f"{path}: the label column {label!r} has categories in the schema; call them classes.")
    others = [column for column in with_classes if column != label]
    if others:
        raise ConfigError(f"{path}: column {others[0]!r} has classes, but is not the label; call them categories.")
    if len(rules) < 2:
        raise ConfigError(f"{path}: the schema has no column but the label {label!r}; name some to learn from.")
    return label


def _check_columns(path: Path, names: Sequence[str], wanted: Sequence[str], ignored: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in names]
    if missing:
        raise ConfigError(f"{path} has no column {missing[0]!r}; it has {', '.join(names)}.")
    both = [name for name in wanted if name in ignored]
    if both:
        raise ConfigError(f"{path}: the schema both describes and ignores column {both[0]!r}; do one of them.")
    unknown = [name for name in names if name not in wanted and name not in ignored]
    if unknown:
        raise ConfigError(
            f"{path}: the schema says nothing of column {unknown[0]!r}; give its range or categories, or put it in "
            "ignore."
        )


def _encoded(path: Path, name: str, cells: Sequence[Any], rule: Range | Words) -> Tensor:
    """A feature column as numbers [rows, width]."""
    if isinstance(rule, Range):
        return rule.scaled(_strict_numbers(path, name, cells))[:, None]
    numbers = torch.tensor(rule.numbers(cells))
    out = torch.zeros(len(cells), len(rule.words))
    rows = torch.nonzero(numbers >= 0)[:, 0]
    out[rows, numbers[rows]] = 1.0
    return out


def _labels(path: Path, name: str, cells: Sequence[Any], rule: Range | Words) -> Tensor:
    if isinstance(rule, Range):
        values = _strict_numbers(path, name, cells)
        if np.isnan(values).any():
            row = int(np.flatnonzero(np.isnan(values))[0]) + 1
            raise ConfigError(f"{path}: row {row} has no label in column {name!r}; leave the row out.")
        return rule.scaled(values)
    numbers = rule.numbers(cells)
    if -1 in numbers:
        raise ConfigError(
            f"{path}: row {numbers.index(-1) + 1} has in label column {name!r} none of the schema's classes "
            f"({', '.join(rule.words)})."
        )
    return torch.tensor(numbers)


def _strict_numbers(path: Path, name: str, cells: Sequence[Any]) -> Reals:
    """A column's numbers; something else is a ConfigError that names the row, not what is in it."""
    out = np.empty(len(cells))
    for row, cell in enumerate(cells):
        try:
            out[row] = number_in(cell)
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(
                f"{path}: row {row + 1} has no number in column {name!r}; mend it, or give the column categories."
            ) from error
    return out
