"""discreet schema, and a table in two commands."""

import json

import hostile_trained
import pytest
from closed_box import wrong
from hostile_files import ENVIRONMENT
from typer.testing import CliRunner

from discreet.cli.app import app
from discreet.errors import ConfigError

ROWS = "".join(f"{20 + i % 50},{'cook' if i % 3 else 'clerk'},{'high' if i % 50 > 25 else 'low'}\n" for i in range(120))


@pytest.fixture
def people(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people.csv").write_text("age,job,income\n" + ROWS)
    return tmp_path / "people.csv"


def call(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)


def test_a_table_in_two_commands(people, tmp_path):
    assert call("schema", "people.csv", "--label", "income").exit_code == 0
    assert (tmp_path / "people.schema.toml").is_file()
    assert "--schema" not in call("schema", "people.csv", "--label", "income", "--force").stdout
    assert "--label job --schema a.toml" in call("schema", "people.csv", "--label", "job", "--out", "a.toml").stdout
    done = call("train", "people.csv", "--label", "income", "--epsilon", "1", "--epochs", "1", "--json")
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    assert told["guarantee"]["epsilon"] <= 1
    assert told["run"] == "runs/people"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["people.csv", "--label", "wage"], "has no column 'wage'"),
        (["people.txt", "--label", "income"], "is no table"),
        (["none.csv", "--label", "income"], "cannot be read"),
        (["people.csv", "--label", "job", "--regression"], "not of numbers"),
        (["people.csv", "--label", "income", "--out", "no/such/folder"], "cannot be written"),
    ],
)
def test_bad_input(arguments, words, people):
    with pytest.raises(ConfigError, match=words):
        call("schema", *arguments)


def test_a_schema_that_is_there_is_left_alone(people, tmp_path):
    (tmp_path / "people.schema.toml").write_text("# mine\n")
    with pytest.raises(ConfigError, match="left alone; say --force"):
        call("schema", "people.csv", "--label", "income")
    assert call("schema", "people.csv", "--label", "income", "--force").exit_code == 0
    assert "private" in (tmp_path / "people.schema.toml").read_text()


def test_hostile_tables_are_refused_or_described(tmp_path):
    calls = hostile_trained.tables(tmp_path)
    assert len(calls) >= 70
    refused, described = hostile_trained.parted(calls, hostile_trained.DESCRIBED, 4)
    assert wrong(refused, environment=ENVIRONMENT) == {}
    assert wrong(described, codes=(0, 2), environment=ENVIRONMENT) == {}
