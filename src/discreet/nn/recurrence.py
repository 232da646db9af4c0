"""Recurrences whose parameters are used once, over all time steps: what the engine sees is one product a weight.

A recurrence is walked twice, forward and back, with no graph inside. Three functions stand for it in the graph:
`RecurrentInput` and `RecurrentWeights` lead to the gates' pre-activations of all steps, `RecurrentSteps` from there to
the states. The gradient of the pre-activations is made by one walk back through time; with it a weight's gradient is a
sum of outer products over the steps, for which there is a rule. Everything is linear in the gradient that comes in, row
by row, and can be differentiated once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from discreet.gradients import Call, rule
from discreet.gradients.axes import Place, Step, keeps_units
from discreet.gradients.forms import (
    PRODUCT,
    Cost,
    OuterProducts,
    Use,
    gram,
    gram_time,
    leanest,
    nearly_cancelling,
    norms_of_grams,
)
from discreet.gradients.layout import Rows
from discreet.nn.products import linear, outer

Values = TypeVar("Values", Tensor, np.ndarray)

_CHUNK = 8  # steps whose factors are made at a time, so that they are still in the cache when they are used


@dataclass(frozen=True)
class Path:
    """The steps of a walk: from the first to the last, or back; at step t only the first `active[t]` rows take part.

    A row that takes no part keeps its state. `order` sorts the rows of a batch so, `back` undoes it (None: no need to).
    """

    active: tuple[int, ...]
    reverse: bool = False
    order: Tensor | None = None
    back: Tensor | None = None

    @property
    def steps(self) -> range:
        count = len(self.active)
        return range(count - 1, -1, -1) if self.reverse else range(count)

    def sort(self, tensor: Tensor, dim: int) -> Tensor:
        return tensor if self.order is None else tensor.index_select(dim, self.order)

    def unsort(self, tensor: Tensor, dim: int) -> Tensor:
        return tensor if self.back is None else tensor.index_select(dim, self.back)

    def rows(self, values: Values) -> list[Values]:
        """The rows that take part, step by step, of values [steps, batch, ...]: views."""
        views = list(values)
        if self.active[0] == self.active[-1]:  # they never grow
            return views
        return [view[:k] for view, k in zip(views, self.active, strict=True)]

    def together(self, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
        """The rows that take part of several tensors, step by step."""
        return list(zip(*map(self.rows, tensors), strict=True))

    def before(self, states: Tensor) -> Tensor:
        """Of the states at all times [steps + 1, ...], those before each step."""
        return states[1:] if self.reverse else states[:-1]

    def after(self, states: Tensor) -> Tensor:
        """Of the states at all times, those after each step."""
        return states[:-1] if self.reverse else states[1:]

    def first(self, states: Tensor) -> Tensor:
        return states[-1] if self.reverse else states[0]

    def last(self, states: Tensor) -> Tensor:
        return states[0] if self.reverse else states[-1]


@dataclass(frozen=True)
class Weights:
    """The parameters of one direction of one layer, in torch's shapes."""

    ih: Tensor
    hh: Tensor
    bias_ih: Tensor | None = None
    bias_hh: Tensor | None = None

    @property
    def fields(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        return self.ih, self.hh, self.bias_ih, self.bias_hh

    @property
    def bias(self) -> Tensor | None:
        """The sum of both biases, where there are any."""
        return None if self.bias_ih is None or self.bias_hh is None else self.bias_ih + self.bias_hh

    def detached(self) -> "Weights":
        """The same as constants."""
        biases = (None if b is None else b.detach() for b in (self.bias_ih, self.bias_hh))
        return Weights(self.ih.detach(), self.hh.detach(), *biases)


@dataclass(frozen=True)
class Walk:
    """What a walk forward has left: the states at all times, the hidden one first, and what a walk back needs.

    `wide` is how many columns the gradient of the pre-activations has.
    """

    states: tuple[Tensor, ...]
    kept: tuple[Tensor, ...]
    wide: int


class Cell(Protocol):
    """A kind of recurrence. All rows of all tensors are in the path's order."""

    states: int

    def walk(self, x: Tensor, first: Sequence[Tensor], weights: Weights, path: Path) -> Walk:
        """All states, from the inputs [steps, batch, size] and the first states [batch, hidden]."""
        ...

    def back(
        self, states: Sequence[Tensor], kept: Sequence[Tensor], weight: Tensor, outputs: Tensor | None,
        last: Sequence[Tensor], path: Path,
    ) -> Tensor:  # fmt: skip
        """The gradient of the pre-activations, from those of the outputs and of the last states.

        `last` becomes the gradient of the first states, in place. `weight` is the recurrent one.
        """
        ...


def _room(path: Path, like: Tensor, *sizes: int, more: int = 0) -> Tensor:
    """Memory for something at all times; rows that take no part are not written, and must be zero where it matters."""
    return like.new_empty(len(path.active) + more, like.shape[1], *sizes)


def _inputs(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The inputs' share of the pre-activations, of all steps in one product."""
    return linear(x.flatten(0, 1), weight, bias).unflatten(0, x.shape[:2])


def _stay(path: Path, t: int, *states: Tensor) -> None:
    """The rows that take no part in step t keep their states."""
    k = path.active[t]
    for tensor in states:
        path.after(tensor)[t, k:] = path.before(tensor)[t, k:]


def _chunks(path: Path) -> list[range]:
    """The steps of a walk back, some at a time."""
    steps = path.steps[::-1]
    return [steps[i : i + _CHUNK] for i in range(0, len(steps), _CHUNK)]


def _span(chunk: range) -> slice:
    return slice(min(chunk), max(chunk) + 1)


def _tanh(path: Path, x: Tensor, out: Tensor) -> Callable[[int], Any]:
    """tanh at one step; of few values on a CPU by NumPy, which is faster there and right to two roundings."""
    if type(x) is Tensor and x.device.type == "cpu" and x.dtype in _NUMPY and x[0].numel() <= _FEW:
        of = path.rows(x.numpy())
        to = of if out is x else path.rows(out.numpy())
        return lambda t: np.tanh(of[t], out=to[t])
    rows = path.together(x, out)
    return lambda t: torch.tanh(rows[t][0], out=rows[t][1])


_NUMPY = (torch.float32, torch.float64)
_FEW = 1 << 17  # more are worth threads: torch gives each 2^15 at least, and four are as fast as NumPy

_sigmoid_slope = torch.ops.aten.sigmoid_backward.grad_input  # (g, y): g * y * (1 - y)
_relu_slope = torch.ops.aten.threshold_backward.grad_input  # (g, y, 0): g where y > 0
_tanh_slope = torch.ops.aten.tanh_backward.grad_input  # (g, y): g * (1 - y^2)


class LSTMCell:
    """Gates i, f, g, o; cell = f * cell + i * g; hidden = o * tanh(cell)."""

    states = 2

    def walk(self, x: Tensor, first: Sequence[Tensor], weights: Weights, path: Path) -> Walk:
        n = weights.hh.shape[1]
        # the three sigmoids side by side: i, f, o, g
        ih, hh = (torch.cat([w[: 2 * n], w[3 * n :], w[2 * n : 3 * n]]) for w in (weights.ih, weights.hh))
        bias = weights.bias
        bias = None if bias is None else torch.cat([bias[: 2 * n], bias[3 * n :], bias[2 * n : 3 * n]])
        gates = _inputs(x, ih, bias)
        hidden, cells = _room(path, x, n, more=1), _room(path, x, n, more=1)
        squashed = _room(path, x, n)
        for states, start in zip((hidden, cells), first, strict=True):
            path.first(states).copy_(start)
        weight, batch = hh.t(), x.shape[1]
        i, f, o, g = gates.split(n, 2)
        around = (at(states) for states in (hidden, cells) for at in (path.before, path.after))
        every = path.together(gates, gates[..., : 3 * n], i, f, o, g, squashed, *around)
        squash_g, squash_cell = _tanh(path, g, g), _tanh(path, path.after(cells), squashed)
        for t in path.steps:
            z, three, i, f, o, g, s, h, h_next, c, c_next = every[t]
            z.addmm_(h, weight)
            three.sigmoid_()
            squash_g(t)
            torch.mul(i, g, out=c_next).addcmul_(f, c)
            squash_cell(t)
            torch.mul(o, s, out=h_next)
            if len(z) < batch:
                _stay(path, t, hidden, cells)
        return Walk((hidden, cells), (gates, squashed), 4 * n)

    def back(
        self, states: Sequence[Tensor], kept: Sequence[Tensor], weight: Tensor, outputs: Tensor | None,
        last: Sequence[Tensor], path: Path,
    ) -> Tensor:  # fmt: skip
        (gates, squashed), (dh, dc), n = kept, last, weight.shape[1]
        i, f, o, g = gates.split(n, 2)
        before = path.before(states[1])
        found = torch.empty_like(gates)
        of_i, of_f, of_g, of_o = found.split(n, 2)  # factors first, and in their place what they make of a gradient
        every = path.together(found, found.unflatten(2, (4, n))[:, :, :3], of_o, f)
        arriving = None if outputs is None else path.rows(outputs)
        room = gates.new_empty(_CHUNK, *dc.shape)
        of_cells, columns, batch = room.unbind(0), dc[:, None], len(dc)
        for chunk in _chunks(path):
            s = _span(chunk)
            _sigmoid_slope(g[s], i[s], grad_input=of_i[s])
            _sigmoid_slope(before[s], f[s], grad_input=of_f[s])
            _tanh_slope(i[s], g[s], grad_input=of_g[s])
            _sigmoid_slope(squashed[s], o[s], grad_input=of_o[s])
            _tanh_slope(o[s], squashed[s], grad_input=room[: len(chunk)])
            for t in chunk:
                dz, dz_three, dz_o, keep = every[t]
                h, c, column, of_cell, k = dh, dc, columns, of_cells[t - s.start], len(dz)
                if k < batch:
                    h, c, column, of_cell = h[:k], c[:k], column[:k], of_cell[:k]
                    found[t, k:] = 0
                if arriving is not None:
                    h.add_(arriving[t])
                c.addcmul_(h, of_cell)
                dz_three.mul_(column)
                dz_o.mul_(h)
                torch.mm(dz, weight, out=h)
                c.mul_(keep)
        return found


class GRUCell:
    """Gates r, z and n = tanh(inputs + r * (hidden part)); hidden = (1 - z) * n + z * hidden.

    The hidden part of n has a gradient of its own: the pre-activations' gradient is one for the inputs (r, z, n) and
    one for the hidden state (r, z, r * n), side by side.
    """

    states = 1

    def walk(self, x: Tensor, first: Sequence[Tensor], weights: Weights, path: Path) -> Walk:
        n = weights.hh.shape[1]
        bias, bias_n = weights.bias_ih, None
        if weights.bias_ih is not None and weights.bias_hh is not None:
            bias_n = weights.bias_hh[2 * n :]
            bias = torch.cat([weights.bias_ih[: 2 * n] + weights.bias_hh[: 2 * n], weights.bias_ih[2 * n :]])
        gates, inner = _inputs(x, weights.ih, bias), _room(path, x, n)
        hidden = _room(path, x, n, more=1)
        path.first(hidden).copy_(first[0])
        first_two, last_one = weights.hh[: 2 * n].t(), weights.hh[2 * n :].t()
        r, z, new = gates.split(n, 2)
        every = path.together(gates[..., : 2 * n], r, z, new, inner, path.before(hidden), path.after(hidden))
        squash = _tanh(path, new, new)
        for t in path.steps:
            two, r, z, new, part, h, h_next = every[t]
            two.addmm_(h, first_two).sigmoid_()
            if bias_n is None:
                torch.mm(h, last_one, out=part)
            else:
                torch.addmm(bias_n, h, last_one, out=part)
            new.addcmul_(r, part)
            squash(t)
            torch.lerp(new, h, z, out=h_next)
            if len(h) < x.shape[1]:
                _stay(path, t, hidden)
        return Walk((hidden,), (gates, inner), 6 * n)

    def back(
        self, states: Sequence[Tensor], kept: Sequence[Tensor], weight: Tensor, outputs: Tensor | None,
        last: Sequence[Tensor], path: Path,
    ) -> Tensor:  # fmt: skip
        (gates, inner), (dh,), n = kept, last, weight.shape[1]
        r, z, new = gates.split(n, 2)
        before = path.before(states[0])
        found = _gradient_room(gates, path, 6 * n)
        every = path.together(found.unflatten(2, (6, n)), found[..., 3 * n :], z)
        arriving = None if outputs is None else path.rows(outputs)
        factors = gates.new_empty(_CHUNK, gates.shape[1], 6, n)
        for chunk in _chunks(path):
            s, size = _span(chunk), len(chunk)
            of_r, of_z, of_n, *_, of_inner = factors[:size].unbind(2)
            _tanh_slope(1 - z[s], new[s], grad_input=of_n)
            _sigmoid_slope(before[s] - new[s], z[s], grad_input=of_z)
            _sigmoid_slope(of_n * inner[s], r[s], grad_input=of_r)
            factors[:size, :, 3:5] = factors[:size, :, :2]
            torch.mul(of_n, r[s], out=of_inner)
            for t in chunk:
                dz, dz_hidden, keep = every[t]
                h = dh[: len(dz)]
                if arriving is not None:
                    h.add_(arriving[t])
                torch.mul(factors[t - s.start, : len(dz)], h[:, None], out=dz)
                h.mul_(keep).addmm_(dz_hidden, weight)
        return found


class PlainCell:
    """hidden = tanh or relu of the pre-activation."""

    states = 1

    def __init__(self, nonlinearity: str) -> None:
        self.nonlinearity = nonlinearity

    def walk(self, x: Tensor, first: Sequence[Tensor], weights: Weights, path: Path) -> Walk:
        n = weights.hh.shape[1]
        hidden = _room(path, x, n, more=1)
        path.first(hidden).copy_(first[0])
        path.after(hidden).copy_(_inputs(x, weights.ih, weights.bias))
        after = path.after(hidden)
        every, squash = path.together(path.before(hidden), after), _tanh(path, after, after)
        weight = weights.hh.t()
        for t in path.steps:
            h, h_next = every[t]
            h_next.addmm_(h, weight)
            if self.nonlinearity == "tanh":
                squash(t)
            else:
                h_next.relu_()
            if len(h) < x.shape[1]:
                _stay(path, t, hidden)
        return Walk((hidden,), (), n)

    def back(
        self, states: Sequence[Tensor], kept: Sequence[Tensor], weight: Tensor, outputs: Tensor | None,
        last: Sequence[Tensor], path: Path,
    ) -> Tensor:  # fmt: skip
        after, (dh,) = path.after(states[0]), last
        found = _gradient_room(after, path, after.shape[2])
        every = path.together(found, after)
        arriving = None if outputs is None else path.rows(outputs)
        for t in path.steps[::-1]:
            dz, value = every[t]
            h = dh[: len(dz)]
            if arriving is not None:
                h.add_(arriving[t])
            if self.nonlinearity == "tanh":
                _tanh_slope(h, value, grad_input=dz)
            else:
                _relu_slope(h, value, 0, grad_input=dz)
            torch.mm(dz, weight, out=h)
        return found


def _gradient_room(like: Tensor, path: Path, size: int) -> Tensor:
    """Memory for the pre-activations' gradient: zero for the rows that take no part in a step."""
    shape = (len(path.active), like.shape[1], size)
    return like.new_zeros(shape) if min(path.active) < like.shape[1] else like.new_empty(shape)


# --- in the graph -------------------------------------------------------------------------------------------------


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
        found = path.unsort(cell.back(states, kept, weight, outputs, last, path), 1)
        return found, found.transpose(0, 1), None, None, None, None, *(path.unsort(g, 0) for g in last)


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


# --- each unit's gradient -----------------------------------------------------------------------------------------


class Shared:
    """What the uses of one layer's parameters have in common, for one gradient of the pre-activations."""

    def __init__(self) -> None:
        self._of: Tensor | None = None
        self._found: dict[str, Tensor] = {}

    def look(self, gradient: Tensor) -> dict[str, Tensor]:
        """What was found for this gradient so far."""
        if self._of is not gradient:
            self._of, self._found = gradient, {}
        return self._found


def _batch_of_steps(step: Step) -> Place | None:
    """Of the outputs [steps, batch, ...] and the last states [batch, ...]; of the inputs [steps, batch, ...] and, where
    parameters are seen, [batch, steps, ...], and of the first states."""
    if step.place[0] != (1 if step.output == 0 else 0):
        return None
    return (1 if step.number == 0 else 0), step.place[1]


keeps_units(RecurrentSteps, _batch_of_steps)
keeps_units(RecurrentInput, lambda step: step.place if step.place[0] < 2 and step.number == 0 else None)


@rule("RecurrentWeightsBackward", 0, 1, 2, 3, saves=("saved_tensors", "rows", "shared"))
def _recurrent(call: Call) -> Use | Tensor | None:
    """A sum of outer products over the steps for a weight, a sum over the steps for a bias."""
    if call.rows.dim > 1:  # of batch, steps and gates
        return None
    x, before = (tensor.transpose(0, 1) for tensor in call.saved["saved_tensors"])
    size, gradient = call.saved["rows"], call.gradient
    of_hidden = call.number in (1, 3)
    part = gradient[..., -size:] if of_hidden else gradient[..., :size]
    name = "hidden" if of_hidden and gradient.shape[2] != size else "input"
    found = call.saved["shared"].look(gradient)
    if call.number > 1:
        if "sum" not in found:  # over the steps, as a product: faster than a sum over an outer dimension
            first = gradient.to(call.dtype).movedim(call.rows.dim, 0)
            steps = first.transpose(0, 1).flatten(1)
            total = (steps.new_ones(len(steps)) @ steps).view(len(first), -1)
            found["sum"] = Rows(0, call.rows.interleaved).split(total, call.units).sum(1)
        return found["sum"][:, -size:] if of_hidden else found["sum"][:, :size]
    factor = before if of_hidden else x
    left, right = call.split(part).flatten(1, 2), call.split(factor).flatten(1, 2)
    if call.rows != Rows(0) or left.shape[1] != gradient.shape[1]:
        return OuterProducts(left, right)
    return StepProducts(left, right, found, name, shared=gradient.shape[2] == size)


class StepProducts(OuterProducts):
    """Outer products with one row a time step, read time first; two weights share the Gram matrix of their gradient."""

    def __init__(self, left: Tensor, right: Tensor, found: dict[str, Tensor], name: str, *, shared: bool) -> None:
        super().__init__(left, right)
        self._found, self._name, self._shared = found, f"{name} gram", shared
        self._lengths: Tensor | None = None

    def kernels(self) -> dict[str, Cost]:
        """Gram matrices are cheaper than elsewhere: gradients of steps rarely point the same way, and half of the one
        on the left is the other weight's."""
        found = super().kernels()
        if self._shared and "gram" in found:
            rows, a = self.left.shape[1:]
            made = nearly_cancelling(rows) * PRODUCT * rows * a * self.right.shape[2]
            found["gram"] = Cost(found["gram"].time - made - gram_time(rows, a) / 2)
        return found

    def norms(self) -> Tensor:
        if self._kept is not None or self.left.shape[1] == 1 or (self.kernel or leanest(self.kernels())) != "gram":
            return super().norms()
        if self._name not in self._found:
            self._found[self._name] = gram(self.left)
        left, right = self._found[self._name], gram(self.right)
        one, other = (g.diagonal(dim1=1, dim2=2).clamp(min=_SMALL).double() for g in (left, right))
        self._lengths = one.mul_(other).sqrt_().sum(1)
        return norms_of_grams(left, right, self._make)

    def lengths(self) -> Tensor | None:
        return super().lengths() if self._lengths is None else self._lengths

    def add_weighted(self, weights: Tensor, out: Tensor) -> None:
        if self._kept is not None:
            super().add_weighted(weights, out)
            return
        left, right = (tensor.transpose(0, 1) for tensor in (self.left, self.right))  # time first, as they were made
        if left.shape[2] < right.shape[2]:
            left = left * weights[:, None]
        else:
            right = right * weights[:, None]
        out.add_(outer(left.flatten(0, 1), right.flatten(0, 1)))


_SMALL = 1e-24  # shorter squared lengths count as this one: far below, float32 would lose them
