"""What a graph's structure and shapes fix of a backward pass: found once, and kept."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import GradientEdge

from discreet.gradients.forms.base import PerExampleGrad, sum_dtype
from discreet.gradients.forms.reparametrized import Prepared, is_linear
from discreet.gradients.graph import Edge, Graph
from discreet.gradients.layout import VALUES, Members, Rows
from discreet.gradients.locate import Analysis, SplitPoint, Told, stand
from discreet.gradients.ops import rearranges
from discreet.gradients.refusals import suspect
from discreet.gradients.rules.registry import RULES, Placement, Rule
from discreet.gradients.torch_internals import attributes

MOST_REMEMBERED = 256  # structures, and shapes of one; models unrolled over time have one for each length
Shapes = tuple[tuple[int, ...], ...]


def remember(values: dict[Any, Any], key: Any, value: Any) -> None:
    """Keep a value, and forget all others where there are too many."""
    if len(values) >= MOST_REMEMBERED:
        values.clear()
    values[key] = value


@dataclass(frozen=True)
class ParamPath:
    """What lies between an op's input and the parameter it is made of, as the structure of a graph has it.

    `edge` is where the path begins (casts are left out: sums are taken in float32, above and below them). `direct`:
    there is nothing else; `transposes`: one transposition; `isometric`: it only rearranges; `linear`: a sum of
    gradients may be pulled through it.
    """

    edge: Edge
    direct: bool
    transposes: bool
    isometric: bool
    linear: bool = True

    @classmethod
    def of(cls, graph: Graph, edge: Edge, parameter: nn.Parameter) -> "ParamPath":
        """The path from an edge down to a parameter."""
        while graph.name(edge[0]) == "ToCopyBackward0":
            cast = graph.inputs[edge[0]][0]
            assert cast is not None
            edge = cast
        ops: list[str] = []
        i = edge[0]
        while i not in graph.leaves and rearranges(graph.name(i)):
            ops.append(graph.name(i))
            below = [e[0] for e in graph.inputs[i] if e is not None]
            if len(below) != 1:
                break
            i = below[0]
        ends = i in graph.leaves
        transposes = [op for op in ops if op != "ToCopyBackward0"] == ["TBackward0"]
        linear = ends or is_linear(GradientEdge(graph.nodes[edge[0]], edge[1]), parameter)
        return cls(edge, edge[0] in graph.leaves, ends and transposes, ends, linear)

    def back(self, graph: Graph, parameter: nn.Parameter, form: PerExampleGrad) -> PerExampleGrad:
        """The gradients of the parameter, from those of what was made of it, by autograd."""
        edge = GradientEdge(graph.nodes[self.edge[0]], self.edge[1])
        return Prepared(form, edge, parameter, isometric=self.isometric, linear=self.linear)


@dataclass(frozen=True)
class ParamInput:
    """One input of a split point, which depends on parameters alone: the paths lead to each of them."""

    number: int
    op: str
    edge: Edge
    dtype: torch.dtype
    paths: tuple[tuple[str, ParamPath], ...]


class PlannedInput(NamedTuple):
    """An input, and the rule that applies to it with these shapes; None: the op's own backward is run once a unit."""

    input: ParamInput
    rule: Rule | None
    fields: tuple[tuple[str, str], ...]  # that the rule reads, and the attributes that have them
    shape: torch.Size


class PlannedSplit(NamedTuple):
    """A split point: where the units stand in its first output, if it is used, and its inputs; and in all outputs."""

    rows: Rows | Members | None
    one_row: bool
    inputs: tuple[PlannedInput, ...]
    outputs: Mapping[int, Rows | Members]


@dataclass(frozen=True)
class PassPlan:
    """What a structure and shapes fix of a backward pass.

    `shapes` are those of the split points' outputs for one unit, where these explain the batch. `retain`: some op's own
    backward may be run again, so that the graph must not be freed. `reads`: the values of parameters are needed.
    """

    splits: Mapping[int, PlannedSplit]
    shapes: Shapes | None
    retain: bool
    reads: bool


@dataclass(frozen=True)
class Structure:
    """What is known of all graphs that have one structure."""

    analysis: Analysis
    inputs: Mapping[int, tuple[ParamInput, ...]]  # of each split point
    outputs: Mapping[int, tuple[int, ...]]
    suspect: bool  # whether some op has to be looked at each time: what mixes examples in it is no part of a structure
    _edges: tuple[Edge, ...]  # whose shapes decide on a plan
    _fields: tuple[tuple[int, str], ...]  # saved numbers that do
    _plans: dict[Any, PassPlan | None] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph, analysis: Analysis, parameters: Mapping[str, nn.Parameter]) -> "Structure":
        """What an analysis tells of the graph's structure."""
        inputs: dict[int, tuple[ParamInput, ...]] = {}
        for point in analysis.split_points:
            some = []
            for number in point.inputs:
                edge, names = graph.inputs[point.node][number], point.below[number]
                assert edge is not None
                paths = tuple((name, ParamPath.of(graph, edge, parameters[name])) for name in names)
                below = paths[0][1].edge  # casts are left out
                made = graph.nodes[below[0]]._input_metadata[below[1]].dtype
                dtype = sum_dtype(parameters[names[0]].dtype, made)
                some.append(ParamInput(number, graph.name(point.node), edge, dtype, paths))
            inputs[point.node] = tuple(some)
        outputs = {point.node: tuple(point.outputs) for point in analysis.split_points}
        edges = [(node, number) for node, numbers in outputs.items() for number in numbers]
        edges += [each.edge for some in inputs.values() for each in some]
        fields: list[tuple[int, str]] = []
        if analysis.route is not None:
            edges += analysis.route.edges
            fields += [(node, f"_saved_{name}") for node, name in analysis.route.fields]
        looks = any(suspect(type(node)) for node in graph.nodes)
        return cls(analysis, inputs, outputs, looks, tuple(dict.fromkeys(edges)), tuple(dict.fromkeys(fields)))

    def plan(self, graph: Graph, units: int) -> PassPlan | None:
        """The plan for a graph's shapes; None if these are not explained by what was seen of the structure."""
        nodes, shapes = graph.nodes, []
        for node, number in self._edges:
            shapes.append(tuple(nodes[node]._input_metadata[number].shape))
        for node, attribute in self._fields:
            shapes.append(getattr(nodes[node], attribute))
        key = units, *shapes
        if key in self._plans:
            return self._plans[key]
        told = fitting(graph, self.analysis, units)
        plan = None if told is None else self.planned(graph, units, told)
        route = self.analysis.route
        if route is not None and not route.by_data:
            remember(self._plans, key, plan)
        return plan

    def planned(self, graph: Graph, units: int, told: Told | None = None) -> PassPlan:
        """The plan for a graph where the units stand as the ops told; or for the one that was analysed."""
        splits: dict[int, PlannedSplit] = {}
        for point in self.analysis.split_points:
            node = point.node
            outputs = {k: m.rows if told is None else told[node, k] for k, m in point.outputs.items()}
            rows = outputs.get(0)
            kind = type(graph.nodes[node])
            inputs = []
            for each in self.inputs[node]:
                rule = _applicable(graph, point, each, rows, units)
                fields = () if rule is None else attributes(kind, rule.saves)
                inputs.append(PlannedInput(each, rule, fields, graph.shape(each.edge)))
            one_row = isinstance(rows, Rows) and rows.dim == 0 and graph.shape((node, 0))[0] == units
            splits[node] = PlannedSplit(rows, one_row, tuple(inputs), outputs)
        every = [planned for split in splits.values() for planned in split.inputs]
        several = any(len(point.outputs) > 1 for point in self.analysis.split_points)
        retain = several or any(planned.rule is None or planned.rule.may_decline for planned in every)
        told = fitting(graph, self.analysis, units) if told is None else told
        shapes = None if told is None else _shapes(graph, told, units)
        return PassPlan(splits, shapes, retain, any(map(_reads, every)))


def _applicable(
    graph: Graph, point: SplitPoint, of: ParamInput, rows: Rows | Members | None, units: int
) -> Rule | None:
    """The rule for an input, if there is one that covers where the units stand and the shapes."""
    rule = RULES.get((of.op, of.number))
    if rule is None or rows is None:
        return None
    if isinstance(rows, Members) and (rows.dim == VALUES or not rule.any_rows):
        return None
    node = graph.nodes[point.node]
    if any(node._input_metadata[number].dtype.is_complex for number in point.outputs):
        return None
    shape = graph.shape((point.node, 0))
    placement = Placement(node, units, rows, shape, graph.shape(of.edge))
    return rule if rule.when is None or rule.when(placement) else None


def _reads(planned: PlannedInput) -> bool:
    """Whether taking gradients apart at an op's input reads the values of parameters."""
    rearranged = all(path.direct or path.isometric for _, path in planned.input.paths)
    return planned.rule is None or not rearranged or planned.rule.reads_parameters


def fitting(graph: Graph, analysis: Analysis, units: int) -> Told | None:
    """Where the units stand in the split points' outputs, if that is still explained; or None.

    It is if the ops above them tell it, and rows of a unit are folded by position only where folding was seen.
    """
    told = None if analysis.route is None else stand(graph, analysis.split_points, analysis.route, units)
    if told is None:
        return None
    for point in analysis.split_points:
        for number, match in point.outputs.items():
            rows, shape = told[point.node, number], graph.shape((point.node, number))
            several = rows.per_unit(shape, units) if isinstance(rows, Rows) else 0
            if several is None or (several > 1 and not match.folded):
                return None
    return told


def _shapes(graph: Graph, told: Told, units: int) -> Shapes:
    """The shapes of the split points' outputs for one unit; by data, for the next power of two of its rows."""
    shapes: list[tuple[int, ...]] = []
    for edge, rows in told.items():
        shape, dim = graph.shape(edge), rows.dim
        each = rows.per_unit(shape, units) or 1 << (shape[dim] // units).bit_length()
        shapes.append((*shape[:dim], each, *shape[dim + 1 :]))
    return tuple(shapes)
