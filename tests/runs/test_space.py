"""Spaces of settings: read strictly, drawn within their ends, made one by one."""

import random

import pytest

from discreet import ConfigError
from discreet.runs.space import Between, Space

TABLE = {
    "optimizer": {"learning_rate": {"low": 0.1, "high": 10.0, "log": True}},
    "budget.epochs": [5.0, 10.0],
    "model.settings": {"hidden": [[32], [64, 64]]},
}


def test_tables_in_tables_and_dots_in_names_mean_the_same():
    space = Space.of(TABLE)
    assert space.choices == {"budget.epochs": (5.0, 10.0), "model.settings.hidden": ([32], [64, 64])}
    assert space.ranges == {"optimizer.learning_rate": Between(0.1, 10.0, log=True)}
    assert space.costly() == [{"budget.epochs": 5.0}, {"budget.epochs": 10.0}]


def test_settings_are_drawn_evenly_by_the_logarithm():
    source, space = random.Random(3), Space.of(TABLE)
    drawn = [space.draw(source) for _ in range(4_000)]
    rates = [one["optimizer.learning_rate"] for one in drawn]
    assert 0.1 <= min(rates) < max(rates) <= 10.0
    assert sum(rate < 1 for rate in rates) == pytest.approx(2_000, abs=5 * 32)  # five standard deviations
    assert sum(one["budget.epochs"] == 5.0 for one in drawn) == pytest.approx(2_000, abs=5 * 32)


def test_a_grid_has_every_setting_once():
    grid = Space.of({"budget.epsilon": [1.0, 3.0], "run.seed": [0, 1, 2]}).grid()
    assert len(grid) == 6
    assert grid[0] == {"budget.epsilon": 1.0, "run.seed": 0}
    with pytest.raises(ConfigError, match="which has no grid"):
        Space.of(TABLE).grid()


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"optimizer.learning_rate": []},
        {"optimizer.learning_rate": 0.1},
        {"optimizer.learning_rate": {"low": 1.0, "high": 0.1}},
        {"optimizer.learning_rate": {"low": 0.0, "high": 0.1, "log": True}},
        {"optimizer.learning_rate": {"low": 0.1, "high": 1.0, "logarithmic": True}},
        {"optimizer.learning_rate": {"low": "a", "high": "b"}},
        {"optimizer.learning_rate": {"low": 0.1, "high": float("inf")}},
        {"optimizer.learning_rate": {"low": 0.1}},
    ],
)
def test_what_is_no_space_is_refused(table):
    with pytest.raises(ConfigError):
        Space.of(table)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"budget.epsilon": [1.0, 3.0]}, "cannot be drawn"),
        ({"data.limit": [1, 2]}, "cannot be drawn"),
        ({"run.seed": [1, 2]}, "cannot be drawn"),
        ({"features.length": [1.0, 2.0]}, "cannot be drawn"),
        ({"method.settings.unit": ["a"]}, "cannot be drawn"),
        ({"budget.epochs": {"low": 1.0, "high": 2.0}}, "list its values"),
        ({"budget.epochs": [float(k) for k in range(1, 10)], "budget.batch_size": list(range(1, 10))}, "more than 64"),
    ],
)
def test_what_could_change_a_cost_that_is_not_known_is_refused(table, words):
    with pytest.raises(ConfigError, match=words):
        Space.of(table).costly()
