"""What is shown of a run is what its ledger proves: nothing that was edited beside it, or in it, is repeated."""

import errno
import json
import os
import random
import shutil

import pytest
from forgery import mutations, rewritten
from safetensors.torch import load_file, save_file
from small_runs import config, contents, stopping, table_at
from typer.testing import CliRunner

from discreet import ConfigError, Guarantee, PrivacyError, verify
from discreet.cli.app import app, main
from discreet.ledger import storage
from discreet.ledger.chain import cut_off
from discreet.report import read
from discreet.runs.outcome import read_end
from discreet.runs.run import resume, train

runner = CliRunner()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run that has finished, and one that was stopped, to be copied."""
    place = tmp_path_factory.mktemp("made")
    settings = config(table_at(place))
    train(settings, place / "finished")
    train(settings, place / "stopped", stopping(3))
    return place


@pytest.fixture
def run(made, tmp_path):
    return shutil.copytree(made / "finished", tmp_path / "a")


@pytest.fixture
def stopped(made, tmp_path):
    return shutil.copytree(made / "stopped", tmp_path / "a")


def edit(path, change):
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def swap_model(run):
    weights = load_file(run / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in weights.items()}, run / "model.safetensors")


def invent_accuracy(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    lines[-1] = json.dumps(json.loads(lines[-1]) | {"accuracy": 0.999})
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def of_guarantee(**change):
    return lambda run: edit(run / "guarantee.json", lambda values: values.update(change))


def all_checked(run):
    def change(values):
        for condition in values["conditions"]:
            condition["status"] = "proven"

    edit(run / "guarantee.json", change)


FORGERIES = {
    "a swapped model": swap_model,
    "an invented accuracy": invent_accuracy,
    "another accuracy at the end": lambda run: edit(run / "end.json", lambda v: v.update(accuracy=0.999)),
    "fewer steps lost": lambda run: edit(run / "end.json", lambda v: v.update(lost=3)),
    "another anchor": lambda run: edit(run / "end.json", lambda v: v.update(anchor="0" * 64)),
    "conditions that are all proven": all_checked,
    "no conditions": of_guarantee(conditions=[]),
    "a claim": of_guarantee(claims=[{"source": "us", "epsilon": 0.1, "verdict": "holds", "reason": "we say so"}]),
    "another proof": of_guarantee(proof="by hand"),
    "a smaller epsilon": of_guarantee(epsilon=0.01),
    "a larger epsilon": of_guarantee(epsilon=99.0),
    "fewer releases": of_guarantee(released=1),
    "another plan": lambda run: (run / "plan.toml").write_text(
        (run / "plan.toml").read_text().replace("multiplier = 2.0", "multiplier = 9.0")
    ),
    "other events": lambda run: edit(run / "guarantee.json", lambda v: v["phases"][0].update(steps=1)),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_what_was_edited_in_a_finished_run_is_not_repeated(run, forgery):
    FORGERIES[forgery](run)
    if forgery != "another plan":  # of which an end says nothing
        with pytest.raises(PrivacyError, match=r"changed|not the file that the run left"):
            resume(run)
    found = read(run)
    assert found.holds == (forgery in ("another accuracy at the end", "fewer steps lost", "another anchor"))
    assert found.plan.mechanism.noise.multiplier == 2.0
    assert found.guarantee == verify(run / "ledger.jsonl").runs[0].guarantee  # what the page shows


def test_verify_sees_a_swapped_model_and_metrics_in_a_folder(run):
    assert runner.invoke(app, ["verify", str(run)]).exit_code == 0
    swap_model(run)
    shown = runner.invoke(app, ["verify", str(run)])
    assert shown.exit_code == 1
    assert "model.safetensors is not the file that the run left" in " ".join(shown.output.split())
    assert runner.invoke(app, ["verify", str(run / "ledger.jsonl")]).exit_code == 0


def test_a_model_that_was_moved_elsewhere_is_said_and_no_forgery(run):
    (run / "model.safetensors").unlink()
    assert verify(run).absent == ("model.safetensors",)
    assert "Not there to be compared" in str(verify(run))


def test_an_epsilon_so_far_that_is_less_than_the_ledger_has_is_in_doubt(stopped):
    assert read(stopped).doubts == ()
    lines = (stopped / "metrics.jsonl").read_text().splitlines()
    lines[-1] = json.dumps(json.loads(lines[-1]) | {"epsilon": 0.01})
    (stopped / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (doubt,) = read(stopped).doubts
    assert "metrics.jsonl says that ε is 0.01 after 3 steps, and the ledger has" in doubt


def test_a_note_of_the_beginning_that_cannot_be_written_is_one_line_of_error(made, tmp_path, monkeypatch):
    replace = storage.replace

    def full(path, *arguments, **settings):
        if path.name == ".begun":
            raise OSError(errno.ENOSPC, "no space left", str(path))
        replace(path, *arguments, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(storage, "replace", full)
        with pytest.raises(ConfigError, match=r"\.begun cannot be written: .*no space left"):
            train(config(made / "clouds.npz"), tmp_path / "a")
    assert resume(tmp_path / "a").finished


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_ledger_that_cannot_be_written_is_one_line_of_error_and_nothing_is_released(stopped, monkeypatch, number):
    ledger, append = stopped / "ledger.jsonl", storage.append
    before = ledger.read_bytes()

    def full(path, *arguments, **settings):
        if path == ledger:
            raise OSError(number, os.strerror(number), str(path))
        append(path, *arguments, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(storage, "append", full)
        patch.setattr("sys.argv", ["discreet", "resume", str(stopped)])
        with pytest.raises(SystemExit) as caught:
            main()
    assert caught.value.code == 3
    assert ledger.read_bytes() == before
    with monkeypatch.context() as patch:
        patch.setattr(storage, "append", full)
        with pytest.raises(PrivacyError, match=r"ledger\.jsonl cannot be written: .* Nothing was released"):
            resume(stopped)
    assert resume(stopped).finished


def test_a_ledger_that_cannot_be_read_is_no_ledger_that_does_not_hold(run, monkeypatch):
    ledger = run / "ledger.jsonl"
    ledger.rename(run.parent / "elsewhere")
    ledger.symlink_to(run.parent / "elsewhere")
    with pytest.raises(ConfigError, match=r"ledger\.jsonl is a link, and only regular files are opened"):
        verify(run)
    ledger.unlink()
    os.mkfifo(ledger)
    with pytest.raises(ConfigError, match=r"ledger\.jsonl is a pipe, and only regular files are opened"):
        verify(ledger)
    ledger.unlink()
    (run.parent / "elsewhere").rename(ledger)

    def fail(*arguments):
        raise OSError(errno.EIO, "the disk is broken", str(ledger))

    monkeypatch.setattr("discreet.ledger.storage.os.read", fail)
    with pytest.raises(ConfigError, match=r"cannot be read: .*the disk is broken"):
        verify(run)


def test_what_was_tested_is_in_the_ledger_and_in_what_is_verified(run):
    own = verify(run).runs[0]
    assert own.rests_on is not None
    assert any(c.status == "checked" for c in own.rests_on)
    assert set(own.rests_on) <= set(own.guarantee.conditions)
    assert own.ended
    assert set(own.files) == {"model.safetensors", "model.json", "metrics.jsonl"}


def test_what_was_tested_is_known_of_a_run_that_was_stopped(stopped):
    own = verify(stopped).runs[0]
    assert own.guarantee == Guarantee.from_json((stopped / "guarantee.json").read_text())
    assert not own.ended
    assert own.guarantee.so_far < own.guarantee.epsilon
    assert any(c.status == "checked" for c in own.rests_on)


def test_a_condition_that_was_forged_into_the_ledger_breaks_its_chain(run):
    path = run / "ledger.jsonl"
    path.write_text(path.read_text().replace('"assumed"', '"proven"', 1))
    with pytest.raises(PrivacyError, match="damaged at line"):
        verify(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line.update(released=7) if line["kind"] == "end" else None,
        lambda line: line.update(files={"model.safetensors": 3}) if line["kind"] == "end" else None,
        lambda line: line.update(conditions=[["fine", "certain"]]) if "conditions" in line else None,
        lambda line: line.update(conditions=7) if "conditions" in line else None,
        lambda line: line.update(kind="end", released=0, files={}, lost=0) if line.get("step") == 2 else None,
        lambda line: line.update(run="00") if line["kind"] == "end" else None,
    ],
)
def test_a_rewritten_end_that_makes_no_sense_is_refused(run, change):
    rewritten(run / "ledger.jsonl", change)
    with pytest.raises(PrivacyError, match="damaged at line"):
        verify(run / "ledger.jsonl")


def test_an_end_without_a_closed_ledger_is_not_believed(run):
    lines = (run / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (run / "ledger.jsonl").write_bytes(b"".join(lines[:-1]))
    with pytest.raises(PrivacyError, match=r"says that it has finished, and .* does not"):
        resume(run)


@pytest.mark.parametrize(
    "name", ["config.toml", "plan.toml", "run.json", "checkpoint", "metrics.jsonl", "ledger.jsonl"]
)
def test_a_file_of_a_run_that_is_a_link_or_a_pipe_is_refused_by_name(stopped, name):
    (stopped / name).rename(stopped.parent / "elsewhere")
    (stopped / name).symlink_to(stopped.parent / "elsewhere")
    with pytest.raises((ConfigError, PrivacyError), match=f"{name} is a link, and only regular files are opened"):
        resume(stopped)
    (stopped / name).unlink()
    os.mkfifo(stopped / name)
    with pytest.raises((ConfigError, PrivacyError), match=f"{name} is a pipe, and only regular files are opened"):
        resume(stopped)


# --- ledgers that were changed and are continued ---------------------------------------------------------------------


@pytest.mark.parametrize("filled", [b"\x00" * 40, b"99", b"x", b'{"at": 1}', b'{"kind": "end"}', b'{"b": 1, "a', b"\n"])
def test_a_ledger_with_bytes_filled_in_at_its_end_is_not_continued(stopped, filled):
    path = stopped / "ledger.jsonl"
    path.write_bytes(path.read_bytes() + filled)
    before = contents(stopped)
    with pytest.raises(PrivacyError, match="damaged at line"):
        resume(stopped)
    with pytest.raises(PrivacyError, match="damaged at line"):
        verify(path)
    after = contents(stopped)
    assert {k: v for k, v in after.items() if k != "run.json"} == {k: v for k, v in before.items() if k != "run.json"}


def test_every_place_where_a_line_can_be_cut_off_is_taken_for_a_crash(run):
    for line in (run / "ledger.jsonl").read_bytes().splitlines():
        previous = json.loads(line)["previous"]
        for length in range(1, len(line) + 1):
            told = cut_off(line[:length], previous)
            assert told.items() <= json.loads(line).items()


def test_a_changed_byte_in_what_was_cut_off_is_mostly_not_taken_for_a_crash(run):
    """What cannot be told is counted as one more step: it changes nothing but the count, upwards."""
    line = (run / "ledger.jsonl").read_bytes().splitlines()[3]
    previous, taken, draw = json.loads(line)["previous"], 0, random.Random(3)
    for _ in range(500):
        text = bytearray(line[: draw.randrange(40, len(line))])
        text[draw.randrange(len(text))] = draw.randrange(256)
        try:
            cut_off(bytes(text), previous)
        except PrivacyError:
            continue
        taken += 1
    assert taken < 200


def test_no_mutation_of_any_file_of_a_finished_run_is_repeated(run, fuzz_count):
    """What resume says of a finished run that was changed anywhere is what it said before, or an error."""
    first = read_end(run)
    names = sorted(p.name for p in run.iterdir() if p.is_file() and p.name not in (".lock", "ledger.jsonl.lock"))
    kept, draw = contents(run), random.Random(5)
    for name in names:
        for changed in mutations(kept[name] or b"\n", fuzz_count // 50, seed=draw.randrange(10**6)):
            (run / name).write_bytes(changed)
            try:
                again = read_end(run)
            except (ConfigError, PrivacyError):
                continue
            assert again == first, name
        (run / name).write_bytes(kept[name])
    assert read_end(run) == first
