"""The records' benchmark: what it makes of runs; none is run here."""

import hashlib
import json
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture
def records(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import records

    monkeypatch.setattr(records, "PAGES", tmp_path)
    monkeypatch.setattr(records, "FIGURES", tmp_path)
    return records


def row(seed, accuracy, epsilon=3.0, recipe="mnist.toml", **more):
    content = hashlib.sha256((ROOT / "recipes" / recipe).read_bytes()).hexdigest()[:12]
    told = {"data": "mnist", "recipe": recipe, "content": content, "epsilon": epsilon, "seed": seed, "validation": 0.0}
    measured = {"accuracy": accuracy, "proven": epsilon - 0.001, "seconds": 100.0, "training": 60.0, "cpu": 150.0}
    return told | {"set": []} | measured | {"peak": 4.0, "load": 0.1, "cold": False, "at": "2026-11-16"} | more


def test_tables_and_figures_are_of_runs_on_the_test_part_of_recipes_as_they_are(records, tmp_path, capsys):
    runs = [
        row(0, 98.0),
        row(1, 99.0),
        row(2, 10.0, validation=0.1),
        row(2, 20.0, set=["optimizer.learning_rate=1"]),
        row(2, 30.0, content="another"),
        row(0, 90.0, epsilon=1.0, cold=True, seconds=400.0),
    ]
    file, page, readme = tmp_path / "records.json", tmp_path / "docs" / "records.md", tmp_path / "README.md"
    file.write_text(json.dumps({"about": {"machine": "two cores"}, "runs": runs}))
    readme.write_text("<!-- records: overview -->\n<!-- /records -->\n")
    page.parent.mkdir()
    page.write_text(
        "a\n<!-- records: accuracy -->\n<!-- /records -->\nb\n<!-- records: cost -->\nold\n<!-- /records -->\nc\n"
    )
    records.main(["--from", str(file), "--update"])
    assert "| MNIST | 3 | 2.9990 | 98.50 | 2 | 98.00, 99.00 | 98.9: missed |" in capsys.readouterr().out
    once = page.read_text()
    assert "| MNIST | 1 | 400 s, 150 s |  | 4.0 GiB |" in once
    assert "| MNIST | 3 |  | 100 s, 150 s, 60 s | 4.0 GiB |" in once
    assert "old" not in once
    assert "| MNIST | 2.9990 | 98.50 % |  |\n\nMeans over seeds; 2026-11-16, two cores." in readme.read_text()
    drawn = (tmp_path / "records-mnist.svg").read_text()
    assert "Abadi 2016" in drawn
    assert "98.5%" in drawn
    records.main(["--from", str(file), "--update"])
    assert page.read_text() == once


def test_small_epsilons_have_a_recipe_of_their_own_where_there_is_one(records):
    assert records.recipe_for("cifar10", 0.5).name == "cifar10-epsilon-1.toml"
    assert records.recipe_for("cifar10", 2.0).name == "cifar10.toml"
    assert records.recipe_for("mnist", 0.5).name == "mnist.toml"


def test_recipes_on_a_public_network_have_a_table_of_their_own(records, tmp_path, capsys):
    runs = [
        row(s, 80.0 + s, epsilon=1.0, recipe="cifar10-backbone-epsilon-1.toml", data="cifar10-backbone") for s in (0, 1)
    ]
    file, page = tmp_path / "records.json", tmp_path / "docs" / "records.md"
    file.write_text(json.dumps({"about": {"machine": "two cores"}, "runs": runs, "plain": {"cifar10-backbone": 83.0}}))
    page.parent.mkdir()
    (tmp_path / "README.md").write_text("<!-- records: overview -->\n<!-- /records -->\n")
    places = ("accuracy", "cost", "public")
    page.write_text("".join(f"<!-- records: {name} -->\n<!-- /records -->\n" for name in places))
    records.main(["--from", str(file), "--update"])
    shown = "| CIFAR-10 (JPEG copy) | 1 | 0.9990 | 80.50 | 2 | 80.00, 81.00 | 83.00 | 80.0: reached |"
    assert shown in capsys.readouterr().out
    assert page.read_text().count(shown) == 1


def test_a_head_without_privacy_learns_what_is_there(records):
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    assert records.right(records.fitted(x, y, 1e-3), x, y) > 95
