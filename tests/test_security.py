"""What SECURITY.md promises: no pickle, files for their owner alone, names that are inert, times that tell nothing."""

import csv
import io
import os
import re
import stat
from pathlib import Path

import pytest
from small_runs import config, stopping, table_at

import discreet
from discreet.report import csv_table, write
from discreet.report.html import text
from discreet.runs.run import resume, train

SOURCE = Path(discreet.__file__).parent
UNSAFE = re.compile(
    r"\b(pickle\.loads?|Unpickler|torch\.load|joblib|dill|cloudpickle|shelve|marshal|yaml|allow_pickle=True|eval|exec"
    r"|os\.system|shell=True)\b\(?"
)
EXCEPT = {  # and why
    "distributed/ranks.py": "pickle.loads",  # frames of ranks that train together: each runs the same code already
    "runs/trained/estimator.py": "joblib",  # an export is read back by the process that has just written it
}
# torch's modules have a method of that name, and papers keep tensors of their own, which are read as tensors alone
NO_CALL = re.compile(
    r"\.(joblib|yaml)\b|\"joblib\"|a joblib file|\.eval\(|`eval`|def eval|torch\.load\([^()\n]*weights_only=True\)"
)


def unsafe(source):
    found = [
        m.group().rstrip("(") for m in UNSAFE.finditer(NO_CALL.sub("", source)) if m.group() not in ("eval", "exec")
    ]
    return sorted(set(found))


def test_nothing_is_unpickled_and_no_text_is_run():
    found = {path.relative_to(SOURCE).as_posix(): unsafe(path.read_text()) for path in SOURCE.rglob("*.py")}
    assert {name: words for name, words in found.items() if words} == {name: [word] for name, word in EXCEPT.items()}


def test_the_scan_finds_what_it_looks_for():
    assert unsafe("x = torch.load(path)\ny = pickle.load(file)\nz = eval(text)") == [
        "eval",
        "pickle.load",
        "torch.load",
    ]
    assert unsafe("model.eval()") == []


@pytest.fixture
def open_to_all():
    before = os.umask(0)
    yield
    os.umask(before)


def test_a_run_is_its_owners_alone_whatever_the_umask(tmp_path, open_to_all):
    held = config(table_at(tmp_path), audit={"canaries": 8}, budget={"noise": 2.0, "steps": 8, "batch_size": 16})
    train(held, tmp_path / "runs" / "a", stopping(3))
    folder = tmp_path / "runs" / "a"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o777  # which is the user's
    assert stat.S_IMODE((folder / "coins").stat().st_mode) == 0o600  # also where the folder is opened to others
    resume(folder)
    write(folder)
    assert {name for name in os.listdir(folder) if stat.S_IMODE((folder / name).stat().st_mode) == 0o600} == set()
    said = re.findall(r"`([^`]+)`", (SOURCE.parents[1] / "SECURITY.md").read_text())
    assert [name for name in os.listdir(folder) if {name, f"{name}/"}.isdisjoint(said)] == []  # each file is described


def test_a_folder_that_is_there_keeps_its_permissions(tmp_path):
    (tmp_path / "a").mkdir(0o750)
    train(config(table_at(tmp_path)), tmp_path / "a")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o750


def test_metrics_tell_times_in_two_digits(tmp_path):
    import json

    train(config(table_at(tmp_path), evaluation={"every": 0.25}), tmp_path / "a")
    for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        for name in ("seconds", "examples_per_second"):
            assert record[name] == float(f"{record[name]:.2g}")


@pytest.mark.parametrize(
    "cell", ["=1+1", "+1+1", "-1-1", "-A1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\x1b[31m", "=cmd|' /C calc'!A0"]
)
def test_no_cell_of_a_table_is_a_formula_or_steers_a_terminal(cell):
    ((head, first), (said, number)) = csv.reader(io.StringIO(csv_table((cell, "b"), [(cell, -1.5)])))
    assert head == said
    assert not said.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    assert "\x1b" not in said
    assert (first, number) == ("b", "-1.5")


def test_names_on_a_page_are_text():
    assert text("<script>\x1b]0;t\x07\u202e") == "&lt;script&gt;\\x1b]0;t\\x07\\u202e"
