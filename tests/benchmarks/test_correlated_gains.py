"""The page about correlated noise says what has been trained, and no more."""

import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import correlated_gains

    return correlated_gains


def line(setting, arm, rate, accuracy, seed=0, held_out=False):
    name = "validation" if held_out else "accuracy"
    case = {**setting.case, "arm": arm, "learning_rate": rate} | ({"held_out": True} if held_out else {})
    measured = {name: accuracy, "bands": 4, "rms_error": 0.5 if arm == "bands" else 1.0, "restarts": 0}
    return {"case": case, "seed": seed, "measured": measured, "seconds": 60.0, "at": "2026-11-19"}


def test_a_gain_is_beside_the_first_arm_and_has_its_interval(script):
    setting = next(s for s in script.SETTINGS if "bands" in s.rates and "epochs" in s.case)
    found = [line(setting, "DP-SGD", 1.0, 0.9 + 0.001 * seed, seed) for seed in range(3)]
    found += [line(setting, "bands", 2.0, 0.92 + 0.001 * seed, seed) for seed in range(3)]
    found += [line(setting, "bands", rate, 0.9, held_out=True) for rate in (1.0, 2.0)]
    first, second = script.rows(found)
    assert first[4:] == ("3", "90.10 ± 0.10", "", "")
    undecided = "undecided at this size: 3 of 5 seeds"
    assert second[1:] == ("4 bands", "0.500", "1, **2**", "3", "92.10 ± 0.10", "+2.00 ± 0.23", undecided)
    assert "8 trainings, 8 minutes of one core; 6 of" in script.as_markdown(found)


def test_a_verdict_asks_for_all_seeds_and_an_interval_without_zero(script):
    assert script.verdict(2.0, None, 1) == "undecided at this size: 1 of 5 seeds"
    assert script.verdict(2.0, 0.1, 4).startswith("undecided at this size")
    assert script.verdict(0.2, 0.3, 5) == "undecided: 0 is in the interval"
    assert script.verdict(0.4, 0.3, 5) == "better"
    assert script.verdict(-0.4, 0.3, 5) == "worse"


def test_what_was_tried_only_is_no_result(script):
    setting = script.SETTINGS[0]
    found = [line(setting, "BLT", 1.0, 0.9, held_out=True)]
    assert list(script.rows(found)) == []
    assert "BLT: 90.00 at 1" in script.as_markdown(found)


def test_the_page_shows_what_is_measured(script):
    """The table on the page is the one of the files beside it."""
    found = script.lines(script.MEASURED)
    page = (BENCHMARKS.parent / "docs" / "correlated.md").read_text()
    for row in script.rows(found):
        assert "| " + " | ".join(row) + " |" in page
    assert all(json.dumps(r) for r in found)
