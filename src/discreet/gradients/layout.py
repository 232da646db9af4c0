"""Which rows of an op's output belong to which unit: found by reweighting the losses, never assumed from sizes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

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

    def owners(self, shape: torch.Size, units: int) -> Tensor:
        """Whose each row is."""
        rows = torch.arange(shape[self.dim])
        return rows % units if self.interleaved else rows // (shape[self.dim] // units)

    def is_told(self, told: "Rows | Members", shape: torch.Size, units: int) -> bool:
        """Whether ops tell the same of a tensor of this shape."""
        if isinstance(told, Rows):
            return told == self
        if told.dim != self.dim:
            return False
        return bool(((told.owner == self.owners(shape, units)) | (told.owner < 0)).all())

    def keep(self, tensor: Tensor, unit: int, units: int) -> Tensor:
        """The tensor with every other unit's rows set to zero: a copy."""
        kept = torch.zeros_like(tensor, memory_format=torch.contiguous_format)
        self.split(kept, units)[unit] = self.split(tensor, units)[unit]
        return kept


VALUES = -1  # in the place of a dimension: each value is a row


@dataclass(frozen=True, eq=False)
class Members:
    """Rows that belong to units by data and not by position: row r of dimension `dim` to unit `owner[r]`.

    -1 is a row that reaches nobody's loss. Where no dimension tells the units apart, and only single values do, `dim`
    is VALUES, and `owner` has the whole tensor's shape.
    """

    dim: int
    owner: Tensor
    interleaved: bool = False

    def per_unit(self, shape: torch.Size, units: int) -> None:
        """Nothing is known of another batch."""

    def is_told(self, told: "Rows | Members", shape: torch.Size, units: int) -> bool:
        """Whether ops tell the same of a tensor of this shape, or more: whose rows are that showed no gradient."""
        if told.dim != self.dim or self.dim == VALUES:
            return False
        owner = told.owner if isinstance(told, Members) else told.owners(shape, units)
        return bool(((self.owner == owner) | (self.owner < 0)).all())

    @cached_property
    def _places(self) -> Tensor:
        """The rows of each unit, [units, most rows], filled up with the number of rows."""
        owner, rows = self.owner, len(self.owner)
        order = owner.argsort(stable=True)
        order = order[int((owner < 0).sum()) :]
        counts = torch.bincount(owner[order], minlength=1)
        starts = counts.cumsum(0) - counts
        within = torch.arange(len(order), device=owner.device) - starts[owner[order]]
        places = owner.new_full((len(counts), max(1, int(counts.max()))), rows)
        places[owner[order], within] = order
        return places

    def split(self, tensor: Tensor, units: int) -> Tensor:
        """The tensor as [units, rows, ...other dimensions]: a copy, with zeros where a unit has fewer rows."""
        assert self.dim != VALUES
        front = tensor.movedim(self.dim, 0)
        padded = torch.cat([front, front.new_zeros(1, *front.shape[1:])])
        places = self._places
        if len(places) < units:  # the last units have no row
            places = torch.cat([places, places.new_full((units - len(places), places.shape[1]), len(front))])
        return padded[places]

    def keep(self, tensor: Tensor, unit: int, units: int) -> Tensor:
        """The tensor with every other unit's rows set to zero: a copy."""
        mine = self.owner == unit
        if self.dim != VALUES:
            mine = mine.view(-1, *[1] * (tensor.dim() - self.dim - 1))
        return torch.where(mine, tensor, 0.0)


CANDIDATES = tuple(Rows(dim, interleaved) for dim in range(3) for interleaved in (False, True))


_ROUNDS = 3  # of labels, at least


def random_labels(units: int, dtype: torch.dtype) -> list[Tensor]:
    """Factors for each unit, plus or minus a power of two: exact in floating point, and no two units alike.

    None is above 1, so that nothing overflows that did not before. What a backward pass that is not linear makes of a
    unit's factor (its sign, its size, a power or a root of it) is never another unit's: each power of two comes with
    one sign, none is 1, and no exponent is twice another. There are 8 such factors (2 in float16); more units than that
    get as many rounds of them as it takes to tell any two apart. There are never fewer than three rounds: a mean of
    several units' factors is one of theirs in some draws (4 - 2 + 1 is three times 1), hardly in three. Which unit gets
    which is random, from a generator of its own.
    """
    reach = _reach(dtype)
    sizes = torch.tensor([2.0**-k for k in range(reach // 2 + 1, reach + 1)], dtype=dtype)
    generator = torch.Generator()
    generator.seed()
    codes = torch.zeros(units, dtype=torch.int64)
    rounds: list[Tensor] = []
    told = False  # whether the labels so far tell any two units apart
    while not told or len(rounds) < _ROUNDS:
        if not codes.any():
            codes = torch.randperm(units, generator=generator)
        signs = 1 - 2 * torch.randint(2, (len(sizes),), generator=generator).to(dtype)
        factors = (signs * sizes)[torch.randperm(len(sizes), generator=generator)]
        rounds.append(factors[codes % len(factors)])
        codes = codes // len(factors)
        told = told or not codes.any()
    return rounds


def subsets(units: int, dtype: torch.dtype) -> list[Tensor]:
    """Factors zero or one for each unit: of any two units, each is once left out while the other stays.

    What does not depend on a unit that is left out keeps every bit, also in a backward pass that is not linear, and
    whatever underflows in it. (A value that is shrunk may vanish, and what it was added to be rounded the other way.)
    """
    generator = torch.Generator()
    generator.seed()
    codes = torch.randperm(units, generator=generator)
    bits = [((codes >> bit) & 1).to(dtype) for bit in range(max(1, (units - 1).bit_length()))]
    return [*bits, *(1 - bit for bit in bits)]


def _reach(dtype: torch.dtype) -> int:
    """How far exponents of two may go without leaving the range of the dtype."""
    return 15 if torch.finfo(dtype).max > 1e10 else 3


@dataclass(frozen=True)
class Match:
    """Where the units stand, whether several rows of a unit were seen, and whether two units gave evidence."""

    rows: Rows | Members
    folded: bool
    evident: bool


class Matching:
    """Finds where the units stand in an op's output, from its gradients for sum(losses) and for sum(label * losses).

    If its rows influence only their own unit's loss, every row of the second is its unit's label times the row of the
    first, bit for bit. Values of the first that are not finite say nothing: units stand there as the graph has them
    (`expected`), or so that only units whose loss is not finite (`spoiled`) have such values.
    """

    def __init__(self, plain: Tensor, units: int) -> None:
        self._plain, self._units = plain, units  # all of it is kept: some ops at a time
        self._left = [rows for rows in CANDIDATES if rows.per_unit(plain.shape, units) is not None]

    def compare(self, scaled: Tensor, labels: Tensor) -> None:
        """Drop every reading that these labels speak against."""
        plain, units = self._plain, self._units
        self._left = [r for r in self._left if _scales(r.split(plain, units), r.split(scaled, units), labels)]

    def found(self, expected: Rows | Members | None = None, spoiled: Tensor | None = None) -> Match | None:
        """Where the units stand, or None if no dimension carries them."""
        plain, units = self._plain, self._units
        left = [rows for rows in self._left if rows == expected] or self._left
        if expected not in self._left and not bool(plain.isfinite().all()):
            left = [r for r in left if not bool(_spoils(r.split(plain, units), spoiled).any())]
        if not left or left[0] is None:
            return None
        rows = left[0]
        evident = _evident(rows.split(plain, units))
        return Match(rows, folded=plain.shape[rows.dim] > units, evident=evident)


def _spoils(split: Tensor, spoiled: Tensor | None) -> Tensor:
    """Which units have values that are not finite, though their losses are."""
    bad = torch.cat([~block.isfinite().flatten(1).all(1) for block in _blocks(split)])
    return bad if spoiled is None else bad & ~spoiled.to(bad.device)


_DIMS = 3  # dimensions along which rows are looked for


class Memberships:
    """Finds whose each row is, or each value, where no position tells: each must change by one unit's labels.

    Labels are those of `random_labels` or `subsets`: what a unit's factors are in all rounds, no other unit's are.
    Values that are not finite might be anybody's: beside them nothing is found.
    """

    def __init__(self, plain: Tensor, units: int) -> None:
        self._plain, self._units = plain, units
        self._labels: list[Tensor] = []
        dims = [*range(min(_DIMS, plain.dim())), VALUES] if bool(plain.isfinite().all()) else []
        self._factors: dict[int, list[Tensor]] = {dim: [] for dim in dims}

    def compare(self, scaled: Tensor, labels: Tensor) -> None:
        """Note by which factor each row has changed; a reading goes in which some row changed by two."""
        self._labels.append(labels.to(scaled))
        for dim in list(self._factors):
            factors = self._changed(scaled, dim)
            if factors is None:
                del self._factors[dim]
            else:
                self._factors[dim].append(factors)

    def _changed(self, scaled: Tensor, dim: int) -> Tensor | None:
        """The factor of each row along a dimension, or None if it has several."""
        before, after = (_rows_along(t, dim) for t in (self._plain, scaled))
        if before.numel() == 0:
            return before.new_zeros(len(before))
        largest = before.abs().argmax(1, keepdim=True)
        one, other = before.gather(1, largest), after.gather(1, largest)
        factors = torch.where(one != 0, other / one, 0.0)
        return factors.squeeze(1) if _scale(before, after, factors) else None

    def found(self, expected: Rows | Members | None = None, spoiled: Tensor | None = None) -> Match | None:
        """Whose the rows are, along the first dimension that tells."""
        for dim, factors in self._factors.items():
            seen = _rows_along(self._plain != 0, dim).any(1)
            owner = _owners(torch.stack(factors, 1)[seen], torch.stack(self._labels, 1))
            if owner is None:
                continue
            whole = owner.new_full(seen.shape, -1)
            whole[seen] = owner
            whole = whole if dim != VALUES else whole.view(self._plain.shape)
            return Match(Members(dim, whole), folded=True, evident=len(owner.unique()) > 1)
        return None


def _rows_along(tensor: Tensor, dim: int) -> Tensor:
    """[rows, values] of each row along a dimension."""
    if dim == VALUES or tensor.dim() == 1:
        return tensor.reshape(-1, 1)
    return tensor.movedim(dim, 0).flatten(1)


def _owners(factors: Tensor, codes: Tensor) -> Tensor | None:
    """The unit whose labels in all rounds [units, rounds] are a row's factors [rows, rounds]; None if one has none."""
    if not len(factors):  # nothing reaches anybody's loss
        return factors.new_zeros(0, dtype=torch.int64)
    kinds, place = torch.unique(factors + 0.0, dim=0, return_inverse=True)  # there is one zero, not two
    if len(kinds) > len(codes):
        return None
    same = (kinds[:, None] == codes[None]).all(2)  # [kinds, units]
    if not bool(same.any(1).all()):
        return None
    return same.to(torch.int8).argmax(1)[place]


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
            self._evident, self._agree = _evident(split), bool(plain.isfinite().all())

    def compare(self, scaled: Tensor, labels: Tensor) -> None:
        """Compare with the gradients for other labels."""
        if self._agree:
            self._agree = torch.equal(self._before, self._of(self._rows.split(scaled, self._units), labels))

    def _of(self, split: Tensor, labels: Tensor | None) -> Tensor:
        blocks, factors = _blocks(split, _WORDS), self._factors.first(self._words, split.device)
        over = None if labels is None else (1 / labels).to(split).split([len(b) for b in blocks])
        fingerprints = []
        for i, block in enumerate(blocks):
            rows = block.flatten(1)
            rows = rows.clone(memory_format=torch.contiguous_format) if over is None else rows * over[i][:, None]
            rows = rows.contiguous().add_(0.0)  # there is one zero, not two
            bits = rows.view(torch.int16 if rows.element_size() == 2 else torch.int32).to(torch.int64)
            fingerprints.append(bits.mul_(factors).sum(1))
        return torch.cat(fingerprints)

    def found(self, expected: Rows | Members | None = None, spoiled: Tensor | None = None) -> Match | None:
        """Where the units stand, if they stand there."""
        if not self._agree:
            return None
        return Match(self._rows, folded=self._folded, evident=self._evident)


_BLOCK = 1 << 20  # values compared at a time
_WORDS = 1 << 17  # values of which fingerprints are taken at a time: three copies, one of them twice as long


def _blocks(tensor: Tensor, values: int = _BLOCK) -> Sequence[Tensor]:
    return tensor.split(max(1, values * len(tensor) // max(1, tensor.numel())))


def _scales(before: Tensor, after: Tensor, labels: Tensor) -> bool:
    """Whether each unit's rows changed by its label, but for underflow of the float format.

    A value that was not finite to begin with says nothing; one that has become so was changed by others, or by its own
    label if that is zero (0 / 0).
    """
    blocks = _blocks(before)
    theirs, factors = _blocks(after), labels.to(before).split([len(b) for b in blocks])
    shaped = [f.view(-1, *[1] * (before.dim() - 1)) for f in factors]
    return all(_scale(b, a, f) for b, a, f in zip(blocks, theirs, shaped, strict=True))


def _scale(before: Tensor, after: Tensor, labels: Tensor) -> bool:
    expected = before * labels
    if torch.equal(expected, after):
        return True
    agrees = (expected == after) | ~expected.isfinite() | ((labels == 0) & ~after.isfinite())
    limits = torch.finfo(expected.dtype)
    if limits.max > 1e10:  # what is shrunk may underflow; in float16 so early that only units left out tell anything
        agrees |= ((expected - after).abs() <= limits.tiny * 2.0 ** _reach(expected.dtype)) & (labels != 0)
    return bool(agrees.all())
