"""discreet check from the command line."""

import json
import sys

import pytest
from typer.testing import CliRunner

from discreet.cli.app import app, main

SMALL = ["--shape", "1,6,6", "--classes", "10", "--examples", "200", "--model", "mlp", "--batch-size", "50", "--epochs",
         "10", "--runs", "1", "--set", "model.settings.hidden=[64]"]  # fmt: skip
WHOLE = [*SMALL, "--full", "--check-epochs", "40"]


def invoke(*arguments):
    return CliRunner().invoke(app, ["check", *(str(a) for a in arguments)])


def test_a_plan_that_passes_and_its_figures(tmp_path):
    short = [*SMALL, "--check-epochs", "25", "--noise", "20", "--tolerance", "0.1"]
    result = invoke(*short, "--stand-in", "digits", "--out", tmp_path / "check")
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "pass" in said
    assert "proves nothing" in said
    assert "level 0.0125" in said
    found = json.loads((tmp_path / "check" / "check.json").read_text())
    assert found["memorisation"]["verdict"]["verdict"] == "pass"
    assert found["generalisation"]["data"] == "digits"
    for name in ("memorisation.png", "memorisation.svg"):
        assert (tmp_path / "check" / name).stat().st_size > 1000


def test_a_plan_that_is_too_weak_exits_with_one():
    result = invoke(*WHOLE, "--noise", "0.2", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["verdict"] == "too weak"
    assert found["guarantee"]["epsilon"] > 10


def test_the_smallest_noise_and_what_epsilon_it_is():
    result = invoke(*WHOLE, "--calibrate", "--tries", "3", "--tolerance", "0.15", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert 0.05 < found["noise"] <= 8
    assert len(found["tried"]) == 3
    assert [t["verdict"]["verdict"] for t in found["tried"][:2]] == ["pass", "too weak"]
    said = invoke(*WHOLE, "--calibrate", "--tries", "2", "--tolerance", "0.15").output
    assert "smallest noise that passed is 8" in " ".join(said.split())


def test_users(tmp_path):
    arguments = [
        "--shape", "1,12,12", "--classes", "10", "--users", "30", "--users-per-round", "15", "--rounds", "60",
        "--model", "mlp", "--noise", "4", "--runs", "2", "--learning-rate", "2", "--tolerance", "0.25",
        "--set", "federated.epochs=5", "--set", "method.settings.norm=0.5", "--set", "model.settings.hidden=[16]",
        "--out", tmp_path,
    ]  # fmt: skip
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "one user's" in said
    assert "for each user" in said
    assert (tmp_path / "patterns.png").stat().st_size > 1000
    assert json.loads((tmp_path / "check.json").read_text())["patterns"]["users"] == 30


def test_at_full_size_the_number_of_patterns_is_swept():
    arguments = [
        "--shape", "1,4,4", "--classes", "3", "--users", "12", "--users-per-round", "6", "--rounds", "2", "--model",
        "linear", "--noise", "2", "--runs", "1", "--full", "--tolerance", "1", "--json",
    ]  # fmt: skip
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    points = [(p["where"], p["patterns"]) for p in json.loads(result.stdout)["patterns"]["points"] if p["private"]]
    assert points == [("centralised", n) for n in (1, 2, 5, 10)] + [("distributed", n) for n in (10, 100)]


def test_no_private_data_is_read(monkeypatch):
    monkeypatch.setattr("discreet.audit.sanity.running.load", lambda *a, **k: pytest.fail("data was read"))
    result = invoke("--data", "mnist", "--model", "linear", "--noise", "5", "--runs", "1", "--check-epochs", "1")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "visits.csv", "--noise", "1"], "--shape"),
        (["--data", "visits.csv", "--shape", "3", "--classes", "2", "--noise", "1"], "--examples"),
        (["--data", "digits", "--shape", "a,b", "--noise", "1"], "whole numbers"),
        (["--data", "digits", "--noise", "1", "--epsilon", "1"], "give one of them"),
        (["--data", "digits"], "give one of them"),
        (["--data", "digits", "--noise", "1", "--runs", "0"], "runs"),
        (["--data", "digits", "--noise", "1", "--level", "2"], "level"),
        (["--data", "digits", "--noise", "1", "--tolerance", "7"], "tolerance"),
        (["--data", "digits", "--noise", "1", "--check-epochs", "nan"], "check-epochs"),
        (["--data", "digits", "--noise", "1", "--check-epochs", "-1"], "check-epochs"),
        (["--data", "digits", "--noise", "1", "--seed", "99999999999999999999"], "seed"),
        (["--data", "digits", "--calibrate", "--tries", "1"], "tries"),
        (["--data", "digits", "--calibrate", "--stand-in", "digits"], "stand-in"),
        (["--data", "digits", "--noise", "1", "--users", "30", "--users-per-round", "5", "--stand-in", "digits"],
         "leave it out with --users"),
        (["--data", "digits", "--noise", "1", "--stand-in", "nothing"], "nothing"),
        (["--data", "digits", "--noise", "1", "--users", "3", "--users-per-round", "5"], "larger than the 3"),
        (["--shape", "5", "--classes", "2", "--users", "30", "--users-per-round", "5", "--noise", "1"], "of an image"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(arguments, words, monkeypatch, capsys):
    given = ["discreet", "check", "--runs", "1", "--model", "linear", *arguments]
    monkeypatch.setattr(sys, "argv", given)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert words in lines[-1]
