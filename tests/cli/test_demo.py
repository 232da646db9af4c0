import json

from typer.testing import CliRunner

import discreet
from discreet.cli.app import app

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
    assert len((folder / "ledger.jsonl").read_text().splitlines()) == plan.steps + 2  # its opening, and its end
    page = (folder / "report.html").read_text()
    assert f"{found['accuracy']:.1%}" in page
    assert "http" not in page  # self-contained
    verified = discreet.verify(folder)
    assert verified.head in page  # the anchor
    assert verified.runs[0].released == plan.steps
    again = runner.invoke(app, ["demo", "--epochs", "1", "--out", str(folder)])
    assert again.exit_code == 0
    assert "What is proven" in again.output
    assert (tmp_path / "demo-2" / "report.html").exists()
