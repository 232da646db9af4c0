"""Where the units stand in every tensor between the losses and the parameters, as a graph's ops and shapes tell it.

The losses have the units in order. From there downwards each op says where the units stand in its inputs, given where
they stand in its output (`ops.py`). What is found so holds whatever the data is, so that it need not be probed in every
step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from discreet.gradients.graph import DIMENSIONS, Edge, Graph
from discreet.gradients.layout import Rows
from discreet.gradients.ops import Op, Place, Shape, Step, known_op, saved_numbers


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
        return any(at.op.by_data for at in self.ops)

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
                    if below is None or places.setdefault(edge, below) != below:
                        return None
        return places


def _place_below(graph: Graph, op: Op, output: Edge, place: Place, number: int, edge: Edge, units: int) -> Place | None:
    """Where the units stand in an op's input, given where they stand in an output of it; None if nothing tells."""
    node, given = graph.nodes[output[0]], graph.shape(edge)
    saved = saved_numbers(node, op.fields(type(node)))
    indices = node._saved_indices if op.by_data else ()
    below = op.keeper(Step(saved, number, output[1], place, graph.shape(output), given, units, indices))
    return None if below is None or given[below[0]] % (below[1] * units) else below


def readings(graph: Graph, units: int) -> dict[Edge, Rows | None]:
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
                if places.setdefault(edge, below) != below:
                    places[edge] = None
    return {e: None if p is None else rows_at(p, graph.shape(e), units) for e, p in places.items()}


def rows_at(place: Place, shape: Shape, units: int) -> Rows | None:
    """The same as rows of an op's output, if they are unit by unit or row by row."""
    dim, width = place
    if width * units == shape[dim]:
        return Rows(dim)
    return Rows(dim, interleaved=True) if width == 1 else None
