"""Running from the command line: what is asked for, what is refused, and what survives signals and kills."""

import json
import os
import random
import signal
import sys
import time

import numpy as np
import pytest
from forked import Forked
from typer.testing import CliRunner

from discreet import verify
from discreet.cli.app import app, main

KILLS = int(os.environ.get("DISCREET_KILLS", 100 if os.environ.get("DISCREET_SOAK") else 4))
PATIENCE = 120.0  # seconds for anything at all to happen
EPSILON = 3.0


@pytest.fixture
def table(tmp_path):
    """A small table: 64 rows to train on, 16 to test on."""
    draw = np.random.default_rng(0)
    y = draw.integers(3, size=80)
    path = tmp_path / "clouds.npz"
    np.savez(path, x=draw.normal(size=(80, 5)).astype("f4") + 3 * np.eye(5, dtype="f4")[y], y=y)
    return path


def flags(table, **more):
    values = {"data": table, "model": "linear", "epsilon": EPSILON, "steps": 6, "batch-size": 16} | more
    return [part for name, value in values.items() if value is not None for part in (f"--{name}", str(value))]


def cli(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


# --- the commands ----------------------------------------------------------------------------------------------------


def test_the_digits_are_trained_verified_reported_and_resumed(tmp_path):
    run = tmp_path / "run"
    said = cli(
        "train", "--data", "digits", "--model", "mlp", "--method", "dp_sgd", "--epsilon", "3", "--delta", "1e-5",
        "--epochs", "2", "--batch-size", "64", "--out", run,
    )  # fmt: skip
    assert "What is proven" in said
    assert {p.name for p in run.iterdir()} >= {
        "config.toml", "plan.toml", "ledger.jsonl", "metrics.jsonl", "guarantee.json", "guarantee.txt",
        "model.safetensors", "report.html", "checkpoint",
    }  # fmt: skip
    found = json.loads(cli("verify", run, "--json"))
    assert found["holds"]
    assert found["runs"][0]["guarantee"]["epsilon"] <= 3
    before = {p: p.read_bytes() for p in run.iterdir() if p.is_file()}
    assert "has finished; nothing was done" in cli("resume", run)
    assert {p: p.read_bytes() for p in run.iterdir() if p.is_file()} == before
    assert cli("report", run).strip() == str(run / "report.html")


def test_a_file_says_the_same_as_flags_and_flags_come_first(table, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(f"[data]\nname = '{table}'\n[model]\nname = 'linear'\n[budget]\nnoise = 2.0\nsteps = 5\n")
    found = json.loads(cli("train", path, "--batch-size", "16", "--steps", "4", "--out", tmp_path / "a", "--json"))
    assert found["finished"]
    assert found["guarantee"]["released"] == 4
    assert found["anchor"] == verify(tmp_path / "a").head


def test_show_prints_config_and_guarantee_and_touches_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("discreet.runs.build.load", lambda *a, **k: pytest.fail("data was read"))
    said = cli("train", "--data", "mnist", "--epsilon", "2", "--steps", "50", "--show")
    assert "[budget]" in said
    assert "What this run will prove" in said
    found = json.loads(cli("train", "--data", "mnist", "--epsilon", "2", "--steps", "50", "--show", "--json"))
    assert found["guarantee"]["epsilon"] <= 2
    assert found["plan"]["sampling"]["examples"] == 60_000
    assert not list(tmp_path.iterdir())


def test_runs_are_compared_on_one_page(table, tmp_path):
    for name in ("a", "b"):
        cli("train", *flags(table, epsilon=None, noise=2.0), "--out", tmp_path / name)
    cli("report", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "page")
    assert (tmp_path / "page" / "report.html").is_file()


# --- bad input -------------------------------------------------------------------------------------------------------

FILES = {
    "torn.toml": "[budget\n",
    "unknown.toml": "[budgets]\nepsilon = 3\n",
    "field.toml": "[budget]\nepsilom = 3\n",
    "type.toml": "[budget]\nepsilon = 'three'\n",
    "empty.toml": "",
    "both.toml": "[method]\nname = 'dp_sgd'\n[stages.sampling]\ntype = 'Poisson'\n[stages.bound]\n[stages.noise]\n",
    "list.toml": "budget = []\n",
    "text.csv": "a,b\n1,2\n",
    "torn.npz": "PK no archive",
    "good.toml": "[budget]\nepsilon = 3.0\nsteps = 4\nbatch_size = 16\n",
}
BAD = {
    "no config": ["nowhere.toml"],
    "torn config": ["torn.toml"],
    "a folder as config": ["."],
    "unknown section": ["unknown.toml"],
    "unknown field": ["field.toml"],
    "wrong type": ["type.toml"],
    "nothing said": ["empty.toml"],
    "method and stages": ["both.toml", "--epsilon", "3"],
    "no table": ["list.toml"],
    "no epsilon": ["--epochs", "1"],
    "epsilon and noise": ["good.toml", "--noise", "1"],
    "epsilon 0": ["good.toml", "--epsilon", "0"],
    "epsilon below 0": ["good.toml", "--epsilon", "-1"],
    "epsilon nan": ["good.toml", "--epsilon", "nan"],
    "epsilon inf": ["good.toml", "--epsilon", "inf"],
    "noise below 0": ["--noise", "-1"],
    "delta 0": ["good.toml", "--delta", "0"],
    "delta 1": ["good.toml", "--delta", "1"],
    "epochs 0": ["--epsilon", "3", "--epochs", "0"],
    "epochs nan": ["--epsilon", "3", "--epochs", "nan"],
    "epochs far": ["--epsilon", "3", "--epochs", "1e300"],
    "steps below 0": ["good.toml", "--steps", "-1"],
    "batch 0": ["good.toml", "--batch-size", "0"],
    "batch too large": ["good.toml", "--batch-size", "100000"],
    "unknown data": ["good.toml", "--data", "figures"],
    "no such table": ["good.toml", "--data", "nowhere.csv"],
    "no such folder": ["good.toml", "--data", "mnist", "--folder", "nowhere", "--set", "data.download=false"],
    "table without label": ["good.toml", "--data", "text.csv"],
    "table without schema": ["good.toml", "--data", "text.csv", "--label", "b"],
    "no archive": ["good.toml", "--data", "torn.npz"],
    "no module": ["good.toml", "--data", "no_such_module:function"],
    "other number of examples": ["good.toml", "--set", "data.examples=7"],
    "unknown model": ["good.toml", "--model", "brain"],
    "model of another shape": ["good.toml", "--data", "clouds.npz", "--model", "cnn"],
    "model setting": ["good.toml", "--set", "model.settings.hiden=[4]"],
    "no model module": ["good.toml", "--model", "no_such_module:function"],
    "unknown method": ["good.toml", "--method", "magic"],
    "method setting": ["good.toml", "--set", "method.settings.normm=1"],
    "method value": ["good.toml", "--set", "method.settings.norm=-1"],
    "unknown optimizer": ["good.toml", "--optimizer", "sgdd"],
    "learning rate": ["good.toml", "--learning-rate", "-1"],
    "learning rate nan": ["good.toml", "--learning-rate", "nan"],
    "momentum of adam": ["good.toml", "--optimizer", "adam", "--momentum", "0.9"],
    "unknown schedule": ["good.toml", "--schedule", "steps"],
    "warmup": ["good.toml", "--set", "schedule.warmup=3.0"],
    "averaging": ["good.toml", "--averaging", "1"],
    "seed": ["good.toml", "--seed", "-3"],
    "chunk": ["good.toml", "--chunk", "0"],
    "device": ["good.toml", "--device", "abacus"],
    "no assignment": ["good.toml", "--set", "nonsense"],
    "unknown assignment": ["good.toml", "--set", "run.sed=1"],
    "copies": ["good.toml", "--set", "augmentation.copies=4"],
    "augmented rows": ["good.toml", "--data", "clouds.npz", "--set", "augmentation.flip=true"],
    "cap without a data set": ["good.toml", "--cap", "3"],
    "cap of nothing": ["good.toml", "--dataset", "mine", "--cap", "0"],
    "cap of a run alone": ["good.toml", "--alone", "--cap", "3"],
}  # fmt: skip


def refused(arguments, monkeypatch, capsys, code=2):
    """The one line that the command line says."""
    monkeypatch.setattr("sys.argv", ["discreet", *map(str, arguments)])
    with pytest.raises(SystemExit) as ending:
        main()
    assert ending.value.code == code
    found = capsys.readouterr()
    assert found.out == ""
    (line,) = found.err.splitlines()
    assert line.startswith("discreet: ")
    return line


@pytest.mark.parametrize("arguments", BAD.values(), ids=BAD)
def test_bad_input_is_one_line_and_leaves_nothing(arguments, table, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DISCREET_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    before = {p.name for p in tmp_path.iterdir()}
    line = refused(["train", *arguments, "--out", "run"], monkeypatch, capsys)
    assert len(line) > 30  # it says what, and what to do
    assert {p.name for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--epsilon", "3"],
        ["train", "--epsilon", "3", "--out", "file"],
        ["train", "--epsilon", "3", "--out", "file/below"],
        ["train", "--epsilon", "3", "--out", "full"],
        ["train", "--epsilon", "3", "--out", "n" * 300],
        ["train", "--data", "nowhere.csv", "--epsilon", "3", "--show"],
        ["resume", "nowhere"],
        ["resume", "full"],
        ["resume", "file"],
        ["resume", "n" * 300],
        ["resume", "broken"],
        ["resume", "changed"],
        ["report", "nowhere"],
        ["report", "full"],
        ["verify", "nowhere"],
        ["verify", "full"],
    ],
)
def test_folders_that_are_not_right_are_left_as_they_were(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    for name, text in (("broken", "[budget\n"), ("changed", "[budget]\nepsilon = -3.0\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").write_text(text)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p.name != ".lock"}
    refused(arguments, monkeypatch, capsys)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p.name != ".lock"} == before


@pytest.mark.parametrize("arguments", [["train", "--unknown"], ["train", "--epsilon", "three"], ["resume"], ["tarin"]])
def test_a_command_line_that_cannot_be_parsed_is_exit_code_2(arguments, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["discreet", *arguments])
    with pytest.raises(SystemExit) as ending:
        main()
    assert ending.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_finished_run_is_not_overwritten(table, tmp_path, monkeypatch, capsys):
    cli("train", *flags(table, epsilon=None, noise=2.0), "--out", tmp_path / "a")
    before = {p: p.read_bytes() for p in (tmp_path / "a").rglob("*") if p.is_file()}
    line = refused(["train", *flags(table), "--out", tmp_path / "a"], monkeypatch, capsys)
    assert "left alone" in line
    assert {p: p.read_bytes() for p in (tmp_path / "a").rglob("*") if p.is_file()} == before


def test_a_damaged_run_is_refused_in_one_line_and_nothing_is_lost(table, tmp_path, monkeypatch, capsys):
    cli("train", *flags(table, epsilon=None, noise=2.0), "--alone", "--out", tmp_path / "a")
    (tmp_path / "a" / "end.json").unlink()
    path = tmp_path / "a" / "ledger.jsonl"
    text = path.read_text()
    path.write_text(text.replace('"step": 3', '"step": 2'))
    assert "line 5" in refused(["resume", tmp_path / "a"], monkeypatch, capsys, code=3)
    path.write_text(text)
    cli("resume", tmp_path / "a")


# --- signals and kills -----------------------------------------------------------------------------------------------


def start(*arguments):
    return Forked(run_command, *map(str, arguments))


def run_command(*arguments):
    sys.argv = ["discreet", *arguments]
    main()


def until(process, happened):
    """Wait until something has happened; whether it did before the process ended."""
    deadline = time.monotonic() + PATIENCE
    while not happened():
        if process.poll() is not None:
            return happened()
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.001)  # only to leave the core to the process that is watched
    return True


def finished(run):
    """Continue a run to its end in this process; what its ledger proves."""
    found = json.loads(cli("resume", run, "--json"))
    assert found["finished"]
    assert found["guarantee"]["epsilon"] <= EPSILON
    verified = json.loads(cli("verify", run, "--anchor", found["anchor"], "--json"))
    assert verified["holds"]
    (proven,) = verified["runs"]
    assert proven["released"] == proven["planned"]
    assert proven["guarantee"]["epsilon"] <= EPSILON
    assert (run / "report.html").is_file()
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_after_the_current_release_and_everything_is_saved(table, tmp_path, number):
    run = tmp_path / "run"
    with start("train", *flags(table, steps=300), "--set", "evaluation.every=5.0", "--out", run) as process:
        assert until(process, (run / "metrics.jsonl").exists)
        process.send_signal(number)
        said, complained = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number
    assert "Traceback" not in complained
    assert f"discreet resume {run}" in said
    assert 0 < verify(run).runs[0].released < 300
    assert finished(run)["lost_steps"] == 0  # nothing is lost by stopping


def ledger_lines(run, count):
    return lambda: (run / "ledger.jsonl").exists() and (run / "ledger.jsonl").read_bytes().count(b"\n") >= count


def scratch(run, name):
    return lambda: run.is_dir() and any(p.name.startswith(f".{name}.") for p in run.iterdir())


MOMENTS = {
    "the folder is made": lambda run, draw: run.is_dir,
    "the plan is solved": lambda run, draw: (run / "plan.toml").exists,
    "the ledger is opened": lambda run, draw: (run / "ledger.jsonl").exists,
    "some releases are made": lambda run, draw: ledger_lines(run, draw.randrange(2, 60)),
    "a checkpoint is written": lambda run, draw: scratch(run, "checkpoint"),
    "the config is written": lambda run, draw: (run / "config.toml").exists,
    "something is measured": lambda run, draw: (run / "metrics.jsonl").exists,
    "the model is written": lambda run, draw: scratch(run, "model.safetensors"),
    "the end is near": lambda run, draw: (run / "guarantee.json").exists,
    "it imports": lambda run, draw: lambda: True,
}  # fmt: skip


def test_a_run_that_is_killed_at_any_moment_is_resumed_within_its_budget(table, tmp_path):
    draw, kills, campaign = random.Random(5), 0, 0
    moments = ["some releases are made", "the folder is made", "a checkpoint is written", "the end is near"]
    while kills < KILLS:
        run = tmp_path / str(campaign)
        campaign += 1
        known = 0
        for _ in range(min(4, KILLS - kills)):
            moment = moments[kills] if kills < len(moments) else draw.choice(list(MOMENTS))
            origin_step = (run / "config.toml").exists()
            arguments = (
                ["resume", run]
                if origin_step
                else ["train", *flags(table, steps=60), "--alone", "--set", "run.checkpoint_every=0.0", "--out", run]
            )
            with start(*arguments) as process:
                until(process, MOMENTS[moment](run, draw))
                process.kill()
                _, complained = process.communicate(timeout=PATIENCE)
            kills += 1
            assert "Traceback" not in complained, moment
            if ledger_lines(run, 1)():
                released = verify(run).runs[0].released
                assert known <= released <= 60, moment
                known = released
        if not (run / "config.toml").exists():
            cli("train", *flags(table, steps=60), "--alone", "--out", run)
        finished(run)
