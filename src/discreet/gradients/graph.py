"""The autograd graph below the losses of one batch: every use of every parameter, whoever made it.

Nothing is hooked into the model. The graph that autograd recorded is the proof of coverage: an op that used a
trainable parameter is in it, whether it came from a module, a functional call, a parametrisation or the loss.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from operator import attrgetter
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from discreet.errors import PrivacyError
from discreet.gradients.torch_internals import LEAF, Node, next_sequence_number, sequence_number

now = next_sequence_number
Edge = tuple[int, int]  # (index of a node, number of its output)

DIMENSIONS = ("dim", "dim0", "dim1", "dims")  # saved fields that are part of a graph's structure

# --- backward passes --------------------------------------------------------------------------------------------------

ArrivedGradients = Sequence[Tensor | None]


class Passes(Protocol):
    """Backward passes of one batch: any number that keep the graph, then one last one.

    `last` announces it, and `taken` its end; both tell whether the values of parameters will be read outside their own
    ops' backward, from then on. Nobody is told where nobody `waits`.
    """

    waits: bool

    def run(
        self, losses: Tensor, targets: Sequence[GradientEdge], weights: Tensor, *, retain: bool
    ) -> ArrivedGradients: ...
    def last(self, *, reads: bool) -> None: ...
    def taken(self, *, reads: Callable[[], bool]) -> None: ...


class FreePasses:
    """Each as it comes."""

    waits = False

    def run(
        self, losses: Tensor, targets: Sequence[GradientEdge], weights: Tensor, *, retain: bool
    ) -> ArrivedGradients:
        """The gradients of sum(weights * losses) at the targets; None where none arrives."""
        return torch.autograd.grad(losses, targets, weights, retain_graph=retain, allow_unused=True)

    def last(self, *, reads: bool) -> None:
        """Nobody waits for it."""

    def taken(self, *, reads: Callable[[], bool]) -> None:
        """Parameters are there."""


# --- the graph --------------------------------------------------------------------------------------------------------


@dataclass
class Graph:
    """Nodes in breadth-first order from the losses; `inputs[i]` are the edges into node i's inputs (None: constant).

    `leaves` maps the index of a trainable parameter's node to its name; `signature` is equal for two graphs of
    the same structure; `unmanaged_leaves` are the other tensors that would get a gradient.
    """

    nodes: list[Node]
    inputs: list[tuple[Edge | None, ...]]
    leaves: dict[int, str]
    signature: tuple[Any, ...]
    unmanaged_leaves: list[Tensor]
    root_output: int
    passes: Passes = field(default_factory=FreePasses)

    @cached_property
    def consumers(self) -> dict[int, list[int]]:
        """For each node the nodes that use its output."""
        users: dict[int, list[int]] = {}
        for i, edges in enumerate(self.inputs):
            for edge in edges:
                if edge is not None:
                    users.setdefault(edge[0], []).append(i)
        return users

    @cached_property
    def outputs(self) -> dict[int, list[int]]:
        """For each node the numbers of those of its outputs that are used."""
        used: dict[int, list[int]] = {0: [self.root_output]}
        for edges in self.inputs:
            for edge in edges:
                if edge is not None and edge[1] not in used.setdefault(edge[0], []):
                    used[edge[0]].append(edge[1])
        return used

    def last(self, chosen: Collection[int]) -> list[int]:
        """Those of some nodes below which there is none of the others."""
        above: set[int] = set()  # nodes with a chosen one below them
        for i in self.upwards:
            if any(edge is not None and (edge[0] in chosen or edge[0] in above) for edge in self.inputs[i]):
                above.add(i)
        return [i for i in chosen if i not in above]

    @cached_property
    def upwards(self) -> list[int]:
        """The nodes that have inputs, each after all below it: an op is younger than what it was made of."""
        inner = [i for i, edges in enumerate(self.inputs) if edges]
        return sorted(inner, key=lambda i: sequence_number(self.nodes[i]))

    def shape(self, edge: Edge) -> torch.Size:
        """The shape of an op's output."""
        return torch.Size(self.nodes[edge[0]]._input_metadata[edge[1]].shape)

    def name(self, i: int) -> str:
        """The node's name as torch prints it."""
        return str(self.nodes[i].name())


def walk(losses: Tensor, names: Mapping[int, str], since: int, passes: Passes | None = None) -> Graph:
    """The graph below `losses`. `names` maps the id of a trainable parameter to its name.

    Every op must be newer than sequence number `since`: an older one belongs to another batch.
    """
    root = losses.grad_fn
    if root is None:
        raise PrivacyError(
            "the losses do not depend on the model's trainable parameters (they have no gradient); compute them from "
            "the attached model's output, with gradients on."
        )
    nodes: list[Node] = [root]
    index: dict[Node, int] = {root: 0}
    inputs: list[tuple[Edge | None, ...]] = []
    leaves: dict[int, str] = {}
    unmanaged_leaves: list[Tensor] = []
    dims: list[Any] = []
    older = False  # whether some op is
    for node in nodes:  # grows while it is walked
        edges: list[Edge | None] = []
        for child, number in node.next_functions:
            if child is None:
                edges.append(None)
                continue
            i = index.setdefault(child, len(nodes))
            if i == len(nodes):
                nodes.append(child)
            edges.append((i, number))
        if edges:
            older |= sequence_number(node) < since
            if read_dims := _dims_reader(type(node)):
                dims.append(read_dims(node))
        else:
            tensor = getattr(node, "variable", None)
            parameter = names.get(id(tensor))
            if parameter is not None:
                leaves[len(inputs)] = parameter
            elif tensor is not None:
                unmanaged_leaves.append(tensor)
        inputs.append(tuple(edges))
    if older:
        raise PrivacyError(
            "the losses depend on a computation made before this batch was drawn (a state carried over from an "
            "earlier batch, or an earlier output); compute everything from the batch itself, and detach what is kept."
        )
    passes = FreePasses() if passes is None else passes
    signature = *map(type, nodes), *inputs, *leaves.items(), *dims, losses.output_nr
    return Graph(nodes, inputs, leaves, signature, unmanaged_leaves, losses.output_nr, passes)


@cache
def _dims_reader(kind: type) -> Callable[[Node], Any] | None:
    """What reads the dimensions that ops of a kind have saved, if they have any."""
    names = [f"_saved_{name}" for name in DIMENSIONS if hasattr(kind, f"_saved_{name}")]
    return attrgetter(*names) if names else None


def is_leaf(graph: Graph, i: int) -> bool:
    """Whether node i is where a gradient would be accumulated: a parameter, or another tensor that requires one."""
    return graph.name(i) == LEAF


# --- gradients at ops -------------------------------------------------------------------------------------------------


def gradients_at(
    graph: Graph, losses: Tensor, edges: Sequence[Edge], weights: Tensor, *, retain: bool
) -> dict[Edge, Tensor]:
    """The gradient of sum(weights * losses) at outputs of ops; edges that no gradient reaches are left out."""
    if not edges:
        return {}
    targets = []
    for i, number in edges:
        targets.append(GradientEdge(graph.nodes[i], number))
    arrived = {}
    for edge, gradient in zip(edges, graph.passes.run(losses, targets, weights, retain=retain), strict=True):
        if gradient is not None:
            arrived[edge] = gradient.detach()
    return arrived


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
    targets: list[Edge] = []
    for n in last:
        for k in outputs[n]:
            targets.append((n, k))  # noqa: PERF401 - no call in Python 3.11
    failed: list[Exception] = []  # the pass goes on, as other processes may be in it

    def hook(n: int, gradients: tuple[Tensor | None, ...]) -> None:
        missing.discard(n)
        if failed:
            return
        reached = {}
        for k in outputs[n]:
            if (gradient := gradients[k]) is not None:
                reached[k] = gradient
        try:
            visitor(n, reached)
        except Exception as error:
            failed.append(error)

    hooks: dict[int, Any] = {}
    try:
        for n in missing:
            hooks[n] = graph.nodes[n].register_prehook(partial(hook, n))
        arrived = gradients_at(graph, losses, targets, weights, retain=retain)
    finally:
        for registered in hooks.values():
            registered.remove()
    if failed:
        raise failed[0]
    if missing:
        raise PrivacyError(
            f"op {graph.name(min(missing))} took no part in the backward pass; its gradients are unknown."
        )
    with torch.no_grad():
        for n in last:
            reached = {}
            for k in outputs[n]:
                if (n, k) in arrived:
                    reached[k] = arrived.pop((n, k))
            visitor(n, reached)
