"""How backward passes over a batch's graph are run: freely, or by several processes together."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

Found = Sequence[Tensor | None]


class Passes(Protocol):
    """Backward passes of one batch: any number that keep the graph, then one last one.

    `last` announces it, and `taken` its end; both tell whether the values of parameters will be read outside their own
    ops' backward, from then on.
    """

    def run(self, losses: Tensor, targets: Sequence[GradientEdge], weights: Tensor, *, retain: bool) -> Found: ...
    def last(self, *, reads: bool) -> None: ...
    def taken(self, *, reads: Callable[[], bool]) -> None: ...


class FreePasses:
    """Each as it comes."""

    def run(self, losses: Tensor, targets: Sequence[GradientEdge], weights: Tensor, *, retain: bool) -> Found:
        """The gradients of sum(weights * losses) at the targets; None where none arrives."""
        return torch.autograd.grad(losses, targets, weights, retain_graph=retain, allow_unused=True)

    def last(self, *, reads: bool) -> None:
        """Nobody waits for it."""

    def taken(self, *, reads: Callable[[], bool]) -> None:
        """Parameters are there."""
