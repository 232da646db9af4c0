"""The benchmark of ratings: no rating is used to predict itself, and people are the unit."""

import json
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import movielens

    made = torch.Generator().manual_seed(0)
    found = {
        "who": torch.arange(60) // 6,
        "film": torch.randint(0, 5, (60,), generator=made),
        "rating": torch.randint(0, 10, (60,), generator=made) / 2 - 3.0,
        "kinds": torch.eye(5, 3),
        "year": torch.linspace(-1, 1, 5),
    }
    monkeypatch.setattr(movielens, "ratings", lambda: found)
    return movielens


def test_no_rating_is_used_to_predict_itself(script):
    found = script.ratings()
    own = torch.arange(6)
    before = script.rows_of(found, own, own)
    found["rating"] = found["rating"].index_fill(0, torch.tensor([2]), 5.0)
    after = script.rows_of(found, own, own)
    assert torch.equal(before[2], after[2])
    assert not torch.equal(before[3], after[3])


def test_people_to_test_on_are_none_to_learn_from(script):
    users, (x, y), _ = script.parts_of(script.ratings(), 0, False)
    assert len(users) == 8
    assert len(x) == len(y) == 2 * 3


def test_a_small_run_is_private_for_people(script, tmp_path, capsys):
    file = tmp_path / "found.json"
    script.main(["--seeds", "1", "--epsilons", "3", "--set", "rounds=2", "--json", str(file)])
    (row,) = json.loads(file.read_text())["results"]
    assert {"mean", "own mean", "epsilon 3", "no noise"} <= row.keys()
    assert "| this model, epsilon 3, delta 0.0001 |" in capsys.readouterr().out


def test_the_page_shows_what_is_measured(script):
    found = json.loads((ROOT / "benchmarks" / "measured" / "people" / "movielens.json").read_text())
    assert script.as_markdown(found) in (ROOT / "docs" / "people.md").read_text()
