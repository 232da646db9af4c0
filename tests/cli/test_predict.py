import csv
import json

import hostile_trained
import pytest
from closed_box import wrong
from hostile_files import ENVIRONMENT
from small_people import people_config
from typer.testing import CliRunner

from discreet.cli.app import app
from discreet.errors import ConfigError
from discreet.runs.run import train

runner = CliRunner()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("people")
    train(people_config(folder), folder / "a")
    return folder / "a"


def test_there_is_a_row_for_each_row_in_order(run, tmp_path):
    (tmp_path / "new.csv").write_text('age,job\n90,clerk\n,"a, b"\n1,farmer\n')
    done = runner.invoke(app, ["predict", str(run), str(tmp_path / "new.csv"), "--out", str(tmp_path / "out.csv")])
    assert done.exit_code == 0
    assert "3 predictions are in" in done.output
    rows = list(csv.reader((tmp_path / "out.csv").read_text().splitlines()))
    assert rows[0] == ["prediction", "probability_no", "probability_yes"]
    assert len(rows) == 4
    for word, *chances in rows[1:]:
        found = [float(chance) for chance in chances]
        assert sum(found) == pytest.approx(1, abs=2e-6)
        assert word == ("no", "yes")[found[1] > found[0]]
    printed = runner.invoke(app, ["predict", str(run), str(tmp_path / "new.csv")])
    assert printed.output == (tmp_path / "out.csv").read_text()
    told = json.loads(runner.invoke(app, ["predict", str(run), str(tmp_path / "new.csv"), "--json"]).output)
    assert [[str(v) for v in row] for row in told["rows"]] == rows[1:]


def test_no_rows_are_no_predictions(run, tmp_path):
    (tmp_path / "new.csv").write_text("age,job\n")
    done = runner.invoke(app, ["predict", str(run), str(tmp_path / "new.csv")])
    assert done.output == "prediction,probability_no,probability_yes\n"


@pytest.mark.parametrize(
    ("name", "content", "more", "words"),
    [
        ("nowhere.csv", None, [], "cannot be read"),
        ("a.csv", "", [], "is empty"),
        ("a.csv", "age\n3\n", [], "no column 'job'"),
        ("a.csv", "age,job\nold,clerk\n", [], "row 1 has no number in column 'age'"),
        ("a.csv", "age,job\n3\n", [], "row 1 has 1 cells"),
        ("a.csv", "age,age\n3,4\n", [], "several columns"),
        ("a.csv", b"\xff\xfe\x00", [], "cannot be read"),
        ("a.txt", "age,job\n3,clerk\n", [], "is no table"),
        ("a.npz", "x", [], "is no table"),
        ("a.parquet", "x", [], "cannot be read"),
        ("a.csv", "age,job\n3,clerk\n", ["--out", "out.txt"], "written as .csv"),
        ("a.csv", "age,job\n3,clerk\n", ["--out", "nowhere/out.csv"], "cannot be written"),
    ],
)
def test_bad_input_is_one_line(run, tmp_path, monkeypatch, name, content, more, words):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    done = runner.invoke(app, ["predict", str(run), name, *more])
    assert isinstance(done.exception, ConfigError)
    assert words in str(done.exception)
    assert "\n" not in str(done.exception)
    assert done.output == ""


@pytest.mark.parametrize("folder", ["nowhere", "."])
def test_a_folder_that_is_no_run_is_refused(tmp_path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="is no run's folder"):
        runner.invoke(app, ["predict", folder, "a.csv"], catch_exceptions=False)


@pytest.mark.parametrize(("kind", "accepted", "each"), [("rows", "READ", 4), ("folders", "FORGED", 9)])
def test_hostile_rows_and_folders_are_refused(kind, accepted, each, tmp_path):
    calls = getattr(hostile_trained, kind)(tmp_path, *hostile_trained.make(tmp_path))
    assert len(calls) >= 140
    refused, read = hostile_trained.parted(calls, getattr(hostile_trained, accepted), each)
    assert len(refused) > 4 * len(read)
    assert wrong(refused, codes=(2, 3), environment=ENVIRONMENT) == {}
    assert wrong(read, codes=(0, 2), environment=ENVIRONMENT) == {}
