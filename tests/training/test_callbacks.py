import pytest
import torch
from small_runs import config, stopping, table_at
from torch import nn

import discreet
from discreet import ConfigError
from discreet.runs.run import resume, train
from discreet.training import Callback
from discreet.training.callbacks import callbacks

HEARD = []


class Tracker(Callback):
    """Writes down what it hears."""

    def begin(self, done, steps):
        HEARD.append(("begin", done, steps))

    def step(self, step):
        HEARD.append(("step", step))

    def record(self, record):
        HEARD.append(("record", record["step"]))

    def end(self, result):
        HEARD.append(("end", result.finished))


class Half:
    """Has only some of the methods."""

    def begin(self, done, steps):
        pass


@pytest.fixture(autouse=True)
def silence():
    HEARD.clear()


def test_a_callback_hears_of_every_step_and_record_in_order():
    x = torch.randn(20, 3)
    plan = discreet.methods.dp_sgd(examples=20, batch_size=10, steps=3, noise=2.0, delta=1e-5)
    discreet.fit(nn.Linear(3, 2), (x, torch.arange(20) % 2), plan, callbacks=[Tracker(), Callback()], preflight=False)
    kinds = [("begin", 0, 3), ("step", 1), ("step", 2), ("record", 2), ("step", 3), ("record", 3), ("end", True)]
    assert kinds == HEARD


def test_a_runs_file_names_callbacks_which_hear_where_it_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("small_runs.Tracker", Tracker, raising=False)
    made = config(table_at(tmp_path), run={"callbacks": ["small_runs:Tracker"]}, budget={"steps": 4})
    train(made, tmp_path / "a", stopping(2))
    assert HEARD[0] == ("begin", 0, 4)
    assert HEARD[-1] == ("end", False)
    HEARD.clear()
    resume(tmp_path / "a")
    assert HEARD[0] == ("begin", 2, 4)
    assert HEARD[-1] == ("end", True)


@pytest.mark.parametrize("name", ["nowhere:Tracker", "small_runs:Nothing", "small_runs", "", "small_runs:stopping"])
def test_what_names_no_callback_is_refused_before_anything_is_read(name, tmp_path):
    with pytest.raises(ConfigError, match="callback"):
        callbacks([name])
    with pytest.raises(ConfigError, match="callback"):
        train(config(table_at(tmp_path), run={"callbacks": [name]}), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_an_object_that_lacks_a_method_is_refused():
    plan = discreet.methods.dp_sgd(examples=20, batch_size=10, steps=3, noise=2.0, delta=1e-5)
    with pytest.raises(ConfigError, match="Half has no step"):
        discreet.fit(nn.Linear(3, 2), (torch.ones(20, 3), torch.ones(20)), plan, callbacks=[Half()])
