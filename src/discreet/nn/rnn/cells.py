"""Kinds of recurrence: each walked forward and back through time, with no graph inside."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from discreet.nn.rnn.path import Path, Walk, Weights
from discreet.nn.rnn.products import linear

_CHUNK = 8  # steps whose factors are made at a time, so that they are still in the cache when they are used


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
        of_gates = torch.empty_like(gates)
        of_i, of_f, of_g, of_o = of_gates.split(n, 2)  # factors first, and in their place what they make of a gradient
        every = path.together(of_gates, of_gates.unflatten(2, (4, n))[:, :, :3], of_o, f)
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
                    of_gates[t, k:] = 0
                if arriving is not None:
                    h.add_(arriving[t])
                c.addcmul_(h, of_cell)
                dz_three.mul_(column)
                dz_o.mul_(h)
                torch.mm(dz, weight, out=h)
                c.mul_(keep)
        return of_gates


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
        of_gates = _gradient_room(gates, path, 6 * n)
        every = path.together(of_gates.unflatten(2, (6, n)), of_gates[..., 3 * n :], z)
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
        return of_gates


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
        of_gates = _gradient_room(after, path, after.shape[2])
        every = path.together(of_gates, after)
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
        return of_gates


def _gradient_room(like: Tensor, path: Path, size: int) -> Tensor:
    """Memory for the pre-activations' gradient: zero for the rows that take no part in a step."""
    shape = (len(path.active), like.shape[1], size)
    return like.new_zeros(shape) if min(path.active) < like.shape[1] else like.new_empty(shape)
