import json

import pytest
from typer.testing import CliRunner

import discreet
from discreet.cli.app import app, main

runner = CliRunner()


def run(*arguments):
    result = runner.invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


MNIST = ("plan", "--examples", "60000", "--batch-size", "256", "--epochs", "60", "--delta", "1e-5")


def test_plan_says_what_noise_buys_and_what_a_budget_needs():
    found = json.loads(run(*MNIST, "--noise", "1.1", "--json"))
    assert found["guarantee"]["epsilon"] == pytest.approx(2.382, abs=1e-3)
    assert found["figures"]["Rényi, Mironov's conversion"] == pytest.approx(3.008, abs=1e-3)
    assert found["plan"]["steps"] == 14_062
    needed = json.loads(run(*MNIST, "--epsilon", "3", "--json"))
    assert needed["plan"]["noise"]["multiplier"] == pytest.approx(0.968, abs=2e-3)
    assert needed["guarantee"]["epsilon"] <= 3
    assert [s["batch_size"] for s in needed["batch_sizes"]][:2] == [32, 64]


def test_plan_prints_tables_and_writes_what_it_is_asked_to(tmp_path):
    out, plot = tmp_path / "plan.toml", tmp_path / "curves.png"
    text = run(*MNIST, "--epsilon", "3", "--learning-rate", "0.1", "--out", str(out), "--plot", str(plot))
    for words in ("What this plan proves", "noise multiplier", "true positives at 1 %", "learning rate", "14,062"):
        assert words in text
    assert discreet.Plan.load(out).guarantee().epsilon <= 3
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_plan_for_a_paper_prints_its_claims_beside_what_is_proven():
    found = json.loads(run("plan", "--paper", "003", "--json"))
    assert found["paper"] == "003"
    rows = {r["configuration"][:10]: r for r in found["rows"]}
    assert rows["10 tensors"]["claimed"] == 20
    assert rows["10 tensors"]["verdict"] == "false"
    assert rows["10 tensors"]["proven_as_written"] == pytest.approx(421, abs=1)
    assert "false" in run("plan", "--paper", "002")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan"], "--examples is missing"),
        (["plan", "--examples", "100", "--batch-size", "10", "--epochs", "1"], "Missing: noise, epsilon"),
        (["plan", "--paper", "9"], "'9' is not one of"),
        ([*MNIST, "--noise", "1", "--group", "0"], "group is 0"),
        ([*MNIST, "--noise", "1", "--plot", "nowhere/at/all.png"], "cannot be written"),
        ([*MNIST, "--noise", "1", "--sampling", "magic"], "one of poisson"),
        ([*MNIST, "--noise", "1", "--plot", "."], "cannot be written"),
        ([*MNIST, "--noise", "1", "--sampling", "[/x]"], "[/x]"),
        ([*MNIST, "--noise", "1", "--learning-rate", "nan"], "learning rate is nan"),
        (["plan", "--examples", "-5", "--noise", "1", "--epsilon", "1", "--epochs", "1"], "examples is -5"),
        (["plan", "--examples", "60000", "--noise", "1", "--batch-size", "10", "--steps", "-1"], "steps is -1"),
        (
            ["plan", "--examples", "60000", "--noise", "1", "--batch-size", "10", "--epochs", "1e300"],
            "from 1e-100 to 1e+100",
        ),
    ],
)
def test_plan_with_bad_input_is_one_clear_line(arguments, words, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["discreet", *arguments])
    with pytest.raises(SystemExit) as ending:
        main()
    assert ending.value.code == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_plan_without_noise_says_that_nothing_is_proven():
    assert "Nothing is proven" in run(*MNIST, "--noise", "0")
    assert json.loads(run(*MNIST, "--noise", "0", "--json"))["guarantee"]["epsilon"] == "inf"


def test_plan_prints_words_of_the_users_own_as_they_are():
    assert "[bold]er" in run(*MNIST, "--noise", "2", "--unit", "[bold]er")


def test_epochs_follow_from_steps_exactly():
    found = json.loads(
        run("plan", "--examples", "60000", "--batch-size", "40000", "--steps", "100", "--noise", "9", "--json")
    )
    assert found["epochs"] == pytest.approx(200 / 3)
    assert next(s for s in found["batch_sizes"] if s["batch_size"] == 40_000)["steps"] == 100
