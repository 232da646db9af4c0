"""Where the units stand in every tensor between the losses and the parameters, as a graph's ops and shapes tell it.

The losses have the units in order. From there downwards each op says where the units stand in its inputs, given where
they stand in its output (`ops.py`). What is found so holds whatever the data is, so that it need not be probed in every
step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from discreet.gradients import moves as _moves  # noqa: F401 - it declares the ops that move rows
from discreet.gradients.forms.complex_parts import real_parts
from discreet.gradients.graph import DIMENSIONS, Edge, Graph
from discreet.gradients.layout import VALUES, Members, Memberships, Rows, random_labels
from discreet.gradients.ops import Op, Step, known_op, saved_numbers
from discreet.gradients.owners import NOBODY, Owners, Place, Shape, by_position, merged, owners_of


class RouteOp(NamedTuple):
    """An op on a route: which of its outputs are used, and its inputs that depend on the batch."""

    node: int
    op: Op
    fields: tuple[str, ...]  # that are read of it
    outputs: tuple[int, ...]
    inputs: tuple[tuple[int, Edge], ...]


@dataclass(frozen=True)
class Route:
    """The ops of a structure from the losses down."""

    ops: tuple[RouteOp, ...]

    @classmethod
    def of(cls, graph: Graph, shared: set[int]) -> "Route | None":
        """The route through a graph past what is `shared` by all units; None if some op on it is not known."""
        ops = []
        for n in reversed(graph.upwards):
            if n in shared or n not in graph.outputs:
                continue
            inputs = tuple((k, e) for k, e in enumerate(graph.inputs[n]) if e is not None and e[0] not in shared)
            if not inputs:
                continue
            op = known_op(type(graph.nodes[n]), graph.name(n))
            if op is None:
                return None
            ops.append(RouteOp(n, op, op.fields(type(graph.nodes[n])), tuple(graph.outputs[n]), inputs))
        return cls(tuple(ops))

    @property
    def by_data(self) -> bool:
        """Whether more than shapes and saved numbers tells where the units stand."""
        return any(at.op.by_data or at.op.asked for at in self.ops)

    @property
    def edges(self) -> list[Edge]:
        """The tensors whose shapes are looked at."""
        outputs = [(at.node, output) for at in self.ops for output in at.outputs]
        return outputs + [edge for at in self.ops for _, edge in at.inputs]

    @property
    def fields(self) -> list[tuple[int, str]]:
        """The saved numbers that are looked at, but for those that are part of a structure."""
        return [(at.node, field) for at in self.ops for field in at.fields if field not in DIMENSIONS]

    def places(self, graph: Graph, units: int) -> Mapping[Edge, Place] | None:
        """Where the units stand in each op's outputs; None if the ops and shapes do not tell."""
        root = (0, graph.root_output)
        places: dict[Edge, Place] = {root: (0, graph.shape(root)[0] // units)}
        for at in self.ops:
            for output in at.outputs:
                place = places.get((at.node, output))
                if place is None:
                    return None
                for number, edge in at.inputs:
                    below = _place_below(graph, at.op, (at.node, output), place, number, edge, units)
                    if below is not None and edge in places:
                        below = merged(places[edge], below, graph.shape(edge), units)
                    if below is None:
                        return None
                    places[edge] = below
        return places


def _place_below(graph: Graph, op: Op, output: Edge, place: Place, number: int, edge: Edge, units: int) -> Place | None:
    """Where the units stand in an op's input, given where they stand in an output of it; None if nothing tells."""
    node, given = graph.nodes[output[0]], graph.shape(edge)
    if op.asked:
        return _told_by_itself(graph, output, place, number, units)
    saved = saved_numbers(node, op.fields(type(node)))
    tensors = {name: getattr(node, f"_saved_{name}") for name in op.by_data} if op.by_data else {}
    tensors = tree_map_only(Tensor, Tensor.cpu, tensors)  # owners are on the host
    siblings: tuple[Shape | None, ...] = ()
    if op.siblings:
        siblings = tuple(None if e is None else graph.shape(e) for e in graph.inputs[output[0]])
    below = op.keeper(Step(saved, number, output[1], place, graph.shape(output), given, units, tensors, siblings))
    if below is None:
        return None
    dim, width = below
    if isinstance(width, Owners):
        if len(width.of) != (given[dim] if given else 1):
            return None
        return dim, by_position(width, units)
    return None if given[dim] % (width * units) else below


def _told_by_itself(graph: Graph, output: Edge, place: Place, number: int, units: int) -> Place | None:
    """The same from the op's own backward: of ones, and of each unit's labels in the place of ones.

    A gradient that changes by one unit's labels comes from that unit's part of the output alone.
    """
    node, shape, (dim, width) = graph.nodes[output[0]], graph.shape(output), place
    meta = node._input_metadata[output[1]]
    if not (meta.dtype.is_floating_point or meta.dtype.is_complex) or len(node._input_metadata) != 1 or not shape:
        return None
    ones = torch.ones(shape, dtype=meta.dtype, device=meta.device)
    owners = owners_of(width, shape[dim], units)
    kept = (owners != NOBODY).view([-1 if d == dim else 1 for d in range(len(shape))]).to(meta.device)

    def below(of_owners: Tensor) -> Tensor | None:
        factors = of_owners.view(kept.shape).to(ones)
        with torch.no_grad():
            found = node(ones * torch.where(kept, factors, 0.0))
        return (found if isinstance(found, tuple) else (found,))[number]

    plain = below(torch.ones(len(owners)))
    if plain is None or plain.layout != torch.strided:
        return None
    memberships = Memberships(real_parts(plain), units)
    for labels in random_labels(units, real_parts(ones[:0]).dtype):
        scaled = below(labels[owners.clamp(min=0).to(labels.device)])
        if scaled is None:
            return None
        memberships.compare(real_parts(scaled), labels)
    match = memberships.found()
    rows = None if match is None else match.rows
    if not isinstance(rows, Members) or rows.dim == VALUES or rows.dim >= plain.dim():
        return None
    return rows.dim, by_position(Owners(rows.owner.cpu()), units)


def readings(graph: Graph, units: int) -> dict[Edge, Rows | Members | None]:
    """Where the units stand in each op's outputs, as far as the ops above tell; None where they do not, or differ."""
    root = (0, graph.root_output)
    places: dict[Edge, Place | None] = {root: (0, graph.shape(root)[0] // units)}
    for n in reversed(graph.upwards):
        op = known_op(type(graph.nodes[n]), graph.name(n))
        for output in graph.outputs.get(n, ()):
            place = places.get((n, output))
            for number, edge in enumerate(graph.inputs[n]):
                if edge is None:
                    continue
                told = place is not None and op is not None
                below = _place_below(graph, op, (n, output), place, number, edge, units) if told else None
                if edge in places:
                    below = merged(places[edge], below, graph.shape(edge), units)
                places[edge] = below
    return {e: None if p is None else rows_at(p, graph.shape(e), units) for e, p in places.items()}


def rows_at(place: Place, shape: Shape, units: int) -> Rows | Members | None:
    """The same as rows of an op's output: unit by unit or row by row, or each its own unit's."""
    dim, width = place
    if not shape:
        return None
    if not isinstance(width, Owners):
        if width * units == shape[dim]:
            return Rows(dim)
        if width == 1:
            return Rows(dim, interleaved=True)
    return Members(dim, owners_of(width, shape[dim], units))
