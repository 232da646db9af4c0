import json

import pytest
from small_runs import config, stopping, table_at
from small_stages import MyClip, MyGaussian
from typer.testing import CliRunner

from discreet import ConfigError
from discreet.cli.app import app
from discreet.runs.run import resume, train
from discreet.stages.custom import stage_class, stage_classes

STAGES = {
    "sampling": {"type": "Poisson"},
    "bound": {"type": "small_stages:MyClip", "norm": 0.5},
    "noise": {"type": "Gaussian"},
}
runner = CliRunner()


def test_classes_by_name_and_by_module():
    assert stage_class("small_stages:MyClip") is MyClip
    assert set(stage_classes(["small_stages"])) == {MyClip, MyGaussian}
    assert stage_classes(["small_stages:MyGaussian"]) == (MyGaussian,)


@pytest.mark.parametrize("name", ["nowhere:Clip", "small_stages:Nothing", "small_runs", "", ":", "small_stages:"])
def test_what_names_no_stage_is_refused(name):
    with pytest.raises(ConfigError):
        stage_classes([name])


def test_a_run_with_a_stage_of_ones_own_is_resumed_verified_reported_and_used(tmp_path):
    made = config(table_at(tmp_path), stages=STAGES, budget={"steps": 4})
    train(made, tmp_path / "a", stopping(2))
    assert resume(tmp_path / "a").finished
    run = str(tmp_path / "a")
    known = json.loads(runner.invoke(app, ["verify", run, "--stages", "small_stages", "--json"]).output)
    assert known["runs"][0]["follows_from_its_plan"]
    plain = json.loads(runner.invoke(app, ["verify", run, "--json"]).output)
    assert not plain["runs"][0]["follows_from_its_plan"]
    assert runner.invoke(app, ["report", run, "--stages", "small_stages:MyClip"]).exit_code == 0
    table = str(tmp_path / "clouds.npz")
    assert runner.invoke(app, ["predict", run, table, "--stages", "small_stages"]).output.startswith("prediction,")
    assert resume(tmp_path / "a").already


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ({"bound": {"type": "nowhere:MyClip"}}, "cannot be imported"),
        ({"bound": {"type": "small_stages:Nothing"}}, "has no class"),
        ({"noise": {"type": "small_stages:Unrelated"}}, "Unrelated"),
        ({"bound": {"type": "small_stages:MyClip", "nrm": 1.0}}, "nrm"),
    ],
)
def test_bad_input_is_refused_before_a_folder_is_made(tmp_path, stages, words):
    with pytest.raises(ConfigError, match=words):
        train(config(table_at(tmp_path), stages={**STAGES, **stages}), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_verify_with_stages_that_cannot_be_had_is_bad_input(tmp_path):
    assert isinstance(runner.invoke(app, ["verify", str(tmp_path), "--stages", "nowhere"]).exception, ConfigError)
