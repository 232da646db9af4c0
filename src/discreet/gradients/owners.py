"""Whose each index of a dimension is, where indices deal rows out to units."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

NOBODY = -1  # the owner of a row that reaches no loss


@dataclass(frozen=True, eq=False)
class Owners:
    """Index j of a dimension belongs to unit `of[j]`, or to NOBODY; `whole`: all of the tensor is that unit's."""

    of: Tensor
    whole: int | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Owners) and torch.equal(self.of, other.of)

    def __hash__(self) -> int:
        raise TypeError("whose rows are is not hashable")


Width = int | Owners  # how many indices of a unit follow each other; or whose each is
Place = tuple[int, Width]
Shape = Sequence[int]


def owners_of(width: Width, size: int, units: int) -> Tensor:
    """Whose each index of a dimension is."""
    if isinstance(width, Owners):
        return width.of
    return (torch.arange(size) // width) % units


def by_position(owners: Owners, units: int) -> Width:
    """The same as a number, where units have as many indices each, unit by unit; or all of it, if it is one unit's."""
    size = len(owners.of)
    if owners.whole is not None or not size:
        return owners
    first = owners.of[0]
    if first != NOBODY and bool((owners.of == first).all()):
        return whole(size, int(first))
    if size % units:
        return owners
    each = size // units
    return each if torch.equal(owners.of, owners_of(each, size, units)) else owners


def whole(size: int, unit: int) -> Owners:
    """All of a dimension is one unit's."""
    return Owners(torch.full((size,), unit), unit)


def dealt(size: int, index: Tensor, owners: Tensor) -> Owners | None:
    """Whose each of `size` rows is, if row `index[j]` goes to unit `owners[j]`; None if one goes to two."""
    reached = owners != NOBODY
    if not bool(reached.all()):
        index, owners = index[reached], owners[reached]
    of = torch.full((size,), NOBODY)
    index = torch.where(index < 0, index + size, index)
    of[index] = owners
    return Owners(of) if torch.equal(of[index], owners) else None


def part_of(size: int, part: slice, owners: Tensor) -> Owners:
    """Whose each of `size` rows is, if some of them are these owners' and the others nobody's."""
    of = torch.full((size,), NOBODY)
    of[part] = owners
    return Owners(of)


def merged(one: Place | None, other: Place | None, shape: Shape, units: int) -> Place | None:
    """Where the units stand in a tensor that two ops use; None if the two do not agree."""
    if one is None or other is None:
        return None
    if one == other:
        return one
    if not isinstance(one[1], Owners) and not isinstance(other[1], Owners):
        return None
    if one[0] != other[0]:
        one, other = _along_one(one, other, shape)
    if one[0] != other[0]:
        return None
    size = shape[one[0]]
    mine, theirs = owners_of(one[1], size, units), owners_of(other[1], size, units)
    if bool(((mine != theirs) & (mine != NOBODY) & (theirs != NOBODY)).any()):
        return None
    return one[0], by_position(Owners(torch.where(mine == NOBODY, theirs, mine)), units)


def _along_one(one: Place, other: Place, shape: Shape) -> tuple[Place, Place]:
    """Two places along one dimension, if one of them is all of the tensor."""
    return along(one, other[0], shape) or one, along(other, one[0], shape) or other


def along(place: Place, dim: int, shape: Shape) -> Place | None:
    """The same place along another dimension, if all of the tensor is one unit's."""
    if place[0] == dim:
        return place
    width = place[1]
    return (dim, whole(shape[dim], width.whole)) if isinstance(width, Owners) and width.whole is not None else None
