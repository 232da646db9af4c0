"""Batches in which some rows stay and the others are exchanged."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

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


def _far(row: Any) -> Any:
    """A row whose real values are many times as large."""

    def grow(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            return _FAR * value
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            return value.dtype.type(_FAR) * value
        return _FAR * value if type(value) is float else value

    return tree_map(grow, row)
