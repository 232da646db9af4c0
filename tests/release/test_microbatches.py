"""Microbatches: means of a few units each, divided by the public size."""

import math

import numpy as np
import torch

from discreet.gradients import UnitGradients
from discreet.gradients.forms import Materialised
from discreet.release.microbatches import Microbatches

LIKE = {"weight": torch.zeros(2)}


def of(rows):
    return UnitGradients({"weight": Materialised(torch.tensor(rows))}, len(rows), LIKE)


def means(batches):
    return batches.gradients().forms["weight"].each(0, batches.count).tolist()


def test_each_units_gradient_counts_in_its_own_microbatch():
    batches = Microbatches(LIKE, count=2, size=2)
    batches.add(of([[2.0, 0.0], [0.0, 4.0], [6.0, 8.0]]), torch.tensor([0, 1, 0]))
    assert means(batches) == [[4.0, 4.0], [0.0, 2.0]]


def test_sums_are_divided_by_the_public_size_however_many_came():
    batches = Microbatches(LIKE, count=1, size=4)
    batches.add(of([[2.0, 4.0]]), torch.tensor([0]))
    assert means(batches) == [[0.5, 1.0]]


def test_what_is_not_finite_or_not_sound_is_left_out():
    batches = Microbatches(LIKE, count=1, size=1)
    rows = [[1.0, 1.0], [math.nan, 1.0], [1.0, math.inf], [5.0, 5.0]]
    batches.add_sound(of(rows), torch.tensor([True, True, True, False]), np.zeros(4, np.int64))
    assert means(batches) == [[1.0, 1.0]]


def test_ranks_share_the_means_among_them():
    batches = Microbatches(LIKE, count=3, size=1)
    batches.add(of([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]), torch.tensor([0, 1, 2]))
    shares = [batches.share(rank, 2) for rank in range(2)]
    assert [share.each(0, share.units)["weight"][:, 0].tolist() for share in shares] == [[1.0, 3.0], [2.0]]
    assert batches.share(3, 4) is None


def test_cleared_means_are_gone():
    batches = Microbatches(LIKE, count=1, size=1)
    batches.add(of([[1.0, 1.0]]), torch.tensor([0]))
    batches.clear()
    batches.add(of([[2.0, 3.0]]), torch.tensor([0]))
    assert means(batches) == [[2.0, 3.0]]
