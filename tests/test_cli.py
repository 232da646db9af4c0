import json

import pytest
from typer.testing import CliRunner

import discreet
from discreet.cli import app, main

runner = CliRunner()


def test_the_demo_trains_to_its_budget_and_leaves_a_run_folder(tmp_path):
    folder = tmp_path / "demo"
    result = runner.invoke(app, ["demo", "--epochs", "20", "--out", str(folder), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["accuracy"] > 0.6  # ten classes; about 0.85 after 20 epochs
    assert found["guarantee"]["epsilon"] <= 3
    assert {p.name for p in folder.iterdir()} >= {"plan.toml", "ledger.jsonl", "guarantee.json", "report.html"}
    plan = discreet.Plan.load(folder / "plan.toml")
    assert len((folder / "ledger.jsonl").read_text().splitlines()) == plan.steps + 1
    page = (folder / "report.html").read_text()
    assert f"{found['accuracy']:.1%}" in page
    assert "http" not in page  # self-contained
    again = runner.invoke(app, ["demo", "--epochs", "1", "--out", str(folder)])
    assert again.exit_code == 0
    assert "What is proven" in again.output
    assert (tmp_path / "demo-2" / "report.html").exists()


@pytest.mark.parametrize(
    "arguments", [["demo", "--epsilon", "-1"], ["demo", "--delta", "0"], ["demo", "--epochs", "0"]]
)
def test_a_bad_value_is_one_clear_line_and_exit_code_2(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["discreet", *arguments])
    with pytest.raises(SystemExit) as ending:
        main()
    assert ending.value.code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("discreet:")]
    assert len(lines) == 1
    assert "must be a finite number > 0" in lines[0]
    assert not list(tmp_path.iterdir())


def test_help_and_version():
    assert runner.invoke(app, ["--version"]).output.strip() == f"discreet {discreet.__version__}"
    assert "digits" in runner.invoke(app, ["demo", "--help"]).output
    assert runner.invoke(app, ["demo", "--unknown"]).exit_code == 2
