"""How a batch is made of units that have several rows each: side by side, in bags, packed, nested, or time first.

`private.batches(data, collate_fn=collate.flat)` hands out what these make. That rows lie side by side in it is known
then, whatever their number: no length is taken for the number of units.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from discreet.errors import ConfigError
from discreet.release.batching import Collate


class Flat(NamedTuple):
    """Rows of all units side by side, the unit of each, and how many units there are."""

    rows: Tensor
    owner: Tensor
    units: int


class Bags(NamedTuple):
    """Entries of all units side by side, and where each unit's begin, as `nn.EmbeddingBag` takes them."""

    input: Tensor
    offsets: Tensor


class Graphs(NamedTuple):
    """One graph of all units', as PyTorch Geometric has it: nodes, edges, the unit of each node, and how many units."""

    nodes: Tensor
    edges: Tensor
    batch: Tensor
    units: int


def flat(units: Sequence[Tensor]) -> Flat:
    """Sets, sequences or anything else of unequal length, side by side.

    Args:
        units: of each, its rows.
    """
    return Flat(torch.cat(list(units)), _owner(units), len(units))


def bags(units: Sequence[Tensor]) -> Bags:
    """Bags of words by offsets: `embedding_bag(*batch)`.

    Args:
        units: of each, its words, in one dimension.
    """
    lengths = torch.tensor([len(unit) for unit in units])
    return Bags(torch.cat(list(units)), lengths.cumsum(0) - lengths)


def graphs(units: Sequence[tuple[Tensor, Tensor]]) -> Graphs:
    """Graphs side by side; edges are moved on to where a graph's nodes are.

    Args:
        units: of each, its nodes [nodes, ...] and its edges [2, edges] from node to node, from 0.
    """
    nodes = [of for of, _ in units]
    sizes = torch.tensor([len(of) for of in nodes])
    starts = sizes.cumsum(0) - sizes
    edges = [edges + start for (_, edges), start in zip(units, starts, strict=True)]
    return Graphs(torch.cat(nodes), torch.cat(edges, 1), _owner(nodes), len(units))


def packed(units: Sequence[Tensor]) -> PackedSequence:
    """Sequences for torch's own recurrent layers, which keep no padding.

    Args:
        units: of each, its steps; at least one.
    """
    return pack_sequence(list(units), enforce_sorted=False)


def jagged(units: Sequence[Tensor]) -> Tensor:
    """A nested tensor in the jagged layout.

    The engine takes work on its `values()` and `offsets()` apart. An op on the nested tensor itself is taken one unit
    at a time, and needs a loss that the library can call.

    Args:
        units: of each, its rows.
    """
    return torch.nested.as_nested_tensor(list(units), layout=torch.jagged)


def time_first(units: Sequence[Tensor]) -> Tensor:
    """Sequences of one length, with time in the first dimension and units in the second.

    Args:
        units: of each, its steps.
    """
    return torch.stack(list(units), 1)


@dataclass(frozen=True)
class Columns:
    """Each column of examples by a collate function of its own."""

    each: tuple[Collate, ...]

    def __call__(self, examples: list[Any]) -> tuple[Any, ...]:
        """A batch: one part for each column.

        Args:
            examples: tuples, of as many parts.
        """
        if any(len(example) != len(self.each) for example in examples):
            raise ConfigError(
                f"the examples have {sorted({len(e) for e in examples})} parts, and there are {len(self.each)} collate "
                "functions; give one for each part."
            )
        return tuple(make(list(column)) for make, column in zip(self.each, zip(*examples, strict=True), strict=True))


def columns(*each: Collate) -> Columns:
    """A collate function for examples of several parts: `columns(flat, default_collate)` for rows and a label.

    Args:
        each: a collate function for each part; `torch.utils.data.default_collate` for what has one row a unit.
    """
    return Columns(each)


def side_by_side(batch: Any, units: int) -> bool:
    """Whether it is known that rows of units lie side by side in a batch, or that its parts are one unit's each."""
    if isinstance(batch, (Flat, Bags, Graphs, PackedSequence)):
        return True
    if isinstance(batch, Tensor):
        return batch.is_nested
    if isinstance(batch, Mapping):
        return any(side_by_side(part, units) for part in batch.values())
    if not isinstance(batch, (list, tuple)):
        return False
    one_each = type(batch) is list and len(batch) == units
    if one_each and len({part.shape for part in batch if isinstance(part, Tensor)}) > 1:
        return True
    return any(side_by_side(part, units) for part in batch)


def _owner(units: Sequence[Tensor]) -> Tensor:
    """The unit of each row."""
    return torch.arange(len(units)).repeat_interleave(torch.tensor([len(unit) for unit in units]))
