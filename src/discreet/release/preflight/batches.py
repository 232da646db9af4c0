"""Batches in which some rows stay and the others are exchanged."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

_FAR = 16.0


def exchanged(rows: list[Any], units: list[int], way: str) -> Iterator[tuple[list[Any], list[int]]]:
    """Batches of the same size in which the units that are asked for stay, and every other row is replaced."""
    if way == "others exchanged":
        unit = units[0]  # rows before and after it turn round: as long as they were, so that as much is drawn
        before, after = rows[:unit], rows[unit + 1 :]
        yield [*before[1:], *before[:1], rows[unit], *after[1:], *after[:1]], [unit]
        moving = [i for i in range(len(rows)) if i not in units]
        if len(moving) > 1:
            other = list(rows)
            for place, i in enumerate(moving):  # every other place gets the row of the next one
                other[i] = rows[moving[(place + 1) % len(moving)]] if place % 2 else rows[moving[0]]
            yield other, units
        for unit in units:  # the units are others to each other, too
            yield [rows[unit] if i == unit else rows[(i + 1) % len(rows)] for i in range(len(rows))], [unit]
    elif way == "others far away":
        yield [row if i in units else _far(row) for i, row in enumerate(rows)], units
    else:
        for unit in units:
            yield [rows[unit]] * len(rows), [unit]
        one = units[0]
        crosses = [row if i == one else _cross(rows[one], row, i) for i, row in enumerate(rows)]
        if any(cross is not row for cross, row in zip(crosses, rows, strict=True)):
            yield crosses, [one]  # who shares a row's user, or class, is not the row itself


def sharing(rows: list[Any], unit: int) -> list[Any] | None:
    """The same batch in which rows of other sizes share a part with one row, in turn; None if there are none.

    Such rows may be none at all: a graph with another one's number of nodes. What they change proves nothing.
    """
    mine = sizes(rows[unit])
    others = [i for i, row in enumerate(rows) if sizes(row) != mine]
    crosses = {i: _cross(rows[unit], rows[i], turn, alike=False) for turn, i in enumerate(others)}
    found = [crosses.get(i, row) for i, row in enumerate(rows)]
    return found if any(new is not row for new, row in zip(found, rows, strict=True)) else None


def _cross(row: Any, other: Any, turn: int, *, alike: bool = True) -> Any:
    """Another row with one part of this one, in turn.

    Where they have to be `alike`, it is the other row as it was if any part has another size: a graph's nodes with
    another one's edges are no graph, and reach into the next one. Else a part is a number, a text or the like.
    """
    (mine, _), (theirs, spec) = tree_flatten(row), tree_flatten(other)
    if len(mine) < 2 or len(mine) != len(theirs):
        return other
    if alike and sizes(row) != sizes(other):
        return other
    both = enumerate(zip(sizes(row), sizes(other), strict=True))
    parts = [i for i, (a, b) in both if alike or a == b == ()]
    if not parts:
        return other
    place = parts[turn % len(parts)]
    return tree_unflatten([mine[place] if i == place else leaf for i, leaf in enumerate(theirs)], spec)


def sizes(row: Any) -> list[Any]:
    """The shapes of what a row is made of."""
    return [tuple(leaf.shape) if isinstance(leaf, (Tensor, np.ndarray)) else () for leaf in tree_flatten(row)[0]]


def extent(row: Any) -> int:
    """How much a row is made of."""
    leaves = tree_flatten(row)[0]
    sizes = (math.prod(leaf.shape) if isinstance(leaf, (Tensor, np.ndarray)) else 1 for leaf in leaves)
    return sum(sizes) + sum(len(leaf) for leaf in leaves if isinstance(leaf, (str, bytes)))


def is_finite(row: Any) -> bool:
    """Whether all real values of a row are."""
    leaves = [leaf for leaf in tree_flatten(row)[0] if isinstance(leaf, (Tensor, np.ndarray, float))]
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            if (leaf.is_floating_point() or leaf.is_complex()) and not bool(leaf.isfinite().all()):
                return False
        elif (isinstance(leaf, float) or leaf.dtype.kind in "fc") and not bool(np.isfinite(leaf).all()):
            return False
    return True


def are_finite(rows: Sequence[Any]) -> bool:
    """Whether all real values of all rows are. Tensors that are alike in every row are looked at together."""
    leaves = [tree_flatten(row)[0] for row in rows]
    if len({len(some) for some in leaves}) == 1:
        columns = list(zip(*leaves, strict=True))
        if all(len({_kind(leaf) for leaf in column}) == 1 and type(column[0]) is Tensor for column in columns):
            return all(is_finite(torch.stack(column)) for column in columns)
    return all(map(is_finite, rows))


def _kind(leaf: Any) -> Any:
    return (leaf.shape, leaf.dtype, leaf.device) if type(leaf) is Tensor else type(leaf)


def _far(row: Any) -> Any:
    """A row whose real values are many times as large."""

    def grow(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            return _FAR * value
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            return value.dtype.type(_FAR) * value
        return _FAR * value if type(value) is float else value

    return tree_map(grow, row)
