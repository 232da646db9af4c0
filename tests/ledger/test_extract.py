import errno
import json
import os
from dataclasses import replace

import pytest
from small_runs import config, stopping, table_at
from typer.testing import CliRunner

from discreet import ConfigError, PrivacyError, verify
from discreet.accounting.events import Event
from discreet.cli.app import app
from discreet.ledger import storage
from discreet.ledger.chain import chained
from discreet.ledger.extract import EXTRACT
from discreet.ledger.verification import verify_folder
from discreet.report import read
from discreet.runs import build
from discreet.runs.folder import identity
from discreet.runs.outcome import read_end
from discreet.runs.run import resume, train

CAP = {"dataset": "clouds", "dataset_epsilon": 9.0, "dataset_delta": 1e-5}
runner = CliRunner()


@pytest.fixture(scope="module")
def moved(tmp_path_factory):
    """The lines of an extract, and of the ledger that it is of."""
    folder = tmp_path_factory.mktemp("runs")
    section = {"ledger": str(folder / "all.jsonl"), "dataset": "clouds", "dataset_epsilon": 9.0, "dataset_delta": 1e-5}
    made = config(table_at(folder), run=section, budget={"steps": 4})
    train(made, folder / "a", stopping(1))
    train(made, folder / "b")
    return (folder / "b" / EXTRACT).read_bytes().splitlines(), (folder / "all.jsonl").read_bytes().splitlines()


def test_its_lines_are_the_ledgers_and_no_other_runs(moved, tmp_path):
    extract, ledger = moved
    assert set(extract[:-1]) <= set(ledger)
    own = {json.loads(line).get("run") for line in extract[1:-1]}
    assert len(own) == 1
    assert [json.loads(line)["kind"] for line in extract] == ["dataset", "run", *["release"] * 4, "end", "extract"]


def test_a_line_that_was_taken_out_moved_or_changed_is_found(moved, tmp_path):
    extract, _ = moved
    path = tmp_path / EXTRACT
    path.write_bytes(b"\n".join(extract) + b"\n")
    assert verify(path).runs[0].released == 4
    last = json.loads(extract[-1])
    last["beside"] = []
    wrong = [
        *([*extract[:i], *extract[i + 1 :]] for i in range(len(extract))),
        [*extract[:2], extract[3], extract[2], *extract[4:]],
        [line.replace(b'"multiplier": 2.0', b'"multiplier": 9.0') for line in extract],
        [*extract[:-1], json.dumps(last, sort_keys=True).encode()],
        [*extract, extract[-1]],
        extract[:1],
    ]
    for lines in wrong:
        path.write_bytes(b"\n".join(lines) + b"\n")
        with pytest.raises(PrivacyError, match="is damaged at"):
            verify(path)
    for content in (b"", b"\n", b"\n".join(extract)):
        path.write_bytes(content)
        with pytest.raises(PrivacyError, match="is damaged at"):
            verify(path)


def test_what_a_run_itself_asked_is_its_own_and_what_others_asked_is_beside(tmp_path):
    folder = tmp_path
    path = folder / "all.jsonl"
    section = {"ledger": str(path), "dataset": "clouds", "dataset_epsilon": 9.0, "dataset_delta": 1e-5}
    made = config(table_at(folder), run=section, budget={"steps": 4})
    ledger = build.make_ledger(made, folder / "a")
    train(made, folder / "b")
    ledger.query("somebody's count", Event.of_pure(0.25, unit="example"))
    train(made, folder / "c", stopping(1))  # begun, and asked something of its own before it goes on
    asked = replace(ledger, run=identity(folder / "c"))
    asked.query("ranges", Event.of_pure(0.5, unit="example"))
    resume(folder / "c")
    extract = folder / "c" / EXTRACT
    queries = [json.loads(line)["what"] for line in extract.read_bytes().splitlines() if b'"kind": "query"' in line]
    assert queries == ["ranges"]
    alone, together = verify(extract), verify(path)
    own = verify_folder(folder / "c")[1]
    assert own.guarantee.epsilon > verify_folder(folder / "b")[1].guarantee.epsilon + 0.25
    assert alone.runs[-1].guarantee.epsilon == own.guarantee.epsilon
    assert alone.total.epsilon == pytest.approx(together.total.epsilon, rel=1e-9)


def forged(path, change):
    """An extract whose last line says something else, with a hash that fits: there is no key."""
    *lines, last = path.read_bytes().splitlines()
    content = json.loads(last)
    change(content)
    path.write_bytes(b"\n".join([*lines, chained(content, content["previous"], None)[0]]))


@pytest.mark.parametrize(
    "change",
    [
        lambda last: last.update(beside=[]),
        lambda last: last["beside"][0].update(multiplier=99.0),
        lambda last: last.update(runs=1),
        lambda last: last.update(lines=last["lines"] - 1),
        lambda last: last.update(head="0" * 64),
        lambda last: last.update(declared=[["all is well", "assumed"]]),
    ],
)
def test_an_extract_that_was_forged_is_seen_where_its_ledger_is(change, tmp_path):
    section = {"ledger": str(tmp_path / "all.jsonl")} | CAP
    made = config(table_at(tmp_path), run=section, budget={"steps": 4})
    for name in "ab":
        train(made, tmp_path / name)
    train(made, tmp_path / "c", stopping(1))  # what was counted since is not the extract's
    folder = tmp_path / "b"
    assert verify(folder).own
    assert runner.invoke(app, ["verify", str(folder / EXTRACT), str(tmp_path / "all.jsonl")]).exit_code == 0
    forged(folder / EXTRACT, change)
    assert verify(folder / EXTRACT).runs[0].ended  # by itself it cannot be told
    with pytest.raises(PrivacyError, match="extract"):
        verify(folder)
    with pytest.raises(PrivacyError, match="extract"):
        read_end(folder)
    assert any("extract" in doubt for doubt in read(folder).doubts)
    found = runner.invoke(app, ["verify", str(folder / EXTRACT), str(tmp_path / "all.jsonl")])
    assert found.exit_code == 1
    assert "extract" in found.output


def test_an_extract_that_cannot_be_written_is_one_line_of_error_and_is_written_by_resume(tmp_path, monkeypatch):
    made = config(table_at(tmp_path), run={"ledger": str(tmp_path / "all.jsonl")} | CAP, budget={"steps": 4})
    replace = storage.replace

    def full(path, *arguments, **settings):
        if path.name == EXTRACT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        replace(path, *arguments, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(storage, "replace", full)
        with pytest.raises(ConfigError, match=r"ledger-extract\.jsonl cannot be written: "):
            train(made, tmp_path / "a")
    assert resume(tmp_path / "a").finished
    assert verify(tmp_path / "a" / EXTRACT).runs[0].ended


def test_an_extract_shows_that_its_ledger_has_lost_its_end(tmp_path):
    path = tmp_path / "all.jsonl"
    made = config(table_at(tmp_path), run={"ledger": str(path)} | CAP, budget={"steps": 4})
    for name in "ab":
        train(made, tmp_path / name)
    assert verify(tmp_path / "b").total.epsilon == verify(path).total.epsilon
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))  # b's own last line is in neither
    with pytest.raises(PrivacyError, match="cut short or rewritten since"):
        verify(tmp_path / "b")
    assert verify(tmp_path / "a").own  # whose extract was made before
