"""Every run is its own: by a random name, in its folder before any ledger has it, and in every line."""

import errno
import json
import os
import shutil
from dataclasses import replace

import pytest
from small_ledgers import DATA, LAYOUT, capped, counted, plan
from small_runs import Killed, config, contents, killed, stopping
from torch import nn
from torch.nn import functional as F
from typer.testing import CliRunner

from discreet import Ledger, PrivacyError, attach, verify
from discreet.cli.app import app
from discreet.ledger import Identity, RunLedger, chained, storage
from discreet.ledger.forks import forks
from discreet.runs.progress import Watch
from discreet.runs.run import resume, train

runner = CliRunner()


def shared(tmp_path, **more):
    path = str(tmp_path / "all.jsonl")
    return {"ledger": path, "dataset": "clouds", "dataset_epsilon": 30.0, "dataset_delta": 1e-5, **more}


def released(path):
    return sorted(run.released for run in verify(path).runs)


def named(folder):
    return json.loads((folder / "run.json").read_text())["run"]


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- a name ----------------------------------------------------------------------------------------------------------


def test_the_name_is_in_the_folder_before_the_ledger_has_it_and_in_every_line(table, tmp_path, monkeypatch):
    seen = []
    original = RunLedger.__init__

    def spy(self, *arguments, **settings):
        seen.append((named(tmp_path / "a"), (tmp_path / "a" / "ledger.jsonl").exists()))
        original(self, *arguments, **settings)

    monkeypatch.setattr(RunLedger, "__init__", spy)
    train(config(table), tmp_path / "a")
    assert seen == [(named(tmp_path / "a"), False)]
    assert {line["run"] for line in lines(tmp_path / "a" / "ledger.jsonl")} == {named(tmp_path / "a")}
    train(config(table), tmp_path / "b")
    assert named(tmp_path / "a") != named(tmp_path / "b")


def test_equal_plans_in_one_data_sets_ledger_are_different_runs_whichever_is_killed(table, tmp_path):
    """Killed after the first line and before the folder knows of it, one after the other, and both continued."""
    made = config(table, run=shared(tmp_path))
    for name in ("a", "b"):
        with pytest.raises(Killed):
            train(made, tmp_path / name, killed(1))
        (tmp_path / name / "checkpoint").unlink(missing_ok=True)
        (tmp_path / name / ".begun").unlink(missing_ok=True)
    steps = {"a": [], "b": []}
    for name in ("b", "a"):
        assert resume(tmp_path / name, Watch(step=steps[name].append)).finished
    assert released(tmp_path / "all.jsonl") == [8, 8]
    assert {run.run for run in verify(tmp_path / "all.jsonl").runs} == {named(tmp_path / "a"), named(tmp_path / "b")}
    assert steps == {"a": list(range(2, 9)), "b": list(range(2, 9))}


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EIO])
def test_a_run_whose_own_lock_fails_is_refused_by_name(table, tmp_path, monkeypatch, number):
    train(config(table, run=shared(tmp_path)), tmp_path / "a", stopping(2))
    take = storage.Lock._take

    def failing(lock):
        if named(tmp_path / "a") in lock._path.name:
            raise OSError(number, os.strerror(number), str(lock._path))
        return take(lock)

    with monkeypatch.context() as patch:
        patch.setattr(storage.Lock, "_take", failing)
        with pytest.raises(PrivacyError, match=r"run .* in .*all\.jsonl cannot be locked"):
            resume(tmp_path / "a")
        (tmp_path / f"all.jsonl.{named(tmp_path / 'a')}.lock").touch()  # as a kill leaves it
        with pytest.raises(PrivacyError, match=r"run .* in .*all\.jsonl cannot be locked"):
            attach(nn.Linear(3, 2), plan(), ledger=replace(capped(tmp_path / "all.jsonl", 30.0), dataset="clouds"))
    assert resume(tmp_path / "a").finished


def test_a_folder_that_lost_its_name_is_not_taken_for_another_run(table, tmp_path):
    made = config(table, run=shared(tmp_path))
    train(made, tmp_path / "a", stopping(2))
    (tmp_path / "a" / "run.json").unlink()
    with pytest.raises(PrivacyError, match=r"nothing says which of them this is: its folder has lost its run\.json"):
        resume(tmp_path / "a")


def test_another_runs_name_or_ledger_in_a_folder_is_refused(table, tmp_path):
    for name in ("a", "b"):
        train(config(table), tmp_path / name, stopping(2))
    shutil.copy(tmp_path / "b" / "run.json", tmp_path / "a" / "run.json")
    with pytest.raises(PrivacyError, match="one of the two was put in the other's place"):
        resume(tmp_path / "a")


def test_a_folder_whose_run_is_not_in_the_ledger_it_names_does_not_hold(table, tmp_path):
    train(config(table, run=shared(tmp_path)), tmp_path / "a", stopping(2))
    (tmp_path / "all.jsonl").unlink()
    train(config(table, run=shared(tmp_path)), tmp_path / "b", stopping(2))
    shown = runner.invoke(app, ["verify", str(tmp_path / "a")])
    assert shown.exit_code == 1
    assert f"does not hold run {named(tmp_path / 'a')}" in " ".join(shown.output.split())
    assert runner.invoke(app, ["verify", str(tmp_path / "b")]).exit_code == 0
    with pytest.raises(PrivacyError, match="what the run has spent is gone from"):
        resume(tmp_path / "a")
    (tmp_path / "a" / "checkpoint").unlink()
    with pytest.raises(PrivacyError, match="what the run has spent is gone from"):
        resume(tmp_path / "a")
    assert [run.run for run in verify(tmp_path / "all.jsonl").runs] == [named(tmp_path / "b")]


def test_a_ledger_that_was_moved_is_not_begun_anew_where_it_was(table, tmp_path):
    (tmp_path / "here").mkdir()
    train(config(table, run=shared(tmp_path / "here")), tmp_path / "a", stopping(2))
    (tmp_path / "here").rename(tmp_path / "there")
    with pytest.raises(PrivacyError, match="what the run has spent is gone from"):
        resume(tmp_path / "a")
    assert not (tmp_path / "here").exists()
    assert runner.invoke(app, ["verify", str(tmp_path / "a")]).exit_code != 0


def test_a_refused_run_takes_nothing_of_a_data_sets_cap(table, tmp_path):
    one = config(table).plan(64).guarantee().epsilon
    made = config(table, run=shared(tmp_path, dataset_epsilon=1.2 * one), model={"name": "small_runs:mixing"})
    with pytest.raises(PrivacyError):
        train(made, tmp_path / "a")
    assert not (tmp_path / "a").exists()
    train(config(table, run=shared(tmp_path, dataset_epsilon=1.2 * one)), tmp_path / "b")
    assert released(tmp_path / "all.jsonl") == [8]


# --- copies ----------------------------------------------------------------------------------------------------------


def test_a_copied_folder_is_noticed_where_the_ledger_is_shared(table, tmp_path):
    train(config(table, run=shared(tmp_path)), tmp_path / "a", stopping(2))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    resume(tmp_path / "a", stopping(1))
    before = contents(tmp_path)
    with pytest.raises(PrivacyError, match=r"was continued from another folder since .* this one is a copy"):
        resume(tmp_path / "b")
    assert contents(tmp_path) == before
    assert resume(tmp_path / "a").finished
    with pytest.raises(PrivacyError, match="this one is a copy"):
        resume(tmp_path / "b")
    assert released(tmp_path / "all.jsonl") == [8]


def test_a_copied_folder_with_a_ledger_of_its_own_shows_when_both_are_verified(table, tmp_path):
    train(config(table), tmp_path / "a", stopping(3))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    places = [str(tmp_path / name) for name in ("a", "b")]
    same = runner.invoke(app, ["verify", *places])
    assert same.exit_code == 0, same.output
    resume(tmp_path / "a")
    assert runner.invoke(app, ["verify", *places]).exit_code == 0  # b is an earlier copy of a, and was not continued
    resume(tmp_path / "b", stopping(2))
    shown = runner.invoke(app, ["verify", *places])
    assert shown.exit_code == 1
    assert "a folder was copied, and both were continued" in " ".join(shown.output.split())
    assert "8 and 5 steps, 3 of them the same, so 10 in all" in " ".join(shown.output.split())
    told = json.loads(runner.invoke(app, ["verify", *places, "--json"]).stdout)
    assert told["holds"] is False
    assert [ledger["holds"] for ledger in told["ledgers"]] == [True, True]
    assert told["forks"][0]["run"] == named(tmp_path / "a")
    assert runner.invoke(app, ["verify", places[0]]).exit_code == 0


def test_a_copied_ledger_of_a_data_set_that_counted_other_runs_since_shows_as_what_it_is(table, tmp_path):
    for name in ("first", "second"):
        train(config(table, run=shared(tmp_path)), tmp_path / name)
    shutil.copy(tmp_path / "all.jsonl", tmp_path / "copy.jsonl")
    places = [tmp_path / "all.jsonl", tmp_path / "copy.jsonl"]
    train(config(table, run=shared(tmp_path)), tmp_path / "third")
    assert forks(places) == []  # the copy was not continued
    train(config(table, run=shared(tmp_path, ledger=str(places[1]))), tmp_path / "fourth")
    (fork,) = forks(places)
    assert "what either proves of all of data set 'clouds' together leaves the other's releases out" in str(fork)
    assert "folder" not in str(fork)


def test_a_run_that_was_only_closed_twice_is_no_fork(table, tmp_path):
    train(config(table), tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    ledger = tmp_path / "b" / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))
    (tmp_path / "b" / "end.json").unlink()
    (tmp_path / "b" / "model.safetensors").unlink()
    metrics = tmp_path / "b" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"loss"', ' "loss"'))  # another hash in its closing line
    assert resume(tmp_path / "b").finished
    assert ledger.read_bytes() != (tmp_path / "a" / "ledger.jsonl").read_bytes()
    assert forks([ledger, tmp_path / "a" / "ledger.jsonl"]) == []


def test_two_copies_that_release_in_one_second_differ(tmp_path, monkeypatch):
    monkeypatch.setattr("time.gmtime", lambda: __import__("datetime").datetime(2026, 1, 1).timetuple())
    counted(tmp_path / "a.jsonl", count=1)
    shutil.copy(tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    for name in ("a", "b"):
        counted(tmp_path / f"{name}.jsonl", count=1)
    (fork,) = forks([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])
    assert (fork.released, fork.released_before, fork.common_lines) == ((2, 2), 1, 2)


# --- ledgers of earlier versions -------------------------------------------------------------------------------------


def as_before(path):
    """A ledger as the version before wrote it: without names of those who write, tests and an end."""
    head, made = "", []
    for content in lines(path):
        if content["kind"] == "end":
            continue
        kept = {k: v for k, v in content.items() if k not in ("attempt", "conditions")}
        kept |= {"format": "discreet-ledger/1"} if "format" in kept else {}
        line, head = chained(kept, head, None)
        made.append(line)
    path.write_bytes(b"".join(made))
    return head


def test_a_ledger_of_an_earlier_version_is_read_and_says_so(tmp_path):
    counted(tmp_path / "ledger.jsonl")
    as_before(tmp_path / "ledger.jsonl")
    found = verify(tmp_path / "ledger.jsonl")
    assert found.old
    assert "An earlier version wrote it" in str(found)
    assert "what was tested of this is not in the ledger" in str(found.runs[0].guarantee)
    assert RunLedger(Ledger(tmp_path / "ledger.jsonl"), plan(), LAYOUT).released == 3


def test_a_folder_of_an_earlier_version_is_continued_by_its_plan(table, tmp_path):
    train(config(table, run=shared(tmp_path)), tmp_path / "a", stopping(2))
    as_before(tmp_path / "all.jsonl")
    for name in ("run.json", "checkpoint", ".begun"):
        (tmp_path / "a" / name).unlink()
    assert resume(tmp_path / "a").finished
    assert released(tmp_path / "all.jsonl") == [8]
    assert named(tmp_path / "a") == verify(tmp_path / "all.jsonl").runs[0].run
    assert resume(tmp_path / "a").already


def test_folders_of_an_earlier_version_with_one_plan_and_ledger_keep_the_runs_they_went_on_with(
    table,
    tmp_path,
):
    for name in ("a", "b"):
        train(config(table, run=shared(tmp_path)), tmp_path / name, stopping(2))
    as_before(tmp_path / "all.jsonl")
    for place in [tmp_path / n / f for n in ("a", "b") for f in ("run.json", "checkpoint", ".begun")]:
        place.unlink()
    for name in ("a", "b"):
        assert resume(tmp_path / name).finished
    for name in ("a", "b"):
        assert resume(tmp_path / name).already
    assert released(tmp_path / "all.jsonl") == [8, 8]


def test_a_state_of_an_earlier_version_is_continued_by_its_plan(tmp_path):
    ledger, model = capped(tmp_path / "patients.jsonl", 50.0), nn.Linear(3, 2)
    first = attach(model, plan(), ledger=ledger)
    for x, y in first.batches(DATA, steps=2):
        first.backward(F.cross_entropy(model(x), y, reduction="none"))
    state = {k: v for k, v in first.state_dict().items() if k != "run"}
    first.detach()
    state["ledger"] = as_before(ledger.path)
    again = attach(model, plan(), ledger=ledger)
    again.load_state_dict(state)
    assert (again.run, again.released) == (first.run, 2)
    again.detach()


def test_a_run_has_a_name_without_a_ledger_too():
    first, second = (RunLedger(None, plan(), LAYOUT) for _ in range(2))
    assert first.name != second.name
    with pytest.raises(Exception, match="there is no ledger that could hold it"):
        attach(nn.Linear(3, 2), plan(), run=first.name)


def test_a_named_run_of_ones_own_ledger(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl", run=Identity("0123abcd"))
    account = RunLedger(ledger, plan(), LAYOUT)
    account.spend()
    account.close()
    assert RunLedger(replace(ledger, run=None), plan(), LAYOUT).name == "0123abcd"


def test_the_lock_that_a_run_left_that_has_ended_is_swept(table, tmp_path):
    train(config(table, run=shared(tmp_path)), tmp_path / "a")
    lock = tmp_path / f"all.jsonl.{named(tmp_path / 'a')}.lock"
    lock.touch()  # as an unlink leaves it that the system refused
    assert resume(tmp_path / "a").already
    assert not lock.exists()
    (tmp_path / "all.jsonl").rename(tmp_path / "elsewhere")
    assert resume(tmp_path / "a").already  # by its extract
    assert not (tmp_path / "all.jsonl").exists()
