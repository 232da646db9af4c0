"""The decorator that declares a rule with all its facts, and what a rule is given.

A rule is a function from an `OpContext` to a form of per-example gradients, or simply to the gradients [units, *shape].
It is found by the op's name in the graph and the input it is for. An op without a rule falls back to running its own
backward once for each unit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from discreet.gradients.forms.base import KnownNorms, PerExampleGrad
from discreet.gradients.graph import Edge, Graph
from discreet.gradients.layout import Members, Rows
from discreet.gradients.torch_internals import Node, check_fields


class OpContext(NamedTuple):
    """One op of one forward pass, seen from one of its inputs that is a parameter (or made of parameters only).

    `gradient` is the gradient of the sum of the losses for the op's first output, `others` those for further ones;
    `rows` says where the units stand in it, and `one_row` whether row i of its dimension 0 is all of unit i. `number`
    is that of the input, `edge` what it is in the `graph`, and `shape` its shape. `saved` holds what the rule asked
    for; sums are taken in `dtype`. `shared` is what the rules for one op's inputs leave for each other, `known_norms` a
    batch whose rows' norms are known.
    """

    units: int
    rows: Rows | Members
    one_row: bool
    gradient: Tensor
    others: Mapping[int, Tensor]
    number: int
    graph: Graph
    edge: Edge
    shape: torch.Size
    saved: Mapping[str, Any]
    dtype: torch.dtype
    shared: dict[str, Any]
    known_norms: KnownNorms | None = None

    def split(self, tensor: Tensor) -> Tensor:
        """A tensor with the rows of the output as [units, rows, ...], in the dtype sums are taken in."""
        return self.rows.split(self.cast(tensor), self.units)

    def cast(self, tensor: Tensor) -> Tensor:
        """A tensor in the dtype sums are taken in."""
        return tensor.to(self.dtype) if tensor.dtype != self.dtype and tensor.is_floating_point() else tensor

    @property
    def owners(self) -> Tensor:
        """Whose each row of the first output is, along the dimension in which the units stand."""
        rows = self.rows
        whose = rows.owner if isinstance(rows, Members) else rows.owners(self.gradient.shape, self.units)
        return whose.to(self.gradient.device)

    def images(self, tensor: Tensor) -> Tensor:
        """A tensor with the rows of the output as [units * rows, ...], unit by unit."""
        return self.split(tensor).flatten(0, 1)


Call = OpContext  # its name before


class Placement(NamedTuple):
    """What is known of an op and one of its inputs before the backward pass: where the units stand, and shapes."""

    node: Node
    units: int
    rows: Rows | Members
    output: torch.Size
    shape: torch.Size  # of the input

    @property
    def one_row(self) -> bool:
        """Whether row i of the output's dimension 0 is all of unit i."""
        return isinstance(self.rows, Rows) and self.rows.dim == 0 and self.output[0] == self.units


RuleFunction = Callable[[OpContext], PerExampleGrad | Tensor | None]
Condition = Callable[[Placement], bool]


@dataclass(frozen=True)
class Rule:
    """A rule and its facts, as `rule` describes them."""

    make: RuleFunction
    saves: tuple[str, ...] = ()
    when: Condition | None = None
    any_rows: bool = False
    all_outputs: bool = False
    reads_parameters: bool = False
    may_decline: bool = False


RULES: dict[tuple[str, int], Rule] = {}


def rule(
    op: str,
    *inputs: int,
    saves: tuple[str, ...] = (),
    when: Condition | None = None,
    any_rows: bool = False,
    all_outputs: bool = False,
    reads_parameters: bool | None = None,
    may_decline: bool = False,
) -> Callable[[RuleFunction], RuleFunction]:
    """Declare the rule for inputs of an autograd op.

    The function returns each unit's gradient [units, *shape], or a `PerExampleGrad`. Where all inputs of a batch have a
    rule that applies, the batch's graph is freed while the last backward pass goes by.

    Args:
        op: The op's name in the graph ("AddmmBackward0"); a `torch.autograd.Function` Scale is called "ScaleBackward".
        inputs: The numbers of the inputs that the rule is for.
        saves: Names of the saved values it reads: torch's `_saved_` names without that prefix, attributes of the
            function's `ctx`, or "saved_tensors".
        when: Whether the rule applies, from what is known before the backward pass. Elsewhere the op falls back.
        any_rows: It takes rows wherever they are: it asks for them by `split`, `images` and `one_row` alone.
        all_outputs: It reads the gradients of all outputs of the op, and not of the first one only.
        reads_parameters: What it reads of the saved values depends on the values of parameters. Taken to be so where
            "saved_tensors" are read, unless you say otherwise.
        may_decline: It may return None during the pass, to fall back after all. Until then the graph is kept.

    Raises:
        PrivacyError: if the op is torch's own, and saves no value of one of the names.
    """
    check_fields(op, saves)
    reads = "saved_tensors" in saves if reads_parameters is None else reads_parameters

    def declare(make: RuleFunction) -> RuleFunction:
        for number in inputs:
            RULES[op, number] = Rule(make, saves, when, any_rows, all_outputs, reads, may_decline)
        return make

    return declare


def along_first(placement: Placement) -> bool:
    """A condition: the units stand along the output's first dimension."""
    return placement.rows.dim == 0
