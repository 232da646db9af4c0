import pytest
import yaml
from small_ledgers import counted
from typer.testing import CliRunner

from discreet.cli.app import app
from discreet.errors import ConfigError

SAID = """[statement]
name = "A model"
description = "It says something."
curators = ["An office"]
purpose = "To plan."
region = "A town"
published = "2026-11-19"
authors = ["A. Person"]
"""


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    counted(tmp_path / "ledger.jsonl", 5)
    counted(tmp_path / "other.jsonl", 5)
    (tmp_path / "said.toml").write_text(SAID)


def call(*arguments):
    return CliRunner().invoke(app, ["report", *arguments], catch_exceptions=False)


def test_a_ledger_has_a_page_and_an_entry(ledger, tmp_path):
    done = call("ledger.jsonl", "--statement", "said.toml", "--registry", "entry.yaml")
    assert done.exit_code == 0
    assert done.output.split() == ["entry.yaml", "ledger-report/report.html"]
    assert yaml.safe_load((tmp_path / "entry.yaml").read_text())["deployment"]["basic"]["name"] == "A model"
    assert "A. Person" in (tmp_path / "ledger-report" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "there is no such file"),
        (["said.toml"], "damaged at line 1"),
        (["ledger.jsonl", "other.jsonl"], "say where with out="),
        (["ledger.jsonl", "ledger.jsonl", "--out", "a"], "named twice"),
        (["ledger.jsonl", "--out", "said.toml"], "cannot be written to"),
        (["ledger.jsonl", "--statement", "nowhere.toml"], "cannot be read"),
        (["ledger.jsonl", "--statement", "empty.toml"], r"has no \[statement\] table"),
        (["ledger.jsonl", "--statement", "odd.toml"], "odd.toml"),
        (["ledger.jsonl", "--statement", "ledger.jsonl"], "is not TOML"),
        (["ledger.jsonl", "--registry", "entry.yaml"], "nobody has declared: name, curators"),
        (["ledger.jsonl", "--statement", "said.toml", "--registry", "no/such/entry.yaml"], "cannot be written"),
        (["ledger.jsonl", "other.jsonl", "--registry", "entry.yaml"], "is of one run, and here are 2"),
        (["ledger.jsonl", "--stages", "no_such_module"], "no_such_module"),
    ],
)
def test_bad_input_is_one_line(ledger, tmp_path, arguments, words):
    from discreet.errors import PrivacyError

    (tmp_path / "empty.toml").write_text("")
    (tmp_path / "odd.toml").write_text("[statement]\ncolour = 'red'\n")
    with pytest.raises((ConfigError, PrivacyError), match=words) as raised:
        call(*arguments)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "entry.yaml").exists()
