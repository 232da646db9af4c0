"""A table's schema to begin with: from its header and the kinds of its cells, without a range or a list of words."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from discreet._check import inert, listed, shown
from discreet.data.columns import column_names, number_in, read_columns
from discreet.data.rules import day_in, is_missing, word_in
from discreet.errors import ConfigError

Kind = Literal["number", "date", "truth", "words", "many words", "text"]

_MANY_WORDS = 50  # different ones in a column: nobody lists them
_FREE_TEXT = 4.0  # words in a cell, on average
_MOST_CLASSES = 20  # that a column of whole numbers may have to be taken for classes
_IDENTIFIER = re.compile(r"(|id|index|row|rownames|unnamed: 0|.*_id)", re.IGNORECASE)
_TRUTHS = {"true", "false", "yes", "no"}

_ASKED = {
    "number": ('range = "private"', "a number; or state its ends, as low = 0 and high = 100"),
    "date": ('dates = "private"', "dates; or state their ends, as low = 1950-01-01 and high = 2030-01-01"),
    "words": ('categories = "private"', 'words; or list them, as categories = ["a", "b"]'),
    "many words": ("hashed = 64", "one of many words, by its hash: costs nothing"),
    "text": ("text = 128", "free text, its words by their hashes: costs nothing"),
}


def describe(path: str | Path, label: str, *, regression: bool = False) -> str:
    """A schema to edit, as TOML: kinds of columns, `private` for each range and list of words that nobody has declared.

    The kinds of columns and the label's classes are told from the rows; the schema says so (`guessed`), and so does the
    guarantee of a run with it: they are taken to be public.

    Args:
        path: a .csv or .parquet file.
        label: the column that is to be predicted.
        regression: whether the label is a number, whatever it looks like.

    Returns:
        The text of a schema.

    Raises:
        ConfigError: there is no such column, or no such class.
    """
    path = Path(path)
    names = column_names(path)
    if label not in names:
        raise ConfigError(f"{path} has no column {shown(label)} to be the label; it has {listed(names)}.")
    taken = next((name for name in ("ignore", "guessed") if name in names), None)
    if taken is not None:
        raise ConfigError(f"{path} has a column {taken!r}, which is a word of schemas; give it another name.")
    cells = read_columns(path, names)
    if not cells[label]:
        raise ConfigError(f"{path} has no rows.")
    ignored = [name for name in names if name != label and _IDENTIFIER.fullmatch(name)]
    used = [name for name in names if name != label and name not in ignored]
    if not used:
        raise ConfigError(
            f"{path} has no column but the label {shown(label)} and identifiers; there is nothing to learn from."
        )
    tables = [_feature(name, cells[name]) for name in used]
    lines = [
        f"# What is known of {inert(path.name)} without looking; edit it. What is marked private is asked for with",
        "# noise, and a run pays for that from a part of its epsilon ([data] private_share). What you state costs",
        "# nothing, and must not be read off the rows: a legal limit, a questionnaire's answers.",
        "",
        "# Columns that are not used: identifiers, and whatever you put here.",
        f"ignore = {_toml(ignored)}",
        "# Columns whose kind (number, date, words, text; whether values are missing) or classes were told from the",
        "# rows: guarantees say that this is taken to be public. Take out those of which you know it anyway.",
        f"guessed = {_toml([*used, label])}",
        *tables,
        _label(path, label, cells[label], regression),
    ]
    return "\n".join(lines) + "\n"


def _feature(name: str, cells: Sequence[Any]) -> str:
    kind = _kind(cells)
    if kind == "truth":
        words = sorted({word_in(cell) for cell in cells if not is_missing(cell)})
        both = words if len(words) == 2 else _both(words[0])
        said, why = f"categories = {_toml(both)}", "yes or no"
    else:
        said, why = _ASKED[kind]
    missing = "\nmissing = true  # one more value that says so" if any(is_missing(cell) for cell in cells) else ""
    return f"\n[{_key(name)}]\n{said}  # {why}{missing}"


def _both(word: str) -> list[str]:
    """Yes and no, as the one that was seen is written."""
    pair = ["false", "true"] if word.lower() in ("false", "true") else ["no", "yes"]
    return [other.upper() if word.isupper() else other.title() if word.istitle() else other for other in pair]


def _label(path: Path, name: str, cells: Sequence[Any], regression: bool) -> str:
    head = f"\n# The label.\n[{_key(name)}]\n"
    words = sorted({word_in(cell) for cell in cells if not is_missing(cell)})
    whole = all(re.fullmatch(r"-?\d{1,18}", word) for word in words)
    kind = _kind(cells)
    if regression or (kind == "number" and not (whole and len(words) <= _MOST_CLASSES)):
        if kind != "number":
            raise ConfigError(
                f"{path}: the label column {shown(name)} is not of numbers, so there is nothing to regress on."
            )
        return f'{head}range = "private"  # a number to come close to; or state its ends, as low = 0 and high = 100'
    if not 2 <= len(words) <= 1000:
        raise ConfigError(
            f"{path}: the label column {shown(name)} has {len(words)} different values, which are no classes."
        )
    ordered = sorted(words, key=int) if whole else words
    return (
        f"{head}classes = {_toml(ordered)}  # perhaps weights = {_toml([1.0] * min(len(words), 3))}, public constants"
    )


def _kind(cells: Sequence[Any]) -> Kind:
    """What most can be read as; a column without a value is of words."""
    given = [cell for cell in cells if not is_missing(cell)]
    if given and all(word_in(cell).lower() in _TRUTHS for cell in given):
        return "truth"
    if given and _all(number_in, given):
        return "number"
    if given and _all(day_in, given):
        return "date"
    words = [word_in(cell) for cell in given]
    parts = {word: len(word.split()) for word in set(words)}
    if words and sum(parts[word] for word in words) / len(words) >= _FREE_TEXT:
        return "text"
    return "many words" if len(parts) > _MANY_WORDS else "words"


def _all(read: Any, cells: Sequence[Any]) -> bool:
    try:
        for cell in cells:
            read(cell)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _toml(values: Sequence[Any]) -> str:
    return _quoted(list(values))


def _quoted(value: Any) -> str:
    """As JSON, which TOML takes for its own but for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
