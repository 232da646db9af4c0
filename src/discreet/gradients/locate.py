"""Where each parameter's gradient can be taken apart by units: the first ops above it that carry the batch."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import MappingProxyType

import torch
from torch import Tensor

from discreet.gradients.axes import Route, readings, rows_at
from discreet.gradients.forms.complex_parts import real_parts
from discreet.gradients.graph import Edge, Graph, visit
from discreet.gradients.layout import (
    VALUES,
    Factors,
    Fingerprints,
    Match,
    Matching,
    Members,
    Memberships,
    Rows,
    random_labels,
    subsets,
)
from discreet.gradients.ops import finds_positions, masks, rearranges
from discreet.gradients.refusals import refuse_mixing
from discreet.gradients.torch_internals import in_one_order, recomputes, saved_tensors

Shapes = tuple[torch.Size, ...]


@dataclass(frozen=True)
class SplitPoint:
    """An op whose output carries the batch, with the inputs that are the same for every unit.

    `outputs` says for each of its used outputs where the units stand; `inputs` are the numbers of the inputs that
    depend on parameters alone, `below` the names of those parameters.
    """

    node: int
    outputs: dict[int, Match]
    inputs: tuple[int, ...]
    below: dict[int, tuple[str, ...]]


@dataclass(frozen=True)
class Analysis:
    """The split points of a graph's structure.

    `evident`: the batch showed every one of them with at least two units, where the structure has them whatever the
    data is. `recomputes`: reading a saved value twice gave two tensors, so the values are recomputed when they are read
    (checkpointing). `last` are the split points below which there is no other. `preparations` are the ops below split
    points that make something of parameters alone, each with the shapes of the constants that went into it; `route`
    leads from the losses to the split points, where all ops are known.
    """

    split_points: tuple[SplitPoint, ...]
    evident: bool
    recomputes: bool
    last: tuple[int, ...]
    preparations: Mapping[int, Shapes] = field(default_factory=dict)
    route: Route | None = None

    @cached_property
    def rows(self) -> dict[int, Rows | Members]:
        """Where the units stand in each split point's first output, if it is used."""
        return {point.node: point.outputs[0].rows for point in self.split_points if 0 in point.outputs}

    @cached_property
    def uses(self) -> Counter[str]:
        """How often each parameter is used."""
        return Counter(name for point in self.split_points for names in point.below.values() for name in names)

    @cached_property
    def several(self) -> frozenset[str]:
        """The parameters that are used more than once."""
        return frozenset(name for name, count in self.uses.items() if count > 1)


def analyse(
    graph: Graph,
    losses: Tensor,
    units: int,
    own: Sequence[Tensor],
    before: Mapping[int, Shapes] = MappingProxyType({}),
    *,
    ragged: bool = False,
    again: bool = False,
) -> Analysis:
    """Find the split points of a graph.

    From every parameter upwards: an op whose output carries the batch (found by reweighting the losses) splits;
    an op that fails, but whose inputs are all made of parameters and of the model's `own` tensors, is part of how the
    parameter is prepared, and the search goes on above it; one that fails with anything else among its inputs, which
    may be data, is looked at row by row: if each row is one unit's, whichever it is, it splits all the same, and if
    not, examples are mixed.

    `before` are ops that prepared parameters when they were looked at before, with the shapes of their constants. If
    these are the same, or they still may, they are taken for that: it is exact, whatever they are. `ragged` says that
    units lie side by side, each with rows of its own number, so that a tensor of any length may hold them. Before a
    graph is refused it is looked at `again`, leaving units out instead of shrinking them: that takes more passes, but
    no rounding shows as mixing, and neither does a backward pass that is not linear, row by row.
    """

    def prepares(n: int, *, strictly: bool = False) -> bool:
        return _all_shared(graph, n, shared) and constants_are_known(
            graph, n, own, 1 if strictly else units, ragged=ragged
        )

    labels = subsets(units, losses.dtype) if again else random_labels(units, losses.dtype)
    shared = set(graph.leaves)  # nodes whose value does not depend on the batch
    carrying: dict[int, dict[int, Match]] = {}
    failed: dict[int, None] = {}
    seen: dict[int, dict[int, Match | None]] = {}
    unsure = False  # whether some op showed too little of where the units stand in it
    for n in graph.upwards if before else ():
        only_moved = rearranges(graph.name(n)) and _all_shared(graph, n, shared)
        same = n in before and _all_shared(graph, n, shared) and before[n] == _constant_shapes(graph, n)
        same = same and all(map(_is_finite, _constants(graph, n)))
        if only_moved or same or (n in before and prepares(n)):
            shared.add(n)
    pending = list(shared)
    while pending:
        above = dict.fromkeys(n for i in pending for n in graph.consumers.get(i, []))
        candidates = [n for n in above if n not in shared and n not in carrying and n not in failed]
        pending = [n for n in candidates if rearranges(graph.name(n)) and _all_shared(graph, n, shared)]
        shared.update(pending)
        candidates = [n for n in candidates if n not in shared]
        unseen = [n for n in candidates if n not in seen]
        if unseen:
            ahead = _preparations(graph, shared, own, units, ragged=ragged)
            seen |= _looked_at(graph, losses, units, list(dict.fromkeys([*unseen, *ahead])), labels)
        stray: list[int] = []  # ops in which units stand nowhere in particular
        for n in candidates:
            matches = seen[n]
            told = all(m is None or m.evident for m in matches.values())
            if not told and prepares(n):
                unsure = True
                failed[n] = None  # it may be how a parameter is prepared; taken for that, nothing is lost but time
            elif all(m is not None for m in matches.values()):
                carrying[n] = {k: m for k, m in matches.items() if m is not None}
            elif prepares(n, strictly=True):
                failed[n] = None
            else:
                stray.append(n)
        dealt = _dealt(graph, losses, units, stray, labels)
        carrying |= dealt
        failed.update(dict.fromkeys(n for n in stray if n not in dealt))
        settled = [n for n in failed if prepares(n)]
        for n in settled:
            del failed[n]
        shared.update(settled)
        pending += settled
    if failed and not again:
        return analyse(graph, losses, units, own, before, ragged=ragged, again=True)
    if failed:
        refuse_mixing(graph, list(failed))
    below = _parameters_below(graph, shared)
    split_points: list[SplitPoint] = []
    for n, matches in carrying.items():
        inputs = tuple(k for k, e in enumerate(graph.inputs[n]) if e is not None and e[0] in shared)
        if matches:
            split_points.append(SplitPoint(n, matches, inputs, {k: below[_child(graph, n, k)] for k in inputs}))
    reached = all(len(matches) == len(graph.outputs[n]) for n, matches in carrying.items())  # every output that is used
    evident = reached and not unsure  # what the batch did not show, the ops tell: rows that reach no loss in it
    route = Route.of(graph, shared) if evident else None
    evident = evident and route is not None and _confirmed(graph, split_points, route, units)
    recomputed = recomputes(graph.nodes[point.node] for point in split_points)
    prepared = {
        n: _constant_shapes(graph, n) for n in shared if n not in graph.leaves and not rearranges(graph.name(n))
    }
    last = tuple(graph.last({point.node for point in split_points}))
    return Analysis(tuple(split_points), evident, recomputed, last, prepared, route)


Told = dict[Edge, Rows | Members]  # where the units stand in outputs of split points


def _confirmed(graph: Graph, split_points: Iterable[SplitPoint], route: Route, units: int) -> bool:
    """Whether the ops above tell what was found in this very batch."""
    told = stand(graph, split_points, route, units)
    if told is None:
        return False
    found = {(point.node, number): m.rows for point in split_points for number, m in point.outputs.items()}
    return all(rows.is_told(told[edge], graph.shape(edge), units) for edge, rows in found.items())


def stand(graph: Graph, split_points: Iterable[SplitPoint], route: Route, units: int) -> Told | None:
    """Where the units stand in the outputs of split points, as the ops above and their shapes tell.

    None if they do not tell, or tell something else than what was found: there by position, each with several rows only
    where that was seen; or anywhere by data.
    """
    places = route.places(graph, units)
    if places is None:
        return None
    told: dict[Edge, Rows | Members] = {}
    for point in split_points:
        for number, match in point.outputs.items():
            edge, shape = (point.node, number), graph.shape((point.node, number))
            place = places.get(edge)
            rows = None if place is None else rows_at(place, shape, units)
            if rows is None or (isinstance(rows, Rows) and rows != match.rows and isinstance(match.rows, Rows)):
                return None
            told[edge] = rows
    return told


_GROUP_BYTES = 1 << 28  # gradients that are held at a time, to be compared


def _in_groups(graph: Graph, candidates: Sequence[int]) -> list[list[int]]:
    """The candidates some at a time, so that their gradients take little memory."""
    groups: list[list[int]] = [[]] if candidates else []
    size = 0
    for n in candidates:
        size += sum(4 * graph.shape((n, number)).numel() for number in graph.outputs.get(n, []))
        if size > _GROUP_BYTES and groups[-1]:
            groups.append([])
            size = 0
        groups[-1].append(n)
    return groups


def _preparations(graph: Graph, shared: set[int], own: Sequence[Tensor], units: int, *, ragged: bool) -> list[int]:
    """All ops that may be part of how parameters are prepared, and those above them: one pass looks at all of them."""
    made, preparations, pending = set(shared), [], list(shared)
    while pending:
        above = dict.fromkeys(n for i in pending for n in graph.consumers.get(i, []) if n not in made)
        ready = [n for n in above if _all_shared(graph, n, made)]
        pending = [n for n in ready if constants_are_known(graph, n, own, units, ragged=ragged)]
        made.update(pending)
        preparations += above
    return [n for n in dict.fromkeys(preparations) if n not in shared]


Matches = dict[int, dict[int, Match | None]]


def _looked_at(
    graph: Graph, losses: Tensor, units: int, candidates: Sequence[int], labels: Sequence[Tensor]
) -> Matches:
    """Where the units stand in the outputs of ops that a gradient reaches.

    Most have them where they usually are, which fingerprints tell; the gradients of the others are kept and compared.
    """
    matches: Matches = {}
    if not any(bool((label == 0).any()) for label in labels):
        matches = _matches(graph, losses, units, candidates, labels, partial(Fingerprints, factors=Factors()))
    others = [n for n in candidates if any(m is None for m in matches.get(n, {0: None}).values())]
    for some in _in_groups(graph, others):
        matches |= _matches(graph, losses, units, some, labels, Matching)
    return matches


def _dealt(
    graph: Graph, losses: Tensor, units: int, candidates: Sequence[int], labels: Sequence[Tensor]
) -> dict[int, dict[int, Match]]:
    """Those of some ops whose outputs' rows, or values, are one unit's each, and whose they are."""
    dealt: dict[int, dict[int, Match]] = {}
    for some in _in_groups(graph, candidates):
        for n, matches in _matches(graph, losses, units, some, labels, Memberships).items():
            told = {k: m for k, m in matches.items() if m is not None and _fits(m, graph.shape((n, k)))}
            if len(told) == len(matches):
                dealt[n] = told
    return dealt


def _fits(match: Match, shape: torch.Size) -> bool:
    """Whether what was found is of an op's own dimensions: complex values were looked at as pairs."""
    rows = match.rows
    sizes = shape if rows.dim == VALUES else shape[rows.dim : rows.dim + 1]
    return not isinstance(rows, Members) or rows.owner.shape == sizes


def _matches(
    graph: Graph, losses: Tensor, units: int, candidates: Sequence[int], labels: Sequence[Tensor],
    how: Callable[[Tensor, int], Fingerprints | Matching | Memberships],
) -> Matches:  # fmt: skip
    outputs = {n: graph.outputs.get(n, []) for n in candidates}
    matchers: dict[int, dict[int, Fingerprints | Matching | Memberships]] = {n: {} for n in candidates}

    def begin(n: int, gradients: dict[int, Tensor]) -> None:
        matchers[n] = {k: how(real_parts(gradient), units) for k, gradient in gradients.items()}

    with in_one_order():
        visit(graph, losses, outputs, torch.ones_like(losses), begin, retain=True)
        for label in labels:

            def compare(n: int, gradients: dict[int, Tensor], label: Tensor = label) -> None:
                for k, gradient in gradients.items():
                    matchers[n][k].compare(real_parts(gradient), label)

            weights = label.to(losses.detach()).repeat_interleave(len(losses) // units)
            visit(graph, losses, outputs, weights, compare, retain=True)
    expected = {} if how is Memberships else readings(graph, units)
    spoiled = ~losses.detach().view(units, -1).isfinite().all(1)
    return {n: {k: m.found(expected.get((n, k)), spoiled) for k, m in some.items()} for n, some in matchers.items()}


def _child(graph: Graph, n: int, number: int) -> int:
    edge = graph.inputs[n][number]
    assert edge is not None
    return edge[0]


def _all_shared(graph: Graph, n: int, shared: set[int]) -> bool:
    return n != 0 and all(edge is None or edge[0] in shared for edge in graph.inputs[n])


def constants_are_known(graph: Graph, n: int, own: Sequence[Tensor], units: int, *, ragged: bool = False) -> bool:
    """Whether the constants that went into an op can be taken to be free of data.

    They are if the op is element by element and its output no larger than what was made of parameters (a mask or noise
    on a weight), or if each of them is the model's own, a number, a row of positions or their sines and cosines, or of
    a shape that cannot hold a row for each unit (which no shape is for one unit): no length is a multiple of the units'
    number, or where units are `ragged`, none is as large as it. What is let through here but comes from data after all
    does so without a gradient, and is not this probe's to find.
    """
    shapes = [graph.shape(edge) for edge in graph.inputs[n] if edge is not None]
    if masks(graph.name(n)) and graph.shape((n, 0)) in shapes:
        return True
    constants = _constants(graph, n)
    if not all(_is_known(c, own, units, ragged=ragged) for c in constants):
        return False
    return bool(constants) or all(edge is not None for edge in graph.inputs[n])


def _constants(graph: Graph, n: int) -> list[Tensor]:
    """What an op has saved that no gradient goes to."""
    if finds_positions(graph.name(n)):
        return []
    saved = saved_tensors(graph.nodes[n], without="_saved_result")
    return [tensor.detach() for tensor in saved if not tensor.requires_grad]


def _constant_shapes(graph: Graph, n: int) -> Shapes:
    return tuple(c.shape for c in _constants(graph, n))


def _is_known(constant: Tensor, own: Sequence[Tensor], units: int, *, ragged: bool) -> bool:
    if constant.layout != torch.strided:
        return False
    small = all(size < units if ragged else size % units for size in constant.shape)
    if constant.numel() <= 1 or (small and _is_finite(constant)):
        return True
    for tensor in own:
        if tensor.untyped_storage().data_ptr() == constant.untyped_storage().data_ptr():
            return True
        if tensor.shape == constant.shape and tensor.dtype == constant.dtype and torch.equal(tensor, constant):
            return True
    if constant.is_floating_point():
        return _is_sinusoidal(constant)
    return not constant.is_complex() and constant.dtype != torch.bool and _counts(constant)


def _is_finite(constant: Tensor) -> bool:
    """Whether all values are: one that is not would spoil every unit's gradient that is pulled past it."""
    return not (constant.is_floating_point() or constant.is_complex()) or bool(constant.isfinite().all())


def _counts(positions: Tensor) -> bool:
    """Whether integers count up or down by one (positions), or depend on the distance from the diagonal alone."""
    flat = positions.reshape(-1)
    steps = flat[1:] - flat[:-1]
    if bool((steps == 1).all()) or bool((steps == -1).all()):
        return True
    return positions.dim() > 1 and torch.equal(positions[..., 1:, 1:], positions[..., :-1, :-1])


_FIVE = 5  # positions, of which three equations tell that one more is where a wave has it


def _is_sinusoidal(table: Tensor) -> bool:
    """Whether a table has sines and cosines of positions, as is computed in many a forward pass.

    Of its two dimensions one is that of positions, along which every value follows from the two before as a wave's
    does; along the other, sines have their cosines beside them or in the other half.
    """
    table = table.detach().squeeze()
    if table.dim() != 2 or not _is_finite(table):
        return False
    return any(_waves(t) and _on_circles(t) for t in (table.double(), table.double().t()))


def _waves(rows: Tensor) -> bool:
    """Whether each column is a wave along the rows, and not all of them are constant."""
    if len(rows) < _FIVE:
        return False
    around, here = rows[2:] + rows[:-2], rows[1:-1]
    factors = (around * here).sum(0) / here.square().sum(0).clamp(min=1e-12)
    turns = bool((factors < 2 - 1e-3).any())
    return turns and bool(((around - factors * here).abs() < 1e-3).all())


def _on_circles(rows: Tensor) -> bool:
    """Whether columns are points of the unit circle by two: neighbours, or of both halves."""
    half = rows.shape[1] // 2
    if rows.shape[1] % 2 or not half:
        return False
    pairs = (rows[:, 0::2], rows[:, 1::2]), (rows[:, :half], rows[:, half:])
    return any(bool(((a.square() + b.square() - 1).abs() < 1e-3).all()) for a, b in pairs)


def _parameters_below(graph: Graph, shared: set[int]) -> dict[int, tuple[str, ...]]:
    """For each node that depends on parameters alone, their names."""
    names_below: dict[int, tuple[str, ...]] = {}

    def visit(i: int) -> tuple[str, ...]:
        if i not in names_below:
            names = [graph.leaves[i]] if i in graph.leaves else []
            for edge in graph.inputs[i]:
                if edge is not None:
                    names += visit(edge[0])
            names_below[i] = tuple(dict.fromkeys(names))
        return names_below[i]

    for i in shared:
        visit(i)
    return names_below
