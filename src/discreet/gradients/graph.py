"""The autograd graph below the losses of one batch: every use of every parameter, whoever made it.

Nothing is hooked into the model. The graph that autograd recorded is the proof of coverage: an op that used a
trainable parameter is in it, whether it came from a module, a functional call, a parametrisation or the loss.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor
from torch._C import _autograd

from discreet.errors import PrivacyError
from discreet.gradients.passes import FreePasses, Passes

Node = Any  # torch.autograd.graph.Node, whose saved values torch does not type
Edge = tuple[int, int]  # (index of a node, number of its output)

_LEAF = "torch::autograd::AccumulateGrad"
_DIM_NAMES = {"_saved_dim", "_saved_dim0", "_saved_dim1", "_saved_dims"}


@dataclass
class Graph:
    """Nodes in breadth-first order from the losses; `inputs[i]` are the edges into node i's inputs (None: constant).

    `leaves` maps the index of a trainable parameter's node to its name; `signature` is equal for two graphs of
    the same structure; `strangers` are the other tensors that would get a gradient.
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
        found: dict[int, list[int]] = {}
        for i, edges in enumerate(self.inputs):
            for edge in edges:
                if edge is not None:
                    found.setdefault(edge[0], []).append(i)
        return found

    @cached_property
    def outputs(self) -> dict[int, list[int]]:
        """For each node the numbers of those of its outputs that are used."""
        found: dict[int, list[int]] = {0: [self.root_output]}
        for edges in self.inputs:
            for edge in edges:
                if edge is not None and edge[1] not in found.setdefault(edge[0], []):
                    found[edge[0]].append(edge[1])
        return found

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
        return sorted(inner, key=lambda i: self.nodes[i]._sequence_nr())

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
            older |= node._sequence_nr() < since
            if names_of_dims := _dim_names(type(node)):
                dims += [getattr(node, name) for name in names_of_dims]
        else:
            tensor = getattr(node, "variable", None)
            known = names.get(id(tensor))
            if known is not None:
                leaves[len(inputs)] = known
            elif tensor is not None:
                unmanaged_leaves.append(tensor)
        inputs.append(tuple(edges))
    if older:
        raise PrivacyError(
            "the losses depend on a computation made before this batch was drawn (a state carried over from an "
            "earlier batch, or an earlier output); compute everything from the batch itself, and detach what is kept."
        )
    passes = FreePasses() if passes is None else passes
    signature = *map(type, nodes), *inputs, *leaves.items(), *dims
    return Graph(nodes, inputs, leaves, signature, unmanaged_leaves, losses.output_nr, passes)


@cache
def _dim_names(kind: type) -> tuple[str, ...]:
    """Under which names ops of a kind have saved the dimensions that they work on."""
    return tuple(name for name in dir(kind) if name in _DIM_NAMES)


def now() -> int:
    """The sequence number that the next op of this thread will get."""
    return int(_autograd._get_sequence_nr())


def is_leaf(graph: Graph, i: int) -> bool:
    """Whether node i is where a gradient would be accumulated: a parameter, or another tensor that requires one."""
    return graph.name(i) == _LEAF
