from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from torch import nn

from discreet import ConfigError
from discreet.training import TrainingOptions

SGD = torch.optim.SGD(nn.Linear(1, 1).parameters())


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"copies": 0}, "copies is 0"),
        ({"copies": 2}, "nothing changes them"),
        ({"chunk": 0}, "chunk is 0"),
        ({"averaging": 1.0}, "averaging is 1.0"),
        ({"evaluate_every": 0.0}, "evaluate_every is 0"),
        ({"evaluate_rows": 0}, "evaluate_rows is 0"),
        ({"checkpoint_every": -1.0}, "checkpoint_every is -1"),
        ({"schedule": torch.optim.lr_scheduler.ReduceLROnPlateau(SGD)}, "schedules go by the number of releases"),
        ({"optimizer": torch.optim.LBFGS(nn.Linear(1, 1).parameters())}, "several times a step"),
        ({"audit": object(), "augment": torch.relu}, "audit a run without augment="),
    ],
)
def test_options_that_cannot_be_are_refused_when_they_are_made(values, words):
    with pytest.raises(ConfigError, match=words):
        TrainingOptions(**values)


def test_options_do_not_change():
    options = TrainingOptions(copies=2, augment=torch.relu)
    with pytest.raises(FrozenInstanceError):
        options.copies = 3
    assert replace(options, chunk=8).copies == 2
