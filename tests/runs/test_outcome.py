import json

import pytest
import torch
from safetensors.torch import load_file
from small_runs import Killed, config

from discreet import ConfigError, PrivacyError
from discreet.runs.config import from_dict
from discreet.runs.outcome import read_end
from discreet.runs.progress import Watch
from discreet.runs.run import resume, train


def test_a_run_that_ended_and_was_killed_before_it_said_so_is_concluded(table, tmp_path):
    made = config(table, averaging={"decay": 0.5})
    first = train(made, tmp_path / "a")
    model = load_file(tmp_path / "a" / "model.safetensors")
    for name in ("end.json", "model.safetensors", "guarantee.json"):
        (tmp_path / "a" / name).unlink()
    second = resume(tmp_path / "a")
    assert (second.anchor, second.accuracy, second.lost) == (first.anchor, first.accuracy, 0)
    for name, tensor in load_file(tmp_path / "a" / "model.safetensors").items():
        assert torch.equal(tensor, model[name])


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"accuracy": 1, "lost": 0}'])
def test_an_end_that_cannot_be_read_is_said(table, tmp_path, text):
    train(config(table, budget={"steps": 1}), tmp_path / "a")
    (tmp_path / "a" / "end.json").write_text(text)
    with pytest.raises(ConfigError, match="has finished, but cannot be read"):
        read_end(tmp_path / "a")


def test_a_changed_guarantee_is_not_repeated(tmp_path):
    config = from_dict({"model": {"name": "linear"}, "budget": {"noise": 5.0, "steps": 2, "batch_size": 64}})
    train(config, tmp_path / "run")
    path = tmp_path / "run" / "guarantee.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"epsilon": values["epsilon"] / 2}))
    with pytest.raises(PrivacyError, match="says less than its ledger proves"):
        resume(tmp_path / "run")


def test_of_two_measurements_of_the_last_step_the_later_holds(table, tmp_path):
    """A crash that took the last checkpoint takes steps, too, where an epoch cannot be gone on with."""
    stages = {
        "sampling": {"type": "Allocation", "batches": 2},
        "bound": {"type": "Clip", "norm": 1.0},
        "noise": {"type": "Gaussian"},
    }
    made = config(table, stages=stages, budget={"steps": 4}, evaluation={"every": 0.5})

    def die(record):
        if record["step"] == 3:
            raise Killed

    with pytest.raises(Killed):
        train(made, tmp_path / "a", Watch(record=die))
    outcome = resume(tmp_path / "a")
    steps = [json.loads(line)["step"] for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 3]
    again = read_end(tmp_path / "a")
    assert (again.accuracy, again.merit) == (outcome.accuracy, json.loads(json.dumps(outcome.merit)))
