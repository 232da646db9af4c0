"""Tables as inputs and labels, by a schema that somebody states."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from discreet._check import listed, shown, within
from discreet.data.columns import MISSING, column_names, read_columns
from discreet.data.dataset import Data, Split
from discreet.data.groups import Grouping
from discreet.data.rules import BadCell, Classes, Private, Range, Rule, Unscaled, Words, numbers
from discreet.data.schema import Known, Problems, Schema, known, plain, read_schema, rules_of, schema_beside
from discreet.errors import ConfigError


def table(
    path: str | Path,
    *,
    label: str | None = None,
    schema: Schema | str | Path | None = None,
    user: str | None = None,
    group: str | None = None,
    groups: Sequence[str] | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Data:
    """A .csv (with a header, comma-separated, UTF-8) or .parquet file as inputs and labels.

    `schema` says what is known of each column without looking:

    | column            | rule                     | becomes                                                |
    | ----------------- | ------------------------ | ------------------------------------------------------ |
    | a number          | low = 0, high = 120      | one value from -1 to 1; what is outside is cut         |
    | a number, in bins | edges = [18, 30, 65]     | one value a bin, 1 for the one it lies in, else 0      |
    | a word            | categories = ["a", "b"]  | one value a category, 1 for the one it is, else 0      |
    | one of many words | hashed = 64              | 64 values, 1 where its hash is, else 0                 |
    | free text         | text = 128               | its words counted in 128 values by their hashes        |
    | a date            | low = 1950-01-01, high = 2030-01-01 | a value from -1 to 1, and the time of the year |
    | the label         | classes = ["no", "yes"], perhaps weights = [1, 4] | the number of the class       |
    | the label, a number | low = 0, high = 10     | one value from -1 to 1, cut                            |
    | not to be used    | ignore = ["id"]          | nothing; it is not read                                |

    Missing values (nothing, nan, na or null) and unknown categories are zeros; with missing = true a column has one
    more value that says so. A label may not be missing or unknown. What is marked "private" (range = "private",
    dates = "private", categories = "private") is asked for with noise by a run (`discreet train`), which pays for it;
    here it is refused, as it is `private_schema` that asks.

    Args:
        path: the file.
        label: the column to predict; None is the one with `classes`.
        schema: a mapping or a TOML file; the one beside the table (people.schema.toml) if not given.
        user: the column that says whose a row is; it is no input, and whole users are held out.
        group: the column by which test rows are grouped, for figures of each group; it may be an input or not.
        groups: its words; if not given those of the schema, which must say them, or have found them with noise.
        test_fraction: the share of rows, or of users, that is kept to test.
        seed: of their draw.

    Returns:
        Inputs in the schema's order, and labels.

    Raises:
        ConfigError: if a column is missing, or the schema says nothing of it; all that is wrong is in one message.
    """
    asked = Grouping(group, groups)
    return _table(Path(path), label, schema, user, asked, Split(test_fraction, seed), rehearsal=False)


def rehearsed(
    path: str | Path,
    *,
    label: str | None = None,
    schema: Schema | str | Path | None = None,
    group: str | None = None,
    groups: Sequence[str] | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Data:
    """The same as if nothing private had been found: to see what is wrong before anything is asked of the data."""
    asked = Grouping(group, groups)
    return _table(Path(path), label, schema, None, asked, Split(test_fraction, seed), rehearsal=True)


def _table(
    path: Path,
    label: str | None,
    schema: Schema | str | Path | None,
    user: str | None,
    grouping: Grouping,
    split: Split,
    *,
    rehearsal: bool,
) -> Data:
    problems = Problems()
    where, content = read_schema(found_schema(path, schema))
    facts = known(where, content, problems)
    if facts.private and not rehearsal:
        problems.tell(
            f"{where} marks {listed(map(repr, facts.private))} as private, which is asked for with noise and paid "
            "for: by discreet train, or by discreet.data.private_schema; or state it."
        )
    problems.refuse()
    rules = dict(facts.rules)
    label = _label_column(path, label, rules, problems)
    target = rules.pop(label)
    names = column_names(path)
    if user is not None and user in (*rules, label):
        problems.tell(f"{path}: the schema describes the user column {shown(user)}, which is no input; leave it out.")
    grouping.check(str(path), rules, label, problems)
    beside = [name for name in (user, grouping.column) if name is not None and name not in rules]
    asked = list(dict.fromkeys([*rules, label, *beside]))
    _check_columns(path, names, asked, [name for name in facts.ignored if name not in beside], problems)
    problems.refuse()
    columns = read_columns(path, asked)
    if not columns[label]:
        raise ConfigError(f"{path} has no rows.")
    _check_size(str(path), rules.values(), len(columns[label]))
    parts = [_encoded(path, name, columns[name], rule, problems) for name, rule in rules.items()]
    y = _labels(path, label, columns[label], target, problems)
    owned = None if user is None else _owners(path, user, columns[user], problems)
    problems.refuse()
    x = torch.cat(parts, 1)
    owners: Tensor | None = None
    if owned is None:
        train, test = split.of_pair(str(path), x, y)
    else:
        train, test, owners = split.of_users(str(path), x, y, owned)
    names = target.words if isinstance(target, Words) else ()
    weights = target.weights if isinstance(target, Classes) else ()
    of_test: Tensor | None = None
    if grouping.column is not None and test is not None:
        cells, numbers = columns[grouping.column], torch.arange(len(y))
        held = (
            split.of_pair(str(path), numbers, y) if owned is None else split.of_users(str(path), numbers, y, owned)
        )[1]
        found, of_test = grouping.of([] if held is None else [cells[row] for row in held[0].tolist()], rules)
    else:
        found = ()
    described = {"kind": "table", "schema": plain(content), "label": label}
    shape, classes = tuple(train[0].shape[1:]), len(names) or None
    return Data(
        str(path),
        train,
        test,
        shape,
        classes,
        owners=owners,
        class_names=names,
        inputs=described,
        weights=weights,
        groups=of_test,
        group_names=found,
    )


def encode(where: str, columns: Mapping[str, Sequence[Any]], schema: Schema, label: str) -> Tensor:
    """The inputs of rows whose labels nobody knows, as `table` made them by the same schema.

    Args:
        where: what to call the rows in an error.
        columns: cells by column; those that the schema does not describe are not looked at.
        schema: what the model was trained by.
        label: the column that it predicts, which need not be there.

    Returns:
        A row for each row, in their order.

    Raises:
        ConfigError: a column is missing, or a cell is no number where one must be.
    """
    rules = {name: rule for name, rule in rules_of("the schema", schema).items() if name != label}
    missing = [name for name in rules if name not in columns]
    if missing:
        raise ConfigError(f"{where} has no column {listed(map(repr, missing))}, which the model was trained on.")
    if len({len(columns[name]) for name in rules}) > 1:
        raise ConfigError(f"{where} has columns of different lengths; each must have a cell for each row.")
    _check_size(where, rules.values(), len(columns[next(iter(rules))]) if rules else 0)
    problems = Problems()
    parts = [_encoded(Path(where), name, columns[name], rule, problems) for name, rule in rules.items()]
    problems.refuse()
    return torch.cat(parts, 1)


def found_schema(path: Path, schema: Schema | str | Path | None) -> Schema | str | Path:
    """The schema that was given, or the one beside the table."""
    if schema is not None:
        return schema
    beside = schema_beside(path)
    if beside.is_file():
        return beside
    raise ConfigError(
        f"{path} needs a schema of its columns' ranges and categories, as they are not read off private data, and "
        f"there is none at {beside.name} beside it. Write one to edit, which marks what nobody can state as private, "
        f"to be paid for: discreet schema {path.name} --label NAME"
    )


def table_facts(path: str | Path, schema: Schema | str | Path | None, label: str | None) -> tuple[str, Known]:
    """The label column of a table by its schema, and what the schema says; no row is read."""
    where, content = read_schema(found_schema(Path(path), schema))
    facts, problems = known(where, content), Problems()
    chosen = _label_column(Path(path), label, facts.rules, problems)
    problems.refuse()
    return chosen, facts


def _owners(path: Path, name: str, cells: Sequence[Any], problems: Problems) -> Tensor:
    """Whose each row is, by number; spaces around a name do not count, upper and lower case do."""
    names = ["" if cell is None else str(cell).strip() for cell in cells]
    for row, owner in enumerate(names):
        if owner.lower() in MISSING:
            problems.tell(f"{path}: row {row + 1} has no user in column {shown(name)}; leave the row out.")
            break
    number_of = {owner: number for number, owner in enumerate(sorted(set(names)))}
    return torch.tensor([number_of[owner] for owner in names])


def _label_column(path: Path, label: str | None, rules: Mapping[str, Rule], problems: Problems) -> str:
    """Which column is the label, checked against its rule."""
    with_classes = [column for column, rule in rules.items() if isinstance(rule, Classes)]
    if label is None:
        if len(with_classes) != 1:
            raise ConfigError(f"{path}: {len(with_classes)} columns have classes; name the label column with label=.")
        label = with_classes[0]
    rule = rules.get(label)
    if rule is None:
        raise ConfigError(
            f"{path}: the schema says nothing of the label column {shown(label)}; give its classes, or range."
        )
    if isinstance(rule, Unscaled):
        problems.tell(
            f"{path}: the range of the label {shown(label)} could not be told from noise that so few rows and so small "
            "an epsilon need; state its low and high in the schema."
        )
    elif not isinstance(rule, (Range, Classes)) and rule != Private("range"):
        words = isinstance(rule, Words) or rule == Private("categories")
        problems.tell(
            f"{path}: the label column {shown(label)} has categories in the schema; call them classes."
            if words
            else f"{path}: the label column {shown(label)} has a rule of features in the schema; give its classes, or "
            "low and high."
        )
    for column in with_classes:
        if column != label:
            problems.tell(f"{path}: column {shown(column)} has classes, but is not the label; call them categories.")
    if len(rules) < 2:
        problems.tell(f"{path}: the schema has no column but the label {shown(label)}; name some to learn from.")
    return label


def _check_size(where: str, rules: Iterable[Rule], rows: int) -> None:
    """Refuse inputs that would take more memory than there is, before any of them is made."""
    width = sum(rule.width for rule in rules)
    within("input_values", width * rows, f"{where} becomes {width * rows:,} values, {width:,} in each row")


def _check_columns(
    path: Path, names: Sequence[str], wanted: Sequence[str], ignored: Sequence[str], problems: Problems
) -> None:
    there, described, left_out = set(names), set(wanted), set(ignored)
    for name in wanted:
        if name not in there:
            problems.tell(f"{path} has no column {shown(name)}; it has {listed(names)}.")
        if name in left_out:
            problems.tell(f"{path}: the schema both describes and ignores column {shown(name)}; do one of them.")
    for name in names:
        if name not in described and name not in left_out:
            problems.tell(
                f"{path}: the schema says nothing of column {shown(name)}; give its range or categories, or put it in "
                "ignore."
            )


def _encoded(path: Path, name: str, cells: Sequence[Any], rule: Rule, problems: Problems) -> Tensor:
    """A feature column as numbers [rows, width]; a cell of another kind is noted by its row, not what is in it."""
    try:
        return rule.encoded(cells)
    except BadCell as bad:
        remedy = {"number": "give the column categories", "date": "write dates as 2026-01-31"}[bad.wanted]
        problems.tell(f"{path}: row {bad.row + 1} has no {bad.wanted} in column {shown(name)}; mend it, or {remedy}.")
        return torch.zeros(len(cells), 1)


def _labels(path: Path, name: str, cells: Sequence[Any], rule: Rule, problems: Problems) -> Tensor:
    if isinstance(rule, Words):
        numbered = rule.numbers(cells)
        if -1 in numbered:
            problems.tell(
                f"{path}: row {numbered.index(-1) + 1} has in label column {shown(name)} none of the schema's classes "
                f"({listed(rule.words)})."
            )
        return torch.tensor(numbered)
    encoded = _encoded(path, name, cells, rule, problems)[:, 0]
    if not problems.found and (missing := np.flatnonzero(np.isnan(numbers(cells)))).size:
        problems.tell(f"{path}: row {int(missing[0]) + 1} has no label in column {shown(name)}; leave the row out.")
    return encoded
