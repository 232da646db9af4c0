"""Where each parameter's gradient can be taken apart by units: the first ops above it that carry the batch."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from discreet.errors import PrivacyError
from discreet.gradients.axes import Route, readings, rows_at
from discreet.gradients.graph import Edge, Graph, Node, is_leaf
from discreet.gradients.layout import (
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

Shapes = tuple[torch.Size, ...]


class Inseparable(PrivacyError):
    """The gradients of a batch cannot be taken apart by examples: these are mixed, or nothing tells them apart."""


# ops that only rearrange a parameter: its value is the same for every unit above them, and so is its norm
REARRANGEMENTS = {
    "AliasBackward0", "CloneBackward0", "PermuteBackward0", "ReshapeAliasBackward0", "SelectBackward0",
    "SliceBackward0", "SplitBackward0", "SplitWithSizesBackward0", "SqueezeBackward0", "SqueezeBackward1",
    "TBackward0", "ToCopyBackward0", "TransposeBackward0", "UnsafeSplitBackward0", "UnsafeViewBackward0",
    "UnsqueezeBackward0", "ViewBackward0",
}  # fmt: skip


@dataclass(frozen=True)
class Site:
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
    """The sites of a graph's structure.

    `evident`: the batch showed every one of them with at least two units, where the structure has them whatever the
    data is. `recomputes`: reading a saved value twice
    gave two tensors, so the values are recomputed when they are read (checkpointing). `last` are the sites below which
    there is no other. `preparations` are the ops below sites that make something of parameters alone, each with the
    shapes of the constants that went into it; `route` leads from the losses to the sites, where all ops are known.
    """

    sites: tuple[Site, ...]
    evident: bool
    recomputes: bool
    last: tuple[int, ...]
    preparations: Mapping[int, Shapes] = field(default_factory=dict)
    route: Route | None = None

    @cached_property
    def rows(self) -> dict[int, Rows | Members]:
        """Where the units stand in each site's first output, if it is used."""
        return {site.node: site.outputs[0].rows for site in self.sites if 0 in site.outputs}

    @cached_property
    def uses(self) -> Counter[str]:
        """How often each parameter is used."""
        return Counter(name for site in self.sites for names in site.below.values() for name in names)

    @cached_property
    def several(self) -> frozenset[str]:
        """The parameters that are used more than once."""
        return frozenset(name for name, count in self.uses.items() if count > 1)


def gradients_at(
    graph: Graph, losses: Tensor, edges: Sequence[Edge], weights: Tensor, *, retain: bool
) -> dict[Edge, Tensor]:
    """The gradient of sum(weights * losses) at outputs of ops; edges that no gradient reaches are left out."""
    if not edges:
        return {}
    targets = [GradientEdge(graph.nodes[i], number) for i, number in edges]
    found = graph.passes.run(losses, targets, weights, retain=retain)
    return {edge: g.detach() for edge, g in zip(edges, found, strict=True) if g is not None}


Visitor = Callable[[int, dict[int, Tensor]], None]


def visit(
    graph: Graph,
    losses: Tensor,
    outputs: Mapping[int, Iterable[int]],
    weights: Tensor,
    visitor: Visitor,
    *,
    retain: bool,
    last: Sequence[int] | None = None,
) -> None:
    """Run one backward pass of sum(weights * losses), and see the gradients at some ops' `outputs` as it goes.

    An op is visited just before its own backward runs: what it saved is still there, and what its outputs' gradients
    were made of is still in the cache. Nothing is held for it, and the gradients of parameters are never computed: the
    pass is asked only for the `last` ops, below which there is none to visit (None: they are to be found).
    """
    last = graph.last(outputs) if last is None else last
    missing = set(outputs).difference(last)
    failed: list[Exception] = []  # the pass goes on, as other processes may be in it

    def hook(n: int, gradients: tuple[Tensor | None, ...]) -> None:
        missing.discard(n)
        if failed:
            return
        try:
            visitor(n, {k: g for k in outputs[n] if (g := gradients[k]) is not None})
        except Exception as error:
            failed.append(error)

    hooks = [graph.nodes[n].register_prehook(partial(hook, n)) for n in missing]
    try:
        found = gradients_at(graph, losses, [(n, k) for n in last for k in outputs[n]], weights, retain=retain)
    finally:
        for registered in hooks:
            registered.remove()
    if failed:
        raise failed[0]
    if missing:
        raise PrivacyError(
            f"op {graph.name(min(missing))} took no part in the backward pass; its gradients are unknown."
        )
    with torch.no_grad():
        for n in last:
            visitor(n, {k: found.pop((n, k)) for k in outputs[n] if (n, k) in found})


def analyse(
    graph: Graph,
    losses: Tensor,
    units: int,
    own: Sequence[Tensor],
    known: Mapping[int, Shapes] = MappingProxyType({}),
    *,
    again: bool = False,
) -> Analysis:
    """Find the sites of a graph.

    From every parameter upwards: an op whose output carries the batch (found by reweighting the losses) is a site;
    an op that fails, but whose inputs are all made of parameters and of the model's `own` tensors, is part of how the
    parameter is prepared, and the search goes on above it; one that fails with anything else among its inputs, which
    may be data, is looked at row by row: if each row is one unit's, whichever it is, it is a site all the same, and if
    not, examples are mixed.

    `known` are ops that prepared parameters when they were looked at before, with the shapes of their constants. If
    these are the same, or they still may, they are taken for that: it is exact, whatever they are. Before a graph is
    refused it is looked at `again`, leaving units out instead of shrinking them: that takes more passes, but no
    rounding shows as mixing, and neither does a backward pass that is not linear, row by row.
    """

    def prepares(n: int, *, strictly: bool = False) -> bool:
        return _all_shared(graph, n, shared) and constants_are_known(graph, n, own, 1 if strictly else units)

    labels = subsets(units, losses.dtype) if again else random_labels(units, losses.dtype)
    shared = set(graph.leaves)  # nodes whose value does not depend on the batch
    carrying: dict[int, dict[int, Match]] = {}
    failed: dict[int, None] = {}
    seen: dict[int, dict[int, Match | None]] = {}
    unsure = False  # whether some op showed too little of where the units stand in it
    for n in graph.upwards if known else ():
        rearranges = graph.name(n) in REARRANGEMENTS and _all_shared(graph, n, shared)
        same = n in known and _all_shared(graph, n, shared) and known[n] == _constant_shapes(graph, n)
        same = same and all(map(_is_finite, _constants(graph, n)))
        if rearranges or same or (n in known and prepares(n)):
            shared.add(n)
    pending = list(shared)
    while pending:
        above = dict.fromkeys(n for i in pending for n in graph.consumers.get(i, []))
        candidates = [n for n in above if n not in shared and n not in carrying and n not in failed]
        pending = [n for n in candidates if graph.name(n) in REARRANGEMENTS and _all_shared(graph, n, shared)]
        shared.update(pending)
        candidates = [n for n in candidates if n not in shared]
        unseen = [n for n in candidates if n not in seen]
        if unseen:
            ahead = _preparations(graph, shared, own, units)
            seen |= _looked_at(graph, losses, units, list(dict.fromkeys([*unseen, *ahead])), labels)
        stray: list[int] = []  # ops in which units stand nowhere in particular
        for n in candidates:
            matches = seen[n]
            told = all(m is None or m.evident for m in matches.values())
            unsure |= not told
            if not told and prepares(n):
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
        return analyse(graph, losses, units, own, known, again=True)
    if failed:
        _refuse_mixing(graph, list(failed))
    below = _parameters_below(graph, shared)
    sites: list[Site] = []
    for n, matches in carrying.items():
        inputs = tuple(k for k, e in enumerate(graph.inputs[n]) if e is not None and e[0] in shared)
        if matches:
            sites.append(Site(n, matches, inputs, {k: below[_child(graph, n, k)] for k in inputs}))
    reached = all(len(matches) == len(graph.outputs[n]) for n, matches in carrying.items())  # every output that is used
    found = [m for matches in carrying.values() for m in matches.values()]
    evident = reached and not unsure and all(m.evident and isinstance(m.rows, Rows) for m in found)
    route = Route.of(graph, shared) if evident else None
    evident = evident and route is not None and stand(graph, sites, route, units)
    recomputed = recomputes(graph.nodes[site.node] for site in sites)
    made = [n for n in shared if n not in graph.leaves and graph.name(n) not in REARRANGEMENTS]
    prepared = {n: _constant_shapes(graph, n) for n in made}
    last = tuple(graph.last({site.node for site in sites}))
    return Analysis(tuple(sites), evident, recomputed, last, prepared, route)


def stand(graph: Graph, sites: Iterable[Site], route: Route, units: int) -> bool:
    """Whether the units stand in all sites where they were found, as the ops above them and their shapes tell."""
    places = route.places(graph, units)
    if places is None:
        return False
    for site in sites:
        for number, match in site.outputs.items():
            place = places.get((site.node, number))
            if place is None or rows_at(place, graph.shape((site.node, number)), units) != match.rows:
                return False
    return True


_TURN_BYTES = 1 << 28  # gradients that are held at a time, to be compared


def _in_turns(graph: Graph, candidates: Sequence[int]) -> list[list[int]]:
    """The candidates some at a time, so that their gradients take little memory."""
    turns: list[list[int]] = [[]] if candidates else []
    size = 0
    for n in candidates:
        size += sum(4 * graph.shape((n, number)).numel() for number in graph.outputs.get(n, []))
        if size > _TURN_BYTES and turns[-1]:
            turns.append([])
            size = 0
        turns[-1].append(n)
    return turns


def _preparations(graph: Graph, shared: set[int], own: Sequence[Tensor], units: int) -> list[int]:
    """All ops that may be part of how parameters are prepared, and those above them: one pass looks at all of them."""
    made, found, pending = set(shared), [], list(shared)
    while pending:
        above = dict.fromkeys(n for i in pending for n in graph.consumers.get(i, []) if n not in made)
        pending = [n for n in above if _all_shared(graph, n, made) and constants_are_known(graph, n, own, units)]
        made.update(pending)
        found += above
    return [n for n in dict.fromkeys(found) if n not in shared]


Found = dict[int, dict[int, Match | None]]


def _looked_at(graph: Graph, losses: Tensor, units: int, candidates: Sequence[int], labels: Sequence[Tensor]) -> Found:
    """Where the units stand in the outputs of ops that a gradient reaches.

    Most have them where they usually are, which fingerprints tell; the gradients of the others are kept and compared.
    """
    found: Found = {}
    if not any(bool((label == 0).any()) for label in labels):
        found = _matches(graph, losses, units, candidates, labels, partial(Fingerprints, factors=Factors()))
    others = [n for n in candidates if any(m is None for m in found.get(n, {0: None}).values())]
    for some in _in_turns(graph, others):
        found |= _matches(graph, losses, units, some, labels, Matching)
    return found


def _dealt(
    graph: Graph, losses: Tensor, units: int, candidates: Sequence[int], labels: Sequence[Tensor]
) -> dict[int, dict[int, Match]]:
    """Those of some ops whose outputs' rows, or values, are one unit's each, and whose they are."""
    found: dict[int, dict[int, Match]] = {}
    for some in _in_turns(graph, candidates):
        for n, matches in _matches(graph, losses, units, some, labels, Memberships).items():
            told = {k: m for k, m in matches.items() if m is not None}
            if len(told) == len(matches):
                found[n] = told
    return found


def _matches(
    graph: Graph, losses: Tensor, units: int, candidates: Sequence[int], labels: Sequence[Tensor],
    how: Callable[[Tensor, int], Fingerprints | Matching | Memberships],
) -> Found:  # fmt: skip
    outputs = {n: graph.outputs.get(n, []) for n in candidates}
    known: dict[int, dict[int, Fingerprints | Matching | Memberships]] = {n: {} for n in candidates}

    def begin(n: int, gradients: dict[int, Tensor]) -> None:
        known[n] = {k: how(gradient, units) for k, gradient in gradients.items()}

    visit(graph, losses, outputs, torch.ones_like(losses), begin, retain=True)
    for label in labels:

        def compare(n: int, gradients: dict[int, Tensor], label: Tensor = label) -> None:
            for k, gradient in gradients.items():
                known[n][k].compare(gradient, label)

        weights = label.to(losses.detach()).repeat_interleave(len(losses) // units)
        visit(graph, losses, outputs, weights, compare, retain=True)
    expected = {} if how is Memberships else readings(graph, units)
    spoiled = ~losses.detach().view(units, -1).isfinite().all(1)
    return {n: {k: m.found(expected.get((n, k)), spoiled) for k, m in some.items()} for n, some in known.items()}


def recomputes(nodes: Iterable[Node]) -> bool:
    """Whether ops' saved values are recomputed when they are read (checkpointing): they can be read once in a pass."""
    found = False

    def read() -> None:
        nonlocal found
        for node in nodes:
            for name in ("mat1", "self", "input", "other", "indices"):
                first = getattr(node, f"_saved_{name}", None)
                if isinstance(first, Tensor):
                    found |= first.data_ptr() != getattr(node, f"_saved_{name}").data_ptr()

    try:
        inside(read)
    except RuntimeError:  # read once already
        return True
    return found


class _Inside(torch.autograd.Function):
    """Runs a function inside a backward pass."""

    @staticmethod
    def forward(ctx: Any, start: Tensor, function: Callable[[], None]) -> Tensor:
        ctx.function = function
        return start.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.function()
        return gradients[0], None


def inside(function: Callable[[], None]) -> None:
    """Run a function inside a backward pass of its own, where values that are recomputed are so once for all."""
    with torch.enable_grad():
        start = torch.zeros((), requires_grad=True)
        torch.autograd.grad(_Inside.apply(start, function), start)


def _child(graph: Graph, n: int, number: int) -> int:
    edge = graph.inputs[n][number]
    assert edge is not None
    return edge[0]


def _all_shared(graph: Graph, n: int, shared: set[int]) -> bool:
    return n != 0 and all(edge is None or edge[0] in shared for edge in graph.inputs[n])


ELEMENTWISE = {
    "AddBackward0", "AddcmulBackward0", "DivBackward0", "LerpBackward0", "MaskedFillBackward0", "MulBackward0",
    "RsubBackward1", "SubBackward0", "WhereBackward0",
}  # fmt: skip

# ops that save the positions they found themselves
_OWN_POSITIONS = {"MaxBackward0", "MinBackward0", "SortBackward0", "TopkBackward0", "MedianBackward1"}


def constants_are_known(graph: Graph, n: int, own: Sequence[Tensor], units: int) -> bool:
    """Whether the constants that went into an op can be taken to be free of data.

    They are if the op is element by element and its output no larger than what was made of parameters (a mask or noise
    on a weight), or if each of them is the model's own, a number, a row of positions, or of a shape that cannot hold a
    row for each unit (which no shape is for one unit). What is let through here but comes from data after all does so
    without a gradient, and is not this probe's to find.
    """
    shapes = [graph.shape(edge) for edge in graph.inputs[n] if edge is not None]
    if graph.name(n) in ELEMENTWISE and graph.shape((n, 0)) in shapes:
        return True
    constants = _constants(graph, n)
    if not all(_is_known(c, own, units) for c in constants):
        return False
    return bool(constants) or all(edge is not None for edge in graph.inputs[n])


def _constants(graph: Graph, n: int) -> list[Tensor]:
    """What an op has saved that no gradient goes to."""
    node = graph.nodes[n]
    if graph.name(n) in _OWN_POSITIONS:
        return []
    saved: list[Tensor] = []
    for name in dir(type(node)):
        if name.startswith("_saved_") and not name.startswith("_saved_result"):
            value = getattr(node, name)
            saved += [v for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, Tensor)]
    if hasattr(node, "saved_tensors"):
        saved += [v for v in node.saved_tensors if v is not None]
    return [v.detach() for v in saved if not v.requires_grad]


def _constant_shapes(graph: Graph, n: int) -> Shapes:
    return tuple(c.shape for c in _constants(graph, n))


def _is_known(constant: Tensor, own: Sequence[Tensor], units: int) -> bool:
    if constant.layout != torch.strided:
        return False
    if constant.numel() <= 1 or (all(size % units for size in constant.shape) and _is_finite(constant)):
        return True
    for tensor in own:
        if tensor.untyped_storage().data_ptr() == constant.untyped_storage().data_ptr():
            return True
        if tensor.shape == constant.shape and tensor.dtype == constant.dtype and torch.equal(tensor, constant):
            return True
    return not constant.is_floating_point() and constant.dtype != torch.bool and _counts(constant)


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


def _parameters_below(graph: Graph, shared: set[int]) -> dict[int, tuple[str, ...]]:
    """For each node that depends on parameters alone, their names."""
    found: dict[int, tuple[str, ...]] = {}

    def visit(i: int) -> tuple[str, ...]:
        if i not in found:
            names = [graph.leaves[i]] if i in graph.leaves else []
            for edge in graph.inputs[i]:
                if edge is not None:
                    names += visit(edge[0])
            found[i] = tuple(dict.fromkeys(names))
        return found[i]

    for i in shared:
        visit(i)
    return found


def _refuse_mixing(graph: Graph, failed: list[int]) -> None:
    """Name the parameters whose use is nearest to the losses, where the examples can no longer be told apart."""
    nearest = min(failed)
    names = _direct_parameters(graph, nearest)
    op = graph.name(nearest).removesuffix("Backward0").removesuffix("Backward")
    raise Inseparable(
        f"the model or the loss mixes examples, or moves their rows about so that they cannot be told apart: from "
        f"{' and '.join(map(repr, names))} (op {op}) to the losses, no dimension belongs to one example each, so "
        "bounding each gradient would bound nothing. Look for batch statistics (replace BatchNorm by GroupNorm), sums, "
        "means or maxima over the batch, contrastive losses, rows picked by data, or a constant tensor that is not a "
        "buffer of the model."
    )


def _direct_parameters(graph: Graph, n: int) -> list[str]:
    """The names of the parameters an op uses, itself or through other ops on parameters."""
    names: dict[str, None] = {}
    stack, seen = [n], {n}
    while stack:
        i = stack.pop(0)
        for edge in graph.inputs[i]:
            if edge is None or edge[0] in seen:
                continue
            seen.add(edge[0])
            if edge[0] in graph.leaves:
                names[graph.leaves[edge[0]]] = None
            elif not is_leaf(graph, edge[0]) and len(names) == 0:
                stack.append(edge[0])
    return list(names) or ["a parameter"]
