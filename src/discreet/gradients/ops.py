"""What is known of torch's ops by name: where the units stand in an op's inputs, given where they stand in its output.

An op that is not named here says nothing: rows may go where data sends them (indices, masks, sparse matrices, functions
of one's own), and where units stand below it must be found anew in each step.

A place is (dim, width): along dimension `dim`, index j belongs to unit (j // width) % units; or (dim, owners), where
each index has an owner of its own. `moves.py` has the ops that deal rows out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from discreet.gradients.owners import NOBODY, Owners, Place, Shape, whole
from discreet.gradients.torch_internals import Node, base_name, check_fields, check_one_field


class Step(NamedTuple):
    """An op seen from one of its inputs: what is known of its output, and the shapes of both.

    `saved` has the whole numbers that the op's declaration names, `tensors` the values that it goes `by_data`;
    `siblings` are the shapes of all inputs (None: of a constant), where it asks for them.
    """

    saved: Mapping[str, tuple[int, ...]]
    number: int  # of the input
    output: int  # the number of the output
    place: Place  # where the units stand in the output
    made: Shape
    given: Shape
    units: int
    tensors: Mapping[str, Any] = MappingProxyType({})
    siblings: Sequence[Shape | None] = ()


Keeper = Callable[[Step], Place | None]


@dataclass(frozen=True)
class Op:
    """What is known of an op.

    `keeper` tells the place of units in an input, from shapes and from the saved fields `reads` and `may_read` (which
    only some variants of the op have) alone; or from the saved tensors `by_data`, too. `siblings`: it asks for the
    shapes of all inputs. `asked`: autograd does not say what the op does, and its own backward is asked in every step.
    """

    keeper: Keeper
    reads: tuple[str, ...] = ()
    may_read: tuple[str, ...] = ()
    by_data: tuple[str, ...] = ()
    siblings: bool = False
    asked: bool = False

    def fields(self, kind: type) -> tuple[str, ...]:
        """The fields that are read of ops of a kind: it has all of them."""
        return *self.reads, *(name for name in self.may_read if hasattr(kind, f"_saved_{name}"))


_OPS: dict[str, Op] = {}
_OWN: dict[type, Op] = {}  # by the class of a function of the library's own
_WRITES = "torch::autograd::CopySlices"  # a part of a tensor is written to in place: which one is not said
_FACTS: dict[str, set[str]] = {"rearranges": set(), "masks": set(), "finds_positions": set()}


def keeps(
    *ops: str,
    reads: tuple[str, ...] = (),
    may_read: tuple[str, ...] = (),
    by_data: tuple[str, ...] = (),
    siblings: bool = False,
) -> Callable[[Keeper], Keeper]:
    """Declare what torch's ops of these names (without "Backward0") do with the place of units."""

    def declare(keeper: Keeper) -> Keeper:
        for op in ops:
            check_fields(op, reads + by_data)
            check_one_field(op, may_read)
        _OPS.update(dict.fromkeys(ops, Op(keeper, reads, may_read, by_data, siblings)))
        return keeper

    return declare


def also(fact: str, *ops: str) -> Callable[[Keeper], Keeper]:
    """Declare a further fact of ops, by their names in the graph, beside the keeper that they have.

    "rearranges": of a parameter it only rearranges values, so that its gradient's norm stays. "masks": element by
    element, so that beside a parameter its other input may be a mask or noise. "finds_positions": it saves positions
    that it found itself.
    """

    def declare(keeper: Keeper) -> Keeper:
        assert all(_OPS[base_name(op) or op].keeper is keeper for op in ops)
        _FACTS[fact].update(ops)
        return keeper

    return declare


def keeps_units(function: type, keeper: Keeper) -> None:
    """Declare it of an autograd function, by its class: for the library's own, whose rows no data moves."""
    _OWN[function] = Op(keeper)


@cache
def known_op(kind: type, name: str) -> Op | None:
    """What is known of ops of a kind, by its name in the graph; None if nothing is."""
    if name == _WRITES:
        return _ASKED
    forward = getattr(kind, "_forward_cls", None)
    return _OPS.get(base_name(name) or "") if forward is None else _OWN.get(forward)


def rearranges(name: str) -> bool:
    """Whether an op only rearranges a parameter: its value is the same for every unit, and so is its norm."""
    return name in _FACTS["rearranges"]


def masks(name: str) -> bool:
    """Whether an op is element by element, and may put a mask or noise on a parameter."""
    return name in _FACTS["masks"]


def finds_positions(name: str) -> bool:
    """Whether an op saves positions that it found itself."""
    return name in _FACTS["finds_positions"]


def saved_numbers(node: Node, fields: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Whole numbers that an op has saved; torch shows those below zero as unsigned."""
    return {field: _whole(getattr(node, f"_saved_{field}")) for field in fields}


def _whole(value: Any) -> tuple[int, ...]:
    some = value if isinstance(value, (tuple, list)) else () if value is None else (value,)
    return tuple(v - 2**64 if v >= 2**63 else v for v in map(int, some))


# --- values and shapes ------------------------------------------------------------------------------------------------


@also(
    "masks",
    "AddBackward0",
    "AddcmulBackward0",
    "DivBackward0",
    "LerpBackward0",
    "MaskedFillBackward0",
    "MulBackward0",
    "RsubBackward1",
    "SubBackward0",
    "WhereBackward0",
)
@also("rearranges", "AliasBackward0", "CloneBackward0", "ToCopyBackward0")
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
def elementwise(step: Step) -> Place | None:
    """Each value from the value in its place, or from one that is spread over other dimensions than the units'."""
    if isinstance(step.place[1], Owners) and step.place[1].whole is not None:
        return 0, whole(step.given[0] if step.given else 1, step.place[1].whole)
    dim = step.place[0] - len(step.made) + len(step.given)
    return (dim, step.place[1]) if dim >= 0 and step.given[dim] == step.made[step.place[0]] else None


@keeps("ViewAsReal", "ViewAsComplex")
def _paired(step: Step) -> Place | None:
    """Complex numbers as pairs, in a dimension more at the end; or the other way round."""
    dim = step.place[0]
    return step.place if dim < min(len(step.given), len(step.made)) and step.given[dim] == step.made[dim] else None


@also(
    "rearranges",
    "ReshapeAliasBackward0",
    "SqueezeBackward0",
    "SqueezeBackward1",
    "UnsafeViewBackward0",
    "UnsqueezeBackward0",
    "ViewBackward0",
)
@keeps("View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze")
def _viewed(step: Step) -> Place | None:
    """The same values in the same order, in another shape."""
    if prod(step.made) != prod(step.given):
        return None
    width = step.place[1]
    if 0 in step.made:  # values that nobody has: an expert to whom no row went
        return step.given.index(0), Owners(torch.empty(0, dtype=torch.long))
    if isinstance(width, Owners):
        return _viewed_owners(step, width)
    block = width * prod(step.made[step.place[0] + 1 :])  # values of a unit that follow each other
    inner = 1
    for dim in range(len(step.given) - 1, -1, -1):
        size = step.given[dim]
        if block % inner == 0 and size % (block // inner * step.units) == 0 and size:
            return dim, block // inner
        inner *= size
    return None


def _viewed_owners(step: Step, width: Owners) -> Place | None:
    """The same where each index has an owner: along a dimension with as many values before, or before and in it."""
    if width.whole is not None:
        return 0, whole(step.given[0] if step.given else 1, width.whole)
    before, of = prod(step.made[: step.place[0]]), width.of
    for dim, size in enumerate(step.given):
        if prod(step.given[:dim]) != before or not size:
            continue
        if size == len(of):
            return dim, width
        if size % len(of) == 0:
            return dim, Owners(of.repeat_interleave(size // len(of)))
        if len(of) % size == 0:
            rows = of.view(size, -1)
            first = rows.amax(1)
            same = bool(((rows == first[:, None]) | (rows == NOBODY)).all())
            return (dim, Owners(first)) if same else None
    after = prod(step.made[step.place[0] + 1 :])
    for dim, size in enumerate(step.given):  # behind dimensions that are folded into it
        if prod(step.given[dim + 1 :]) == after and size % len(of) == 0 and size:
            return dim, Owners(of.repeat(size // len(of)))
    return None


@also("rearranges", "TransposeBackward0")
@keeps("Transpose", reads=("dim0", "dim1"))
def _transposed(step: Step) -> Place | None:
    one, other = (d % len(step.given) for d in (step.saved["dim0"] + step.saved["dim1"]))
    dim = {one: other, other: one}.get(step.place[0], step.place[0])
    return dim, step.place[1]


@also("rearranges", "TBackward0")
@keeps("T")
def _matrix_transposed(step: Step) -> Place | None:
    return len(step.given) - 1 - step.place[0], step.place[1]


@also("rearranges", "PermuteBackward0")
@keeps("Permute", reads=("dims",))
def _permuted(step: Step) -> Place | None:
    return step.saved["dims"][step.place[0]] % len(step.given), step.place[1]


def _dims(step: Step) -> tuple[int, ...]:
    return step.saved.get("dim") or step.saved.get("dims") or ()


@also("finds_positions", "MaxBackward0", "MinBackward0", "MedianBackward1")
@keeps(
    "Sum", "Mean", "Amax", "Amin", "Max", "Min", "Median", "Nanmedian", "Mode", "Kthvalue", "Logsumexp", "Norm", "Prod",
    "LinalgVectorNorm", "Var", "Std", "VarMean", "StdMean", "Nansum", may_read=("dim", "dims"),
)  # fmt: skip
def _reduced(step: Step) -> Place | None:
    """Something over some dimensions, which are left out or of size one."""
    removed = {d % max(1, len(step.given)) for d in _dims(step)}
    width = step.place[1]
    if isinstance(width, Owners) and width.whole is not None:
        return 0, whole(step.given[0] if step.given else 1, width.whole)
    if not removed:
        return None  # over all of them
    if len(step.made) == len(step.given):
        dim = step.place[0]
    else:
        dim = [d for d in range(len(step.given)) if d not in removed][step.place[0]]
    return None if dim in removed else (dim, step.place[1])


@also("finds_positions", "SortBackward0", "TopkBackward0")
@keeps(
    "Softmax", "LogSoftmax", "SafeSoftmax", "Cumsum", "Cumprod", "Logcumsumexp", "Glu", "Sort", "Topk", "Flip", "Roll",
    "FftR2C", "FftC2R", "FftC2C", may_read=("dim", "dims"),
)  # fmt: skip
def _along(step: Step) -> Place | None:
    """Something along some dimensions; rolls without one go over all values."""
    dims = {d % len(step.given) for d in _dims(step)}
    return None if not dims or step.place[0] in dims else step.place


@keeps("Unfold", reads=("dimension",))
def _unfolded(step: Step) -> Place | None:
    (dim,) = (d % len(step.given) for d in step.saved["dimension"])
    return step.place if step.place[0] not in (dim, len(step.given)) else None


@keeps("Tril", "Triu")
def _triangle(step: Step) -> Place | None:
    return step.place if step.place[0] < len(step.given) - 2 else None


@keeps("ConstantPadNd", reads=("pad",))
def _padded(step: Step) -> Place | None:
    """Borders around other dimensions."""
    pad = step.saved["pad"]
    place = 2 * (len(step.given) - 1 - step.place[0])
    return step.place if not any(pad[place : place + 2]) else None


_ASKED = Op(lambda step: None, asked=True)


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


@keeps("NativeLayerNorm", "FusedRmsNorm", reads=("normalized_shape",))
def _layer_norm(step: Step) -> Place | None:
    over = len(step.saved["normalized_shape"])
    return step.place if over and step.place[0] < len(step.given) - over and step.number == 0 else None


@keeps("NativeBatchNorm", "CudnnBatchNorm", reads=("training",))
def _batch_norm(step: Step) -> Place | None:
    """Of channels, each by itself (InstanceNorm has those of all examples side by side); or of any row in eval mode."""
    alone = step.place[0] == 1 or (step.place[0] == 0 and not any(step.saved["training"]))
    if not alone or step.number == 0:
        return step.place if alone else None
    return (0, step.place[1]) if step.place[0] == 1 and len(step.given) == 1 else None  # scales and shifts of channels


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
        return elementwise(step)
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
        return elementwise(step)
    return step.place if step.place[0] in (0, step.number) else None


@keeps(
    "ScaledDotProductFlashAttentionForCpu", "ScaledDotProductFlashAttention", "ScaledDotProductEfficientAttention",
    "ScaledDotProductCudnnAttention",
)  # fmt: skip
def _attention(step: Step) -> Place | None:
    """Batch and heads, of which keys and values may have fewer. A mask that a gradient goes to is not looked at."""
    dim = step.place[0]
    return step.place if dim in (0, 1) and step.number < 3 and step.given[dim] == step.made[dim] else None


@keeps("MkldnnRnnLayer")
def _lstm(step: Step) -> Place | None:
    """Steps, batch, features: of the outputs, and of the input."""
    return step.place if step.number == 0 and step.output == 0 and step.place[0] == 1 else None
