from pathlib import Path

import pytest

from discreet.report.charts import svg
from discreet.runs import config

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import beyond_images

    return beyond_images


@pytest.mark.parametrize(("name", "rows"), [("table", 50_000), ("text", 10_000)])
def test_a_recipe_has_its_budget(name, rows):
    recipe = config.load(ROOT / "recipes" / f"{name}.toml")
    recipe.check()
    assert recipe.data.settings["rows"] == rows
    assert 2.9 < recipe.plan(rows).guarantee().epsilon <= 3


@pytest.mark.parametrize("case", ["table", "text"])
def test_a_recipe_trains_with_privacy_and_without(case, script):
    few = {"data.settings": {"rows": 60, "tested": 40}, "budget.batch_size": 30, "budget.epochs": 2.0}
    recipe = script.config_of(case, **few)
    private, plain = script.train(recipe, 0), script.train(recipe, 0, private=False)
    assert private["proven"] <= 3
    assert plain["proven"] is None
    assert 0 <= private["accuracy"] <= 1
    assert private["best"] == plain["best"]


def test_few_rows_are_the_same_recipe_with_fewer(script):
    few, many = script.config_of("few-rows"), script.config_of("table")
    assert few.data.settings["rows"] == 500
    assert few.model == many.model
    assert few.optimizer == many.optimizer


def test_what_was_measured_becomes_a_table_and_a_chart(script, monkeypatch, capsys, tmp_path):
    row = {"proven": 1.0, "seconds": 2.0, "best": 0.9, "commonest": 0.5}
    monkeypatch.setattr(script, "train", lambda config, seed, private=True: row | {"accuracy": 0.8 + 0.01 * seed})
    file = tmp_path / "found.json"
    script.main(["--only", "table", "--epsilons", "1", "3", "--seeds", "2", "--json", str(file)])
    script.main(["--from", str(file)])
    printed = capsys.readouterr().out
    assert "| epsilon 1 | 80.5 ± 0.7 |" in printed
    assert "| best possible | 90.0 |" in printed
    assert "--seeds 2" in printed
    (chart,) = script.charts([{"case": "table", "epsilon": e, "seed": 0, "accuracy": 0.8, **row} for e in (1, 3, None)])
    assert "without privacy" in svg(chart, alone=True)


def test_learning_rates_are_tried_on_other_data(script, monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(script, "train", lambda config, *_: seen.append(config.data.settings) or {"accuracy": 0.5})
    script.main(["--tune", "--only", "table", "few-rows", "--rates", "0.1"])
    assert [s["seed"] for s in seen] == [1] * 4
    assert [s["rows"] for s in seen] == [50_000] * 2 + [500] * 2
    assert "| table | 0.1 | 50.0% | 50.0% |" in capsys.readouterr().out
