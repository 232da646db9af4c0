"""Networks as people write them: each example's gradient is its own, what mixes is refused, one row moves no more."""

import warnings
from functools import partial

import pytest
import torch
from soak import some

from by_hand import CASES, MIXING
from by_hand.brute_force import difference, gradient, ragged, released
from by_hand.case import UNITS
from by_hand.flat import NESTED
from discreet import PrivacyError
from discreet.gradients import Engine

FLAT = [case for case in CASES if case.home == "by_hand.flat"]
APART = [case for case in CASES if case.name not in NESTED]  # nested tensors are taken one example at a time


def ids(case):
    return case.name


@pytest.mark.parametrize("case", APART, ids=ids)
def test_gradients_are_those_of_autograd_for_each_loss_alone(case):
    model, rows, collate, loss = case.build()
    engine, batch = Engine(model), collate(rows)
    for _ in range(2):  # the second time by what was learned
        losses = loss(model, batch)
        each = torch.stack([gradient(model, one, retain=True) for one in losses])
        found = engine.gradients(losses, len(rows), ragged=partial(ragged, batch, len(rows)))
        assert difference(found, each, engine.layout) < 1e-5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", MIXING, ids=ids)
def test_what_mixes_is_refused(case):
    model, rows, collate, loss = case.build()
    with pytest.raises(PrivacyError):
        released(model, rows, collate, loss, range(UNITS), 1.0, preflight=True)


@pytest.mark.parametrize("bound", some([1e-2], [1e-2, 1.0]))
@pytest.mark.parametrize("case", FLAT, ids=ids)
def test_one_example_moves_what_is_released_by_no_more_than_the_bound(case, bound):
    """Neighbours: all examples, and all but one, whose rows lie elsewhere in the batch then."""
    _, rows, collate, loss = case.build()
    victim = 1 + len(case.name) % (UNITS - 1)  # not the same one for all networks
    moved = []
    for there in (range(UNITS), [i for i in range(UNITS) if i != victim]):
        model = case.build()[0]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "each example is taken in a batch of its own")
            moved.append(released(model, rows, collate, loss, there, bound, preflight=case.name in NESTED))
    far = float((moved[0] - moved[1]).norm()) / bound
    assert 0.05 < far <= 1 + 1e-4


def test_nested_rows_are_refused_by_name_where_no_loss_can_be_called():
    case = next(case for case in CASES if case.name in NESTED)
    model, rows, collate, loss = case.build()
    with pytest.raises(PrivacyError, match="nested tensor"):
        Engine(model).gradients(loss(model, collate(rows)), UNITS)
