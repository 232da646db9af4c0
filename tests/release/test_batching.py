import numpy as np
import pytest
import torch

from discreet.release.batching import load

WIDE = torch.arange(240.0).view(12, 4, 5)


@pytest.mark.parametrize(
    "data",
    [
        WIDE,
        WIDE[2:],
        WIDE[::3],
        WIDE.transpose(1, 2),
        WIDE.movedim(1, 0)[:, 3:],
        WIDE[:, :1].expand(12, 7, 5),
        WIDE[:, 2, 3],
        WIDE[:, :0],
        WIDE.to_sparse(),
        torch.arange(12),
    ],
    ids=["whole", "from a row", "every third", "turned", "columns", "expanded", "numbers", "empty", "sparse", "1-d"],
)
def test_rows_are_those_that_were_drawn_however_the_tensor_lies_in_memory(data):
    draws = [np.array([0]), np.array([1, 3]), np.arange(len(data)), np.array([len(data) - 1])]
    for draw, rows in zip(draws, load(data, iter(draws)), strict=True):
        expected = torch.stack([data[i] for i in draw.tolist()])
        assert torch.equal(rows.to_dense(), expected.to_dense())


def test_an_empty_draw_is_one_row_of_zeros():
    (rows, labels) = next(load((WIDE, torch.ones(12)), iter([np.empty(0, np.intp)])))
    assert torch.equal(rows, torch.zeros(1, 4, 5))
    assert torch.equal(labels, torch.zeros(1))
