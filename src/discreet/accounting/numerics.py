"""Where a growing function passes given values."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.floating[Any]]


def invert(function: Callable[[Reals], Reals], values: Reals, table: Reals, tolerance: float = 2e-14) -> Reals:
    """For each value the x at which a non-decreasing function passes it: a table of x, then false position."""
    heights = function(table)
    after = np.clip(np.searchsorted(heights, values, side="right"), 1, len(table) - 1)
    low, high = table[after - 1], table[after]
    below, above = heights[after - 1] - values, heights[after] - values
    for _ in range(60):
        with np.errstate(divide="ignore", invalid="ignore"):
            guess = high - above * (high - low) / (above - below)
        middle = np.where((guess > low) & (guess < high), guess, (low + high) / 2)
        excess = function(middle) - values
        if np.all((np.abs(excess) <= tolerance) | (middle <= low) | (middle >= high)):
            return middle
        passed = excess > 0
        # the end that stays counts half (Illinois), so that both ends come in
        above, below = np.where(passed, excess, above / 2), np.where(passed, below / 2, excess)
        low, high = np.where(passed, low, middle), np.where(passed, middle, high)
    return (low + high) / 2
