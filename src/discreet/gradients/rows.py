"""Which rows of an op's output belong to which unit: found by reweighting the losses, never assumed from sizes."""

import math
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
        if self.dim == 0 and tensor.shape[0] == units:
            return tensor.unsqueeze(1)
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


class Matching:
    """Finds where the units stand in an op's output, from its gradients for sum(losses) and for sum(label * losses).

    If its rows influence only their own unit's loss, every row of the second is its unit's label times the row of the
    first, bit for bit. What is compared is a random number made of each unit's rows, a linear one with weights that
    stay the same, in float64: equal rows give numbers that are equal but for the label, bit for bit; others do not.
    Values that are not finite are left out, and must be so at the same places.
    """

    def __init__(self, plain: Tensor, units: int) -> None:
        self._units = units
        self._seed = torch.Generator().seed()
        self._folded = {rows: plain.shape[rows.dim] > units for rows in CANDIDATES if plain.dim() > rows.dim}
        possible = [rows for rows in CANDIDATES if rows.per_unit(plain.shape, units) is not None]
        self._left = {rows: self._numbers(plain, rows) for rows in possible}
        limits, reach = torch.finfo(plain.dtype), _reach(plain.dtype)
        count = max(1, plain.numel() // units)
        # values that underflow; in float16 they do so early, and what was rounded there is carried on by the ops below
        self._lost = count * limits.tiny * 2.0**reach
        if limits.max < 1e10:
            self._lost = 8 * math.sqrt(count) * limits.tiny * limits.eps * 2.0 ** (2 * reach + 2)

    def _numbers(self, gradient: Tensor, rows: Rows) -> Tensor:
        split = rows.split(gradient, self._units)
        split = torch.view_as_real(split) if split.is_complex() else split
        generator = torch.Generator().manual_seed(self._seed)
        weights = torch.rand(split[0].numel(), generator=generator, dtype=torch.float64).add_(0.5).to(split.device)
        blocks = split.split(max(1, _BLOCK // max(1, len(weights))))
        return torch.cat([_number(block.reshape(len(block), -1).double(), weights) for block in blocks], 1)

    def compare(self, scaled: Tensor, labels: Tensor) -> None:
        """Drop every reading that these labels speak against."""
        self._left = {
            rows: numbers
            for rows, numbers in self._left.items()
            if _scales(numbers, self._numbers(scaled, rows), labels.to(numbers), self._lost)
        }

    def found(self) -> Match | None:
        """Where the units stand, or None if no dimension carries them."""
        for rows, (numbers, spoiled) in self._left.items():
            active = (numbers != 0) & (spoiled == 0)
            return Match(rows, folded=self._folded[rows], evident=int(active.sum()) > 1)
        return None


_BLOCK = 1 << 20  # values compared at a time


def _number(rows: Tensor, weights: Tensor) -> Tensor:
    """For each row its number, and one for the places at which it is not finite: [2, rows]."""
    numbers = (rows * weights).sum(1)
    if bool(numbers.isfinite().all()):
        return torch.stack([numbers, torch.zeros_like(numbers)])
    finite = rows.isfinite()
    return torch.stack([(torch.where(finite, rows, 0.0) * weights).sum(1), (~finite * weights).sum(1)])


def _scales(before: Tensor, after: Tensor, labels: Tensor, lost: float) -> bool:
    """Whether each unit's number changed by its label, but for what may be lost to underflow."""
    expected = before[0] * labels
    same = (expected == after[0]) | ((expected - after[0]).abs() <= lost)
    return bool((same & (before[1] == after[1])).all())
