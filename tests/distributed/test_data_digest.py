"""Digests of rows: equal where rows are equal, other ones for whatever can differ, and none of what cannot be read."""

import dataclasses
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from discreet.distributed.data_digest import SOME, SameRows, of_row, of_tensors
from discreet.distributed.ranks import ALONE

KEY, OTHER = b"k" * 32, b"o" * 32
Pair = namedtuple("Pair", "x y")


@dataclasses.dataclass
class Record:
    x: torch.Tensor
    name: str


class Picture:
    """What numpy can read, as images can be."""

    def __init__(self, pixels, mode="L"):
        self.pixels, self.mode = pixels, mode

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.pixels, dtype)


ROWS = [
    None, True, False, 0, 1, 1.0, -1.0, float("nan"), 1j, "", "1", "é", "\ud800", b"", b"1", bytearray(b"1"),
    np.float32(1), np.float64(1), np.int64(1), np.zeros(0), np.zeros(3), np.zeros((3, 1)), np.zeros(3, np.float32),
    np.array(["a", "b"]), np.array(["a", "bc"], object), np.array([["a"], ["bc"]], object),
    torch.zeros(()), torch.zeros(1), torch.zeros(0), torch.zeros(3), torch.ones(3), torch.zeros(3, 1),
    torch.zeros(1, 3), torch.zeros(3, dtype=torch.int32), torch.zeros(3, dtype=torch.bfloat16),
    torch.zeros(3, dtype=torch.bool),
    torch.zeros(3, dtype=torch.complex64), torch.tensor([1 + 1j]), torch.tensor([1 + 1j]).conj(),
    (), [], {}, set(), (1, 2), [1, 2], (2, 1), ((1,), 2), (1, (2,)), ("ab", "c"), ("a", "bc"), ([], [[]]), ([[]], []),
    {"a": 1}, {"a": 2}, {"b": 1}, {1: "a"}, {"a": {"b": 1}}, OrderedDict(a=1), {1, 2}, {1, 3}, frozenset({1, 2}),
    Pair(1, 2), Pair(2, 1), Record(torch.zeros(2), "a"), Record(torch.zeros(2), "b"), Record(torch.ones(2), "a"),
    Picture([[1, 2]]), Picture([[1], [2]]), Picture([[1, 2]], "P"), Picture([[1, 3]]),
]  # fmt: skip


def test_rows_that_differ_in_anything_have_different_digests():
    found = [of_row(row, KEY) for row in ROWS]
    assert None not in found
    assert len(set(found)) == len(ROWS)
    assert found == [of_row(row, KEY) for row in ROWS]
    assert not set(found) & {of_row(row, OTHER) for row in ROWS}  # who has not the key learns nothing


def test_what_has_no_order_has_one_digest():
    assert of_row({"a": 1, "b": 2}, KEY) == of_row({"b": 2, "a": 1}, KEY)
    there, back = [str(number) for number in range(100)], [str(number) for number in reversed(range(100))]
    assert of_row(set(there), KEY) == of_row(set(back), KEY)


def test_where_values_lie_in_memory_does_not_matter():
    values = torch.arange(24.0).reshape(4, 6)
    turned = values.t().contiguous().t()
    padded = torch.zeros(4, 9)[:, 1:7].copy_(values)
    for same in (turned, padded, values.clone().requires_grad_()):
        assert of_row(same, KEY) == of_row(values, KEY)
        assert of_tensors([same], KEY) == of_tensors([values], KEY)
    assert of_row(values.numpy().T.copy().T, KEY) == of_row(values.numpy(), KEY)


def itself():
    found = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    "row",
    [object(), (1, object()), {"a": lambda: 1}, torch.zeros(3).to_sparse(), torch.zeros(3, device="meta"), itself(),
     np.array([object()]), (i for i in range(3))],
)  # fmt: skip
def test_what_cannot_be_looked_into_has_no_digest(row):
    assert of_row(row, KEY) is None


def test_real_images_have_digests():
    image = pytest.importorskip("PIL.Image")
    grey, black = (image.fromarray(np.full((4, 5), shade, np.uint8)) for shade in (100, 0))
    found = {of_row(picture, KEY) for picture in (grey, black, grey.resize((4, 5)), grey.convert("RGB"))}
    assert len(found) == 4
    assert None not in found
    assert of_row(grey.copy(), KEY) == of_row(grey, KEY)


@pytest.mark.parametrize("rows", [3, 70_000])  # one block of bytes, and several
def test_every_row_and_every_order_of_tensors_counts(rows):
    x, y = torch.randn(rows, 70), torch.arange(rows)
    digest = of_tensors([x, y], KEY)
    assert of_tensors([x.clone(), y.clone()], KEY) == digest
    assert of_tensors([x, y], OTHER) != digest
    changed = x.clone()
    changed[-1, -1] += 1
    order = torch.arange(rows)
    order[[0, -1]] = order[[-1, 0]]
    for other in ([changed, y], [x[order], y[order]], [x, y[order]], [y, x], [x], [x.double(), y], [x.view(-1, 7), y]):
        assert of_tensors(other, KEY) != digest


def test_a_process_on_its_own_compares_nothing():
    class Unread(TensorDataset):
        def __getitem__(self, index):
            raise AssertionError("it was read")

    assert SameRows(ALONE).compare(Unread(torch.zeros(2 * SOME, 1))) == "all"
