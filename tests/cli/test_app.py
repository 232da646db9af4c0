import runpy
from pathlib import Path

import pytest
from typer.testing import CliRunner

import discreet
from discreet.cli.app import app, main

ROOT = Path(__file__).parents[2]
runner = CliRunner()


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


def test_the_page_of_commands_is_what_its_script_prints(capsys):
    runpy.run_path(str(ROOT / "benchmarks" / "commands_page.py"), run_name="__main__")
    page = (ROOT / "docs" / "commands.md").read_text()
    assert page == capsys.readouterr().out, "python benchmarks/commands_page.py > docs/commands.md"
