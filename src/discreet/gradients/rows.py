"""Which rows of an op's output belong to which unit: found by reweighting the losses, never assumed from sizes."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Axis = Literal["major", "minor", "second"]


@dataclass(frozen=True)
class Rows:
    """Where the units stand in a tensor.

    "major": dimension 0 is units * rows, unit by unit; "minor": dimension 0 is rows * units, row by row (time
    first, flattened); "second": dimension 1 is the units (time first).
    """

    axis: Axis

    def fits(self, shape: torch.Size, units: int) -> bool:
        if self.axis == "second":
            return len(shape) > 1 and shape[1] == units
        if not shape or shape[0] == 0 or shape[0] % units:
            return False
        return self.axis == "major" or shape[0] > units

    def split(self, tensor: Tensor, units: int) -> Tensor:
        """The tensor as [units, rows, ...]: a view."""
        if self.axis == "second":
            return tensor.transpose(0, 1)
        if self.axis == "major":
            return tensor.unflatten(0, (units, -1))
        return tensor.unflatten(0, (-1, units)).transpose(0, 1)

    def keep(self, tensor: Tensor, unit: int, units: int) -> Tensor:
        """The tensor with every other unit's rows set to zero: a copy."""
        kept = torch.zeros_like(tensor, memory_format=torch.contiguous_format)
        self.split(kept, units)[unit] = self.split(tensor, units)[unit]
        return kept


MAJOR, MINOR, SECOND = Rows("major"), Rows("minor"), Rows("second")


def random_labels(units: int, dtype: torch.dtype) -> Tensor:
    """One factor for each unit, a random sign times a random power of two: exact in floating point."""
    reach = 15 if torch.finfo(dtype).max > 1e10 else 3
    exponents = torch.randint(-reach, reach + 1, (units,))
    signs = torch.randint(0, 2, (units,)) * 2 - 1
    return (signs * 2.0**exponents).to(dtype)


@dataclass(frozen=True)
class Match:
    """Where the units stand, whether several rows of a unit were seen, and whether two units gave evidence."""

    rows: Rows
    folded: bool
    evident: bool


def match(plain: Tensor, scaled: Tensor, labels: Tensor) -> Match | None:
    """Where the units stand in an op's output, or None if no dimension carries them.

    `plain` and `scaled` are its gradients for sum(losses) and sum(labels * losses). If its rows influence only
    their own unit's loss, every row of `scaled` is its unit's label times the row of `plain`, bit for bit.
    Rows that are not finite say nothing.
    """
    units = len(labels)
    for rows in (MAJOR, MINOR, SECOND):
        if not rows.fits(plain.shape, units):
            continue
        before, after = rows.split(plain, units), rows.split(scaled, units)
        expected = before * labels.to(before).view(-1, *[1] * (before.dim() - 1))
        if torch.equal(expected, after) or _equal_but_for_extremes(expected, after):
            active = (before != 0).flatten(1).any(1) & before.isfinite().flatten(1).all(1)
            return Match(rows, folded=before[0, 0].numel() != before[0].numel(), evident=int(active.sum()) > 1)
    return None


def _equal_but_for_extremes(expected: Tensor, after: Tensor) -> bool:
    """Equality where neither overflow nor underflow of the float format interferes."""
    finite = expected.isfinite() & after.isfinite()
    tiny = torch.finfo(expected.dtype).tiny * 2.0**16
    return bool(((expected == after) | ~finite | ((expected - after).abs() < tiny)).all())
