"""Schemas: what they may say, and everything that is wrong with one at once."""

import hostile_texts
import pytest
from closed_box import wrong
from data_files import CSV, error_of
from hostile_files import table_call

from discreet import ConfigError
from discreet.data import load
from discreet.data.rules import Bins, Classes, Dates, Private, WithMissing
from discreet.data.schema import Problems, known, plain, rules_of, schema_beside

ACCEPTED = {"categories of 10^5"}


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"range": "all"}, "range 'all'; say range = 'private'"),
        ({"dates": 3}, "dates 3; say dates = 'private'"),
        ({"hashed": 1}, "hashed 1; it is how many columns it becomes, from 2 to 4,096"),
        ({"text": True}, "text True"),
        ({"edges": [1, 1]}, "edges [1, 1]; they are numbers, each above the one before"),
        ({"edges": []}, "edges []"),
        ({"edges": [float("nan")]}, "edges [nan]"),
        ({"edges": 3}, "edges 3"),
        ({"buckets": [1, 1]}, "buckets [1, 1]; they are different whole numbers"),
        ({"low": 0, "high": 1, "missing": "yes"}, "missing 'yes'; it must be true"),
        ({"classes": ["a", "b"], "weights": [1]}, "give a positive constant for each of the 2 classes"),
        ({"classes": ["a", "b"], "weights": [1, 0]}, "weights [1, 0]"),
        ({"weights": [1, 2]}, "is {'weights': [1, 2]}"),
        ({"low": "2000-01-02", "high": "2000-01-01"}, "low must be before high"),
        ({"missing": True}, "say low and high"),
    ],
)
def test_rules_that_cannot_be_are_refused(rule, words):
    with pytest.raises(ConfigError) as error:
        rules_of("a", {"c": rule})
    assert words in str(error.value)


def test_all_kinds_of_rules():
    content = {
        "guessed": ["a"],
        "a": {"range": "private", "missing": True},
        "b": {"low": "1950-01-01", "high": "2000-01-01"},
        "c": {"edges": [18, 65.5]},
        "y": {"classes": ["no", "yes"], "weights": [1, 4]},
    }
    facts = known("the schema", content)
    assert facts.private == {"a": Private("range")}
    assert isinstance(facts.rules["a"], WithMissing)
    assert isinstance(facts.rules["b"], Dates)
    assert facts.rules["c"] == Bins((18.0, 65.5))
    assert facts.rules["y"] == Classes(("no", "yes"), (1.0, 4.0))
    assert facts.guessed == ("a",)
    assert plain({"b": {"low": facts.rules["b"].low}}) == {"b": {"low": "1950-01-01"}}


def test_all_that_is_wrong_is_said_at_once(table):
    schema = {
        "ignore": ["id", "home"],
        "age": {"low": 5, "high": 1},
        "wage": {"hashed": 0},
        "pay": {"classes": ["no", "yes"]},
    }
    message = error_of(table, label="pay", schema=schema)
    assert message.startswith("2 problems: (1) ")
    assert "low 5 and high 1" in message
    table.write_text(CSV + "6,old,cook,perhaps\n")
    schema = {"ignore": ["id"], "age": {"low": 0, "high": 9}, "job": {"hashed": 4}, "pay": {"classes": ["no", "yes"]}}
    message = error_of(table, label="pay", schema=schema)
    assert "(1)" in message
    assert "row 6 has no number in column 'age'" in message
    assert "row 6 has in label column 'pay' none" in message


def test_one_problem_is_said_as_it_is():
    problems = Problems()
    problems.refuse()
    for _ in range(2):
        problems.tell("a is wrong.")
    with pytest.raises(ConfigError, match=r"^a is wrong\.$"):
        problems.refuse()


def test_a_schema_beside_the_table_is_found(table):
    assert schema_beside("a/people.csv").as_posix() == "a/people.schema.toml"
    assert "discreet schema" in error_of(table)
    schema_beside(table).write_text(
        'ignore = ["id"]\n[age]\nlow = 0\nhigh = 120\n[job]\nhashed = 4\n[pay]\nclasses = ["no", "yes"]\n'
    )
    assert load(str(table)).shape == (5,)
    schema_beside(table).write_text(
        'ignore = ["id", "job"]\n[age]\nrange = "private"\n[pay]\nclasses = ["no", "yes"]\n'
    )
    assert "marks 'age' as private" in error_of(table)


def test_hostile_schemas_are_refused(tmp_path):
    calls = {}
    for number, (name, content) in enumerate(hostile_texts.schemas().items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "t.csv").write_bytes(hostile_texts.TABLE)
        arguments = table_call(folder)
        (folder / "schema.toml").write_bytes(content)
        if name not in ACCEPTED:
            calls[name] = arguments, folder
    assert len(calls) >= 35
    assert wrong(calls) == {}
