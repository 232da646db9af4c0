"""Batches in which some rows stay and the others are exchanged."""

import torch

from discreet.release.preflight.batches import exchanged, sharing


def graph(nodes):
    return torch.rand(nodes, 2), torch.randint(nodes, (2, 3 * nodes)), nodes % 2


def copies(rows):
    return list(exchanged(rows, [0], "others copies of it"))


def test_parts_go_from_row_to_row_where_these_have_the_same_sizes():
    """A graph's nodes with another one's edges would reach into the next graph."""
    rows = [graph(4), graph(5), graph(4), graph(6), graph(4)]
    whole, (crossed, asked) = copies(rows)
    assert whole == ([rows[0]] * 5, [0])
    assert asked == [0]
    assert [one is other for one, other in zip(crossed, rows, strict=True)] == [True, True, False, True, False]
    assert all(edges.max() < len(features) for features, edges, _ in crossed)
    assert crossed[4][1] is rows[0][1]


def test_rows_of_no_common_size_have_no_parts_exchanged():
    rows = [graph(n) for n in (4, 5, 6)]
    assert copies(rows) == [([rows[0]] * 3, [0])]


def test_rows_of_other_sizes_share_a_part_that_has_the_same_size():
    rows = [(torch.rand(n), f"user {n}", n % 2) for n in (4, 5, 4, 6)]
    assert sharing(rows[::2], 0) is None
    found = sharing(rows, 0)
    assert [row is other for row, other in zip(found, rows, strict=True)] == [True, False, True, False]
    assert found[1] == (rows[1][0], "user 4", 1)
    assert found[3] == (rows[3][0], "user 6", 0)
