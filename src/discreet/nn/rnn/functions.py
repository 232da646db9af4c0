"""Three functions that stand for a recurrence in the graph.

`RecurrentInput` and `RecurrentWeights` lead to the gates' pre-activations of all steps, `RecurrentSteps` from there to
the states. The gradient of the pre-activations is made by one walk back through time; with it a weight's gradient is a
sum of outer products over the steps, for which there is a rule. Everything is linear in the gradient that comes in, row
by row, and can be differentiated once.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from discreet.gradients.ops import Place, Step, keeps_units
from discreet.nn.rnn.cells import Cell
from discreet.nn.rnn.path import Path, Walk, Weights
from discreet.nn.rnn.products import linear


class Shared:
    """What the uses of one layer's parameters have in common, for one gradient of the pre-activations."""

    def __init__(self) -> None:
        self._of: Tensor | None = None
        self._memo: dict[str, Tensor] = {}

    def look(self, gradient: Tensor) -> dict[str, Tensor]:
        """What was made for this gradient so far."""
        if self._of is not gradient:
            self._of, self._memo = gradient, {}
        return self._memo


class RecurrentInput(torch.autograd.Function):
    """The pre-activations, seen from the inputs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, wide: int) -> Tensor:
        ctx.save_for_backward(weight)
        return _stand_in(x, *x.shape[:2], wide)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        part = gradients[0][..., : len(weight)]
        return linear(part.flatten(0, 1), weight.t()).unflatten(0, part.shape[:2]), None, None


class RecurrentWeights(torch.autograd.Function):
    """The pre-activations, seen from the parameters; inputs and states before each step are constants here.

    Here the batch comes first: where examples stand is found fastest there.
    """

    @staticmethod
    def forward(
        ctx: Any, ih: Tensor, hh: Tensor, bias_ih: Tensor | None, bias_hh: Tensor | None, x: Tensor, before: Tensor,
        wide: int,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(x, before)
        ctx.rows, ctx.bias, ctx.shared = len(ih), bias_ih is not None, Shared()
        return _stand_in(x, x.shape[1], x.shape[0], wide)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, before = ctx.saved_tensors
        rows = gradients[0].transpose(0, 1).flatten(0, 1)
        of_input, of_hidden = rows[:, : ctx.rows], rows[:, -ctx.rows :]
        ih, hh = of_input.t() @ x.flatten(0, 1), of_hidden.t() @ before.flatten(0, 1)
        biases = (of_input.sum(0), of_hidden.sum(0)) if ctx.bias else (None, None)
        return ih, hh, *biases, None, None, None


def _stand_in(x: Tensor, *shape: int) -> Tensor:
    """The pre-activations in the graph: their values were used up in the walk, and nobody asks for them."""
    return x.new_empty(()).expand(shape)


class RecurrentSteps(torch.autograd.Function):
    """From the pre-activations to the outputs and the last states, which the walk has made already."""

    @staticmethod
    def forward(
        ctx: Any, seen: Tensor | None, used: Tensor, cell: Cell, walk: Walk, weight: Tensor, path: Path, *first: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.cell, ctx.path = cell, path
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(weight, *walk.states, *walk.kept)
        outputs = path.unsort(path.after(walk.states[0]), 1)
        return outputs, *(path.unsort(path.last(states), 0).clone() for states in walk.states)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        cell, path = ctx.cell, ctx.path
        weight, *saved = ctx.saved_tensors
        states, kept = saved[: cell.states], saved[cell.states :]
        outputs = None if gradients[0] is None else path.sort(gradients[0], 1)
        like = path.first(states[0])
        last = [torch.zeros_like(like) if g is None else path.sort(g, 0).clone() for g in gradients[1:]]
        of_gates = path.unsort(cell.back(states, kept, weight, outputs, last, path), 1)
        return of_gates, of_gates.transpose(0, 1), None, None, None, None, *(path.unsort(g, 0) for g in last)


def recur(
    cell: Cell, x: Tensor, first: Sequence[Tensor], weights: Weights, path: Path
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The outputs [steps, batch, hidden] of one direction of one layer, and its last states [batch, hidden] each."""
    x = x.contiguous()
    constants = weights.detached()
    with torch.no_grad():
        walk = cell.walk(path.sort(x.detach(), 1), [path.sort(s.detach(), 0) for s in first], constants, path)
        before = path.unsort(path.before(walk.states[0]), 1)
    seen = RecurrentInput.apply(x, constants.ih, walk.wide)
    used = RecurrentWeights.apply(*weights.fields, x.detach(), before, walk.wide)
    outputs, *last = RecurrentSteps.apply(seen, used, cell, walk, constants.hh, path, *first)
    return outputs, tuple(last)


def _batch_of_steps(step: Step) -> Place | None:
    """Of the outputs [steps, batch, ...] and the last states [batch, ...]; of the inputs [steps, batch, ...] and, where
    parameters are seen, [batch, steps, ...], and of the first states."""
    if step.place[0] != (1 if step.output == 0 else 0):
        return None
    return (1 if step.number == 0 else 0), step.place[1]


keeps_units(RecurrentSteps, _batch_of_steps)
keeps_units(RecurrentInput, lambda step: step.place if step.place[0] < 2 and step.number == 0 else None)
