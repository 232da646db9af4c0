"""Scores: a row counts from 0 to 1 whatever the model says of it."""

import pytest
import torch

from discreet import ConfigError
from discreet.tuning.scores import points

BAD = [float("nan"), float("inf"), -float("inf")]


def test_a_right_answer_counts_one():
    outputs = torch.tensor([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]])
    assert points(outputs, torch.tensor([0, 1, 1])).tolist() == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("bad", BAD)
def test_what_is_no_number_counts_nothing(bad):
    assert points(torch.tensor([[bad, 0.0]]), torch.tensor([0])).tolist() == [0.0]
    assert points(torch.tensor([[float("nan")]]), torch.tensor([[0.5]])).tolist() == [0.0]


def test_of_numbers_the_error_counts_and_stays_within_one():
    outputs, targets = torch.tensor([[0.5], [9.0], [-9.0], [0.0]]), torch.tensor([0.5, -1.0, 1.0, 1.0])
    assert points(outputs, targets).tolist() == [1.0, 0.0, 0.0, 0.75]
    assert 0 <= float(points(torch.tensor([[1.0]]), torch.tensor([-50.0]))) <= 1


def test_labels_for_each_letter_are_refused():
    with pytest.raises(ConfigError, match="one label a row"):
        points(torch.zeros(2, 3, 4), torch.zeros(2, 4, dtype=torch.long))
