"""The layer rules: for an op's parameter input, each unit's gradient from what autograd saved.

A rule is a function from a `Call` to a `Use`, or simply to the gradients [units, *shape]. It is found by the op's
name in the graph and the input it is for. An op without a rule falls back to running its own backward once a unit.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from discreet.gradients.convolution import Convolution
from discreet.gradients.forms import (
    Known,
    Materialised,
    OuterProduct,
    OuterProducts,
    Single,
    Use,
    lengths_of,
    row_lengths,
    squared_norms,
)
from discreet.gradients.graph import Edge, Graph
from discreet.gradients.layout import Members, Rows


class Call(NamedTuple):
    """One op of one forward pass, seen from one of its inputs that is a parameter (or made of parameters only).

    `gradient` is the gradient of the sum of the losses for the op's first output, `others` those for further ones;
    `rows` says where the units stand in it; `number` is that of the input, `edge` what it is in the `graph`; `saved`
    holds what the rule asked for; sums are taken in `dtype`. `shared` is what the rules for one op's inputs leave for
    each other, `known` a batch whose rows' norms are known.
    """

    units: int
    rows: Rows | Members
    gradient: Tensor
    others: Mapping[int, Tensor]
    number: int
    graph: Graph
    edge: Edge
    saved: Mapping[str, Any]
    dtype: torch.dtype
    shared: dict[str, Any]
    known: Known | None = None

    @property
    def shape(self) -> torch.Size:
        """The shape of the input."""
        return self.graph.shape(self.edge)

    def split(self, tensor: Tensor) -> Tensor:
        """A tensor with the rows of the output as [units, rows, ...], in the dtype sums are taken in."""
        return self.rows.split(self.cast(tensor), self.units)

    def cast(self, tensor: Tensor) -> Tensor:
        """A tensor in the dtype sums are taken in."""
        return tensor.to(self.dtype) if tensor.dtype != self.dtype and tensor.is_floating_point() else tensor

    @property
    def one_row(self) -> bool:
        """Whether row i of the output's dimension 0 is all of unit i."""
        rows = self.rows
        return isinstance(rows, Rows) and rows.dim == 0 and self.gradient.shape[0] == self.units

    def images(self, tensor: Tensor) -> Tensor:
        """A tensor with the rows of the output as [units * rows, ...], unit by unit."""
        return self.split(tensor).flatten(0, 1)


Maker = Callable[[Call], Use | Tensor | None]


@dataclass(frozen=True)
class Rule:
    """How to make a use, and the names of the saved values it reads (torch's `_saved_` names, without that prefix).

    `any_rows`: it asks where rows are by `Call.split`, `images` and `one_row` alone, so that they may be anybody's.
    """

    make: Maker
    saves: tuple[str, ...]
    any_rows: bool = False


RULES: dict[tuple[str, int], Rule] = {}
SEVERAL_OUTPUTS = {"MkldnnRnnLayerBackward0"}  # ops whose rules read more gradients than the first output's


def rule(op: str, *inputs: int, saves: tuple[str, ...] = (), any_rows: bool = False) -> Callable[[Maker], Maker]:
    """Declare the rule for inputs of an autograd op, by its name in the graph ("AddmmBackward0").

    A user's own `torch.autograd.Function` Scale appears as "ScaleBackward"; `saves=("saved_tensors",)` gives its
    saved tensors. The function returns each unit's gradient [units, *shape], a `Use`, or None to fall back. Say
    `any_rows` if it takes rows wherever they are: it looks for them by `Call.split`, `images` and `one_row` alone.
    """

    def declare(make: Maker) -> Maker:
        for i in inputs:
            RULES[op, i] = Rule(make, saves, any_rows)
        return make

    return declare


def read(node: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The values a rule asked for, detached from the graph."""
    found: dict[str, Any] = {}
    for name, attribute in _attributes(type(node), names):
        value = getattr(node, attribute)
        if isinstance(value, Tensor):
            value = value.detach()
        elif isinstance(value, tuple):
            value = tuple(v.detach() if isinstance(v, Tensor) else v for v in value)
        found[name] = value
    return found


@cache
def _attributes(kind: type, names: tuple[str, ...]) -> list[tuple[str, str]]:
    """What values are called that ops of a kind have saved."""
    return [(name, f"_saved_{name}" if hasattr(kind, f"_saved_{name}") else name) for name in names]


_KEEP_BYTES = 1 << 28  # gradients that took a backward pass each are kept up to this size


class OneByOne(Single):
    """The fallback: the op's own backward, run once for each unit with every other unit's rows at zero.

    Exact for any op, as a backward pass is linear in the output's gradient; it costs a batch's backward per unit. The
    gradients are kept between norm and sum, so that an op with a random backward is bounded too.
    """

    def __init__(
        self, node: Any, number: int, gradients: Mapping[int, Tensor], rows: Mapping[int, Rows | Members], units: int,
        shape: torch.Size, dtype: torch.dtype,
    ) -> None:  # fmt: skip
        self.node, self.number, self.gradients, self.rows = node, number, gradients, rows
        self.units, self.shape, self.dtype = units, shape, dtype
        self._kept: Tensor | None = None

    def held(self) -> list[Tensor]:
        return list(self.gradients.values())

    def _gradient(self, unit: int) -> Tensor:
        run = self.node if callable(self.node) else self.node.apply
        kept = [
            self.rows[i].keep(self.gradients[i], unit, self.units) if i in self.gradients else None
            for i in range(len(self.node._input_metadata))
        ]
        with torch.no_grad():
            result = run(*kept)
        gradient = (result if isinstance(result, tuple) else (result,))[self.number]
        if gradient is None:
            return torch.zeros(self.shape, dtype=self.dtype)
        gradient = gradient.detach()
        gradient = gradient.to_dense() if gradient.layout != torch.strided else gradient
        gradient = gradient.real if gradient.is_complex() and not self.dtype.is_complex else gradient
        return gradient.sum_to_size(self.shape).to(self.dtype)

    def each(self, start: int, stop: int) -> Tensor:
        if self._kept is not None:
            return self._kept[start:stop]
        with finite(self.node):
            return torch.stack([self._gradient(unit) for unit in range(start, stop)])

    def norms(self) -> Tensor:
        if self.units * self.shape.numel() * self.dtype.itemsize <= _KEEP_BYTES:
            self._kept = self.each(0, self.units)
            return squared_norms(self._kept)
        return torch.cat([squared_norms(self.each(i, i + 1)) for i in range(self.units)])

    def lengths(self) -> None:
        """What is added was made."""

    def add_weighted(self, weights: Tensor, out: Tensor) -> None:
        for i, weight in enumerate(weights):
            out.add_(self.each(i, i + 1)[0] * weight)

    def select(self, units: Tensor) -> Use:
        return Materialised(self.each(0, self.units)[units])


@contextmanager
def finite(node: Any) -> Generator[None]:
    """Within, values that the op saved and that are not finite are zero.

    They belong to units that contribute nothing; in a product with another unit's zeros they would spoil that unit.
    """
    saved = [getattr(node, name) for name in dir(type(node)) if name.startswith("_saved_")]
    saved += [v for v in getattr(node, "saved_tensors", ()) if v is not None]
    tensors = [v for v in saved if isinstance(v, Tensor) and (v.is_floating_point() or v.is_complex())]
    spoiled = [(t.data, ~t.data.isfinite()) for t in tensors if not t.data.isfinite().all()]
    before = [t[where] for t, where in spoiled]
    for t, where in spoiled:
        t[where] = 0
    try:
        yield
    finally:
        for (t, where), values in zip(spoiled, before, strict=True):
            t[where] = values


# --- products ---------------------------------------------------------------------------------------------------


@rule("AddmmBackward0", 2, saves=("mat1", "alpha"), any_rows=True)
def _addmm_weight(call: Call) -> Use | None:
    return _product(call, call.saved["mat1"], call.saved["alpha"])


@rule("BmmBackward0", 1, saves=("self",))
def _one_matrix_for_all(call: Call) -> Use | None:
    """A batched product that is one product (einsum makes such)."""
    left = call.saved["self"]
    if left is None or call.shape[0] != 1 or call.rows.dim != 1:
        return None
    return OuterProducts(call.split(left)[:, :, 0], call.split(call.gradient)[:, :, 0], call.shape)


@rule("MmBackward0", 1, saves=("self",), any_rows=True)
def _mm_weight(call: Call) -> Use | None:
    return _product(call, call.saved["self"], 1)


def _product(call: Call, left: Tensor | None, alpha: float) -> Use | None:
    if left is None or call.rows.dim != 0:
        return None
    right = call.cast(call.gradient)
    right = right if alpha == 1 else right * alpha
    if not call.one_row:
        return OuterProducts(call.split(left), call.split(right))
    known = None if call.known is None else call.known.of(left)
    lengths = call.shared.get("lengths") if alpha == 1 else None
    return OuterProduct(call.cast(left), right, (None if known is None else known.sqrt(), lengths))


# --- broadcasting: a parameter that meets every row ---------------------------------------------------------------


@rule("AddmmBackward0", 0, saves=("beta",), any_rows=True)
def _addmm_bias(call: Call) -> Use | Tensor | None:
    """One row a unit is the gradient, whose length the weight's rule needs, too."""
    beta = call.saved["beta"]
    found = _sum_to_shape(call, call.gradient if beta == 1 else call.gradient * beta)
    if found is None or beta != 1 or not call.one_row or call.gradient.shape != found.shape:
        return found
    call.shared["lengths"] = lengths = lengths_of(found)
    return Materialised(found, lengths * lengths)


@rule("AddBackward0", 0, any_rows=True)
@rule("SubBackward0", 0, any_rows=True)
@rule("ExpandBackward0", 0, any_rows=True)
def _added(call: Call) -> Tensor | None:
    return _sum_to_shape(call, call.gradient)


@rule("AddBackward0", 1, saves=("alpha",), any_rows=True)
def _added_second(call: Call) -> Tensor | None:
    return _sum_to_shape(call, call.gradient * call.saved["alpha"])


@rule("SubBackward0", 1, saves=("alpha",), any_rows=True)
def _subtracted(call: Call) -> Tensor | None:
    return _sum_to_shape(call, call.gradient * -call.saved["alpha"])


@rule("MulBackward0", 0, saves=("other",), any_rows=True)
def _multiplied(call: Call) -> Tensor | None:
    return None if call.saved["other"] is None else _sum_to_shape(call, call.gradient * call.saved["other"])


@rule("MulBackward0", 1, saves=("self",), any_rows=True)
def _multiplied_second(call: Call) -> Tensor | None:
    return None if call.saved["self"] is None else _sum_to_shape(call, call.gradient * call.saved["self"])


@rule("WhereBackward0", 0, 1, saves=("condition",))
def _chosen(call: Call) -> Tensor | None:
    """A parameter where a mask is set, or where it is not (T5 masks its relative positions so)."""
    condition = call.saved["condition"]
    kept = call.gradient.masked_fill(condition if call.number else ~condition, 0.0)
    return _sum_to_shape(call, kept)


@rule("RepeatBackward0", 0)
def _repeated(call: Call) -> Tensor | None:
    """A parameter repeated along dimension 0, a whole number of times a unit (InstanceNorm does so)."""
    split = call.split(call.gradient)
    if call.rows != Rows(0) or len(call.shape) != call.gradient.dim() or split.shape[2:] != call.shape[1:]:
        return None
    if split.shape[1] % call.shape[0]:
        return None
    return split.unflatten(1, (-1, call.shape[0])).sum(1)


def _sum_to_shape(call: Call, gradient: Tensor) -> Tensor | None:
    """Each unit's gradient, summed over the dimensions along which the parameter was broadcast.

    None where the parameter has the units' dimension itself, so that it is not the same for every unit.
    """
    shape = call.shape
    if call.one_row and gradient.shape == (call.units, *shape):  # there is nothing to sum
        return call.cast(gradient)
    aligned = (1,) * (gradient.dim() - len(shape)) + tuple(shape)
    if aligned[call.rows.dim] != 1:
        return None
    split = call.split(gradient)  # [units, rows, *other dimensions]
    target = (call.units, 1, *aligned[: call.rows.dim], *aligned[call.rows.dim + 1 :])
    dims = [d for d in range(1, split.dim()) if target[d] == 1 and split.shape[d] != 1]
    summed = split.sum(dims, keepdim=True) if dims else split
    return summed.reshape(call.units, *shape)


# --- normalisation ------------------------------------------------------------------------------------------------


@rule("NativeLayerNormBackward0", 1, saves=("input", "result1", "result2"), any_rows=True)
def _layer_norm_weight(call: Call) -> Tensor:
    x, mean, scale = (call.split(call.saved[name]) for name in ("input", "result1", "result2"))
    return _sum_rows(call, (x - mean).mul_(scale).mul_(call.split(call.gradient)))


@rule("NativeLayerNormBackward0", 2, any_rows=True)
def _layer_norm_bias(call: Call) -> Tensor:
    return _sum_rows(call, call.split(call.gradient))


def _sum_rows(call: Call, split: Tensor) -> Tensor:
    rows = split.dim() - len(call.shape)
    return split.sum(tuple(range(1, rows))) if rows > 1 else split


@rule("NativeGroupNormBackward0", 1, 2, saves=("input", "result1", "result2", "group"), any_rows=True)
def _group_norm(call: Call) -> Tensor | None:
    """By one native call for scale and shift: all images as the channels of one, so that each has its own sums."""
    if call.rows.dim != 0:
        return None
    if "found" not in call.shared:
        x, g = (call.images(t).contiguous() for t in (call.saved["input"], call.gradient))
        n, channels, groups = x.shape[0], x.shape[1], int(call.saved["group"])
        mean, scale = (call.images(call.saved[name]).reshape(1, n * groups) for name in ("result1", "result2"))
        places, ones = x[0, 0].numel(), x.new_ones(n * channels)
        _, *sums = torch.ops.aten.native_group_norm_backward(
            g.view(1, n * channels, places), x.view(1, n * channels, places), mean, scale, ones,
            1, n * channels, places, n * groups, [False, True, True],
        )  # fmt: skip
        call.shared["found"] = [t.view(call.units, -1, channels).sum(1) for t in sums]
    return call.shared["found"][call.number - 1]


# --- look-ups -----------------------------------------------------------------------------------------------------


@rule("EmbeddingBackward0", 0, saves=("indices", "padding_idx"), any_rows=True)
def _embedding(call: Call) -> Use:
    return Lookups(
        call.split(call.saved["indices"]).flatten(1),
        call.split(call.gradient).flatten(1, -2),
        call.shape,
        _signed(call.saved["padding_idx"]),
    )


def _signed(value: int) -> int:
    """Torch shows the padding index -1 ("none") as an unsigned number."""
    return -1 if value >= 2**63 else int(value)


class Lookups(Single):
    """Gradients of a table: row indices[u, r] of unit u's gradient gets gradients[u, r]."""

    def __init__(self, indices: Tensor, gradients: Tensor, shape: torch.Size, padding: int) -> None:
        self.indices, self.shape, self.units = indices, shape, len(indices)
        self.gradients = gradients if padding < 0 else gradients.masked_fill((indices == padding)[..., None], 0.0)

    def held(self) -> list[Tensor]:
        return [self.gradients]

    def norms(self) -> Tensor:
        offset = torch.arange(self.units, device=self.indices.device)[:, None] * self.shape[0]
        keys, place = torch.unique(self.indices + offset, return_inverse=True)
        sums = self.gradients.new_zeros(len(keys), self.shape[1])
        sums.index_add_(0, place.flatten(), self.gradients.flatten(0, 1))
        found = self.gradients.new_zeros(self.units)
        return found.index_add_(0, keys.div(self.shape[0], rounding_mode="floor"), squared_norms(sums))

    def lengths(self) -> Tensor:
        return row_lengths(self.gradients).sum(1)

    def add_weighted(self, weights: Tensor, out: Tensor) -> None:
        weighted = self.gradients * weights[:, None, None]
        out.index_add_(0, self.indices.flatten(), weighted.flatten(0, 1))

    def each(self, start: int, stop: int) -> Tensor:
        found = self.gradients.new_zeros(stop - start, *self.shape)
        index = self.indices[start:stop, :, None].expand(-1, -1, self.shape[1])
        return found.scatter_add_(1, index, self.gradients[start:stop])

    def select(self, units: Tensor) -> "Lookups":
        return Lookups(self.indices[units], self.gradients[units], self.shape, -1)


# --- recurrence ---------------------------------------------------------------------------------------------------

_LSTM = ("input", "hx_", "cx_", "weight0", "weight1", "weight2", "weight3", "has_biases", "result0", "reverse", "mode")


@rule("MkldnnRnnLayerBackward0", 1, 2, 3, 4, saves=_LSTM)
def _lstm(call: Call) -> Use | None:
    """One direction of one layer of an LSTM: the gates' gradients, then a product over all time steps.

    The gates are those of the forward pass, recomputed from its inputs and outputs; the backward pass through time is
    written out, one row a unit, so that units stay apart.
    """
    saved, hidden = call.saved, call.gradient
    if saved["mode"] != 2 or call.rows != Rows(1) or hidden.shape[1] != call.units:
        return None
    x, outputs = saved["input"], saved["result0"]
    if saved["reverse"]:
        x, outputs, hidden = x.flip(0), outputs.flip(0), hidden.flip(0)
    last_hidden, last_cell = call.others.get(1), call.others.get(2)
    start = saved["hx_"].reshape(1, call.units, -1)
    before = torch.cat([start, outputs[:-1]])
    gates = x @ saved["weight0"].t() + before @ saved["weight1"].t()
    if saved["has_biases"]:
        gates = gates + saved["weight2"] + saved["weight3"]
    i, f, g, o = gates.chunk(4, 2)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cells = [saved["cx_"].reshape(call.units, -1)]
    for t in range(len(x)):
        cells.append(f[t] * cells[-1] + i[t] * g[t])
    found = torch.empty_like(gates)
    dh = torch.zeros_like(cells[0]) if last_hidden is None else last_hidden.reshape(call.units, -1)
    dc = torch.zeros_like(cells[0]) if last_cell is None else last_cell.reshape(call.units, -1)
    for t in reversed(range(len(x))):
        dh = dh + hidden[t]
        squashed = cells[t + 1].tanh()
        dc = dc + dh * o[t] * (1 - squashed**2)
        found[t] = torch.cat(
            [
                dc * g[t] * i[t] * (1 - i[t]),
                dc * cells[t] * f[t] * (1 - f[t]),
                dc * i[t] * (1 - g[t] ** 2),
                dh * squashed * o[t] * (1 - o[t]),
            ],
            1,
        )
        dh, dc = found[t] @ saved["weight1"], dc * f[t]
    found, right = call.cast(found), call.cast(x if call.number == 1 else before)
    if call.number > 2:
        return Materialised(found.sum(0))
    return OuterProducts(found.transpose(0, 1), right.transpose(0, 1))


# --- convolution --------------------------------------------------------------------------------------------------

_CONVOLUTION = ("input", "weight", "stride", "padding", "dilation", "groups", "transposed", "output_padding")


@rule("ConvolutionBackward0", 1, saves=_CONVOLUTION, any_rows=True)
def _convolution(call: Call) -> Use | None:
    if call.rows.dim != 0:
        return None
    saved = {name: call.saved[name] for name in _CONVOLUTION[2:]}
    images, gradients = call.images(call.saved["input"]), call.images(call.gradient)
    return Convolution(images, gradients, call.units, call.shape, saved)


@rule("ConvolutionBackward0", 2, any_rows=True)
def _convolution_bias(call: Call) -> Tensor | None:
    if call.rows.dim != 0:
        return None
    g = call.split(call.gradient)
    return g.flatten(3).sum((1, 3))
