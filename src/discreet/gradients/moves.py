"""Ops that move rows about: slices, joins, and indices. Whose rows an input has, given whose the output's are.

Where data tells which row goes where, it does so by indices that autograd has saved: they are read in every step.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from discreet.gradients.ops import Step, also, elementwise, keeps
from discreet.gradients.owners import NOBODY, Owners, Place, along, dealt, owners_of, part_of, whole

# --- slices and joins -------------------------------------------------------------------------------------------------


def _dim(step: Step, shape: Sequence[int], name: str = "dim") -> int:
    (dim,) = step.saved[name]
    return dim % max(1, len(shape))


@also("rearranges", "SelectBackward0")
@keeps("Select", reads=("dim", "index"))
def _selected(step: Step) -> Place | None:
    (index,) = step.saved["index"]
    return _one_of(step, index)


@keeps("Unbind", reads=("dim",))
def _unbound(step: Step) -> Place | None:
    return _one_of(step, step.output)


def _one_of(step: Step, index: int) -> Place | None:
    """One entry along a dimension that is left out: another one than the units', or all of it is one unit's."""
    dim = _dim(step, step.given)
    width = step.place[1]
    if isinstance(width, Owners) and width.whole is not None:
        size = step.given[dim]
        of = torch.full((size,), NOBODY)
        of[index] = width.whole
        return dim, Owners(of)
    return step.place[0] + (step.place[0] >= dim), width


@also("rearranges", "SliceBackward0")
@keeps("Slice", reads=("dim", "start", "step"))
def _sliced(step: Step) -> Place | None:
    """A part along another dimension; or of the units, which are nobody's where it leaves them out."""
    dim = _dim(step, step.given)
    place = along(step.place, dim, step.made) or step.place
    if dim != place[0]:
        return place
    size, width, (stride,) = step.given[dim], place[1], step.saved["step"]
    start = (step.saved["start"] or (0,))[0]
    start = min(max(start + size if start < 0 else start, 0), size)
    if not isinstance(width, Owners) and stride == 1 and start % (width * step.units) == 0 and _divides(step, size):
        return place
    stop = start + stride * step.made[dim]
    return dim, part_of(size, slice(start, stop, stride), owners_of(width, step.made[dim], step.units))


def _divides(step: Step, size: int) -> bool:
    """Whether the units may stand one by one in the input, too."""
    width = step.place[1]
    return not isinstance(width, Owners) and size % (width * step.units) == 0


@also("rearranges", "SplitWithSizesBackward0")
@keeps("SplitWithSizes", "UnsafeSplitWithSizes", reads=("dim", "split_sizes"))
@also("rearranges", "SplitBackward0", "UnsafeSplitBackward0")
@keeps("Split", "UnsafeSplit", reads=("dim", "split_size"))
def _split(step: Step) -> Place | None:
    dim = _dim(step, step.given)
    place = along(step.place, dim, step.made) or step.place
    if dim != place[0]:
        return place
    if "split_sizes" in step.saved:
        sizes = step.saved["split_sizes"]
    else:
        (size,) = step.saved["split_size"]
        sizes = (size,) * step.output
    start, width = sum(sizes[: step.output]), place[1]
    if not isinstance(width, Owners) and start % (width * step.units) == 0 and _divides(step, step.given[dim]):
        return place
    part = slice(start, start + step.made[dim])
    return dim, part_of(step.given[dim], part, owners_of(width, step.made[dim], step.units))


@keeps("Cat", reads=("dim",), siblings=True)
def _joined(step: Step) -> Place | None:
    dim = _dim(step, step.made)
    place = along(step.place, dim, step.made) or step.place
    if len(step.given) != len(step.made):
        return None
    if dim != place[0]:
        return place
    start = _start(step, dim)
    if start is None:
        return None
    owners = owners_of(place[1], step.made[dim], step.units)
    return dim, Owners(owners[start : start + step.given[dim]])


def _start(step: Step, dim: int) -> int | None:
    """Where an input begins in what was joined; None if the sizes of constants before it are not known."""
    sizes = [None if shape is None or len(shape) <= dim else shape[dim] for shape in step.siblings]
    before, after = sizes[: step.number], sizes[step.number :]
    if None not in before:
        return sum(size for size in before if size is not None)
    if None not in after:
        return step.made[dim] - sum(size for size in after if size is not None)
    return None


@keeps("Stack", reads=("dim",))
def _stacked(step: Step) -> Place | None:
    dim = _dim(step, step.made)
    place = along(step.place, dim, step.made) or step.place
    if dim != place[0]:
        return place[0] - (place[0] > dim), place[1]
    unit = int(owners_of(place[1], step.made[dim], step.units)[step.number])
    return 0, whole(step.given[0] if step.given else 1, unit)


@keeps("Repeat")
def _repeated(step: Step) -> Place | None:
    return elementwise(step)


# --- by data ----------------------------------------------------------------------------------------------------------


@keeps("IndexSelect", reads=("dim",), by_data=("index",))
def _index_selected(step: Step) -> Place | None:
    dim = _dim(step, step.given)
    place = along(step.place, dim, step.made) or step.place
    if place[0] != dim:
        return place
    return _owned(dim, dealt(step.given[dim], step.tensors["index"], _owners(step, place)))


def _owners(step: Step, place: Place) -> Tensor:
    return owners_of(place[1], step.made[place[0]], step.units)


def _by_rows(tensor: Tensor, dim: int) -> Tensor:
    """[rows, others] of the rows along a dimension."""
    return tensor[:, None] if tensor.dim() == 1 else tensor.movedim(dim, 0).flatten(1)


def _owned(dim: int, owners: Owners | None) -> Place | None:
    return None if owners is None else (dim, owners)


@keeps("Gather", reads=("dim",), by_data=("index",))
def _gathered(step: Step) -> Place | None:
    """Values picked along a dimension, each row of the others from the row in its place."""
    dim, place = _dim(step, step.given), step.place
    if place[0] != dim:
        return place if step.given[place[0]] == step.made[place[0]] else None
    index = _by_rows(step.tensors["index"], dim)
    owners = _owners(step, place)[:, None].expand_as(index)
    return _owned(dim, dealt(step.given[dim], index.reshape(-1), owners.reshape(-1)))


@keeps("Scatter", "ScatterAdd", "ScatterReduce", reads=("dim",), by_data=("index",))
def _scattered(step: Step) -> Place | None:
    """Values put to, or added at, places along a dimension."""
    dim, place = _dim(step, step.made), step.place
    if step.number == 0:
        return place
    index = step.tensors["index"]
    if index.shape != torch.Size(step.given):
        return None
    if place[0] != dim:
        return place if step.given[place[0]] == step.made[place[0]] else None
    owners = _by_rows(_owners(step, place)[index], dim)
    same = owners.shape[1] > 0 and bool((owners == owners[:, :1]).all())
    return (dim, Owners(owners[:, 0])) if same else None


@keeps("IndexAdd", "IndexCopy", reads=("dim",), by_data=("index",))
def _index_added(step: Step) -> Place | None:
    dim, place = _dim(step, step.made), step.place
    if step.number == 0:
        return place
    if len(step.given) != len(step.made):
        return None
    if place[0] != dim:
        return place if step.given[place[0]] == step.made[place[0]] else None
    return dim, Owners(_owners(step, place)[step.tensors["index"]])


@keeps("SegmentReduce", reads=("axis",), by_data=("lengths",))
def _segments_reduced(step: Step) -> Place | None:
    dim, lengths = _dim(step, step.given, "axis"), step.tensors["lengths"]
    if step.number or dim != 0 or lengths is None or lengths.dim() != 1 or step.place[0] != 0:
        return None
    owners = _owners(step, step.place).repeat_interleave(lengths)
    return (0, Owners(owners)) if len(owners) == step.given[0] else None


@keeps("PackPaddedSequence", reads=("batch_first",), by_data=("result1",))
def _packed(step: Step) -> Place | None:
    """Rows of each time step, of the sequences that are that long: sorted, the longest first."""
    if step.place[0] != 0:
        return None
    counts = step.tensors["result1"]
    place = torch.cat([torch.arange(int(n)) for n in counts])
    batch = 0 if any(step.saved["batch_first"]) else 1
    return _owned(batch, dealt(step.given[batch], place, _owners(step, step.place)))


@keeps("EmbeddingBag", by_data=("indices", "offsets"))
def _bags(step: Step) -> Place | None:
    """Entries side by side, each in a bag: weights of entries, or the rows that they pick."""
    if step.place[0] != 0:
        return None
    indices, offsets = step.tensors["indices"], step.tensors["offsets"]
    counts = bag_counts(offsets, step.made[0], len(indices))
    owners = _owners(step, step.place).repeat_interleave(counts)
    if len(owners) != len(indices):
        return None
    if len(step.given) == 1:
        return (0, Owners(owners)) if step.given[0] == len(owners) else None
    return _owned(0, dealt(step.given[0], indices, owners))


def bag_counts(offsets: Tensor, bags: int, entries: int) -> Tensor:
    """How many entries each bag has, of the offsets at which bags begin; the last one's end may be among them."""
    ends = torch.cat([offsets[1:], offsets.new_full((1,), entries)])[:bags]
    return ends - offsets[:bags]


@keeps("GroupedMm")
def _grouped(step: Step) -> Place | None:
    """Rows, each by the matrix of its group."""
    rows = step.number == 0 and step.place[0] == 0 and len(step.given) == len(step.made) == 2
    return step.place if rows else None


@keeps("Index", by_data=("indices",))
def _indexed(step: Step) -> Place | None:
    """Rows picked by indices side by side, each dimension by its own or by none."""
    found = _Indices.of(step.tensors["indices"], step.given)
    if found is None:
        return None
    dim = found.dim_before(step.place[0])
    if dim is not None:
        return (dim, step.place[1]) if step.given[dim] == step.made[step.place[0]] else None
    shape = [1] * len(found.shape)
    shape[step.place[0] - found.first] = -1
    owners = _owners(step, step.place).view(shape).expand(found.shape).reshape(-1)
    for dim, index in found.used.items():
        place = _owned(dim, dealt(step.given[dim], index.expand(found.shape).reshape(-1), owners))
        if place is not None:
            return place
    return None


@keeps("IndexPut", by_data=("indices",))
def _index_put(step: Step) -> Place | None:
    """Values put to, or added at, rows that are picked by indices."""
    if step.number == 0:
        return step.place
    found = _Indices.of(step.tensors["indices"], step.made)
    if found is None:
        return None
    picked = found.picked(step.made)  # the shape of what is picked, to which values are broadcast
    lead = len(picked) - len(step.given)
    if step.place[0] not in found.used:
        dim = found.dim_after(step.place[0])
        same = dim >= lead and step.given[dim - lead] == step.made[step.place[0]]
        return (dim - lead, step.place[1]) if same else None
    owners = _owners(step, step.place)[found.used[step.place[0]].expand(found.shape)]
    for at in range(owners.dim()):
        rows, dim = _by_rows(owners, at), found.first + at - lead
        told = rows.shape[1] > 0 and bool((rows == rows[:, :1]).all())
        if told and dim >= 0 and step.given[dim] == len(rows):
            return dim, Owners(rows[:, 0])
    return None


class _Indices:
    """What indexes a tensor: for some dimensions an index each, side by side, in whose place is their `shape`."""

    def __init__(self, used: dict[int, Tensor], dims: int) -> None:
        self.used, self.shape = used, torch.broadcast_shapes(*(index.shape for index in used.values()))
        at = list(used)
        adjacent = at == list(range(at[0], at[-1] + 1))
        self.first = at[0] if adjacent else 0
        free = [d for d in range(dims) if d not in used]
        self._dims: list[int | None] = [d for d in free if d < self.first]
        self._dims += [None] * len(self.shape)
        self._dims += [d for d in free if d >= self.first]

    @classmethod
    def of(cls, indices: Sequence[Tensor | None], shape: Sequence[int]) -> "_Indices | None":
        """Of indices as autograd has them; a mask counts as the indices of what it lets through."""
        used: dict[int, Tensor] = {}
        dim = 0
        for index in indices:
            if index is None:
                dim += 1
            elif index.dtype in (torch.bool, torch.uint8):
                for each in index.nonzero(as_tuple=True):
                    used[dim] = each
                    dim += 1
            else:
                used[dim] = index
                dim += 1
        return cls(used, len(shape)) if used and dim <= len(shape) else None

    def dim_before(self, dim: int) -> int | None:
        """The dimension that one of the result's is of what was indexed; None if indices make it."""
        return self._dims[dim]

    def dim_after(self, dim: int) -> int:
        """The dimension of the result that one that no index picks from becomes."""
        return self._dims.index(dim)

    def picked(self, shape: Sequence[int]) -> list[int]:
        """The result's shape."""
        sizes = iter(self.shape)
        return [next(sizes) if dim is None else shape[dim] for dim in self._dims]
