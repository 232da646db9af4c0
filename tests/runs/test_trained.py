import json
import shutil
import tomllib

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from small_people import people_config
from small_runs import config, stopping

import discreet
from discreet import ConfigError, PrivacyError, verify
from discreet.data import Data
from discreet.runs.config import from_dict
from discreet.runs.run import resume, train
from discreet.runs.trained.manifest import Manifest


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    """A finished run on a table, in a folder that was moved away from its data and its schema."""
    made = tmp_path_factory.mktemp("made")
    train(people_config(made), made / "a")
    away = tmp_path_factory.mktemp("away") / "moved"
    shutil.move(made / "a", away)
    (made / "schema.toml").unlink()
    return away, made / "people.csv"


def test_a_model_is_used_from_its_folder_alone(people):
    folder, table = people
    trained = discreet.load(folder)
    assert trained.classes == ("no", "yes")
    assert trained.guarantee == verify(folder).runs[0].guarantee
    weights = load_file(folder / "model.safetensors")
    ages, jobs = np.arange(80) % 100, np.arange(80) % 2
    x = torch.tensor(np.stack([ages / 50 - 1, jobs == 0, jobs == 1], 1), dtype=torch.float32)
    wanted = torch.softmax((x @ weights["1.weight"].T + weights["1.bias"]).double(), 1).numpy()
    found = trained.predict_proba(table)
    assert found == pytest.approx(wanted, abs=1e-6)
    assert trained.predict(table).tolist() == [("no", "yes")[i] for i in wanted.argmax(1)]
    assert trained.predict({"age": [3], "job": ["clerk"]}).shape == (1,)
    assert "ε = " in repr(trained)
    assert not trained.model.training


def test_a_folder_says_what_its_model_takes_and_is_its_own(people):
    folder, _ = people
    config = (folder / "config.toml").read_text()
    assert 'schema = "schema.toml"' in config
    assert "[rich]" in (folder / "schema.toml").read_text()
    made = Manifest.read(folder)
    assert (made.data, made.task) == ("people.csv", "tabular-classification")
    assert str(folder.parent) not in (folder / "model.json").read_text()


def test_the_card_says_what_is_proven(people):
    folder, _ = people
    page = (folder / "README.md").read_text()
    assert str(verify(folder).runs[0].guarantee) in page
    assert page.startswith("---\nlibrary_name: discreet\npipeline_tag: tabular-classification\n")
    assert "one of 2 classes: no, yes" in page


def test_what_describes_a_model_is_compared_with_the_ledger(people, tmp_path):
    for name, change in (
        ("model.json", lambda path: path.write_text(path.read_text().replace('"no"', '"yep"'))),
        ("model.safetensors", lambda path: save_file({"1.weight": torch.zeros(2, 3), "1.bias": torch.ones(2)}, path)),
    ):
        copy = tmp_path / name
        shutil.copytree(people[0], copy)
        change(copy / name)
        with pytest.raises(PrivacyError, match="is not the file that the run left"):
            discreet.load(copy)
        (copy / name).unlink()
        with pytest.raises(ConfigError, match=name):
            discreet.load(copy)


def test_numbers_are_predicted_in_their_own_unit(tmp_path):
    made = people_config(tmp_path)
    (tmp_path / "schema.toml").write_text(
        'ignore = ["rich"]\n\n[age]\nlow = 20\nhigh = 60\n\n[job]\ncategories = ["x"]\n'
    )
    made = discreet.runs.config.merged(made, {"data.label": "age"})
    train(made, tmp_path / "a")
    trained = discreet.load(tmp_path / "a")
    assert trained.classes is None
    found = trained.predict({"job": ["clerk", "x"]})
    assert ((found >= 20) & (found <= 60)).all()
    raw = trained.outputs(trained.inputs({"job": ["clerk", "x"]}).rows)[:, 0].double().numpy()
    assert found == pytest.approx(40 + 20 * raw)
    with pytest.raises(ConfigError, match="predicts a number"):
        trained.predict_proba({"job": ["x"]})
    assert "a number from 20 to 60" in (tmp_path / "a" / "README.md").read_text()


def test_a_stopped_run_has_no_model_and_goes_on_with_the_schema_in_its_folder(tmp_path):
    train(people_config(tmp_path), tmp_path / "a", stopping(2))
    with pytest.raises(ConfigError, match=r"has not finished: .* discreet resume"):
        discreet.load(tmp_path / "a")
    (tmp_path / "schema.toml").unlink()
    assert resume(tmp_path / "a").finished
    assert len(discreet.load(tmp_path / "a").predict(tmp_path / "people.csv")) == 80


def test_a_folder_of_an_earlier_version_or_of_no_run_says_so(people, tmp_path):
    with pytest.raises(ConfigError, match="is no run's folder"):
        discreet.load(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(people[0], copy)
    (copy / "model.json").write_text(json.dumps({"format": "other"}))
    with pytest.raises(PrivacyError, match="not the file that the run left"):
        discreet.load(copy)


def test_a_moved_folder_proves_its_run_and_the_total_as_of_its_day(table, tmp_path):
    section = {"ledger": str(tmp_path / "all.jsonl"), "dataset": "clouds", "dataset_epsilon": 9.0}
    made = config(table, run={**section, "dataset_delta": 1e-5})
    train(made, tmp_path / "first")
    train(made, tmp_path / "second")
    here = verify(tmp_path / "second")
    (tmp_path / "other").mkdir()
    shutil.move(tmp_path / "second", tmp_path / "other" / "second")
    (tmp_path / "all.jsonl").rename(tmp_path / "other" / "all.jsonl")
    found = verify(tmp_path / "other" / "second")
    assert found.extract.lines == here.lines
    assert found.extract.runs == 2
    assert [run.run for run in found.runs] == [here.own]
    assert found.runs[0].guarantee == next(run for run in here.runs if run.run == here.own).guarantee
    assert found.total.epsilon == pytest.approx(here.total.epsilon)
    assert any(f"as of {found.extract.at}" in text for text in str(found).split("\n\n"))
    assert any("counted since is in that ledger" in c.text for c in found.total.conditions)
    assert len(discreet.load(tmp_path / "other" / "second").predict(table)) == 80


def test_what_describes_a_model_is_the_same_when_its_config_was_read_again():
    asked = {"extractors": {"fine": {"kind": "patches", "atoms": 4, "size": 3}}, "cache": False}
    asked_for = from_dict({"data": {"name": "digits"}, "features": asked})
    again = from_dict(tomllib.loads(asked_for.to_toml()))
    rows = torch.rand(4, 1, 8, 8), torch.arange(4) % 2
    data = Data("digits", rows, None, (1, 8, 8), 2)
    assert Manifest.of(asked_for, data, (8,)).to_json() == Manifest.of(again, data, (8,)).to_json()
