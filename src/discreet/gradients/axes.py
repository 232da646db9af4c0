"""Where the units stand in every tensor between the losses and the parameters, as a graph's ops and shapes tell it.

The losses have the units in order. From there downwards each op says where the units stand in its inputs, given where
they stand in its output. What is found so holds whatever the data is, so that it need not be probed in every step. An
op that is not named here says nothing: rows may go where data sends them (indices, masks, sparse matrices, functions
of one's own), and where units stand below it must be found anew in each step.

A place is (dim, width): along dimension `dim`, index j belongs to unit (j // width) % units.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, NamedTuple

import torch

from discreet.gradients.graph import Edge, Graph
from discreet.gradients.layout import Rows

Place = tuple[int, int]
Shape = Sequence[int]


class Step(NamedTuple):
    """An op seen from one of its inputs: what is known of its output, and the shapes of both."""

    node: Any
    number: int  # of the input
    output: int  # the number of the output
    place: Place  # where the units stand in the output
    made: Shape
    given: Shape
    units: int


Keeper = Callable[[Step], Place | None]
_KEEPERS: dict[str, Keeper] = {}
_OWN: dict[type, Keeper] = {}  # by the class of a function of the library's own
_BUILT_IN = re.compile(r"^(\w+?)Backward\d+$")


def keeps(*ops: str) -> Callable[[Keeper], Keeper]:
    """Declare what torch's ops of these names (without "Backward0") do with the place of units."""

    def declare(keeper: Keeper) -> Keeper:
        _KEEPERS.update(dict.fromkeys(ops, keeper))
        return keeper

    return declare


def keeps_units(function: type, keeper: Keeper) -> None:
    """Declare it of an autograd function, by its class: for the library's own, whose rows no data moves."""
    _OWN[function] = keeper


@cache
def _keeper(kind: type, name: str) -> Keeper | None:
    forward = getattr(kind, "_forward_cls", None)
    if forward is not None:
        return _OWN.get(forward)
    found = _BUILT_IN.match(name)
    return _KEEPERS.get(found.group(1)) if found else None


@dataclass(frozen=True)
class Route:
    """The ops of a structure from the losses down, each with its inputs that depend on the batch."""

    ops: tuple[tuple[int, Keeper, tuple[int, ...], tuple[tuple[int, Edge], ...]], ...]

    @classmethod
    def of(cls, graph: Graph, shared: set[int]) -> "Route | None":
        """The route through a graph past what is `shared` by all units; None if some op on it is not known."""
        ops = []
        for n in reversed(graph.upwards):
            if n in shared or n not in graph.outputs:
                continue
            inputs = tuple((k, e) for k, e in enumerate(graph.inputs[n]) if e is not None and e[0] not in shared)
            if not inputs:
                continue
            keeper = _keeper(type(graph.nodes[n]), graph.name(n))
            if keeper is None:
                return None
            ops.append((n, keeper, tuple(graph.outputs[n]), inputs))
        return cls(tuple(ops))

    def places(self, graph: Graph, units: int) -> Mapping[Edge, Place] | None:
        """Where the units stand in each op's outputs; None if the ops and shapes do not tell."""
        root = (0, graph.root_output)
        found: dict[Edge, Place] = {root: (0, graph.shape(root)[0] // units)}
        for n, keeper, outputs, inputs in self.ops:
            for output in outputs:
                place = found.get((n, output))
                if place is None:
                    return None
                made = graph.shape((n, output))
                for number, edge in inputs:
                    given = graph.shape(edge)
                    below = keeper(Step(graph.nodes[n], number, output, place, made, given, units))
                    if below is None or given[below[0]] % (below[1] * units) or found.setdefault(edge, below) != below:
                        return None
        return found


def readings(graph: Graph, units: int) -> dict[Edge, Rows | None]:
    """Where the units stand in each op's outputs, as far as the ops above tell; None where they do not, or differ."""
    root = (0, graph.root_output)
    found: dict[Edge, Place | None] = {root: (0, graph.shape(root)[0] // units)}
    for n in reversed(graph.upwards):
        keeper = _keeper(type(graph.nodes[n]), graph.name(n))
        for output in graph.outputs.get(n, ()):
            place, made = found.get((n, output)), graph.shape((n, output))
            for number, edge in enumerate(graph.inputs[n]):
                if edge is None:
                    continue
                given, below = graph.shape(edge), None
                if place is not None and keeper is not None:
                    below = keeper(Step(graph.nodes[n], number, output, place, made, given, units))
                if below is not None and given[below[0]] % (below[1] * units):
                    below = None
                if found.setdefault(edge, below) != below:
                    found[edge] = None
    return {e: None if p is None else rows_at(p, graph.shape(e), units) for e, p in found.items()}


def rows_at(place: Place, shape: Shape, units: int) -> Rows | None:
    """The same as rows of a site, if they are unit by unit or row by row."""
    dim, width = place
    if width * units == shape[dim]:
        return Rows(dim)
    return Rows(dim, interleaved=True) if width == 1 else None


# --- ops -----------------------------------------------------------------------------------------------------------


def _saved(node: Any, *names: str) -> tuple[int, ...]:
    """Whole numbers that an op has saved under one of these names; torch shows those below zero as unsigned."""
    for name in names:
        value = getattr(node, f"_saved_{name}", None)
        if value is not None:
            some = value if isinstance(value, (tuple, list)) else (value,)
            return tuple(v - 2**64 if v >= 2**63 else v for v in map(int, some))
    return ()


@keeps(
    "Abs", "Acos", "Acosh", "Add", "Addcdiv", "Addcmul", "Alias", "Angle", "Asin", "Asinh", "Atan", "Atan2", "Atanh",
    "BinaryCrossEntropy", "BinaryCrossEntropyWithLogits", "Ceil", "Celu", "Clamp", "ClampMax", "ClampMin", "Clone",
    "Complex", "Conj", "Copysign", "Cos", "Cosh", "Detach", "Digamma", "Div", "Elu", "Erf", "Erfc", "Erfinv", "Exp",
    "Exp2", "Expand", "Expm1", "Floor", "Fmod", "Frac", "Gelu", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh",
    "HuberLoss", "Hypot", "I0", "Imag", "L1Loss", "LeakyRelu", "Lerp", "Lgamma", "Log", "Log10", "Log1P", "Log2",
    "LogSigmoid", "Logaddexp", "Logaddexp2", "Logit", "MaskedFill", "Maximum", "Minimum", "Mish", "MseLoss", "Mul",
    "NanToNum", "NativeDropout", "Neg", "Polar", "Pow", "PreluKernel", "Real", "Reciprocal", "Relu", "Remainder",
    "Round", "RreluWithNoise", "Rsqrt", "Rsub", "Sgn", "Sigmoid", "Sign", "Silu", "Sin", "Sinc", "Sinh", "SmoothL1Loss",
    "SoftMarginLoss", "Softplus", "Softshrink", "Sqrt", "Sub", "Tan", "Tanh", "Threshold", "ToCopy", "Trunc", "Where",
    "Xlogy",
)  # fmt: skip
def _elementwise(step: Step) -> Place | None:
    """Each value from the value in its place, or from one that is spread over other dimensions than the units'."""
    dim = step.place[0] - len(step.made) + len(step.given)
    return (dim, step.place[1]) if dim >= 0 and step.given[dim] == step.made[step.place[0]] else None


@keeps("ViewAsReal", "ViewAsComplex")
def _paired(step: Step) -> Place | None:
    """Complex numbers as pairs, in a dimension more at the end; or the other way round."""
    dim = step.place[0]
    return step.place if dim < min(len(step.given), len(step.made)) and step.given[dim] == step.made[dim] else None


@keeps("View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze")
def _viewed(step: Step) -> Place | None:
    """The same values in the same order, in another shape."""
    if prod(step.made) != prod(step.given):
        return None
    block = step.place[1] * prod(step.made[step.place[0] + 1 :])  # values of a unit that follow each other
    inner = 1
    for dim in range(len(step.given) - 1, -1, -1):
        size = step.given[dim]
        if block % inner == 0 and size % (block // inner * step.units) == 0 and size:
            return dim, block // inner
        inner *= size
    return None


@keeps("Transpose")
def _transposed(step: Step) -> Place | None:
    one, other = (d % len(step.given) for d in (_saved(step.node, "dim0") + _saved(step.node, "dim1")))
    dim = {one: other, other: one}.get(step.place[0], step.place[0])
    return dim, step.place[1]


@keeps("T")
def _turned(step: Step) -> Place | None:
    return len(step.given) - 1 - step.place[0], step.place[1]


@keeps("Permute")
def _permuted(step: Step) -> Place | None:
    return _saved(step.node, "dims")[step.place[0]] % len(step.given), step.place[1]


@keeps(
    "Sum", "Mean", "Amax", "Amin", "Max", "Min", "Median", "Nanmedian", "Mode", "Kthvalue", "Logsumexp", "Norm", "Prod",
    "LinalgVectorNorm", "Var", "Std", "VarMean", "StdMean", "Nansum",
)  # fmt: skip
def _reduced(step: Step) -> Place | None:
    """Something over some dimensions, which are left out or of size one."""
    removed = {d % len(step.given) for d in _saved(step.node, "dim", "dims")}
    if not removed:
        return None  # over all of them
    if len(step.made) == len(step.given):
        dim = step.place[0]
    else:
        dim = [d for d in range(len(step.given)) if d not in removed][step.place[0]]
    return None if dim in removed else (dim, step.place[1])


@keeps(
    "Softmax", "LogSoftmax", "SafeSoftmax", "Cumsum", "Cumprod", "Logcumsumexp", "Glu", "Sort", "Topk", "Flip", "Roll"
)
def _along(step: Step) -> Place | None:
    """Something along some dimensions; rolls without one go over all values."""
    dims = {d % len(step.given) for d in _saved(step.node, "dim", "dims")}
    return None if not dims or step.place[0] in dims else step.place


@keeps("FftR2C", "FftC2R", "FftC2C")
def _spectrum(step: Step) -> Place | None:
    return _along(step)


@keeps("Gather", "IndexSelect")
def _picked(step: Step) -> Place | None:
    """Values picked along a dimension: another one than the units'."""
    (dim,) = (d % len(step.given) for d in _saved(step.node, "dim"))
    same = step.given[step.place[0]] == step.made[step.place[0]]
    return step.place if same and dim != step.place[0] else None


@keeps("Index")
def _indexed(step: Step) -> Place | None:
    """Indices side by side on other dimensions than the units', which stays where it is; or one value of each row."""
    indices = step.node._saved_indices
    used = [i for i, index in enumerate(indices) if index is not None]
    whole = all(indices[i].dtype in (torch.int32, torch.int64) for i in used)
    if not used or not whole or used != list(range(used[0], used[-1] + 1)) or step.place[0] >= len(step.given):
        return None
    if step.given[step.place[0]] != step.made[step.place[0]]:
        return None
    if step.place[0] < used[0]:
        return step.place
    rows = indices[0]
    if step.place[0] != 0 or rows is None or any(indices[i].dim() != 1 for i in used):
        return None
    return step.place if torch.equal(rows, torch.arange(step.given[0], device=rows.device)) else None


@keeps("Select")
def _selected(step: Step) -> Place | None:
    (dim,) = (d % len(step.given) for d in _saved(step.node, "dim"))
    return step.place[0] + (step.place[0] >= dim), step.place[1]


@keeps("Unbind")
def _unbound(step: Step) -> Place | None:
    return _selected(step)


@keeps("Slice")
def _sliced(step: Step) -> Place | None:
    """A part along another dimension, or one that begins with the first unit and ends with the last."""
    (dim,) = (d % len(step.given) for d in _saved(step.node, "dim"))
    if dim != step.place[0]:
        return step.place
    start, whole = _saved(step.node, "start") or (0,), step.place[1] * step.units
    begins = start[0] if start[0] >= 0 else start[0] + step.given[dim]
    return step.place if _saved(step.node, "step") == (1,) and begins % whole == 0 else None


@keeps("Split", "SplitWithSizes", "UnsafeSplit", "UnsafeSplitWithSizes")
def _split(step: Step) -> Place | None:
    (dim,) = (d % len(step.given) for d in _saved(step.node, "dim"))
    if dim != step.place[0]:
        return step.place
    sizes = _saved(step.node, "split_sizes", "split_size")
    sizes = sizes * -(-step.given[dim] // sizes[0]) if len(sizes) == 1 and sizes[0] else sizes
    return step.place if sum(sizes[: step.output]) % (step.place[1] * step.units) == 0 else None


@keeps("Cat")
def _joined(step: Step) -> Place | None:
    (dim,) = (d % len(step.made) for d in _saved(step.node, "dim"))
    return None if dim == step.place[0] or len(step.given) != len(step.made) else step.place


@keeps("Stack")
def _stacked(step: Step) -> Place | None:
    (dim,) = (d % len(step.made) for d in _saved(step.node, "dim"))
    return None if dim == step.place[0] else (step.place[0] - (step.place[0] > dim), step.place[1])


@keeps("Repeat")
def _repeated(step: Step) -> Place | None:
    return _elementwise(step)


@keeps("Unfold")
def _unfolded(step: Step) -> Place | None:
    (dim,) = (d % len(step.given) for d in _saved(step.node, "dimension"))
    return step.place if step.place[0] not in (dim, len(step.given)) else None


@keeps("Tril", "Triu")
def _triangle(step: Step) -> Place | None:
    return step.place if step.place[0] < len(step.given) - 2 else None


@keeps("ConstantPadNd")
def _padded(step: Step) -> Place | None:
    """Borders around other dimensions."""
    pad = _saved(step.node, "pad")
    place = 2 * (len(step.given) - 1 - step.place[0])
    return step.place if not any(pad[place : place + 2]) else None


# --- layers ----------------------------------------------------------------------------------------------------------


@keeps(
    "AdaptiveAvgPool2D", "AdaptiveAvgPool3D", "AdaptiveMaxPool2D", "AdaptiveMaxPool3D", "AvgPool2D", "AvgPool3D",
    "ChannelShuffle", "Col2Im", "Convolution", "FractionalMaxPool2D", "GridSampler2D", "GridSampler3D", "Im2Col",
    "MaxPool2DWithIndices", "MaxPool3DWithIndices", "MkldnnConvolution", "NativeGroupNorm", "NllLoss", "NllLoss2D",
    "MultiMarginLoss", "MultilabelMarginLoss", "PixelShuffle", "PixelUnshuffle", "ReflectionPad1D", "ReflectionPad2D",
    "ReflectionPad3D", "ReplicationPad1D", "ReplicationPad2D", "ReplicationPad3D", "UpsampleBicubic2D",
    "UpsampleBilinear2D", "UpsampleBilinear2DAa", "UpsampleBicubic2DAa", "UpsampleLinear1D", "UpsampleNearest1D",
    "UpsampleNearest2D", "UpsampleNearest3D", "UpsampleNearestExact1D", "UpsampleNearestExact2D", "UpsampleTrilinear3D",
)  # fmt: skip
def _batch_first(step: Step) -> Place | None:
    """Each entry of the first dimension by itself."""
    return step.place if step.place[0] == 0 and step.number == 0 and step.given[0] == step.made[0] else None


@keeps("Cdist")
def _distances(step: Step) -> Place | None:
    batched = len(step.given) == len(step.made) == 3 and step.place[0] == 0
    return step.place if batched and step.given[0] == step.made[0] else None


@keeps("NativeLayerNorm", "FusedRmsNorm")
def _layer_norm(step: Step) -> Place | None:
    over = len(_saved(step.node, "normalized_shape"))
    return step.place if over and step.place[0] < len(step.given) - over and step.number == 0 else None


@keeps("NativeBatchNorm", "CudnnBatchNorm")
def _batch_norm(step: Step) -> Place | None:
    """Of channels, each by itself (InstanceNorm has those of all examples side by side); or of any row in eval mode."""
    alone = step.place[0] == 1 or (step.place[0] == 0 and not step.node._saved_training)
    return step.place if alone and step.number == 0 else None


@keeps("CtcLoss")
def _ctc(step: Step) -> Place | None:
    return (1, step.place[1]) if len(step.given) == 3 and step.place[0] == 0 else None


@keeps("Mm")
def _mm(step: Step) -> Place | None:
    """Rows of the left factor and columns of the right one stay in their places."""
    return step.place if step.place[0] == step.number else None


@keeps("Addmm")
def _addmm(step: Step) -> Place | None:
    if step.number == 0:
        return _elementwise(step)
    return step.place if step.place[0] == step.number - 1 else None


@keeps("Mv")
def _mv(step: Step) -> Place | None:
    return step.place if step.number == 0 else None


@keeps("Bmm")
def _bmm(step: Step) -> Place | None:
    return step.place if step.place[0] in (0, step.number + 1) else None


@keeps("Baddbmm")
def _baddbmm(step: Step) -> Place | None:
    if step.number == 0:
        return _elementwise(step)
    return step.place if step.place[0] in (0, step.number) else None


@keeps(
    "ScaledDotProductFlashAttentionForCpu", "ScaledDotProductFlashAttention", "ScaledDotProductEfficientAttention",
    "ScaledDotProductCudnnAttention",
)  # fmt: skip
def _attention(step: Step) -> Place | None:
    """Batch and heads; a mask is no input that a gradient goes to, but where it is, it is not looked at."""
    return step.place if step.place[0] in (0, 1) and step.number < 3 and step.given[:2] == step.made[:2] else None


@keeps("MkldnnRnnLayer")
def _lstm(step: Step) -> Place | None:
    """Steps, batch, features: of the outputs, and of the input."""
    return step.place if step.number == 0 and step.output == 0 and step.place[0] == 1 else None
