import pytest
import torch
from small_training import data, linear, silent, weights

from discreet.training.evaluation import evaluate
from discreet.training.loop import fit


def test_the_averaged_weights_are_what_the_model_has_at_the_end():
    plain = [weights(linear())]
    model = linear()
    fit(model, data(), silent(15), on_step=lambda step: plain.append(weights(model)))
    expected = plain[0].clone()
    for count, now in enumerate(plain[1:], 1):
        decay = min(0.5, (1 + count) / (10 + count))
        expected = decay * expected + (1 - decay) * now
    averaged = linear()
    fitted = fit(averaged, data(), silent(15), averaging=0.5, test=data())
    torch.testing.assert_close(weights(averaged), expected)
    assert fitted.records[-1]["loss"] == pytest.approx(evaluate(averaged, data())["loss"])  # what is evaluated is kept


def test_evaluating_the_average_does_not_change_the_training():
    one, other = linear(), linear()
    fit(one, data(), silent(9), averaging=0.9, test=data(), evaluate_every=1.0)
    fit(other, data(), silent(9), averaging=0.9)
    torch.testing.assert_close(weights(one), weights(other))
