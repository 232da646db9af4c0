"""How large an example's gradient can be in a network with bounded activations, proven from its shape alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, get_args

from discreet._check import check_int, check_positive
from discreet.errors import ConfigError
from discreet.stages.sensitivity import Block, Certificate

Head = Literal["cross-entropy", "belu cross-entropy", "belu squared"]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Linear:
    """A matrix, and a bias if it has one: parameters `name`.weight and `name`.bias."""

    name: str
    inputs: int
    outputs: int
    bias: bool = True

    def __post_init__(self) -> None:
        _check_layer(self.name, self.inputs, self.outputs, self.bias)

    @property
    def weight_shape(self) -> Shape:
        return self.outputs, self.inputs

    def copies(self, shape: Shape) -> int:
        """How often one input value is multiplied by the whole matrix."""
        return 1

    def after(self, shape: Shape) -> Shape:
        if shape != (self.inputs,):
            raise ConfigError(f"layer {self.name!r} takes {self.inputs} flat values, but gets the shape {shape}.")
        return (self.outputs,)


@dataclass(frozen=True)
class Convolution:
    """A convolution over the dimensions after the channels; `padding` is how many zeros each of them gets in all."""

    name: str
    inputs: int
    outputs: int
    kernel: Shape
    stride: Shape
    padding: Shape
    bias: bool = True

    def __post_init__(self) -> None:
        _check_layer(self.name, self.inputs, self.outputs, self.bias)
        _check_window(f"convolution {self.name!r}", self.kernel, self.stride)
        if not isinstance(self.padding, tuple) or len(self.padding) != len(self.kernel):
            raise ConfigError(f"convolution {self.name!r} has padding {self.padding!r} for the kernel {self.kernel}.")
        for zeros in self.padding:
            check_int(f"the padding of convolution {self.name!r}", zeros, least=0)

    @property
    def weight_shape(self) -> Shape:
        return self.outputs, self.inputs, *self.kernel

    def copies(self, shape: Shape) -> int:
        """The most patches that one input value is part of."""
        places = zip(self.kernel, self.stride, self.after(shape)[1:], strict=True)
        return math.prod(min(math.ceil(k / s), n) for k, s, n in places)

    def after(self, shape: Shape) -> Shape:
        if len(shape) != 1 + len(self.kernel) or shape[0] != self.inputs:
            raise ConfigError(
                f"convolution {self.name!r} takes {self.inputs} channels of {len(self.kernel)} dimensions, but gets "
                f"the shape {shape}."
            )
        padded = tuple(n + p for n, p in zip(shape[1:], self.padding, strict=True))
        return self.outputs, *_places(f"convolution {self.name!r}", padded, self.kernel, self.stride)


@dataclass(frozen=True)
class Activation:
    """A function of each value: from `low` to `high`, with a derivative of at most `slope` in absolute value."""

    kind: str
    low: float
    high: float
    slope: float

    def __post_init__(self) -> None:
        check_positive(f"the slope of {self.kind!r}", self.slope, zero=True)
        for value in (self.low, self.high):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= 1e300:
                raise ConfigError(f"activation {self.kind!r} has the bound {value!r}; it must be a finite number.")
        if not isinstance(self.kind, str) or self.low > self.high:
            raise ConfigError(f"activation {self.kind!r} has values from {self.low:g} to {self.high:g}.")

    @property
    def reach(self) -> float:
        """The largest absolute value."""
        return max(abs(self.low), abs(self.high))

    def after(self, shape: Shape) -> Shape:
        return shape


@dataclass(frozen=True)
class Pool:
    """The average or the largest value of windows that do not overlap."""

    kind: str
    window: Shape
    stride: Shape

    def __post_init__(self) -> None:
        if self.kind not in ("average", "max"):
            raise ConfigError(f"pooling is {self.kind!r}; it must be 'average' or 'max'.")
        _check_window(f"{self.kind} pooling", self.window, self.stride)
        if any(s < w for s, w in zip(self.stride, self.window, strict=True)):
            raise ConfigError(f"{self.kind} pooling has windows {self.window} that overlap at stride {self.stride}.")

    @property
    def gain(self) -> float:
        """The largest factor by which it lengthens a difference, or a gradient on its way back."""
        return 1 / math.sqrt(math.prod(self.window)) if self.kind == "average" else 1.0

    def after(self, shape: Shape) -> Shape:
        if len(shape) != 1 + len(self.window):
            raise ConfigError(f"{self.kind} pooling over {len(self.window)} dimensions gets the shape {shape}.")
        return shape[0], *_places(f"{self.kind} pooling", shape[1:], self.window, self.stride)


@dataclass(frozen=True)
class Flatten:
    """All of an example's values in one row."""

    def after(self, shape: Shape) -> Shape:
        return (math.prod(shape),)


Layer = Linear | Convolution
Stage = Linear | Convolution | Activation | Pool | Flatten


def network_certificate(
    stages: Sequence[Stage],
    *,
    input_norm: float,
    weight_norms: Sequence[float],
    head_norm: float,
    input_shape: Shape = (),
) -> Certificate:
    """A bound for every example's gradient in a network that is these stages, one after the other.

    Inputs have l2 norm at most `input_norm` = H_0. The gradient at the last layer's linear outputs has norm at most
    `head_norm` = D_L. The weights of layers 2 .. L, as matrices [outputs, inputs * kernel], have spectral norms at most
    `weight_norms` = S_2 .. S_L; the first layer's weight and all biases are free.

    Guarantee: the gradient of layer l, weight and bias together, has norm at most D_l sqrt(P_l^2 + n_l), where n_l is
    the number of positions at which the bias is added (0 without one).

    Proof. Write a layer as A = P W' + 1 c': the rows of P are the patches it looks at, one a position (a Linear layer
    has one position, and P is its input). With D the gradient at A, the gradient of [W, c] is D' [P, 1], whose norm is
    at most |D| |[P, 1]| = |D| sqrt(|P|^2 + n). An input value is in at most `copies` = product of ceil(kernel / stride)
    patches, for the patches that hold it start at places that differ by multiples of the stride, within one kernel; so
    |P|^2 <= copies |h|^2, and padding only adds zeros. P also has no entry above the activation's reach. P_l is the
    smaller of the two bounds. |h| itself is at most reach * sqrt(number of values) after an activation. Average pooling
    makes |h| shorter by sqrt(window) (a mean's square is at most the sum of squares / window, and windows are
    disjoint) and max pooling keeps it; neither leaves the activation's range.
    Backwards: the layer as a map has |P W'| <= |P| |W|_op <= sqrt(copies) |W|_op |h|, and a linear map's transpose has
    its norm; an activation multiplies each value by at most its slope; max pooling hands each gradient to one place of
    its own. So D_l = D_(l+1) S_(l+1) sqrt(copies) times the slopes and pooling factors between the two layers.
    """
    if not any(isinstance(stage, (Linear, Convolution)) for stage in stages):
        raise ConfigError("the network has no Linear or convolutional layer.")
    shape = _input_shape(stages, input_shape)
    norm: float | None = check_positive("the inputs' norm", input_norm)
    reach: float | None = None
    gain = 1.0
    layers: list[tuple[Layer, float, float]] = []  # with |[P, 1]|, and the gain back to the layer before
    last: Stage | None = None
    for stage in stages:
        new = stage.after(shape)
        if isinstance(stage, Activation):
            reach, gain = stage.reach, gain * stage.slope
            norm = math.sqrt(math.prod(new)) * reach
        elif isinstance(stage, Pool):
            gain *= stage.gain
            norm = None if norm is None else norm * stage.gain
            if norm is not None and reach is not None:
                norm = min(norm, math.sqrt(math.prod(new)) * reach)
        elif isinstance(stage, (Linear, Convolution)):
            if norm is None:
                raise ConfigError(
                    f"layer {stage.name!r} follows another one with no bounded activation between them, so nothing "
                    "bounds its inputs; put one there, such as discreet.nn.BELU or nn.Tanh."
                )
            copies = math.sqrt(stage.copies(shape))
            positions = math.prod(new[1:])
            patches = copies * norm
            if reach is not None:
                patches = min(patches, math.sqrt(positions * math.prod(stage.weight_shape[1:])) * reach)
            layers.append((stage, math.hypot(patches, math.sqrt(positions) if stage.bias else 0), gain * copies))
            norm, reach, gain = None, None, 1.0
        shape, last = new, stage if not isinstance(stage, Activation) else last
    if not isinstance(last, Linear) or sum(isinstance(s, Activation) for s in stages[stages.index(last) :]) > 1:
        raise ConfigError("the network must end with a Linear layer, or with one and a bounded activation.")
    if len(weight_norms) != len(layers) - 1:
        raise ConfigError(
            f"{len(layers)} layers need {len(layers) - 1} weight norms, one for each from the second on, not "
            f"{len(weight_norms)}."
        )
    outputs = [check_positive("the gradient's norm at the last layer", head_norm)]
    for limit, (_, _, back) in zip(reversed(weight_norms), reversed(layers), strict=False):
        outputs.append(back * check_positive("a weight norm", limit) * outputs[-1])
    blocks = (
        Block(members_of(layer), d * inputs, layer.outputs * (math.prod(layer.weight_shape[1:]) + layer.bias))
        for d, (layer, inputs, _) in zip(reversed(outputs), layers, strict=True)
    )
    premises = (
        f"inputs were cut to l2 norm {input_norm:g}",
        "weight matrices were projected to their norms before every pass",
        "the gradient at the last layer was cut to its bound",
    )
    return Certificate(tuple(blocks), premises)


def members_of(layer: Layer) -> tuple[str, ...]:
    """The names of a layer's parameters."""
    names = f"{layer.name}.weight", f"{layer.name}.bias"
    return names if layer.bias else names[:1]


def belu_certificate(
    widths: Sequence[int],
    *,
    alpha: float,
    beta: float,
    input_norm: float,
    weight_norms: Sequence[float],
    head: Head = "cross-entropy",
    names: Sequence[str] | None = None,
) -> Certificate:
    """A bound for every example's gradient in a plain network of Linear layers with BELU(alpha, beta) between them.

    `widths` are d_0 .. d_L; inputs have l2 norm at most `input_norm`; layers 2 .. L have spectral norms at most
    `weight_norms`. With H_0 = input_norm, H_l = sqrt(d_l) (alpha + beta); D_L by the loss, D_l = max(1, alpha) S_(l+1)
    D_(l+1): layer l's gradient, weight and bias, is at most D_l sqrt(H_(l-1)^2 + 1).

    >>> c = belu_certificate([6, 5, 4, 3], alpha=1, beta=2, input_norm=2, weight_norms=[1.5, 1.5])
    >>> [round(b.norm, 3) for b in c.blocks]
    [7.115, 14.387, 8.602]
    """
    layers = len(widths) - 1
    if layers < 1 or len(weight_norms) != layers - 1:
        raise ConfigError(f"{len(widths)} widths need {max(0, layers - 1)} weight norms, for layers 2 to {layers}.")
    names = [f"layer {i + 1}" for i in range(layers)] if names is None else names
    certificate = network_certificate(
        belu_stages(widths, alpha, beta, names),
        input_norm=input_norm,
        weight_norms=weight_norms,
        head_norm=_belu_head(head, widths[-1], alpha, beta, max(1.0, alpha)),
    )
    return replace(
        certificate, blocks=tuple(replace(b, members=(n,)) for b, n in zip(certificate.blocks, names, strict=True))
    )


def belu_stages(widths: Sequence[int], alpha: float, beta: float, names: Sequence[str]) -> tuple[Stage, ...]:
    """Linear layers of these widths and names with BELU(alpha, beta) between them."""
    activation = belu_activation(alpha, beta)
    first, *rest = (Linear(n, i, o) for n, (i, o) in zip(names, pairwise(widths), strict=True))
    return first, *(stage for layer in rest for stage in (activation, layer))


def belu_activation(alpha: float, beta: float) -> Activation:
    """What is known of BELU(alpha, beta)."""
    check_positive("alpha", alpha)
    check_positive("beta", beta, zero=True)
    return Activation("BELU", -alpha, alpha + beta, max(1.0, alpha))


def head_norm(loss: Head, outputs: int, last: Activation | None) -> float:
    """The largest gradient of a loss at the last layer's linear outputs, of which an activation may make the outputs.

    - "cross-entropy" of a softmax of linear outputs: probabilities minus a one-hot row, so less than sqrt(2);
    - "belu cross-entropy", of a softmax of bounded outputs: that times the activation's slope;
    - "belu squared", half the squared distance of bounded outputs to a one-hot row: the norm over outputs of the
      largest |value - target| * derivative. For BELU that is exact; for others each factor is at its largest.

    >>> round(head_norm("belu cross-entropy", 10, Activation("Sigmoid", 0.0, 1.0, 0.25)), 4)
    0.3536
    """
    if loss not in get_args(Head):
        raise ConfigError(f"the loss {loss!r} is not one of {', '.join(get_args(Head))}.")
    if loss == "cross-entropy":
        if last is not None:
            raise ConfigError(
                f"the loss 'cross-entropy' is for linear outputs, but {last.kind} follows the last layer; leave it "
                "out, or use 'belu cross-entropy' or 'belu squared'."
            )
        return math.sqrt(2)
    if last is None:
        raise ConfigError(f"the loss {loss!r} is for bounded outputs; put a bounded activation after the last layer.")
    if loss == "belu cross-entropy" or last.kind == "BELU":
        return _belu_head(loss, outputs, -last.low, last.high + last.low, last.slope)
    off, on = (last.slope * max(abs(last.low - target), abs(last.high - target)) for target in (0.0, 1.0))
    return math.sqrt((outputs - 1) * off**2 + on**2)


def _belu_head(head: Head, classes: int, alpha: float, beta: float, slope: float) -> float:
    """The largest gradient of the loss at the last layer's linear outputs."""
    if head == "cross-entropy":
        return math.sqrt(2)
    if head == "belu cross-entropy":
        return slope * math.sqrt(2)
    if head == "belu squared":  # half the squared distance to a one-hot target
        others = (classes - 1) * _reach(alpha, beta, 0.0) ** 2
        return math.sqrt(others + _reach(alpha, beta, 1.0) ** 2)
    raise ConfigError(f"the loss {head!r} is not one of {', '.join(get_args(Head))}.")


def _reach(alpha: float, beta: float, target: float) -> float:
    """sup of |BELU(x) - target| BELU'(x): quadratics in the output, largest at ends and vertices."""

    def low(h: float) -> float:
        return abs(h - target) * (h + alpha)

    def high(h: float) -> float:
        return abs(h - target) * (alpha + beta - h)

    vertices = (target - alpha) / 2, (target + alpha + beta) / 2
    distances = [abs(target), abs(beta - target)]
    distances += [low(min(max(h, -alpha), 0.0)) for h in (-alpha, 0.0, *vertices)]
    distances += [high(min(max(h, beta), alpha + beta)) for h in (beta, alpha + beta, *vertices)]
    return max(distances)


def _input_shape(stages: Sequence[Stage], given: Shape) -> Shape:
    """One example's shape: the one given, or the first layer's inputs where that says it."""
    if given:
        return given
    for stage in stages:
        if isinstance(stage, Linear):
            return (stage.inputs,)
        if not isinstance(stage, (Flatten, Activation)):
            break
    raise ConfigError("the network has convolutions or pooling; give input_shape, (channels, height, width) say.")


def _check_layer(name: str, inputs: int, outputs: int, bias: bool) -> None:
    if not isinstance(name, str) or not isinstance(bias, bool):
        raise ConfigError(f"a layer has the name {name!r} and the bias {bias!r}; it needs a string, and true or false.")
    check_int(f"the inputs of layer {name!r}", inputs, least=1)
    check_int(f"the outputs of layer {name!r}", outputs, least=1)


def _check_window(what: str, window: Shape, stride: Shape) -> None:
    ok = isinstance(window, tuple) and isinstance(stride, tuple) and len(window) == len(stride) in (1, 2)
    if not ok:
        raise ConfigError(f"{what} has the window {window!r} and the stride {stride!r}; each needs one or two numbers.")
    for size in (*window, *stride):
        check_int(f"a size of {what}", size, least=1)


def _places(what: str, sizes: Shape, window: Shape, stride: Shape) -> Shape:
    """How many windows fit in each dimension."""
    if any(n < w for n, w in zip(sizes, window, strict=True)):
        raise ConfigError(f"{what} has a window {window} larger than what it gets, {sizes}.")
    return tuple((n - w) // s + 1 for n, w, s in zip(sizes, window, stride, strict=True))
