"""Which ledger counts a run: its data set's, unless something else is said, and then the guarantee says so."""

import pytest
from small_runs import config as alone_unless_said
from small_runs import table_at

from discreet import BudgetExhausted, ConfigError, Ledger, verify
from discreet.ledger.budget import read_budget
from discreet.ledger.conditions import ALONE
from discreet.runs.config import from_dict
from discreet.runs.progress import Watch
from discreet.runs.registry import name_of_data, noted, registered, told, within_search
from discreet.runs.run import resume, train


@pytest.fixture
def table(tmp_path):
    return table_at(tmp_path)


def config(table, run=None):
    return alone_unless_said(table, run={"alone": False, **(run or {})})


def test_runs_on_one_file_are_counted_together(table, tmp_path):
    said = []
    one = train(config(table), tmp_path / "runs" / "a")
    train(config(table), tmp_path / "runs" / "b", Watch(say=said.append))
    found = read_budget(tmp_path / "runs" / "datasets" / "clouds.jsonl")
    assert [run.place for run in found.spent] == ["a", "b"]
    assert all(run.by and run.at and run.state == "ended" for run in found.spent)
    assert one.guarantee.epsilon < found.total.epsilon < 2 * one.guarantee.epsilon
    assert said[0].startswith("Data set 'clouds': 1 run was counted before, ε")
    assert "few examples" in said[1]
    assert not (tmp_path / "runs" / "a" / "ledger.jsonl").exists()
    assert verify(tmp_path / "runs" / "a").total.epsilon == found.total.epsilon
    assert resume(tmp_path / "runs" / "a").guarantee == one.guarantee


def test_a_cap_is_of_all_runs(table, tmp_path):
    first = train(config(table), tmp_path / "a").guarantee.epsilon
    train(config(table, run={"dataset_epsilon": 1.2 * first}), tmp_path / "other" / "a")
    with pytest.raises(BudgetExhausted, match="may spend"):
        train(config(table), tmp_path / "other" / "b")
    assert not (tmp_path / "other" / "b").exists()


def test_a_run_that_is_counted_alone_says_so_and_so_does_its_ledger(table, tmp_path):
    alone = config(table, run={"alone": True})
    found = train(alone, tmp_path / "a")
    assert (tmp_path / "a" / "ledger.jsonl").exists()
    assert not (tmp_path / "datasets").exists()
    assert ALONE in found.guarantee.conditions
    assert ALONE in verify(tmp_path / "a").runs[0].guarantee.conditions
    assert within_search(alone) == []


@pytest.mark.parametrize(
    ("name", "found"), [("a/people.csv", "people"), ("x.y.parquet", "x.y"), ("digits", None), ("module:function", None)]
)
def test_a_data_set_has_its_files_name(name, found):
    assert name_of_data(from_dict({"data": {"name": name}})) == found


def test_what_is_public_by_its_name_is_counted_where_that_is_said(tmp_path):
    plain = from_dict({"data": {"name": "digits"}})
    assert registered(plain, tmp_path / "a") == plain
    said = registered(from_dict({"data": {"name": "digits"}, "run": {"dataset": "mine"}}), tmp_path / "a")
    assert said.run.ledger == str(tmp_path / "datasets" / "mine.jsonl")


@pytest.mark.parametrize("name", ["../up", ".", "a\\b", "\n", "x" * 101])
def test_a_name_that_no_file_may_have_is_refused(name, tmp_path):
    with pytest.raises(ConfigError, match="--dataset"):
        registered(from_dict({"run": {"dataset": name}}), tmp_path / "a")


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"alone": True, "dataset": "mine"}, "leave it out"),
        ({"alone": True, "dataset_epsilon": 1.0}, "leave it out"),
        ({"dataset_epsilon": -1.0}, "--cap"),
    ],
)
def test_what_is_said_of_counting_goes_together(run, words, table, tmp_path):
    with pytest.raises(ConfigError, match=words):
        train(config(table, run=run), tmp_path / "a")


def test_a_cap_needs_a_data_set(tmp_path):
    with pytest.raises(ConfigError, match="no file that names one"):
        train(from_dict({"budget": {"epsilon": 1.0}, "run": {"dataset_epsilon": 1.0}}), tmp_path / "a")


def test_a_ledger_for_one_run_notes_and_tells_nothing(tmp_path):
    own = Ledger(tmp_path / "ledger.jsonl")
    assert noted(own, tmp_path) is own
    assert told(own, from_dict({"budget": {"noise": 1.0}}).plan(1000)) == ""
