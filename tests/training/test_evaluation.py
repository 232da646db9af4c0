import pytest
import torch
from small_training import CLASSES, SIZE, data, linear, plan
from torch import nn
from torch.nn import functional as F

from discreet import (
    ConfigError,
)
from discreet.training.evaluation import evaluate
from discreet.training.loop import fit


def test_evaluation_is_the_mean_over_all_rows_however_they_are_taken():
    model, (x, y) = linear(), data()
    expected = F.cross_entropy(model(x), y).item()
    right = float((model(x).argmax(1) == y).float().mean())
    for rows in (1, 7, 1000):
        found = evaluate(model, (x, y), rows=rows)
        assert found["loss"] == pytest.approx(expected, rel=1e-5)
        assert found["accuracy"] == pytest.approx(right)


def test_evaluation_leaves_every_modules_mode_as_it_was():
    model = nn.Sequential(nn.Linear(SIZE, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, CLASSES))
    model[1].eval()
    seen = []
    model[2].register_forward_hook(lambda module, inputs, output: seen.append(module.training))
    evaluate(model, data())
    assert seen == [False]
    assert [m.training for m in model] == [True, False, True, True]
    for parameter in model[1].parameters():
        parameter.requires_grad = False
    assert fit(model, data(), plan(4), test=data(), evaluate_every=0.3).finished  # the frozen norm stays frozen


def test_accuracy_of_sequences_is_by_position_and_of_other_outputs_none():
    x, y = torch.randn(8, 3, 4), torch.randint(3, (8, 4))
    found = evaluate(nn.Conv1d(3, 3, 1), (x, y), lambda out, t: F.cross_entropy(out, t, reduction="none").mean(1))
    assert 0 <= found["accuracy"] <= 1
    single = nn.Sequential(nn.Linear(SIZE, 1), nn.Flatten(0))
    x, y = torch.randn(8, SIZE), torch.randint(2, (8,))
    found = evaluate(single, (x, y), lambda o, t: F.binary_cross_entropy_with_logits(o, t.float(), reduction="none"))
    assert set(found) == {"loss"}


def test_nothing_to_evaluate_on_is_said():
    with pytest.raises(ConfigError, match="no held-out data"):
        evaluate(linear(), (torch.zeros(0, SIZE), torch.zeros(0)), lambda o, t: o)
