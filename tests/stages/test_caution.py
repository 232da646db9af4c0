"""Words of caution: about what is unusual, and about nothing else."""

import pytest

import discreet
from discreet.stages.caution import cautions

USUAL = {"examples": 10_000, "batch_size": 100, "epochs": 5, "epsilon": 3, "delta": 1e-6}


def test_a_usual_plan_has_none():
    assert cautions(discreet.methods.dp_sgd(**USUAL)) == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"delta": 1e-3}, "δ is above 1 / n"),
        ({"epsilon": 11}, "ε is above 10"),
        ({"epsilon": None, "noise": 0.3, "epochs": 50}, "ε is above 10"),
        ({"examples": 300}, "few examples"),
        ({"batch_size": 10_000}, "everybody takes part in each step"),
    ],
)
def test_what_is_unusual_is_said(changes, words):
    assert [said.partition(":")[0] for said in cautions(discreet.methods.dp_sgd(**{**USUAL, **changes}))] == [words]
