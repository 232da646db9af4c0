"""discreet tune, discreet sweep."""

import json

import pytest
from small_runs import table_at
from typer.testing import CliRunner

from discreet import ConfigError
from discreet.cli.app import app
from discreet.cli.tune import _usual_space
from discreet.runs.config import from_dict
from discreet.tuning import draws


def told(*arguments):
    found = CliRunner().invoke(app, [str(word) for word in arguments], catch_exceptions=False)
    assert found.exit_code == 0
    return found.stdout


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(draws, "draw_runs", lambda tuning, uniform: 1)
    return table_at(tmp_path)


FEW = ["--model", "linear", "--steps", 4, "--batch-size", 16, "--epsilon", 4]


def test_a_search_of_a_file_and_the_grid_of_it(table, tmp_path):
    found = json.loads(told("tune", table, *FEW, "--runs", 2, "--json"))
    assert found["search"] == "runs/clouds-tuned"
    assert found["best"]["guarantee"]["epsilon"] <= 4
    assert found["best"]["guarantee"]["tuning"]["runs"] == 2
    words = told("tune", "runs/clouds-tuned")
    assert "nothing was done" in words
    assert "Release this folder, and nothing else" in words
    grid = ("--set", "sweep.space.budget.epsilon=[2.0, 4.0]", "--public", "--out", "grid")
    assert "2 of 2 runs. The best: 00" in told("sweep", table, *FEW, *grid)
    assert [run["budget.epsilon"] for run in json.loads(told("sweep", table, *FEW, *grid, "--json"))["runs"]] == [2, 4]


def test_what_is_searched_where_nobody_says_it():
    space = _usual_space(from_dict({"budget": {"epochs": 10.0}}))
    assert space == {
        "optimizer.learning_rate": {"low": 0.0625, "high": 2.0, "log": True},
        "budget.epochs": [5.0, 10.0, 20.0],
    }
    walk = _usual_space(from_dict({"optimizer": {"noise_walk": 8.0}}))["optimizer.noise_walk"]
    assert walk == {"low": 2.0, "high": 16.0, "log": True}
    assert "budget.epochs" not in _usual_space(from_dict({"budget": {"steps": 4}}))


def test_bad_input(table, tmp_path):
    with pytest.raises(ConfigError, match="--out is missing"):
        told("sweep", table, *FEW)
    with pytest.raises(ConfigError, match="give epsilon in place of noise"):
        told("tune", table, "--model", "linear", "--steps", 4, "--batch-size", 16, "--noise", 1)
    (tmp_path / "a.toml").write_text('[budget]\nepsilon = 1.0\n[tune]\nspace = {"budget.epochs" = [1.0]}\n')
    with pytest.raises(ConfigError, match="discreet tune, or sweep"):
        told("train", "a.toml", "--out", "b")
