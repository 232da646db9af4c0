"""A search: drawn once, stopped and taken up, counted once, and only the best is released."""

import json
import os
from dataclasses import replace

import pytest
from small_runs import config, table_at

import discreet
from discreet import BudgetExhausted, ConfigError, PrivacyError, verify
from discreet.ledger.budget import read_budget
from discreet.runs.config import merged
from discreet.runs.outcome import read_end
from discreet.runs.progress import Watch
from discreet.tuning import draws
from discreet.tuning.tune import BEST, DRAWS, SCORES, TRIALS, go_on, is_search, tune

SPACE = {"optimizer.learning_rate": {"low": 0.05, "high": 2.0, "log": True}, "budget.steps": [4, 8]}


@pytest.fixture
def asked(tmp_path, monkeypatch):
    monkeypatch.setattr(draws, "draw_runs", lambda tuning, uniform: 3)
    search = {"space": SPACE, "runs": 3.0}
    return config(table_at(tmp_path), budget={"noise": None, "epsilon": 5.0, "steps": 4}, tune=search)


def names(folder):
    return sorted(place.name for place in (folder / TRIALS).iterdir())


@pytest.mark.parametrize("method", ["adaptive_clipping", "band_mf", "dp_ftrl"])
def test_other_methods_are_searched_and_verified_too(asked, tmp_path, method):
    best = tune(merged(asked, {"method.name": method, "tune.space": SPACE}), tmp_path / "runs" / "a").best
    assert 4.8 < best.guarantee.epsilon <= 5.0
    assert verify(tmp_path / "runs" / "a" / BEST).runs[0].guarantee == best.guarantee


def test_only_the_best_is_released_and_its_guarantee_has_all_of_it(asked, tmp_path):
    folder = tmp_path / "runs" / "a"
    found = tune(asked, folder)
    assert found.finished
    assert len(found.trials) == len(found.scores) == 3
    best = max(found.scores, key=found.scores.get)
    own = read_end(folder / TRIALS / best)
    assert found.best.guarantee == own.guarantee
    assert 4.9 < found.best.guarantee.epsilon <= 5.0
    assert verify(folder / BEST).runs[0].guarantee == found.best.guarantee
    assert (
        found.best.guarantee.epsilon
        > replace(discreet.Plan.load(folder / BEST / "plan.toml"), tuning=None, epsilon=None).guarantee().epsilon
    )
    assert discreet.load(folder / BEST).guarantee == found.best.guarantee
    # nothing that is released tells which trial it was, or how many there were
    for name in names(folder):
        assert all(name.encode() not in path.read_bytes() for path in (folder / BEST).rglob("*") if path.is_file())
    assert not (folder / BEST / DRAWS).exists()
    for secret in (DRAWS, SCORES):
        assert (folder / secret).stat().st_mode & 0o077 == 0
    # it is counted once, as one line that does not say how many trials there were
    counted = read_budget(tmp_path / "runs" / "datasets" / "clouds.jsonl")
    assert [one.what for one in counted.spent] == ["the best of 3 trials on average, a"]
    assert counted.total.epsilon == pytest.approx(found.best.guarantee.epsilon, rel=1e-3)
    assert any("counts the whole search" in c.text for c in found.best.guarantee.conditions)
    page = (folder / "report.html").read_text()
    assert "Not for publication" in page
    assert all(name in page for name in names(folder))
    assert "If all 3 trials were shown" in page
    again = go_on(folder)
    assert again.already
    assert again.best.guarantee == found.best.guarantee
    assert len(read_budget(tmp_path / "runs" / "datasets" / "clouds.jsonl").spent) == 1


def test_a_search_that_is_stopped_goes_on_with_what_was_drawn(asked, tmp_path, monkeypatch):
    folder, looks = tmp_path / "a", []

    def stop():
        looks.append(1)
        return len(looks) > 8  # within the second trial

    half = tune(asked, folder, Watch(stop=stop))
    assert not half.finished
    assert half.best is None
    assert not (folder / BEST).exists()
    before = (folder / DRAWS).read_bytes()
    monkeypatch.setattr(draws, "draw", lambda tune: pytest.fail("it was drawn again"))
    whole = go_on(folder)
    assert whole.finished
    assert whole.trials == half.trials
    assert half.scores.items() <= whole.scores.items()
    assert (folder / DRAWS).read_bytes() == before
    assert len(read_budget(tmp_path / "datasets" / "clouds.jsonl").spent) == 1


def test_draws_that_are_gone_are_not_drawn_again(asked, tmp_path):
    folder = tmp_path / "a"
    tune(asked, folder, Watch(stop=lambda: True))
    (folder / DRAWS).unlink()
    with pytest.raises(PrivacyError, match="was drawn once"):
        go_on(folder)


def test_a_score_is_the_same_again_after_a_crash(asked, tmp_path):
    folder = tmp_path / "a"
    first = tune(asked, folder)
    (folder / SCORES).unlink()
    for place in (folder / BEST).iterdir():
        place.unlink() if place.is_file() else [inner.unlink() for inner in place.iterdir()] and place.rmdir()
    (folder / BEST).rmdir()
    assert go_on(folder).scores == first.scores


def test_what_does_not_fit_under_the_cap_is_refused_before_anything_is_asked(asked, tmp_path):
    capped = discreet.runs.config.merged(asked, {"run.dataset_epsilon": 1.0})
    with pytest.raises(BudgetExhausted, match="may spend epsilon 1"):
        tune(capped, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_number_that_is_none_releases_nothing_and_is_counted(asked, tmp_path, monkeypatch):
    monkeypatch.setattr(draws, "draw_runs", lambda tuning, uniform: 0)
    found = tune(discreet.runs.config.merged(asked, {"tune.distribution": "poisson"}), tmp_path / "a")
    assert found.finished
    assert found.best is None
    assert not (tmp_path / "a" / BEST).exists()
    assert len(read_budget(tmp_path / "datasets" / "clouds.jsonl").spent) == 1


def test_a_folder_that_is_no_searchs(tmp_path):
    assert not is_search(tmp_path)
    with pytest.raises(ConfigError, match="no search's folder"):
        go_on(tmp_path)


def test_what_is_refused_leaves_nothing(asked, tmp_path):
    with pytest.raises(ConfigError, match="no \\[tune\\]"):
        tune(config(tmp_path / "clouds.npz"), tmp_path / "a")
    wrong = discreet.runs.config.merged(asked, {"tune.space": {"model.settings.hidden": [[4]]}})
    with pytest.raises(ConfigError):
        tune(wrong, tmp_path / "a")
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "datasets").exists()


def test_scores_that_were_spoiled_are_one_error(asked, tmp_path):
    folder = tmp_path / "a"
    tune(asked, folder, Watch(stop=lambda: True))
    (folder / SCORES).write_text("[]")
    with pytest.raises(ConfigError, match="cannot be read"):
        go_on(folder)
    assert json.loads((folder / DRAWS).read_text())["trials"]
    os.truncate(folder / DRAWS, 10)
    with pytest.raises(ConfigError, match="cannot be read"):
        go_on(folder)
