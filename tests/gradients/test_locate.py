"""Constants that are no data: what a forward pass computes of positions, and tables of data beside them."""

import pytest
import torch
from oracle import Net, assert_units, square_loss
from torch import nn

from discreet import PrivacyError
from discreet.gradients import Engine
from discreet.gradients.locate import _is_sinusoidal

R = torch.randn


def sinusoids(positions, width=8, halves=True):
    angles = torch.as_tensor(positions).double()[:, None] / 50 ** (torch.arange(width // 2) / (width // 2))
    parts = [angles.sin(), angles.cos()]
    return (torch.cat(parts, 1) if halves else torch.stack(parts, 2).flatten(1)).float()


def relative(table):
    """An attention's scores of queries and of positions that a layer has gone through (XLNet, Conformers)."""
    model = Net(q=nn.Linear(3, 8), places=nn.Linear(8, 8, bias=False), head=nn.Linear(8, 2))
    scores = model.q(R(4, 5, 3)) @ model.places(table).t()
    return model, square_loss(model.head(scores[..., :8]).sum(1))


@pytest.mark.parametrize("positions", [range(8), range(8, -8, -1), range(0, 24, 3)])
@pytest.mark.parametrize("halves", [True, False])
def test_a_table_of_sines_that_the_forward_pass_computes_prepares_parameters(positions, halves):
    model, losses = relative(sinusoids(list(positions), halves=halves))
    assert_units(model, losses, tolerance=1e-5)


def test_a_table_of_anything_else_may_be_data_and_is_refused():
    model, losses = relative(R(8, 8))
    with pytest.raises(PrivacyError, match="mixes examples"):
        Engine(model).gradients(losses, 4)


SERIES = torch.sin(torch.arange(40)[:, None] * torch.rand(1, 8))
NOT_POSITIONS = {
    "random": R(16, 8),
    "constant": torch.ones(16, 8),
    "one-hot": torch.eye(8),
    "a ramp": torch.arange(16.0)[:, None].expand(16, 8),
    "signals without their other halves": SERIES,
    "the hour of rows in no order": sinusoids([3, 1, 4, 15, 9, 2, 6, 5, 35]),
    "hours of several examples": torch.stack([sinusoids(range(4)), sinusoids(range(5, 9))]).flatten(0, 1),
    "positions with one that is not": sinusoids([0, 1, 2, 3, 4, 6, 7, 8]),
    "few rows": sinusoids(range(4)),
    "not a number": sinusoids(range(8)) * torch.nan,
    "three dimensions": sinusoids(range(8)).expand(2, 8, 8),
}


@pytest.mark.parametrize("table", NOT_POSITIONS.values(), ids=NOT_POSITIONS)
def test_data_is_no_table_of_sines(table):
    assert not _is_sinusoidal(table)
