"""Rules for normalisation, look-ups, torch's own LSTM and convolutions."""

import torch
from torch import Tensor

from discreet.gradients.forms.base import PerExampleGrad
from discreet.gradients.forms.convolution import Convolution
from discreet.gradients.forms.materialized import Lookups, Materialised
from discreet.gradients.forms.outer import OuterProducts
from discreet.gradients.layout import Members, Rows
from discreet.gradients.moves import bag_counts
from discreet.gradients.rules.registry import OpContext, Placement, along_first, rule
from discreet.gradients.torch_internals import check_fields

# --- normalisation ----------------------------------------------------------------------------------------------------


@rule("NativeLayerNormBackward0", 1, saves=("input", "result1", "result2"), any_rows=True)
def _layer_norm_weight(ctx: OpContext) -> Tensor:
    x, mean, scale = (ctx.split(ctx.saved[name]) for name in ("input", "result1", "result2"))
    return _sum_rows(ctx, (x - mean).mul_(scale).mul_(ctx.split(ctx.gradient)))


@rule("NativeLayerNormBackward0", 2, any_rows=True)
def _layer_norm_bias(ctx: OpContext) -> Tensor:
    return _sum_rows(ctx, ctx.split(ctx.gradient))


def _sum_rows(ctx: OpContext, split: Tensor) -> Tensor:
    rows = split.dim() - len(ctx.shape)
    return split.sum(tuple(range(1, rows))) if rows > 1 else split


@rule("NativeGroupNormBackward0", 1, 2, saves=("input", "result1", "result2", "group"), when=along_first, any_rows=True)
def _group_norm(ctx: OpContext) -> Tensor:
    """By one native call for scale and shift: all images as the channels of one, so that each has its own sums."""
    if "sums" not in ctx.shared:
        x, g = (ctx.images(t).contiguous() for t in (ctx.saved["input"], ctx.gradient))
        n, channels, groups = x.shape[0], x.shape[1], int(ctx.saved["group"])
        mean, scale = (ctx.images(ctx.saved[name]).reshape(1, n * groups) for name in ("result1", "result2"))
        places, ones = x[0, 0].numel(), x.new_ones(n * channels)
        _, *sums = torch.ops.aten.native_group_norm_backward(
            g.view(1, n * channels, places), x.view(1, n * channels, places), mean, scale, ones,
            1, n * channels, places, n * groups, [False, True, True],
        )  # fmt: skip
        ctx.shared["sums"] = [t.view(ctx.units, -1, channels).sum(1) for t in sums]
    return ctx.shared["sums"][ctx.number - 1]


# --- look-ups ---------------------------------------------------------------------------------------------------------


@rule("EmbeddingBackward0", 0, saves=("indices", "padding_idx"), any_rows=True)
def _embedding(ctx: OpContext) -> PerExampleGrad:
    return Lookups(
        ctx.split(ctx.saved["indices"]).flatten(1),
        ctx.split(ctx.gradient).flatten(1, -2),
        ctx.shape,
        _signed(ctx.saved["padding_idx"]),
    )


@rule("IndexBackward0", 0, saves=("indices",), when=along_first, any_rows=True)
def _indexed(ctx: OpContext) -> PerExampleGrad:
    """A parameter indexed by data: rows by a first index alone, or else value by value."""
    first, *others = ctx.saved["indices"]
    trailing = ctx.gradient.shape[ctx.gradient.dim() - len(ctx.shape) + 1 :]
    by_rows = first is not None and first.dtype in (torch.int32, torch.int64) and all(i is None for i in others)
    if by_rows and ctx.gradient.shape == (*first.shape, *trailing):
        return _looked_up(ctx, first.long(), len(ctx.shape) - 1)
    places = torch.arange(ctx.shape.numel(), device=ctx.gradient.device).view(ctx.shape)
    indices = tuple(slice(None) if i is None else i for i in ctx.saved["indices"])
    return _looked_up(ctx, places[indices], 0)


@rule("IndexSelectBackward0", 0, saves=("index", "dim"), when=along_first, any_rows=True)
def _index_selected(ctx: OpContext) -> PerExampleGrad:
    if ctx.saved["dim"] == 0 and ctx.saved["index"].dim() == 1:
        return _looked_up(ctx, ctx.saved["index"].long(), len(ctx.shape) - 1)
    places = torch.arange(ctx.shape.numel(), device=ctx.gradient.device).view(ctx.shape)
    return _looked_up(ctx, places.index_select(_signed(ctx.saved["dim"]), ctx.saved["index"]), 0)


def _looked_up(ctx: OpContext, index: Tensor, trailing: int) -> PerExampleGrad:
    """What an index [rows of the output, ...] picked: rows of a parameter, or values where `trailing` is 0."""
    rows = ctx.shape[0] if trailing or len(ctx.shape) == 1 else ctx.shape.numel()
    index = torch.where(index < 0, index + rows, index)
    gradients = ctx.split(ctx.gradient).reshape(ctx.units, -1, ctx.shape.numel() // rows)
    found = Lookups(ctx.split(index).flatten(1), gradients, torch.Size((rows, gradients.shape[2])), -1)
    return found.of_shape(ctx.shape)


check_fields("EmbeddingBag", ("mode", "padding_idx"))
_SUM, _MEAN = 0, 1


def _plain_bags(at: Placement) -> bool:
    """Sums and means over bags, without entries that are left out."""
    node = at.node
    return at.rows.dim == 0 and node._saved_mode in (_SUM, _MEAN) and _signed(node._saved_padding_idx) < 0


_BAG = ("indices", "offsets", "mode", "per_sample_weights")


@rule("EmbeddingBagBackward0", 0, saves=_BAG, when=_plain_bags, any_rows=True)
def _embedding_bag(ctx: OpContext) -> PerExampleGrad:
    """Entries side by side, each in a bag: an entry is its bag's unit's."""
    indices, gradient = ctx.saved["indices"], ctx.cast(ctx.gradient)
    counts = bag_counts(ctx.saved["offsets"], len(gradient), len(indices))
    bag = torch.arange(len(gradient), device=indices.device).repeat_interleave(counts)
    if ctx.saved["mode"] == _MEAN:
        gradient = gradient / counts.clamp(min=1)[:, None]
    entries = gradient[bag]
    if ctx.saved["per_sample_weights"] is not None:
        entries = entries * ctx.cast(ctx.saved["per_sample_weights"]).reshape(-1, 1)
    members = Members(0, ctx.owners[bag])
    return Lookups(members.split(indices.long(), ctx.units), members.split(entries, ctx.units), ctx.shape, -1)


def _signed(value: int) -> int:
    """Torch shows the padding index -1 ("none") as an unsigned number."""
    return -1 if value >= 2**63 else int(value)


# --- torch's own LSTM -------------------------------------------------------------------------------------------------

_LSTM = ("input", "hx_", "cx_", "weight0", "weight1", "weight2", "weight3", "has_biases", "result0", "reverse")
_LSTM_MODE = 2
check_fields("MkldnnRnnLayerBackward0", ("mode",))


def _is_batch_of_steps(at: Placement) -> bool:
    return at.rows == Rows(1) and at.output[1] == at.units and at.node._saved_mode == _LSTM_MODE


@rule(
    "MkldnnRnnLayerBackward0",
    *(1, 2, 3, 4),
    saves=_LSTM,
    when=_is_batch_of_steps,
    all_outputs=True,
    reads_parameters=True,
)
def _lstm(ctx: OpContext) -> PerExampleGrad:
    """One direction of one layer of an LSTM: the gates' gradients, then a product over all time steps.

    The gates are those of the forward pass, recomputed from its inputs and outputs; the backward pass through time is
    written out, one row a unit, so that units stay apart.
    """
    saved, hidden = ctx.saved, ctx.gradient
    x, outputs = saved["input"], saved["result0"]
    if saved["reverse"]:
        x, outputs, hidden = x.flip(0), outputs.flip(0), hidden.flip(0)
    last_hidden, last_cell = ctx.others.get(1), ctx.others.get(2)
    start = saved["hx_"].reshape(1, ctx.units, -1)
    before = torch.cat([start, outputs[:-1]])
    gates = x @ saved["weight0"].t() + before @ saved["weight1"].t()
    if saved["has_biases"]:
        gates = gates + saved["weight2"] + saved["weight3"]
    i, f, g, o = gates.chunk(4, 2)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cells = [saved["cx_"].reshape(ctx.units, -1)]
    for t in range(len(x)):
        cells.append(f[t] * cells[-1] + i[t] * g[t])
    of_gates = torch.empty_like(gates)
    dh = torch.zeros_like(cells[0]) if last_hidden is None else last_hidden.reshape(ctx.units, -1)
    dc = torch.zeros_like(cells[0]) if last_cell is None else last_cell.reshape(ctx.units, -1)
    for t in reversed(range(len(x))):
        dh = dh + hidden[t]
        squashed = cells[t + 1].tanh()
        dc = dc + dh * o[t] * (1 - squashed**2)
        of_gates[t] = torch.cat(
            [
                dc * g[t] * i[t] * (1 - i[t]),
                dc * cells[t] * f[t] * (1 - f[t]),
                dc * i[t] * (1 - g[t] ** 2),
                dh * squashed * o[t] * (1 - o[t]),
            ],
            1,
        )
        dh, dc = of_gates[t] @ saved["weight1"], dc * f[t]
    of_gates, right = ctx.cast(of_gates), ctx.cast(x if ctx.number == 1 else before)
    if ctx.number > 2:
        return Materialised(of_gates.sum(0))
    return OuterProducts(of_gates.transpose(0, 1), right.transpose(0, 1))


# --- convolution ------------------------------------------------------------------------------------------------------

_SETTINGS = ("stride", "padding", "dilation", "groups", "transposed", "output_padding")


@rule("ConvolutionBackward0", 1, saves=("input", *_SETTINGS), when=along_first, any_rows=True)
def _convolution(ctx: OpContext) -> PerExampleGrad:
    settings = {name: ctx.saved[name] for name in _SETTINGS}
    images, gradients = ctx.images(ctx.saved["input"]), ctx.images(ctx.gradient)
    return Convolution(images, gradients, ctx.units, ctx.shape, settings)


@rule("ConvolutionBackward0", 2, when=along_first, any_rows=True)
def _convolution_bias(ctx: OpContext) -> Tensor:
    return ctx.split(ctx.gradient).flatten(3).sum((1, 3))
