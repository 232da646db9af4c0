"""What a schema says of a table's columns: read, checked, all that is wrong with it at once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from discreet._check import shown, within
from discreet._documents import read_toml
from discreet.data.rules import (
    BUCKETS,
    Bins,
    Buckets,
    Classes,
    Dates,
    Hashed,
    Private,
    Range,
    Rule,
    Text,
    Unscaled,
    WithMissing,
    Words,
    word_in,
)
from discreet.errors import ConfigError

Schema = Mapping[str, Any]
_FARTHEST, _NARROWEST = 1e100, 1e-100  # ends of a range, and its width
_LIGHTEST, _HEAVIEST = 1e-6, 1e6  # weights of classes
_MOST_PROBLEMS = 20  # that are said one by one

_LISTS = ("ignore", "guessed")  # keys that are no column where they hold a list
_MOST_COLUMNS = 4096  # that one column of words may become
_SAY = "say low and high, edges, categories, hashed, text or dates, or for the label classes"


@dataclass(frozen=True)
class Known:
    """A schema, checked: a rule for each column, those that are not to be used, and whose kind was read off rows."""

    rules: Mapping[str, Rule]
    ignored: tuple[str, ...] = ()
    guessed: tuple[str, ...] = ()

    @property
    def private(self) -> dict[str, Private]:
        """The columns of which something must be asked with noise."""
        found = {name: _within(rule) for name, rule in self.rules.items()}
        return {name: rule for name, rule in found.items() if isinstance(rule, Private)}


def _within(rule: Rule) -> Rule:
    return rule.rule if isinstance(rule, WithMissing) else rule


@dataclass
class Problems:
    """What is wrong, collected so that it can be said at once."""

    found: dict[str, None] = field(default_factory=dict)

    def tell(self, problem: str) -> None:
        """Note one."""
        self.found[problem] = None

    def refuse(self) -> None:
        """Raise a ConfigError with all of them, if there are any."""
        if len(self.found) == 1:
            raise ConfigError(next(iter(self.found)))
        if self.found:
            said = list(self.found)[:_MOST_PROBLEMS]
            told = " ".join(f"({number}) {problem}" for number, problem in enumerate(said, 1))
            more = f" ... ({len(self.found):,} in all)" if len(self.found) > len(said) else ""
            raise ConfigError(f"{len(self.found):,} problems: {told}{more}")


def schema_beside(table: str | Path) -> Path:
    """Where a table's schema is looked for: people.schema.toml beside people.csv."""
    return Path(table).with_suffix(".schema.toml")


def read_schema(schema: Schema | str | Path) -> tuple[str, Schema]:
    """What to call a schema, and its content."""
    if isinstance(schema, Mapping):
        return "the schema", schema
    if not isinstance(schema, (str, Path)):
        raise ConfigError(f"a schema is {shown(schema)}; give a mapping or the path of a TOML file.")
    return str(schema), read_toml(schema)


def known(where: str, content: Schema, problems: Problems | None = None) -> Known:
    """A schema's rules, checked; what is wrong goes to `problems`, or is a ConfigError."""
    noted = Problems() if problems is None else problems
    rules: dict[str, Rule] = {}
    within("table_columns", len(content), f"{where} has {len(content):,} columns")
    for column, rule in content.items():
        if column in _LISTS and isinstance(rule, (list, tuple)):
            continue
        try:
            rules[column] = _rule(f"{where}: column {shown(column)}", rule)
        except ConfigError as error:
            noted.tell(str(error))
    lists = {}
    for key in _LISTS:
        named = content.get(key, [])
        if isinstance(named, Mapping):  # a column of that name
            named = []
        if isinstance(named, (list, tuple)) and not all(isinstance(name, str) for name in named):
            noted.tell(f"{where}: {key} is {shown(named)}; it must be a list of columns' names.")
            named = []
        lists[key] = tuple(named) if isinstance(named, (list, tuple)) else ()
    if problems is None:
        noted.refuse()
    return Known(rules, lists["ignore"], lists["guessed"])


def plain(content: Schema) -> dict[str, Any]:
    """A schema's content in values that JSON has: dates are texts."""

    def of(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: of(inner) for key, inner in value.items()}
        return value.isoformat() if isinstance(value, date) else value

    return {key: of(value) for key, value in content.items()}


def rules_of(where: str, content: Schema) -> dict[str, Rule]:
    """What a schema says of each column, checked."""
    return dict(known(where, content).rules)


def _rule(where: str, said: Any) -> Rule:
    """The rule of one column."""
    keys = set(said) if isinstance(said, Mapping) else set()
    missing = said.get("missing", False) if keys else False
    keys -= {"missing"}
    if missing not in (True, False):
        raise ConfigError(
            f"{where} has missing {shown(missing)}; it must be true, for a column that says so, or false."
        )
    if keys == {"low", "high"}:
        rule = _between(where, said["low"], said["high"])
    elif keys <= {"classes", "weights"} and "classes" in keys:
        rule = _classes(where, said["classes"], said.get("weights"))
    elif len(keys) == 1 and (key := next(iter(keys))) in _ONE:
        rule = _ONE[key](where, said[key])
    else:
        raise ConfigError(f"{where} is {shown(said)}; {_SAY}.")
    return WithMissing(rule) if missing else rule


def _between(where: str, low: Any, high: Any) -> Rule:
    low, high = (_date_in(end) for end in (low, high))
    if isinstance(low, date) and isinstance(high, date):
        first, last = (day.date() if isinstance(day, datetime) else day for day in (low, high))
        if first >= last:
            raise ConfigError(f"{where} has low {first} and high {last}; low must be before high.")
        return Dates(first, last)
    numbers = all(isinstance(end, (int, float)) and not isinstance(end, bool) for end in (low, high))
    if not numbers or not all(abs(end) <= _FARTHEST for end in (low, high)) or not high - low >= _NARROWEST:
        raise ConfigError(
            f"{where} has low {shown(low)} and high {shown(high)}; they must be finite numbers up to {_FARTHEST:g}, "
            "low below high."
        )
    return Range(float(low), float(high))


def _date_in(end: Any) -> Any:
    """A day that is written as a text; anything else as it is."""
    try:
        return date.fromisoformat(end) if isinstance(end, str) else end
    except ValueError:
        return end


def _words(where: str, key: str, words: Any) -> tuple[str, ...]:
    least = 2 if key == "classes" else 1
    if isinstance(words, (list, tuple)):
        within("categories", len(words), f"{where} has {len(words):,} {key}")
    listed = isinstance(words, (list, tuple)) and all(isinstance(w, (str, int, float)) for w in words)
    listed_words = tuple(word_in(word) for word in words) if listed else ()
    if len(listed_words) < least or len(set(listed_words)) < len(listed_words):
        raise ConfigError(f"{where} has {key} {shown(words)}; give a list of {least} or more that differ.")
    return listed_words


def _classes(where: str, words: Any, weights: Any) -> Rule:
    listed = _words(where, "classes", words)
    if weights is None:
        return Classes(listed)
    numbers = isinstance(weights, (list, tuple)) and all(
        isinstance(w, (int, float)) and not isinstance(w, bool) and _LIGHTEST <= w <= _HEAVIEST for w in weights
    )
    if not numbers or len(weights) != len(listed):
        raise ConfigError(
            f"{where} has weights {shown(weights)}; give a positive constant for each of the {len(listed)} classes, "
            f"from {_LIGHTEST:g} to {_HEAVIEST:g}, chosen without counting them."
        )
    return Classes(listed, tuple(float(w) for w in weights))


def _range(where: str, said: Any) -> Rule:
    if said == "unknown":
        return Unscaled()
    return _private(where, "range", said)


def _categories(where: str, said: Any) -> Rule:
    return Private("categories") if said == "private" else Words(_words(where, "categories", said))


def _private(where: str, key: Any, said: Any) -> Rule:
    if said != "private":
        raise ConfigError(f"{where} has {key} {shown(said)}; say {key} = 'private', or low and high.")
    return Private(key)


def _columns(where: str, key: str, said: Any) -> int:
    if not isinstance(said, int) or isinstance(said, bool) or not 2 <= said <= _MOST_COLUMNS:
        raise ConfigError(
            f"{where} has {key} {shown(said)}; it is how many columns it becomes, from 2 to {_MOST_COLUMNS:,}."
        )
    return said


def _edges(where: str, said: Any) -> Rule:
    numbers = isinstance(said, (list, tuple)) and all(
        isinstance(e, (int, float)) and not isinstance(e, bool) and abs(e) <= _FARTHEST for e in said
    )
    if not numbers or not 1 <= len(said) < _MOST_COLUMNS or any(a >= b for a, b in pairwise(said)):
        raise ConfigError(
            f"{where} has edges {shown(said)}; they are numbers, each above the one before, where one bin ends and the "
            "next begins."
        )
    return Bins(tuple(float(e) for e in said))


def _buckets(where: str, said: Any) -> Rule:
    whole = isinstance(said, (list, tuple)) and all(
        isinstance(b, int) and not isinstance(b, bool) and 0 <= b < BUCKETS for b in said
    )
    if not whole or len(set(said)) < len(said):
        raise ConfigError(
            f"{where} has buckets {shown(said)}; they are different whole numbers from 0 to {BUCKETS - 1:,}."
        )
    return Buckets(tuple(said))


_ONE: dict[str, Callable[[str, Any], Rule]] = {
    "range": _range,
    "dates": lambda where, said: _private(where, "dates", said),
    "categories": _categories,
    "edges": _edges,
    "hashed": lambda where, said: Hashed(_columns(where, "hashed", said)),
    "text": lambda where, said: Text(_columns(where, "text", said)),
    "buckets": _buckets,
}
