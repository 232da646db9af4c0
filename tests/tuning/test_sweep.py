"""A grid: each point a run of its own, counted nowhere, only on data that is said to be public."""

import csv

import pytest
from small_runs import config, table_at

from discreet import ConfigError
from discreet.runs.config import merged
from discreet.runs.progress import Watch
from discreet.tuning.sweep import RUNS, sweep

SPACE = {"budget.noise": [1.0, 4.0], "optimizer.learning_rate": [0.5]}


@pytest.fixture
def asked(tmp_path):
    return config(table_at(tmp_path), budget={"steps": 4}, sweep={"space": SPACE, "public": True})


def test_every_point_is_a_run_and_nothing_is_charged(asked, tmp_path):
    folder = tmp_path / "grid"
    found = sweep(asked, folder)
    assert found.finished
    assert [place.name for place in sorted((folder / RUNS).iterdir())] == [
        "000-noise=1.0-learning_rate=0.5", "001-noise=4.0-learning_rate=0.5",
    ]  # fmt: skip
    assert not (tmp_path / "datasets").exists()
    assert not (folder / RUNS / "datasets").exists()
    rows = list(csv.DictReader((folder / "runs.csv").read_text().splitlines()))
    assert float(rows[0]["epsilon"]) > float(rows[1]["epsilon"]) > 0
    assert "Accuracy against epsilon" in (folder / "report.html").read_text()
    again = sweep(asked, folder)
    assert again.runs == found.runs
    with pytest.raises(ConfigError, match="another grid"):
        sweep(merged(asked, {"run.seed": 5}), folder)


def test_a_grid_that_is_stopped_goes_on(asked, tmp_path):
    half = sweep(asked, tmp_path / "grid", Watch(stop=lambda: True))
    assert (len(half.runs), half.points, half.page) == (0, 2, None)
    assert sweep(asked, tmp_path / "grid").finished


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sweep.public": False}, "--public"),
        ({"sweep.space": {"optimizer.learning_rate": {"low": 0.1, "high": 1.0}}}, "no grid"),
        ({"sweep.space": {"run.seed": list(range(1001))}}, "1,001 points"),
        ({"sweep.space": {"optimizer.learning_rate": [-1.0]}}, "learning_rate"),
    ],
)
def test_what_is_no_grid_is_refused(asked, changes, words, tmp_path):
    values = asked if "sweep.space" not in changes else merged(asked, {})
    if "sweep.space" in changes:
        values = config(tmp_path / "clouds.npz", sweep={"space": changes["sweep.space"], "public": True})
    else:
        values = merged(values, changes)
    with pytest.raises(ConfigError, match=words):
        sweep(values, tmp_path / "grid")
    assert not (tmp_path / "grid").exists()


def test_there_must_be_a_space(tmp_path):
    with pytest.raises(ConfigError, match="no \\[sweep\\]"):
        sweep(config(table_at(tmp_path)), tmp_path / "grid")
