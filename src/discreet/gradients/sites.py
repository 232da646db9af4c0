"""Where each parameter's gradient can be taken apart by units: the first ops above it that carry the batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from discreet.errors import PrivacyError
from discreet.gradients.graph import Edge, Graph, Node, is_leaf
from discreet.gradients.rows import Match, match, random_labels

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

    `evident`: the batch showed every one of them with at least two units. `recomputes`: reading a saved value twice
    gave two tensors, so the values are recomputed when they are read (checkpointing).
    """

    sites: tuple[Site, ...]
    evident: bool
    recomputes: bool

    def edges(self) -> list[Edge]:
        return [(site.node, number) for site in self.sites for number in site.outputs]


def gradients_at(
    graph: Graph, losses: Tensor, edges: Sequence[Edge], weights: Tensor, *, retain: bool
) -> dict[Edge, Tensor]:
    """The gradient of sum(weights * losses) at outputs of ops; edges that no gradient reaches are left out."""
    if not edges:
        return {}
    targets = [GradientEdge(graph.nodes[i], number) for i, number in edges]
    found = torch.autograd.grad(losses, targets, weights, retain_graph=retain, allow_unused=True)
    return {edge: g.detach() for edge, g in zip(edges, found, strict=True) if g is not None}


def analyse(graph: Graph, losses: Tensor, units: int) -> tuple[Analysis, dict[Edge, Tensor]]:
    """Find the sites of a graph, and return the gradients of sum(losses) at their outputs with them.

    From every parameter upwards: an op whose output carries the batch (found by reweighting the losses) is a site;
    an op that fails, but whose inputs are all made of parameters, is part of how the parameter is prepared, and the
    search goes on above it; one that fails although it has the batch among its inputs mixes examples.
    """
    per_unit = len(losses) // units
    labels = random_labels(units, losses.dtype)
    ones = torch.ones_like(losses)
    scaled_losses = labels.repeat_interleave(per_unit).to(ones)
    shared = set(graph.leaves)  # nodes whose value does not depend on the batch
    carrying: dict[int, dict[int, Match]] = {}
    failed: dict[int, None] = {}
    gradients: dict[Edge, Tensor] = {}
    pending = list(shared)
    while pending:
        above = dict.fromkeys(n for i in pending for n in graph.consumers.get(i, []))
        candidates = [n for n in above if n not in shared and n not in carrying and n not in failed]
        pending = [n for n in candidates if graph.name(n) in REARRANGEMENTS and _all_shared(graph, n, shared)]
        shared.update(pending)
        candidates = [n for n in candidates if n not in shared]
        edges = [(n, number) for n in candidates for number in graph.outputs.get(n, [])]
        plain = gradients_at(graph, losses, edges, ones, retain=True)
        scaled = gradients_at(graph, losses, edges, scaled_losses, retain=True)
        for n in candidates:
            reached = [(n, k) for k in graph.outputs.get(n, []) if (n, k) in plain]
            matches = {e[1]: match(plain[e], scaled[e], labels) for e in reached}
            if all(m is not None for m in matches.values()):
                carrying[n] = {k: m for k, m in matches.items() if m is not None}
                gradients.update({e: plain[e] for e in reached})
            else:
                failed[n] = None
        settled = [n for n in failed if _all_shared(graph, n, shared)]
        for n in settled:
            del failed[n]
        shared.update(settled)
        pending += settled
    if failed:
        _refuse_mixing(graph, list(failed))
    below = _parameters_below(graph, shared)
    sites: list[Site] = []
    for n, matches in carrying.items():
        inputs = tuple(k for k, e in enumerate(graph.inputs[n]) if e is not None and e[0] in shared)
        if matches:
            sites.append(Site(n, matches, inputs, {k: below[_child(graph, n, k)] for k in inputs}))
    evident = all(m.evident for matches in carrying.values() for m in matches.values())
    return Analysis(tuple(sites), evident, any(_recomputes(graph.nodes[site.node]) for site in sites)), gradients


def _recomputes(node: Node) -> bool:
    for name in ("mat1", "self", "input", "other", "indices"):
        first = getattr(node, f"_saved_{name}", None)
        if isinstance(first, Tensor):
            return first.data_ptr() != getattr(node, f"_saved_{name}").data_ptr()
    return False


def _child(graph: Graph, n: int, number: int) -> int:
    edge = graph.inputs[n][number]
    assert edge is not None
    return edge[0]


def _all_shared(graph: Graph, n: int, shared: set[int]) -> bool:
    return n != 0 and all(edge is None or edge[0] in shared for edge in graph.inputs[n])


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
    raise PrivacyError(
        f"the model or the loss mixes examples: between {' and '.join(map(repr, names))} (op {op}) and the losses, "
        "one example's loss depends on another example, so bounding each gradient bounds nothing. Look for batch "
        "statistics (replace BatchNorm by GroupNorm), sums, means or maxima over the batch, contrastive losses, or a "
        "batch that is not the first dimension."
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
