"""discreet budget: what each run spent, the total, what is left."""

import json

import pytest
from typer.testing import CliRunner

from discreet import ConfigError, Ledger
from discreet.accounting.events import Event
from discreet.cli.app import app

QUERY = Event(rate=1.0, multiplier=10.0, steps=1, adjacency="zero-out")


@pytest.fixture
def registry(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, cap in (("people", 2.0), ("trees", None)):
        Ledger(f"runs/datasets/{name}.jsonl", dataset=name, epsilon=cap, delta=1e-5).query("[a] count", QUERY)
    return tmp_path


def told(*arguments):
    found = CliRunner().invoke(app, ["budget", *arguments], catch_exceptions=False)
    assert found.exit_code == 0
    return found.stdout


def test_a_data_set_by_its_name_its_file_or_its_ledger(registry):
    for name in ("people", "data/people.csv", "runs/datasets/people.jsonl"):
        words = told(name)
        assert "[a] count" in words
        assert "the cap is 2" in words
        assert "would fit under it" in words
        assert "trees" not in words


def test_all_of_them(registry):
    words = told()
    assert "data set people" in words
    assert "no cap; discreet train --cap sets one" in words
    assert [one["dataset"] for one in json.loads(told("--json"))] == ["people", "trees"]


def test_figures_as_json(registry):
    found = json.loads(told("people", "--json"))
    assert 2 - found["epsilon"] < found["left"] < 2
    assert found["spent"][0]["what"] == "[a] count"


def test_what_is_not_there(registry):
    with pytest.raises(ConfigError, match="it has: people, trees"):
        told("animals")
    with pytest.raises(ConfigError, match="counts no data set yet"):
        told("--runs", "elsewhere")
