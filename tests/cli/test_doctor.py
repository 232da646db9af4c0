"""discreet doctor: words, JSON, and exit codes."""

import json

import pytest
from typer.testing import CliRunner

from discreet.audit import doctor
from discreet.audit.doctor import Check, Examined
from discreet.cli.app import app


def told(*arguments, code=0):
    found = CliRunner().invoke(app, ["doctor", *arguments], catch_exceptions=False)
    assert found.exit_code == code
    return found.stdout


@pytest.fixture
def _quick(monkeypatch):
    checks = Check("gradients", True, "off by 0"), Check("noise", None, "drawn by the CPU")
    monkeypatch.setattr(doctor, "examine", lambda device, seconds: Examined(str(device), f"{seconds:g}", checks))


@pytest.mark.usefixtures("_quick")
def test_words_of_every_device():
    words = told("--device", "cpu", "--seconds", "3")
    assert "cpu (3)" in words
    assert "gradients  holds          off by 0" in words
    assert "noise                     drawn by the CPU" in words
    assert f"torch {doctor.about()['torch']}" in words


@pytest.mark.usefixtures("_quick")
def test_json_has_all_of_it():
    found = json.loads(told("--json"))
    assert found["holds"] is True
    assert found["devices"][0]["checks"][0] == {"name": "gradients", "holds": True, "words": "off by 0", "figures": {}}


def test_what_does_not_hold_is_said_and_exits_with_1(monkeypatch):
    broken = Examined("cpu", "x", (Check("noise", False, "other bits"),))
    monkeypatch.setattr(doctor, "examine", lambda device, seconds: broken)
    assert "DOES NOT HOLD" in told(code=1)
