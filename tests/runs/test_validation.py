import math

import pytest
from small_runs import config

from discreet import ConfigError
from discreet.runs.progress import Watch
from discreet.runs.run import train


def test_tensorboard_that_is_not_installed_is_said_at_the_beginning(table, tmp_path, monkeypatch):
    monkeypatch.setattr("discreet.runs.validation.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="tensorboard needs a package"):
        train(config(table, run={"tensorboard": True}), tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"evaluation": {"every": 0.0}}, r"\[evaluation\] every is 0"),
        ({"evaluation": {"batch_size": 0}}, r"\[evaluation\] batch_size is 0"),
        ({"run": {"checkpoint_every": -1.0}}, r"\[run\] checkpoint_every is -1"),
        ({"run": {"seed": -1}}, r"\[run\] seed is -1"),
        ({"run": {"seed": 2**63}}, r"\[run\] seed is too large"),
        ({"run": {"chunk": 0}}, r"\[run\] chunk is 0"),
        ({"run": {"device": "abacus"}}, "device 'abacus' cannot be used"),
        ({"run": {"device": "meta"}}, "device 'meta' cannot be used"),
        ({"run": {"alone": True, "dataset": "clouds"}}, "leave it out"),
        ({"run": {"dataset": "a/b"}}, "--dataset"),
        ({"averaging": {"decay": 1.0}}, r"\[averaging\] decay is 1"),
        ({"augmentation": {"copies": 2}}, "nothing changes them"),
        ({"augmentation": {"copies": 0}}, r"\[augmentation\] copies is 0"),
        ({"augmentation": {"shift": -1}}, "shift is -1"),
        ({"data": {"settings": {"folder": "x"}}}, r"\[data.settings\] folder"),
        ({"model": {"settings": {"shape": [1]}}}, r"\[model.settings\] shape"),
        ({"schedule": {"warmup": 2.0}}, "warmup is 2"),
        ({"optimizer": {"learning_rate": math.nan}}, "learning_rate is nan"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_before_a_folder_is_made(table, tmp_path, sections, words):
    with pytest.raises(ConfigError, match=words):
        train(config(table, **sections), tmp_path / "a", Watch(stage=pytest.fail))
    assert not (tmp_path / "a").exists()
