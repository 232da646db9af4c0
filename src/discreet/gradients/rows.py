"""Which rows of an op's output belong to which unit: found by reweighting the losses, never assumed from sizes."""

from collections.abc import Sequence
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


def random_signs(units: int, dtype: torch.dtype) -> list[Tensor]:
    """Factors plus or minus one for each unit, in as many rounds as it takes to tell any two units apart.

    They change no bit but the sign in a pass that is linear, as a derivative is, whatever underflows in it. (A value
    that is shrunk may vanish, and what it was added to be rounded the other way, where it had lain in the middle.)
    """
    generator = torch.Generator()
    generator.seed()
    codes = torch.randperm(units, generator=generator)
    return [1 - 2 * ((codes >> bit) & 1).to(dtype) for bit in range(max(1, (units - 1).bit_length()))]


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
    first, bit for bit, or, for labels other than signs, up to `slack` of the largest value of its unit. Values of the
    first that are not finite say nothing.
    """

    def __init__(self, plain: Tensor, units: int, slack: float = 0.0) -> None:
        self._plain, self._units, self._slack = plain, units, slack  # all of it is kept: some ops at a time
        self._left = [rows for rows in CANDIDATES if rows.per_unit(plain.shape, units) is not None]

    def compare(self, scaled: Tensor, labels: Tensor) -> None:
        """Drop every reading that these labels speak against."""
        plain, units = self._plain, self._units
        slack = 0.0 if bool((labels.abs() == 1).all()) else self._slack
        self._left = [r for r in self._left if _scales(r.split(plain, units), r.split(scaled, units), labels, slack)]

    def found(self) -> Match | None:
        """Where the units stand, or None if no dimension carries them."""
        if not self._left:
            return None
        rows = self._left[0]
        evident = _evident(rows.split(self._plain, self._units))
        return Match(rows, folded=self._plain.shape[rows.dim] > self._units, evident=evident)


def _evident(split: Tensor) -> bool:
    """Whether two units have gradients that are not zero, and finite."""
    active = [(p != 0).flatten(1).any(1) & p.isfinite().flatten(1).all(1) for p in _blocks(split)]
    return int(torch.cat(active).sum()) > 1


class Factors:
    """Random numbers of 64 bits, the same for all fingerprints: drawn as far as the longest of them has asked."""

    def __init__(self) -> None:
        self._generator = torch.Generator()
        self._generator.seed()
        self._drawn = torch.empty(0, dtype=torch.int64)

    def first(self, count: int, device: torch.device) -> Tensor:
        if len(self._drawn) < count:
            missing = count - len(self._drawn)
            more = torch.randint(-(2**63), 2**63 - 1, (missing,), generator=self._generator)
            self._drawn = torch.cat([self._drawn, more.to(self._drawn.device)])
        if self._drawn.device != device:
            self._drawn = self._drawn.to(device)
        return self._drawn[:count]


class Fingerprints:
    """The same for the usual reading alone (rows unit by unit, first), without keeping the gradients.

    Labels are powers of two, so what is divided by them again has the bits it would have without them. Each unit's bits
    are kept as one random combination, modulo 2^64: of values that differ anywhere, it agrees in one of 2^32 cases.
    None is found where anything differs, also for harmless reasons (underflow, values that are not finite).
    """

    def __init__(self, plain: Tensor, units: int, factors: "Factors") -> None:
        self._rows, self._units = Rows(0), units
        self._agree = plain.is_floating_point() and self._rows.per_unit(plain.shape, units) is not None
        if self._agree:
            words = -(-plain.element_size() // 4)  # of up to 32 bits: a word that differs is not a multiple of 2^32
            self._factors, self._words = factors, words * plain.numel() // units
            self._folded = plain.shape[0] > units
            split = self._rows.split(plain, units)
            self._before = self._of(split, None)
            self._evident = _evident(split)

    def compare(self, scaled: Tensor, labels: Tensor) -> None:
        """Compare with the gradients for other labels."""
        if self._agree:
            self._agree = torch.equal(self._before, self._of(self._rows.split(scaled, self._units), labels))

    def _of(self, split: Tensor, labels: Tensor | None) -> Tensor:
        blocks, factors = _blocks(split, _WORDS), self._factors.first(self._words, split.device)
        over = None if labels is None else (1 / labels).to(split).split([len(b) for b in blocks])
        found = []
        for i, block in enumerate(blocks):
            rows = block.flatten(1)
            rows = rows.clone(memory_format=torch.contiguous_format) if over is None else rows * over[i][:, None]
            rows = rows.contiguous().add_(0.0)  # there is one zero, not two
            bits = rows.view(torch.int16 if rows.element_size() == 2 else torch.int32).to(torch.int64)
            found.append(bits.mul_(factors).sum(1))
        return torch.cat(found)

    def found(self) -> Match | None:
        """Where the units stand, if they stand there."""
        if not self._agree:
            return None
        return Match(self._rows, folded=self._folded, evident=self._evident)


_BLOCK = 1 << 20  # values compared at a time
_WORDS = 1 << 17  # values of which fingerprints are taken at a time: three copies, one of them twice as long


def _blocks(tensor: Tensor, values: int = _BLOCK) -> Sequence[Tensor]:
    return tensor.split(max(1, values * len(tensor) // max(1, tensor.numel())))


def _scales(before: Tensor, after: Tensor, labels: Tensor, slack: float) -> bool:
    """Whether each unit's rows changed by its label, but for underflow of the float format, and for `slack`.

    A value that was not finite to begin with says nothing; one that has become so was changed by others.
    """
    blocks = _blocks(before)
    theirs, factors = _blocks(after), labels.to(before).split([len(b) for b in blocks])
    shaped = [f.view(-1, *[1] * (before.dim() - 1)) for f in factors]
    return all(_scale(b, a, f, slack) for b, a, f in zip(blocks, theirs, shaped, strict=True))


def _scale(before: Tensor, after: Tensor, labels: Tensor, slack: float) -> bool:
    expected = before * labels
    if torch.equal(expected, after):
        return True
    limits, reach = torch.finfo(expected.dtype), _reach(expected.dtype)
    # float16 underflows early, and what it rounded there is carried on by the ops below
    extreme = limits.tiny * (2.0**reach if limits.max > 1e10 else limits.eps * 2.0 ** (2 * reach + 2))
    allowed: Tensor | float = extreme
    if slack:
        largest = expected.abs().nan_to_num(0.0, 0.0, 0.0).flatten(1).amax(1)
        allowed = (slack * largest).clamp(min=extreme).view(labels.shape)
    return bool(((expected == after) | ~expected.isfinite() | ((expected - after).abs() <= allowed)).all())
