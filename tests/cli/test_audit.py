"""The audit of runs from the command line: with canaries in them, and after the fact."""

import json
import os
import re

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from discreet import ConfigError, PrivacyError
from discreet.audit.audit_run import audit
from discreet.cli.app import app, main
from discreet.runs.build import make_optimizer
from discreet.runs.config import from_dict
from discreet.runs.progress import Watch
from discreet.runs.run import resume, train
from discreet.stages.noise import Gaussian

LEVEL = 5e-5  # two tests at this level: a sound run fails with a chance of at most 1e-4
FAULTY = 1e-3  # where a fault is to be found, no false alarm is possible


@pytest.fixture
def table(tmp_path):
    """A small table: 64 rows to train on, 16 to test on."""
    draw = np.random.default_rng(0)
    y = draw.integers(3, size=80)
    path = tmp_path / "clouds.npz"
    np.savez(path, x=draw.normal(size=(80, 5)).astype("f4") + 3 * np.eye(5, dtype="f4")[y], y=y)
    return path


def cli(*arguments, code=0):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return result.stdout


def values(table, canaries=50, **sections):
    found = {
        "data": {"name": str(table)},
        "model": {"name": "mlp", "settings": {"hidden": [20]}},
        "budget": {"epsilon": 4.0, "steps": 6, "batch_size": 32},
        "audit": {"canaries": canaries, "level": LEVEL},
    }
    return from_dict(found | sections)


def begin(table, out, *more, hidden=20, epsilon=4, code=0, level=LEVEL):
    return cli(
        "train", "--data", table, "--model", "mlp", "--set", f"model.settings.hidden=[{hidden}]", "--epsilon", epsilon,
        "--steps", "6", "--batch-size", "64", "--set", f"audit.level={level}", "--out", out, *more, code=code,
    )  # fmt: skip


# --- canaries in the run ---------------------------------------------------------------------------------------------


def test_a_run_with_canaries_declares_counts_and_measures(table, tmp_path):
    run = tmp_path / "run"
    told = json.loads(begin(table, run, "--audit", "50", "--json"))["audit"]
    written = json.loads((run / "audit.json").read_text())
    assert written == told
    assert told["canaries"] == 50
    assert told["guesses"] == told["guesses_in"] + told["guesses_out"]
    assert 0 <= told["epsilon_lower_bound"] <= told["epsilon"] <= 4
    assert not told["refuted"]
    assert "canaries = 50" in (run / "audit.toml").read_text()
    assert not (run / "coins").exists()  # they have done their work
    plan = (run / "plan.toml").read_text()
    assert "examples = 114" in plan
    assert "batch_size = 114" in plan  # each example takes part as often as it would without canaries
    assert json.loads(cli("verify", run, "--json"))["runs"][0]["audit"]["canaries"] == 50
    assert "Attacks on this run showed that ε is at least" in (run / "report.html").read_text()


def test_a_run_with_canaries_is_tested_again_from_its_ledger(table, tmp_path):
    run = tmp_path / "run"
    begin(table, run, "--audit", "50")
    before = (run / "audit.json").read_text()
    assert json.loads(cli("audit", run, "--json")) == json.loads(before)
    assert (run / "audit.json").read_text() == before
    assert "declared before the first release" in " ".join(cli("audit", run).split())


def test_an_audit_that_was_changed_is_found(table, tmp_path):
    run = tmp_path / "run"
    begin(table, run, "--audit", "50")
    told = json.loads((run / "audit.json").read_text())
    changes = {name: told[name] + 1 for name in ("guesses_in", "guesses_out", "canaries", "epsilon_lower_bound")}
    changes |= {"p_value": told["p_value"] / 2, "level": 0.5, "score": "sum", "refuted": True, "guesses": "many"}
    for name, value in changes.items():
        (run / "audit.json").write_text(json.dumps(told | {name: value}))
        with pytest.raises(PrivacyError, match=r"audit\.json"):
            audit(run)


def test_a_declaration_that_was_changed_is_found(table, tmp_path):
    run = tmp_path / "run"
    begin(table, run, "--audit", "50")
    text = (run / "audit.toml").read_text()
    (run / "audit.toml").write_text(re.sub(r"guesses_in = \d+", "guesses_in = 49", text))
    result = CliRunner().invoke(app, ["audit", str(run)])
    assert "not what the ledger declared" in str(result.exception)


def test_what_an_audit_is_of_is_what_the_ledger_says_and_not_the_config(table, tmp_path):
    run = tmp_path / "run"
    begin(table, run, "--audit", "50")
    config, before = run / "config.toml", (run / "audit.json").read_bytes()
    config.write_text(config.read_text().replace("canaries = 50", "canaries = 0"))
    assert audit(run, quick=True) == json.loads(before)
    assert (run / "audit.json").read_bytes() == before


def quarter_of_the_noise(patch):
    """At this size 404 of 415 guesses or more were right in eight runs, p-values below 5e-5: well below the level."""
    patch.setattr(Gaussian, "sample", lambda self, out, scale, source: source.fill_normal(out, scale / 4))


def test_too_little_noise_is_found_and_the_command_fails(table, tmp_path, monkeypatch):
    large = {"hidden": 300, "epsilon": 2}
    begin(table, tmp_path / "sound", "--audit", "1500", **large)
    quarter_of_the_noise(monkeypatch)
    said = begin(table, tmp_path / "run", "--audit", "1500", **large, code=1, level=FAULTY)
    assert "the proof or the code is wrong" in " ".join(said.replace("│", " ").split())
    assert json.loads((tmp_path / "run" / "audit.json").read_text())["refuted"]
    assert "An audit contradicts what is proven" in (tmp_path / "run" / "report.html").read_text()
    assert json.loads(cli("audit", tmp_path / "run", "--json", code=1))["refuted"]


def test_a_learning_rate_means_the_same_beside_canaries(table):
    config = values(table, canaries=64)
    model = torch.nn.Linear(2, 2)
    grown = config.beside_canaries(64)
    assert grown.budget.batch_size == 64
    step = [make_optimizer(c, model).param_groups[0]["lr"] / c.budget.batch_size for c in (config, grown)]
    assert step[0] == step[1]
    assert config.plan(64).sampling.contract().rate == values(table, canaries=0).plan(64).sampling.contract().rate


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"federated": {"users": 8}}, "federated"),
        ({"augmentation": {"copies": 2, "flip": True}}, "augmentation"),
        ({"method": {"name": "belu", "settings": {"certified": True}}, "model": {"name": "belu"}}, "BoundedNetwork"),
        ({"audit": {"canaries": 1}}, "canaries"),
        ({"audit": {"canaries": 10**5}}, "do not fit"),
        ({"audit": {"canaries": 10, "level": 2.0}}, "level"),
    ],
)
def test_what_cannot_be_audited_is_refused_by_name_and_leaves_nothing(table, tmp_path, sections, words):
    with pytest.raises(ConfigError, match=words):
        train(values(table, **sections), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# --- resuming --------------------------------------------------------------------------------------------------------


def stopped(table, folder, **more):
    watch = Watch()
    watch.stop = lambda: True
    return train(values(table, **more), folder, watch)


def test_a_stopped_run_keeps_its_coins_and_is_measured_when_it_ends(table, tmp_path):
    run = tmp_path / "run"
    assert not stopped(table, run).finished
    assert (run / "coins").is_file()
    assert not (run / "audit.json").exists()
    declared = (run / "audit.toml").read_text()
    outcome = resume(run)
    assert outcome.finished
    assert "lost" not in outcome.audit
    assert outcome.audit["guesses"] > 0
    assert (run / "audit.toml").read_text() == declared
    assert not (run / "coins").exists()


def test_where_the_coins_are_gone_the_audit_is_lost_and_the_training_is_not(table, tmp_path):
    run = tmp_path / "run"
    stopped(table, run)
    (run / "coins").unlink()
    outcome = resume(run)
    assert outcome.finished
    assert "coins" in outcome.audit["lost"]
    assert outcome.guarantee.epsilon <= 4
    assert "The audit was lost" in cli("audit", run)
    cli("report", run)


# --- after the fact --------------------------------------------------------------------------------------------------


def test_a_finished_run_is_attacked_and_its_pipeline_audited(table, tmp_path):
    run = tmp_path / "run"
    begin(table, run, "--alone")
    before = (run / "ledger.jsonl").read_bytes()
    told = json.loads(cli("audit", run, "--canaries", "100", "--level", LEVEL, "--json"))
    assert told == json.loads((run / "audit.json").read_text())
    assert told["membership"]["members"] == 64
    assert told["membership"]["others"] == 16
    assert [p["false_positives"] for p in told["membership"]["at"]] == [0.001, 0.01, 0.1]
    assert all(p["low"] <= p["true_positives"] <= p["high"] for p in told["membership"]["at"])
    assert all(0 < p["allowed"] <= 1 for p in told["membership"]["at"])
    assert told["pipeline"]["canaries"] == 100
    assert told["pipeline"]["epsilon"] == pytest.approx(json.loads((run / "guarantee.json").read_text())["epsilon"])
    assert told["epsilon_lower_bound"] == told["pipeline"]["epsilon_lower_bound"]
    assert not told["refuted"]
    assert (run / "ledger.jsonl").read_bytes() == before  # made-up data: nothing is spent
    page = (run / "report.html").read_text()
    assert "on made-up data" in page
    curve = told["membership"]["roc"]
    assert curve[0][0] == 0.0
    assert curve[-1] == [1.0, 1.0]
    assert curve == sorted(curve)
    said = " ".join(cli("audit", run, "--quick", "--plot", tmp_path / "roc.png").split())
    assert (tmp_path / "roc.png").stat().st_size > 1000
    assert "not audited (--quick)" in said
    assert "area under the curve" in said


def test_a_plan_that_was_changed_is_not_the_one_that_is_audited(table, tmp_path):
    run = tmp_path / "run"
    train(values(table, canaries=0), run)
    plan = run / "plan.toml"
    proven = json.loads((run / "guarantee.json").read_text())["epsilon"]
    plan.write_text(re.sub(r"multiplier = [0-9.]+", "multiplier = 90.0", plan.read_text()))
    assert audit(run, canaries=20)["pipeline"]["epsilon"] == pytest.approx(proven)


@pytest.mark.parametrize("name", ["config.toml", "plan.toml", "audit.json"])
def test_what_is_no_regular_file_is_not_opened(table, tmp_path, name):
    """A pipe would keep whoever opens it waiting."""
    run = tmp_path / "run"
    train(values(table, canaries=0), run)
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    with pytest.raises(ConfigError, match=f"{name} is a pipe, and only regular files are opened"):
        audit(run, quick=True)


def test_too_little_noise_is_found_after_the_fact(table, tmp_path, monkeypatch):
    run = tmp_path / "run"
    begin(table, run, hidden=300, epsilon=2)
    quarter_of_the_noise(monkeypatch)
    said = cli("audit", run, "--canaries", "1500", "--level", FAULTY, code=1)
    assert "the proof or the code is wrong" in " ".join(said.split())


def test_other_samplers_are_audited_in_proportion(table, tmp_path):
    run = tmp_path / "run"
    stages = {"sampling": {"type": "FixedSize"}, "bound": {"type": "Clip", "norm": 1.0}, "noise": {"type": "Gaussian"}}
    train(values(table, canaries=0, stages=stages), run)
    told = json.loads(cli("audit", run, "--canaries", "40", "--level", LEVEL, "--json"))
    assert told["pipeline"]["score"] == "sum"
    assert told["pipeline"]["covered"]


def test_a_pipeline_without_gradients_to_choose_is_attacked_from_outside_only(tmp_path):
    run = tmp_path / "run"
    cli(
        "train", "--data", "digits", "--model", "belu", "--method", "belu", "--set", "method.settings.certified=true",
        "--noise", "1", "--steps", "2", "--out", run,
    )  # fmt: skip
    said = " ".join(cli("audit", run).split())
    assert "cannot be audited with gradient canaries: BoundedNetwork" in said


def test_runs_that_cannot_be_audited_say_why(table, tmp_path, monkeypatch, capsys):
    stopped(table, tmp_path / "half", canaries=0)
    cli(
        "federate", "--data", table, "--users", "8", "--users-per-round", "4", "--rounds", "2", "--model", "linear",
        "--noise", "1", "--out", tmp_path / "users",
    )  # fmt: skip
    for folder, words in (("half", "has finished"), ("users", "federated"), ("none", "is no run's folder")):
        monkeypatch.setattr("sys.argv", ["discreet", "audit", str(tmp_path / folder)])
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code == 2
        assert words in capsys.readouterr().err
