"""The benchmark of tables of people: what it makes of a small table, and of what was measured."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEADER = "LateSept,LateApril,BillApril,AGE\n"


@pytest.fixture
def script(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    place = tmp_path / "credit-card"
    place.mkdir()
    rows = [f"{i % 3 == 0},{i % 3 == 0},{i % 7},{20 + i % 40}" for i in range(60)]
    (place / "credit-card.csv").write_text(
        HEADER.replace("Late", "rownames,Late", 1) + "\n".join(f"1,{r}" for r in rows)
    )
    monkeypatch.setenv("DISCREET_DATA", str(tmp_path))
    import people

    return people


def test_a_small_table_is_measured_once(script, tmp_path, capsys):
    pytest.importorskip("sklearn", reason="needs discreet[sklearn]")
    file = tmp_path / "found.json"
    words = ["--only", "credit-card", "--seeds", "1", "--json", str(file), "--set", "budget.epochs=1.0"]
    script.main(words)
    (row,) = json.loads(file.read_text())["results"]
    assert row["discreet"]["proven"] <= 1
    assert {"accuracy", "auc"} <= row["plain"].keys() == row["trees"].keys()
    script.main(words)
    assert json.loads(file.read_text())["results"] == [row]
    del capsys


def test_what_was_measured_becomes_a_table(script):
    merits = {"accuracy": 0.85, "auc": 0.9}
    rows = [
        {"table": "adult", "seed": s, "epsilon": 1.0, "validation": 0.0, "set": [], "discreet": merits, "plain": merits}
        for s in range(3)
    ]
    rows.append(rows[0] | {"set": ["a=1"], "discreet": {"accuracy": 0.1, "auc": 0.1}})
    about = script.machine.about("people", ["--json", "x"])
    shown = script.as_markdown({"about": [about], "results": rows})
    assert "| adult, epsilon 1, accuracy | 85.00 % (85.00 to 85.00) | 85.00 % (85.00 to 85.00) |" in shown
    assert "Means of 3 drawings" in shown


def test_the_page_shows_what_is_measured(script):
    found = json.loads((ROOT / "benchmarks" / "measured" / "people" / "tables.json").read_text())
    assert script.as_markdown(found) in (ROOT / "docs" / "people.md").read_text()
