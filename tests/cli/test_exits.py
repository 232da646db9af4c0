"""How commands end: what is hostile is refused in one line, and an output that is gone ends cleanly."""

import errno
import os
import re
from pathlib import Path

import hostile_runs
import hostile_texts
import pytest
import typer
from closed_box import say, wrong
from typer.testing import CliRunner

from discreet.cli import app as cli
from discreet.cli import exits
from discreet.errors import BudgetExhausted, ConfigError, PrivacyError

SOAK = bool(os.environ.get("DISCREET_SOAK"))
PAGE = Path(__file__).parents[2] / "docs" / "limits.md"
ACCEPTED = {"plan, noise 0"}  # no privacy at all, which the plan says


def test_hostile_flags_are_refused(tmp_path):
    calls = {name: (arguments, tmp_path) for name, arguments in hostile_texts.flags().items() if name not in ACCEPTED}
    assert len(calls) >= 190
    assert wrong(calls, codes=(2, 3)) == {}  # 3: a ledger that cannot be locked
    assert list(tmp_path.iterdir()) == []  # what is refused leaves nothing


def test_hostile_configs_are_refused(tmp_path):
    calls = {}
    for number, (name, content) in enumerate(hostile_texts.configs().items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "case.toml").write_bytes(content)
        calls[name] = ["train", "case.toml", "--out", "run"], folder
    assert len(calls) >= 70
    assert wrong(calls) == {}
    assert list(tmp_path.glob("*/run")) == []


def test_hostile_run_folders_are_refused_or_do_not_hold(tmp_path):
    done, stopped = hostile_runs.make(tmp_path)
    calls = hostile_runs.calls(tmp_path, done, stopped)
    if not SOAK:  # one in seven, of every kind
        calls = dict(list(calls.items())[::7])
    assert len(calls) >= 70
    assert wrong(calls, codes=(0, 1, 2, 3, 4)) == {}


# --- what a line says ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [40, 60, 300])
@pytest.mark.parametrize("words", ["a" * 1000, "a b " * 500, "a\nb\tc" * 200, "ε" * 1000, "\x1b[31m" * 500, ""])
def test_a_line_is_short_and_printable(words, most):
    line = exits.one_line(words, most)
    assert len(line) <= most
    assert line.isprintable()


def test_a_short_line_is_whole_and_a_long_one_keeps_its_end():
    assert exits.one_line("epsilon is -1; it must be > 0.") == "epsilon is -1; it must be > 0."
    assert exits.one_line(f"{'x' * 500}; give another one.").endswith("give another one.")
    assert exits.one_line("ε", encoding="ascii") == "epsilon"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("a value"), 2),
        (PrivacyError("a leak"), 3),
        (BudgetExhausted("spent"), 4),
        (typer.BadParameter("a flag"), 2),
        (MemoryError(), 2),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), 2),
        (FileNotFoundError(errno.ENOENT, "no such file", "a.toml"), 2),
        (OSError(errno.ENOSPC, "no space left", "ledger.jsonl"), 2),
        (OSError(errno.ENOSPC, "no space left"), 74),
        (OSError(errno.EBADF, "the standard output is closed"), 74),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("a mistake"), 70),
        (RecursionError("a mistake"), 70),
    ],
)
def test_every_kind_of_error_has_its_code_and_one_line(error, code, capsys, monkeypatch):
    monkeypatch.setattr(exits.terminal, "give_up", lambda stream: None)
    assert exits.ended_by(error) == code
    said = capsys.readouterr().err
    assert said.startswith("discreet: ")
    assert said.count("\n") == 1


def test_a_mistake_is_one_line_and_its_place_is_shown_when_it_is_asked_for(tmp_path):
    arguments = ["verify", "no\x00where"]  # as no shell, but a program may give it
    assert say(arguments, tmp_path).code == 2
    said = say(["verify", "nowhere"], tmp_path, environment={exits.TRACEBACK: "1"})
    assert said.code == 2
    assert "Traceback" in said.err


# --- outputs ---------------------------------------------------------------------------------------------------------

VERSION = ["--version"]


def _full():
    return os.open("/dev/full", os.O_WRONLY)


def _unread():
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@pytest.mark.parametrize(("made", "code"), [(_full, 74), (_unread, 141)])
@pytest.mark.parametrize("arguments", [VERSION, ["plan", "--help"], ["plan", "--paper", "003", "--json"]])
def test_an_output_that_is_gone_has_a_code_of_its_own(made, code, arguments, tmp_path):
    end = made()
    said = say(arguments, tmp_path, out=end)
    os.close(end)
    assert said.code == code
    assert len(said.lines) == (code == 74)


def test_a_full_error_stream_changes_no_code(tmp_path):
    end = _full()
    assert say(["verify", "nowhere"], tmp_path, err=end).code == 2
    assert say(VERSION, tmp_path, err=end).code == 0
    os.close(end)


@pytest.mark.parametrize("made", [_full, _unread])
def test_a_run_whose_output_is_gone_is_whole(made, tmp_path):
    run = ["train", *hostile_texts.RUN, "--model", "linear"]
    end = made()
    said = say(run, tmp_path, out=end, err=end)
    os.close(end)
    assert said.code in (74, 141)
    assert (tmp_path / "run" / "end.json").is_file()
    assert say(["verify", "run"], tmp_path).code == 0


# --- what is documented ----------------------------------------------------------------------------------------------


def test_the_codes_are_documented():
    said = re.findall(r"^\| `(\d+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert {int(code): words.replace("\\|", "|") for code, words in said} == exits.CODES


@pytest.mark.parametrize("name", sorted(c.name or c.callback.__name__ for c in cli.app.registered_commands))
def test_every_command_has_short_help_and_no_bare_type_names(name):
    done = CliRunner().invoke(cli.app, [name, "-h"])
    assert done.exit_code == 0
    assert "<bool>" not in done.output
    assert "BOOLEAN" not in done.output


def test_help_shows_defaults_and_completion_can_be_installed():
    said = " ".join(CliRunner().invoke(cli.app, ["train", "-h"], env={"COLUMNS": "200"}).output.split())
    assert "on average (default: 256)" in said
    assert "--install-completion" in CliRunner().invoke(cli.app, ["-h"]).output
