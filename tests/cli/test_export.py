import json
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from small_people import people_config
from small_runs import config, table_at
from typer.testing import CliRunner

import discreet
from discreet import ConfigError
from discreet.cli.app import app
from discreet.runs.run import train

runner = CliRunner()
NEEDED = {"torchscript": "torch", "onnx": "onnxruntime", "sklearn": "sklearn"}
QUIET = pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    train(people_config(folder), folder / "people")
    train(config(table_at(folder), budget={"steps": 2}), folder / "clouds")
    return folder


def exported(runs, name, to, out):
    if find_spec(NEEDED[to]) is None:
        pytest.skip(reason=f"{NEEDED[to]} is not installed: pip install 'discreet[{to}]'")
    done = runner.invoke(app, ["export", str(runs / name), "--to", to, "--out", str(out), "--json"])
    assert done.exit_code == 0, done.exception
    told = json.loads(done.output)
    assert told["difference"] <= 1e-5
    return told["path"]


@pytest.mark.parametrize(("to", "ending"), [("torchscript", "pt"), ("onnx", "onnx"), ("sklearn", "joblib")])
@pytest.mark.parametrize("name", ["people", "clouds"])
def test_an_exported_model_is_compared_with_its_own(runs, tmp_path, to, ending, name):
    assert exported(runs, name, to, tmp_path / f"model.{ending}")


EVERY_KIND = """
guessed = []
[age]
range = "private"
[height]
low = 0
high = 9
missing = true
[job]
categories = "private"
[street]
hashed = 8
[born]
low = 1950-01-01
high = 2010-01-01
[said]
text = 8
[rich]
classes = ["no", "yes"]
"""


def test_columns_of_every_kind_go_to_sklearn_and_others_are_told_where(tmp_path):
    (tmp_path / "schema.toml").write_text(EVERY_KIND)
    rows = [f"{i},{i % 9},clerk,a{i},19{60 + i % 40}-01-01,good day,{('no', 'yes')[i % 2]}" for i in range(80)]
    path = tmp_path / "all.csv"
    path.write_text("\n".join(["age,height,job,street,born,said,rich", *rows]) + "\n")
    data = {"name": str(path), "schema": str(tmp_path / "schema.toml"), "label": "rich"}
    train(config(path, data=data, budget={"steps": 2, "epsilon": 1.0, "noise": None}), tmp_path / "run")
    assert exported(tmp_path, "run", "sklearn", tmp_path / "a.joblib")
    with pytest.raises(ConfigError, match="which only discreet makes; export to sklearn"):
        runner.invoke(app, ["export", str(tmp_path / "run"), "--to", "torchscript"], catch_exceptions=False)


@QUIET
def test_torchscript_takes_the_cells_of_a_csv(runs, tmp_path):
    module = torch.jit.load(exported(runs, "people", "torchscript", tmp_path / "a.pt"))
    wanted = discreet.load(runs / "people").predict_proba(runs / "people.csv")
    cells = [line.split(",") for line in (runs / "people.csv").read_text().splitlines()[1:]]
    found = module({"age": [row[0] for row in cells], "job": [row[1] for row in cells]})
    assert found.numpy() == pytest.approx(wanted)


def test_onnx_names_the_classes(runs, tmp_path):
    path = exported(runs, "people", "onnx", tmp_path / "a.onnx")
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    fed = {"age": np.array([90.0, np.nan]), "job": np.array(["clerk", "?"], dtype=object)}
    named, chances = session.run(["prediction", "probabilities"], fed)
    wanted = discreet.load(runs / "people")
    assert named.tolist() == wanted.predict({"age": [90, None], "job": ["clerk", "?"]}).tolist()
    assert chances.sum(1) == pytest.approx(1)


def test_sklearn_has_the_guarantee_and_is_not_fitted_again(runs, tmp_path):
    path = exported(runs, "people", "sklearn", tmp_path / "a.joblib")
    import joblib

    made = joblib.load(path)
    assert made.guarantee_ == discreet.load(runs / "people").guarantee
    assert made.classes_.tolist() == ["no", "yes"]
    with pytest.raises(ConfigError, match="is not fitted again"):
        made.fit([[1.0]], [0])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["people", "--to", "tensorflow"], "one of torchscript, onnx, sklearn"),
        (["people", "--to", "onnx", "--out", "a.pt"], "ends in .onnx"),
        (["people", "--to", "torchscript", "--out", "nowhere/a.pt"], "cannot be written"),
        (["nowhere", "--to", "torchscript"], "is no run's folder"),
        ([".", "--to", "onnx"], "is no run's folder"),
    ],
)
def test_bad_input_is_one_line(runs, monkeypatch, arguments, words):
    monkeypatch.chdir(runs)
    done = runner.invoke(app, ["export", *arguments])
    assert isinstance(done.exception, ConfigError)
    assert words in str(done.exception)
    assert "\n" not in str(done.exception)


def test_a_model_whose_file_gives_other_outputs_is_not_written(runs, tmp_path, monkeypatch):
    monkeypatch.setattr("discreet.runs.trained.export._difference", lambda *given: 0.1)
    done = runner.invoke(app, ["export", str(runs / "people"), "--to", "torchscript", "--out", str(tmp_path / "a.pt")])
    assert "gives other outputs" in str(done.exception)
    assert not list(tmp_path.iterdir())
