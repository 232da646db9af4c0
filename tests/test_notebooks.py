"""The notebooks run from top to bottom, and what they say of their figures is so."""

import csv
import json
import math

import pytest
from notebooks import NOTEBOOKS, cells, run

NAMES = ["first_private_model", "reading_a_guarantee", "table"]


def test_a_first_private_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = run("first_private_model")
    assert 2.9 < made["guarantee"].epsilon <= 3
    assert made["accuracy"] > 0.6
    assert (tmp_path / "first-ledger-report" / "report.html").is_file()


def test_a_table_is_three_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = run("table")
    assert made["trained"].guarantee.epsilon <= 1
    assert "low = 18" in (tmp_path / "people.schema.toml").read_text()
    with (tmp_path / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3
    assert {row["prediction"] for row in rows} <= {"high", "low"}
    commands = [line for cell in cells("table", "code") for line in cell.splitlines() if line.startswith("!")]
    assert [line.split()[1] for line in commands] == ["schema", "train", "predict"]


def test_reading_a_guarantee():
    made = run("reading_a_guarantee")
    proven, epsilon = made["proven"], made["proven"].epsilon
    assert made["of_five"].epsilon > epsilon
    assert made["tuned"].epsilon > epsilon
    assert "checked" not in {condition.status for condition in proven.conditions}  # as its words say
    assert list(proven.figures())[-1] == "the Gaussian curve, without amplification"
    assert f"{math.exp(10):,.0f}" == "22,026"


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_clean_and_of_the_form_that_jupyter_reads(name):
    notebook = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in notebook["cells"]:
        assert cell["cell_type"] in ("code", "markdown")
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None


def test_every_notebook_is_tried():
    assert sorted(path.stem for path in NOTEBOOKS.iterdir()) == NAMES
