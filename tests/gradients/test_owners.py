"""Whose rows are, by arithmetic alone."""

import pytest
import torch

from discreet.gradients.owners import Owners, along, by_position, dealt, merged, owners_of, part_of, whole

T = torch.tensor


def test_rows_that_go_to_two_units_belong_to_none():
    assert dealt(3, T([0, 1, 0]), T([5, 6, 7])) is None
    found = dealt(4, T([0, -1, 0]), T([5, 6, 5]))
    assert found is not None
    assert found.of.tolist() == [5, -1, -1, 6]


def test_what_reaches_no_loss_gives_no_rows_away():
    found = dealt(3, T([0, 0, 1]), T([5, -1, -1]))
    assert found is not None
    assert found.of.tolist() == [5, -1, -1]


def test_two_uses_of_one_tensor_agree_or_tell_nothing():
    one, other = Owners(T([0, -1, 1, 1])), Owners(T([0, 2, -1, 1]))
    assert merged((0, one), (0, other), (4,), 3) == (0, Owners(T([0, 2, 1, 1])))
    assert merged((0, one), (0, Owners(T([1, 2, 1, 1]))), (4,), 3) is None
    assert merged((0, one), None, (4,), 3) is None
    assert merged((0, Owners(T([0, -1, 1, -1]))), (0, 2), (4,), 2) == (0, 2)
    assert merged((0, one), (1, other), (4, 4), 3) is None


@pytest.mark.parametrize("unit", [0, 2])
def test_all_of_a_tensor_is_a_units_along_any_dimension(unit):
    assert along((0, whole(3, unit)), 1, (3, 5)) == (1, whole(5, unit))
    assert along((0, Owners(T([unit] * 3))), 1, (3, 5)) is None
    assert merged((0, whole(3, unit)), (1, Owners(T([-1, unit]))), (3, 2), 3) == (1, whole(2, unit))


def test_rows_that_stand_in_order_are_told_by_a_number():
    assert by_position(Owners(T([0, 0, 1, 1])), 2) == 2
    assert by_position(Owners(T([0, 1, 0, 1])), 2) == Owners(T([0, 1, 0, 1]))
    assert by_position(Owners(T([1])), 2) == whole(1, 1)
    assert owners_of(2, 8, 2).tolist() == [0, 0, 1, 1] * 2
    assert part_of(4, slice(1, 3), T([5, 6])).of.tolist() == [-1, 5, 6, -1]
