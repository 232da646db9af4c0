"""How far one unit can move C G, by the steps in which it can take part (C1 to C3 of docs/theory-correlated.md).

Shares are at most 1 long. Everything is an upper bound for all signs and directions of them, and exact where said.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from discreet._check import check_int
from discreet.errors import ConfigError

Reals = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Pattern:
    """Two participations of a unit are at least `separation` steps apart, and there are at most `most`.

    Fixed order is the same pattern: what it adds, that all distances are equal, gains nothing for the strategies here.

    >>> Pattern(separation=3).times(steps=10)
    4
    """

    separation: int = 1
    most: int | None = None

    def __post_init__(self) -> None:
        check_int("separation", self.separation, least=1)
        if self.most is not None:
            check_int("most", self.most, least=0)

    def times(self, steps: int) -> int:
        """How often a unit can take part in so many steps."""
        fits = -(-steps // self.separation)
        return fits if self.most is None else min(fits, self.most)


ONCE = Pattern(most=1)


def spread(values: npt.ArrayLike, separation: int, most: int | None = None) -> float:
    """The largest sum of at most `most` of the values whose places are at least `separation` apart (none: 0).

    >>> spread([1, 0.5, 0.5, 0.5, 0.1], 1)
    2.6
    """
    x = np.asarray(values, float)
    times = Pattern(separation, most).times(len(x))
    best = np.zeros(len(x) + separation)
    for _ in range(times):
        best[: len(x)] = x + best[separation:]
        best[: len(x)] = np.maximum(np.maximum.accumulate(best[: len(x)][::-1])[::-1], 0.0)
    return float(best[0])


def of_toeplitz(coefficients: npt.ArrayLike, steps: int, pattern: Pattern = ONCE) -> float:
    """The sensitivity of a Toeplitz strategy, C3: exact where the coefficients are >= 0 and never rise.

    Others are replaced by the least such sequence above their absolute values, for an upper bound.
    """
    c = np.zeros(steps)
    given = np.asarray(coefficients, float)[:steps]
    c[: len(given)] = np.maximum.accumulate(np.abs(given)[::-1])[::-1]
    times, apart = pattern.times(steps), pattern.separation
    if steps == 0 or times == 0:
        return 0.0
    # row t has the sum of c at t, t - apart, ...: so many of them as there are participations
    padded = np.zeros(-(-steps // apart) * apart)
    padded[:steps] = c
    rows = np.cumsum(padded.reshape(-1, apart), axis=0).reshape(-1)
    if times * apart < len(rows):
        late = rows[times * apart :] - rows[: -times * apart]
        rows[times * apart :] = late
    return math.sqrt(float(rows[:steps] @ rows[:steps]))


def of_matrix(matrix: npt.ArrayLike, pattern: Pattern = ONCE) -> float:
    """The sensitivity of any strategy: exact where columns `separation` or more apart are at right angles.

    Otherwise spread(v) of v_r = spread(|X_r.|), X = C^T C, is an upper bound (C2).
    """
    c = np.asarray(matrix, float)
    x = c.T @ c
    size = len(x)
    if pattern.times(size) <= 1:
        return math.sqrt(float(np.diag(x).max(initial=0.0))) if pattern.times(size) else 0.0
    far = np.abs(np.subtract.outer(np.arange(size), np.arange(size))) >= pattern.separation
    if not np.any(x[far]):
        return math.sqrt(spread(np.diag(x), pattern.separation, pattern.most))
    rows = []
    for r, row in enumerate(np.abs(x)):
        near = np.abs(np.arange(size) - r) < pattern.separation  # of these r alone can be in a set with r
        near[r] = False
        rows.append(spread(np.where(near, 0.0, row), pattern.separation, pattern.most))
    return math.sqrt(spread(rows, pattern.separation, pattern.most))


def of_fixed_order(matrix: npt.ArrayLike, batches: int) -> float:
    """The sensitivity of any strategy where a unit takes part every `batches` steps: exact where C^T C >= 0."""
    c = np.asarray(matrix, float)
    check_int("batches", batches, least=1)
    x = np.abs(c.T @ c)
    return math.sqrt(max((float(x[j::batches, j::batches].sum()) for j in range(min(batches, len(x)))), default=0.0))


def at_right_angles(matrix: npt.ArrayLike, separation: int) -> None:
    """Raise unless columns so far apart are at right angles: what the exact formula for bands asks."""
    c = np.asarray(matrix, float)
    x = c.T @ c
    far = np.abs(np.subtract.outer(np.arange(len(x)), np.arange(len(x)))) >= separation
    if np.any(x[far]):
        raise ConfigError(f"columns {separation} or more apart are not at right angles; use fewer bands.")
