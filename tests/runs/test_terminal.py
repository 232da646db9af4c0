"""What is printed: inert, legible in any encoding, and never in the way of a run."""

import io
import sys

import pytest
from closed_box import say
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from discreet._check import inert
from discreet.runs.terminal import Terminal, legible

STEERING = "\x1b[31m \x07 \x9b \r \u202e \u2066 \u2028 \udcff \x00"


def test_nothing_steers_a_terminal():
    assert inert(STEERING).isprintable()
    assert inert("plain é ε\n\t") == "plain é ε\n\t"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8", "cp1252", "no-such-encoding"])
def test_every_letter_is_written_in_letters_that_are_there(encoding):
    text = "ε ≤ 3, δ — “é” ∞ ╭─│╯ ━ █ 漢 😀"
    shown = legible(text, encoding)
    shown.encode("ascii" if encoding == "no-such-encoding" else encoding)
    assert (shown == text) == (encoding == "utf-8")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_boxes_and_tables_stay_whole(encoding, monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
    monkeypatch.setattr(sys, "stdout", out)
    console = Terminal()
    console.print(Panel(Text(f"ε = 3 [/] {STEERING}"), title="δ"))
    table = Table("ε", "[bold]name[/]")
    table.add_row("ε" * 5, STEERING)
    console.print(table, f"[/] {STEERING}")
    out.flush()
    lines = out.buffer.getvalue().decode(encoding).splitlines()
    assert all(line.isprintable() for line in lines)
    assert ("epsilon = 3 [/]" if encoding != "utf-8" else "ε = 3 [/]") in lines[1]
    assert len({len(line) for line in lines[:3]}) == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize(
    "arguments", [["plan", "--help"], ["plan", "--paper", "003"], ["plan", "--paper", "003", "--json"]]
)
def test_commands_speak_any_encoding(encoding, arguments, tmp_path):
    said = say(arguments, tmp_path, encoding=encoding)
    assert said.code == 0, said.err
    assert "�" not in said.out
