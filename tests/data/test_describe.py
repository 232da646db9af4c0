"""Schemas to begin with."""

import tomllib

import pytest
from data_files import write_parquet

from discreet import ConfigError
from discreet.data.describe import describe
from discreet.data.schema import known

CSV = """id,age,born,smokes,job,note,income
1,30,1990-01-31,TRUE,cook,he likes long walks at sea,high
2,,1980-05-01,TRUE,clerk,she reads a lot of books,low
3,50,1970-05-01,TRUE,cook,they play music all night,low
"""


@pytest.fixture
def people(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text(CSV)
    return path


def test_a_schema_has_kinds_and_no_range_or_word_of_a_feature(people):
    text = describe(people, "income")
    content = tomllib.loads(text)
    assert content == {
        "ignore": ["id"],
        "guessed": ["age", "born", "smokes", "job", "note", "income"],
        "age": {"range": "private", "missing": True},
        "born": {"dates": "private"},
        "smokes": {"categories": ["FALSE", "TRUE"]},
        "job": {"categories": "private"},
        "note": {"text": 128},
        "income": {"classes": ["high", "low"]},
    }
    assert set(known("a", content).private) == {"age", "born", "job"}
    assert not {"30", "1990", "cook", "walks"} & set(text.replace('"', " ").replace("-", " ").split())


def test_labels(people, tmp_path):
    assert tomllib.loads(describe(people, "age", regression=True))["age"] == {"range": "private"}
    assert tomllib.loads(describe(people, "age"))["age"] == {"classes": ["30", "50"]}
    with pytest.raises(ConfigError, match="not of numbers"):
        describe(people, "income", regression=True)
    write_parquet(tmp_path / "a.parquet", {"a b": [0.5, 1.5, 2.5], "y": [1.25, 2.5, 0.0]})
    assert tomllib.loads(describe(tmp_path / "a.parquet", "y"))["a b"] == {"range": "private"}
    assert tomllib.loads(describe(tmp_path / "a.parquet", "y"))["y"] == {"range": "private"}


@pytest.mark.parametrize(
    ("content", "label", "words"),
    [
        (CSV, "wage", "has no column 'wage' to be the label"),
        ("a,y\n", "y", "has no rows"),
        ("id,y\n1,2\n", "y", "nothing to learn from"),
        ("a,y\n1,no\n2,no\n", "y", "has 1 different values, which are no classes"),
        ("", "y", "is empty"),
    ],
)
def test_tables_that_have_no_schema(content, label, words, people):
    people.write_text(content)
    with pytest.raises(ConfigError, match=words):
        describe(people, label)


def test_many_words_are_hashed(people):
    people.write_text("town,y\n" + "".join(f"t{i},{i % 2}\n" for i in range(60)))
    assert tomllib.loads(describe(people, "y"))["town"] == {"hashed": 64}
