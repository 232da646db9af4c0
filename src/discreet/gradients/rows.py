"""Which rows of an op's output belong to which unit: found by reweighting the losses, never assumed from sizes."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """Where the units stand in a tensor: along dimension `dim`, each with the same number of rows.

    Unit by unit, or, if `interleaved`, row by row (time first, flattened).
    """

    dim: int
    interleaved: bool = False

    def per_unit(self, shape: torch.Size, units: int) -> int | None:
        """How many rows each unit has in a tensor of this shape, or None if they do not divide."""
        if len(shape) <= self.dim or shape[self.dim] == 0 or shape[self.dim] % units:
            return None
        rows = shape[self.dim] // units
        return None if self.interleaved and rows == 1 else rows

    def split(self, tensor: Tensor, units: int) -> Tensor:
        """The tensor as [units, rows, ...other dimensions]: a view."""
        front = tensor.movedim(self.dim, 0)
        if self.interleaved:
            return front.unflatten(0, (-1, units)).transpose(0, 1)
        return front.unflatten(0, (units, -1))

    def keep(self, tensor: Tensor, unit: int, units: int) -> Tensor:
        """The tensor with every other unit's rows set to zero: a copy."""
        kept = torch.zeros_like(tensor, memory_format=torch.contiguous_format)
        self.split(kept, units)[unit] = self.split(tensor, units)[unit]
        return kept


CANDIDATES = tuple(Rows(dim, interleaved) for dim in range(3) for interleaved in (False, True))


def random_labels(units: int, dtype: torch.dtype) -> list[Tensor]:
    """Factors for each unit, plus or minus a power of two: exact in floating point, and no two units alike.

    None is above 1, so that nothing overflows that did not before. There are 32 such factors (8 in float16); more units
    than that get as many rounds of them as it takes to tell any two apart. Which unit gets which is random, from a
    generator of its own.
    """
    reach = _reach(dtype)
    factors = torch.tensor([s * 2.0**k for k in range(-reach, 1) for s in (1, -1)], dtype=dtype)
    generator = torch.Generator()
    generator.seed()
    codes = torch.randperm(units, generator=generator)
    rounds: list[Tensor] = []
    while True:
        order = torch.randperm(len(factors), generator=generator)
        rounds.append(factors[order][codes % len(factors)])
        codes = codes // len(factors)
        if not codes.any():
            return rounds


def _reach(dtype: torch.dtype) -> int:
    """How far exponents of two may go without leaving the range of the dtype."""
    return 15 if torch.finfo(dtype).max > 1e10 else 3


@dataclass(frozen=True)
class Match:
    """Where the units stand, whether several rows of a unit were seen, and whether two units gave evidence."""

    rows: Rows
    folded: bool
    evident: bool


def match(plain: Tensor, scaled: list[Tensor], labels: list[Tensor]) -> Match | None:
    """Where the units stand in an op's output, or None if no dimension carries them.

    `plain` and `scaled` are its gradients for sum(losses) and, for each round of labels, sum(labels * losses). If its
    rows influence only their own unit's loss, every row of `scaled` is its unit's label times the row of `plain`, bit
    for bit. Rows of `plain` that are not finite say nothing.
    """
    units = len(labels[0])
    for rows in CANDIDATES:
        per_unit = rows.per_unit(plain.shape, units)
        if per_unit is None:
            continue
        before = rows.split(plain, units)
        if all(_scales(before, rows.split(s, units), label) for s, label in zip(scaled, labels, strict=True)):
            active = (before != 0).flatten(1).any(1) & before.isfinite().flatten(1).all(1)
            return Match(rows, folded=per_unit > 1, evident=int(active.sum()) > 1)
    return None


def _scales(before: Tensor, after: Tensor, labels: Tensor) -> bool:
    """Whether each unit's rows changed by its label, but for underflow of the float format.

    A row that was not finite to begin with says nothing; one that has become so was changed by others.
    """
    expected = before * labels.to(before).view(-1, *[1] * (before.dim() - 1))
    if torch.equal(expected, after):
        return True
    limits, reach = torch.finfo(expected.dtype), _reach(expected.dtype)
    # float16 underflows early, and what it rounded there is carried on by the ops below
    extreme = limits.tiny * (2.0**reach if limits.max > 1e10 else limits.eps * 2.0 ** (2 * reach + 2))
    return bool(((expected == after) | ~expected.isfinite() | ((expected - after).abs() <= extreme)).all())
