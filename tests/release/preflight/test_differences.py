"""How far gradients are apart, and what a difference is taken for."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from discreet.errors import PrivacyError
from discreet.release.preflight.differences import EXACT, SURELY, Differences
from discreet.release.preflight.trial import Trial


def trial(model):
    def loss(batch):
        return F.cross_entropy(model(batch), torch.zeros(len(batch), dtype=torch.long), reduction="none")

    return Trial(model, loss, torch.stack)


def test_differences_are_measured_against_the_longer_gradient_and_never_against_a_faint_one():
    differences = Differences()
    one = torch.tensor([3.0, 4.0])
    assert differences.apart(one, one.clone()) == 0
    assert differences.apart(one, one + torch.tensor([0.0, 0.05])) == pytest.approx(0.05 / 5.04, rel=1e-2)
    assert differences.apart(torch.zeros(2), torch.tensor([1e-9, 0.0])) == 1.0
    differences.longest = 1.0
    assert differences.apart(torch.zeros(2), torch.tensor([1e-9, 0.0])) == pytest.approx(1e-5)


def test_a_number_and_what_is_none_are_infinitely_far():
    differences, nan = Differences(), torch.tensor([math.nan, 1.0])
    assert differences.apart(nan, nan.clone()) == 0
    assert differences.apart(nan, torch.tensor([0.0, 1.0])) == math.inf
    assert differences.apart(torch.tensor([math.inf, 1.0]), torch.tensor([1.0, 1.0])) > SURELY


def test_a_difference_that_a_batch_mean_makes_is_mixing_and_one_of_a_plain_network_is_rounding():
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            return self.head(x - x.detach().mean(0))

    rows = list(torch.randn(6, 4))
    other = [rows[0], *rows[:0:-1][:-1], rows[2]]
    for model, mixes in ((Centred(), True), (nn.Linear(4, 3), False)):
        runs = trial(model)
        one, two = (runs.run(batch, [0]).gradients[0] for batch in (rows, other))
        differences = Differences()
        if mixes:
            with pytest.raises(PrivacyError, match="mixes examples"):
                differences.beside(runs, rows, other, 0, one, two, "others exchanged")
            with pytest.raises(PrivacyError, match="in a batch of its own"):
                differences.alone(runs, rows[0], len(rows), 0.5, True)
        else:
            assert differences.beside(runs, rows, other, 0, one, two, "others exchanged") == ""
            rounding, exact = differences.rounding(runs, rows[0], len(rows))
            assert exact
            assert rounding <= EXACT
        runs.end()


def test_what_neither_rounding_nor_mixing_explains_is_left_undecided():
    model, rows = nn.Linear(4, 3), list(torch.randn(6, 4))
    runs = trial(model)
    assert "faint mixing" in Differences().alone(runs, rows[0], len(rows), 1e-6, True)
    runs.end()


def test_what_mixes_in_short_floats_alone_is_no_rounding():
    class Short(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(4, 3)

        def forward(self, x):
            return self.net(x - x.mean(0) if x.dtype == torch.float32 else x)

    torch.manual_seed(0)
    rows, other = list(torch.randn(6, 4)), list(torch.randn(6, 4))
    other[2] = rows[2]
    tried = trial(Short())
    one, two = (tried.run(some, [2]).gradients[0] for some in (rows, other))
    assert "in the model's own type" in Differences().beside(tried, rows, other, 2, one, two, "others exchanged")
    tried.end()
