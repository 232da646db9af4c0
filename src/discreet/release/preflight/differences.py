"""How far two gradients of a unit are apart, and whether that is rounding, mixing, or more than a test can tell."""

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from discreet.errors import PrivacyError
from discreet.release.preflight.trial import CannotRunError, Trial, equal

EXACT = 1e-9  # of a gradient's length, in float64: what a different order of sums may change
ROUNDING = 8.0  # times the rounding that copies show
FEW_BITS = 1e-6  # the same in the model's own type
AMPLIFIED = 1e-7  # the most that rounding in float64 may come to inside a network
SURELY = 1e-4  # a difference in float64 that no rounding inside a network makes
COARSE = 1e-2  # the same in the model's own type, where it cannot run in float64
FAINT = 1e-4  # of the longest gradient seen: one that is shorter is measured against this


class Differences:
    """Differences between gradients, measured against their own length and against what rounding makes."""

    def __init__(self) -> None:
        self.longest = 0.0  # of the gradients seen

    def apart(self, one: Tensor, two: Tensor) -> float:
        """How far two gradients are from each other, of their length; a number and a NaN are infinitely far."""
        if equal(one, two):
            return 0.0
        if not torch.equal(one.isnan(), two.isnan()):
            return math.inf
        one, two = one.nan_to_num(0), two.nan_to_num(0)
        size = max(length(one), length(two), FAINT * self.longest)
        distance = length(one.double() - two.double()) / size if size else 0.0
        return math.inf if math.isnan(distance) else distance

    def beside(
        self, trial: Trial, rows: list[Any], other: list[Any], unit: int, one: Tensor, two: Tensor, way: str
    ) -> str:
        """Two gradients of a unit differ: by rounding, by mixing, or nobody can say."""
        distance = self.apart(one, two)
        spread = self.apart(one, trial.run(rows, [unit]).gradients[0])
        if spread > SURELY:
            return "the same batch gave other gradients when it was run again"
        if distance <= 4 * spread:
            return ""
        rounding, exact = self.rounding(trial, rows[unit], len(rows))
        short = ""
        if exact and distance > COARSE:  # more than rounding makes: something is done in short floats alone
            short = "a row's gradient changed with the rows beside it in the model's own type, though not in float64"
        if exact:
            with trial.exact():
                distance = self.apart(*(trial.run(r, [unit]).gradients[0] for r in (rows, other)))
        if distance <= EXACT + ROUNDING * rounding and rounding <= (AMPLIFIED if exact else SURELY):
            return short
        if distance > (SURELY if exact else COARSE) and distance > ROUNDING * rounding:
            raise PrivacyError(
                f"{trial.culprit(rows, other, unit)} mixes examples: a row's gradient changed with the rows beside it "
                f"({way}). Compute nothing over the batch, not even detached: no statistics, no pairs of rows, no "
                "padding without a mask; or use statistics of public data."
            )
        return "a row's gradient changed a little with the rows beside it, as rounding may, or faint mixing"

    def alone(self, trial: Trial, row: Any, count: int, distance: float, exact: bool) -> str:
        """A gradient was another one alone: by rounding, by mixing, or nobody can say."""
        rounding, _ = self.rounding(trial, row, count)
        if distance <= ROUNDING * min(rounding, AMPLIFIED if exact else SURELY):
            return ""
        if distance > SURELY if exact else rounding <= COARSE and distance > max(COARSE, ROUNDING * rounding):
            raise PrivacyError(
                "the model or the loss mixes examples: a row's gradient was another in a batch of its own. Whether an "
                "example takes part must change nothing for the others: use neither the number of rows, nor a row's "
                "place among them, nor a length that the longest row decides."
            )
        return "a row's gradient was a little different in a batch of its own, as rounding may make it, or faint mixing"

    def rounding(self, trial: Trial, row: Any, count: int) -> tuple[float, bool]:
        """How far batches of one, two and more copies of a row differ, and whether that was in float64."""
        for exact in (True, False):
            try:
                with trial.constant(), trial.exact() if exact else nullcontext():
                    runs = []
                    for size in (1, 2, count):
                        try:
                            runs.append(trial.run([row] * size, [0]).gradients[0])
                        except CannotRunError:
                            if size > 1:
                                raise
                told = [g for g in runs if bool(g.isfinite().all())]  # a deviation of one row is none
                return max((self.apart(runs[-1], g) for g in told), default=math.inf), exact
            except CannotRunError:
                continue
        return math.inf, False


def length(gradient: Tensor) -> float:
    """Of a gradient, without what is no number."""
    return float(torch.linalg.vector_norm(gradient.nan_to_num(0), dtype=torch.float64))


__all__ = ["COARSE", "EXACT", "FEW_BITS", "ROUNDING", "SURELY", "Differences", "length"]
