"""The networks that a run can name: the papers' own, small ones, and any function of the user's.

None of them has a layer that mixes examples, so each example's gradient is its own.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet._check import check_int, listed, shown, within
from discreet.errors import ConfigError, PrivacyError
from discreet.models.finetuning import fine_tuned
from discreet.models.pretrained import NETWORKS
from discreet.nn import BELU, BoundedTanh, TemperedSigmoid

Shape = tuple[int, ...]
Activation = Callable[[], nn.Module]

_TUTORIAL_SIDE, _LEAST_SIDE = 14, 4  # pixels, below which nothing is left after the last pooling
_MOST_UNITS = 10**6  # in a hidden layer


def build(name: str, shape: Sequence[int], outputs: int, **settings: Any) -> nn.Module:
    """The network of this name for examples of this shape; it takes [examples, *shape] to [examples, outputs].

    First weights come from torch's generator: the same seed makes the same network.

    Args:
        name: one of `names()`, or `module:function`, which is imported and called with (shape, outputs, **settings).
        shape: of one example.
        outputs: how many numbers the network returns for each example.
        settings: the network's own, among them `activation` by name, and those of the activation.

    >>> sum(p.numel() for p in build("cnn", (1, 28, 28), 10).parameters())
    26010
    >>> build("mlp", (64,), 10, hidden=(16,), activation="belu", beta=2.0)[2]
    BELU(alpha=1, beta=2)
    """
    own = isinstance(name, str) and ":" in name
    if not own and (not isinstance(name, str) or name not in _NETWORKS):
        raise ConfigError(
            f"the model {shown(name)} is not one of {', '.join(_NETWORKS)}; give one of them, or module:function."
        )
    if not isinstance(shape, (tuple, list)) or not shape:
        raise ConfigError(
            f"an example's shape is {shown(shape)}; it must be a tuple of whole numbers >= 1, as (1, 28, 28) or (64,)."
        )
    sizes = tuple(check_int("a size of an example's shape", size, least=1) for size in shape)
    values = math.prod(sizes)
    within("example_values", values, f"an example of shape {shown(sizes)} has {shown(values)} values")
    check_int("the number of outputs", outputs, least=1)
    if own:
        return _imported(name, sizes, outputs, settings)
    network = _NETWORKS[name]
    make = partial(network.make, sizes, outputs, **_settings(name, network, settings))
    if name in NETWORKS:  # of a size that is known, with weights from a file
        return make()
    with torch.random.fork_rng(devices=()), torch.device("meta"):  # counted before there is memory for it
        count = sum(p.numel() for p in make().parameters())
    within("parameters", count, f"the model {name} has {count:,} parameters")
    return make()


def names() -> dict[str, str]:
    """The networks that `build` knows, each with a line that describes it."""
    return {name: network.words for name, network in _NETWORKS.items()}


class StandardisedConv2d(nn.Module):
    """A convolution whose filters are centred and scaled to length 1, times a gain that is learned for each of them.

    What it computes does not change when a filter is shifted or scaled (Qiao et al. 2019; in this form Brock et al.
    2021 and De et al. 2022). Only weights are standardised, never data, so examples stay apart. A filter that is
    shorter than 0.01 after centring is divided by 0.01.
    """

    def __init__(self, inputs: int, outputs: int, window: int, stride: int = 1, padding: int = 0) -> None:
        super().__init__()
        self.stride, self.padding = stride, padding
        self.weight = nn.Parameter(torch.empty(outputs, inputs, window, window))
        self.gain = nn.Parameter(torch.ones(outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        nn.init.kaiming_normal_(self.weight, nonlinearity="linear")  # an expected squared length of 1

    def standardised(self) -> Tensor:
        """The filters that are applied."""
        centred = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        squares = centred.square().sum((1, 2, 3), keepdim=True)
        return centred * (self.gain.view(-1, 1, 1, 1) * squares.clamp(min=1e-4).rsqrt())

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.standardised(), self.bias, self.stride, self.padding)

    def extra_repr(self) -> str:
        outputs, inputs, window, _ = self.weight.shape
        return f"{inputs}, {outputs}, window={window}, stride={self.stride}, padding={self.padding}"


# --- the networks ----------------------------------------------------------------------------------------------------


def _linear(shape: Shape, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), outputs))


def _mlp(shape: Shape, outputs: int, *, hidden: Any, activation: Activation) -> nn.Module:
    hidden_sizes = (hidden,) if isinstance(hidden, int) else hidden
    if not isinstance(hidden_sizes, (tuple, list)) or not hidden_sizes:
        raise ConfigError(
            f"mlp's hidden is {shown(hidden)}; it must be the sizes of hidden layers, as (32,) or (64, 32); "
            "or take the model linear."
        )
    within("layers", len(hidden_sizes), f"mlp's hidden has {len(hidden_sizes):,} layers")
    sizes = [check_int("a size of mlp's hidden", size, least=1, most=_MOST_UNITS) for size in hidden_sizes]
    return _dense([math.prod(shape), *sizes, outputs], activation)


def _cnn(shape: Shape, outputs: int, *, activation: Activation) -> nn.Module:
    channels, height, width = _image("cnn", shape, least=_LEAST_SIDE)
    if min(height, width) < _TUTORIAL_SIDE:
        return nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1), activation(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), activation(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * (height // 4) * (width // 4), outputs),
        )  # fmt: skip
    places = math.prod((side // 2 - 5) // 2 for side in (height, width))  # halved, less 1, less 2 and halved, less 1
    return nn.Sequential(
        nn.Conv2d(channels, 16, 8, 2, 3), activation(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), activation(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(32 * places, 32), activation(), nn.Linear(32, outputs),
    )  # fmt: skip


def _abadi(shape: Shape, outputs: int, *, hidden: int) -> nn.Module:
    """The network of Abadi et al. 2016 behind their private projection, which gives it 60 values an example."""
    size = check_int("abadi's hidden", hidden, least=1, most=_MOST_UNITS)
    return _dense([math.prod(shape), size, outputs], nn.ReLU)


def _belu(shape: Shape, outputs: int, *, alpha: float, beta: float) -> nn.Module:
    """The network of Jung et al. with He's uniform start, as a plain Sequential, which a BoundedNetwork can take.

    On images padded to 32 x 32 it is the paper's 1024-32-10. The padding is no layer: on images without it the network
    computes the same, and lacks only the weights of pixels that are always zero.
    """
    model = _dense([math.prod(shape), 32, outputs], partial(BELU, alpha, beta))
    for module in model:
        if isinstance(module, nn.Linear):
            nn.init.kaiming_uniform_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)
    return model


def _alexnet(shape: Shape, outputs: int, *, activation: Activation) -> nn.Module:
    """The small AlexNet of Zhang et al. 2017: 1,387,786 parameters on images of 3 x 28 x 28, in ten tensors.

    They give windows and widths of the linear layers; 64 channels and pooling with stride 2 are what makes their number
    of parameters, and the normalisation over channels is that of the TensorFlow tutorial with the same widths.
    """
    channels, height, width = _image("alexnet", shape, least=1)
    places = math.prod(-(-side // 4) for side in (height, width))  # halved twice, rounded up

    def module(inputs: int) -> list[nn.Module]:
        pool, norm = nn.MaxPool2d(3, 2, padding=1), nn.LocalResponseNorm(9, alpha=0.001)
        return [nn.Conv2d(inputs, 64, 5, padding=2), activation(), pool, norm]

    return nn.Sequential(
        *module(channels), *module(64),
        nn.Flatten(), nn.Linear(64 * places, 384), activation(), nn.Linear(384, 192), activation(),
        nn.Linear(192, outputs),
    )  # fmt: skip


def _wide(shape: Shape, outputs: int, *, activation: Activation) -> nn.Module:
    """The wide residual network 16-4 as De et al. 2022 train it: group norms after the activations, and standardised
    convolutions.
    """
    channels, _, _ = _image("wrn-16-4", shape, least=_LEAST_SIDE)
    layers: list[nn.Module] = [StandardisedConv2d(channels, 16, 3, padding=1)]
    before = 16
    for width, stride in ((64, 1), (128, 2), (256, 2)):
        layers += [_Residual(before, width, stride, activation), _Residual(width, width, 1, activation)]
        before = width
    head = nn.Linear(before, outputs)
    nn.init.kaiming_normal_(head.weight, nonlinearity="linear")
    nn.init.zeros_(head.bias)
    pooled = [activation(), nn.GroupNorm(16, before), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *pooled, head)


class _Residual(nn.Module):
    """Two convolutions beside a skip, which is the identity or, where the width changes, one convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int, activation: Activation) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            activation(), nn.GroupNorm(16, inputs), StandardisedConv2d(inputs, outputs, 3, stride, padding=1),
            activation(), nn.GroupNorm(16, outputs), StandardisedConv2d(outputs, outputs, 3, padding=1),
        )  # fmt: skip
        self.skip: nn.Module = nn.Identity()
        if inputs != outputs:
            self.skip = nn.Sequential(
                activation(), nn.GroupNorm(16, inputs), StandardisedConv2d(inputs, outputs, 1, stride)
            )

    def forward(self, x: Tensor) -> Tensor:
        return self.convolutions(x) + self.skip(x)


def _dense(sizes: Sequence[int], activation: Activation) -> nn.Sequential:
    """Linear layers of these sizes, with an activation between each two."""
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(sizes[0], sizes[1])]
    for i in range(1, len(sizes) - 1):
        layers += [activation(), nn.Linear(sizes[i], sizes[i + 1])]
    return nn.Sequential(*layers)


def _image(name: str, shape: Shape, *, least: int) -> tuple[int, int, int]:
    """The channels, height and width of an image whose sides have at least so many pixels."""
    if len(shape) != 3:
        raise ConfigError(
            f"{name} takes images of shape (channels, height, width), and an example's shape is {shape}; reshape the "
            "data, or use mlp, which takes any."
        )
    channels, height, width = shape
    if min(height, width) < least:
        raise ConfigError(
            f"{name} takes images of at least {least} x {least} pixels, and these have {height} x {width}; use mlp, "
            "which takes any."
        )
    return channels, height, width


# --- their names and settings ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Network:
    """How a network is made, what it is in a line, and its settings with their defaults."""

    make: Callable[..., nn.Module]
    words: str
    settings: Mapping[str, Any] = field(default_factory=dict)


_NETWORKS = {
    "linear": _Network(_linear, "one linear layer: logistic regression"),
    "mlp": _Network(_mlp, "linear layers with activations between them", {"hidden": (32,), "activation": "tanh"}),
    "cnn": _Network(
        _cnn,
        "the DP-SGD tutorials' two convolutions (26,010 parameters on MNIST), smaller ones below 14 pixels",
        {"activation": "tanh"},
    ),
    "abadi": _Network(_abadi, "1,000 ReLU units, to follow a private projection (Abadi et al. 2016)", {"hidden": 1000}),
    "belu": _Network(
        _belu, "32 bounded units (Jung et al.), which a BoundedNetwork can take", {"alpha": 1.0, "beta": 5.0}
    ),
    "alexnet": _Network(
        _alexnet, "the small AlexNet for CIFAR-10 (Zhang et al. 2017), of paper 003", {"activation": "relu"}
    ),
    "wrn-16-4": _Network(
        _wide,
        "wide ResNet 16-4 with group norms and standardised weights (De et al. 2022)",
        {"activation": "relu"},
    ),
    "efficientnet-lite0": _Network(
        partial(fine_tuned, "efficientnet-lite0"),
        "a public network trained on ImageNet, to fine-tune: head, last, lora or all (discreet[backbones])",
        {"train": "head", "blocks": 1, "rank": 8, "side": 128},
    ),
    "minilm-l6": _Network(
        partial(fine_tuned, "minilm-l6", side=None),
        "a public network for sentences, to fine-tune: head, last, lora or all (discreet[backbones])",
        {"train": "head", "blocks": 1, "rank": 8},
    ),
}

_ACTIVATIONS: dict[str, tuple[Callable[..., nn.Module], tuple[str, ...]]] = {
    "relu": (nn.ReLU, ()),
    "tanh": (nn.Tanh, ()),
    "belu": (BELU, ("alpha", "beta")),
    "tempered": (TemperedSigmoid, ("scale", "temperature", "offset")),
    "bounded-tanh": (BoundedTanh, ("bound", "width")),
    "sigmoid": (nn.Sigmoid, ()),
    "gelu": (nn.GELU, ()),
}


def _settings(name: str, network: _Network, given: Mapping[str, Any]) -> dict[str, Any]:
    """The network's settings: defaults where nothing is given, and the activation as what makes one."""
    chosen = {key: given.get(key, default) for key, default in network.settings.items()}
    names, words = tuple(chosen), ""
    if "activation" in chosen:
        called = chosen["activation"]
        if not isinstance(called, str) or called not in _ACTIVATIONS:
            raise ConfigError(f"the activation is {shown(called)}; it must be one of {', '.join(_ACTIVATIONS)}.")
        kind, own = _ACTIVATIONS[called]
        chosen["activation"] = partial(kind, **{key: given[key] for key in own if key in given})
        names = *names, *own
        words = f", where the activation {called!r} has {', '.join(own) or 'none of its own'}"
    wrong = sorted(set(given) - set(names))
    if wrong:
        raise ConfigError(
            f"{name} has no setting {' or '.join(map(shown, wrong[:3]))}; it has {listed(network.settings) or 'none'}"
            f"{words}."
        )
    return chosen


def _imported(name: str, shape: Shape, outputs: int, settings: Mapping[str, Any]) -> nn.Module:
    """What a function of the user's makes, if that is a module."""
    where, _, called = name.partition(":")
    if not all(part.isidentifier() for part in (*where.split("."), called)):
        raise ConfigError(f"the model {name!r} names no function; it must be module:function, as my.networks:small.")
    try:
        function = getattr(import_module(where), called, None)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"the module {where!r} cannot be imported ({_in_a_line(error)}); its folder must be on PYTHONPATH, and "
            "what it imports installed."
        ) from error
    if not callable(function):
        raise ConfigError(f"the module {where} has no function {called!r}; name one that makes a torch.nn.Module.")
    try:
        network = function(shape, outputs, **settings)
    except (ConfigError, PrivacyError):
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{name} failed when it was called with the shape {shape}, {outputs} outputs and the settings "
            f"{dict(settings)}: {_in_a_line(error)}"
        ) from error
    if not isinstance(network, nn.Module):
        raise ConfigError(f"{name} returned {network!r}, a {type(network).__name__}; it must return a torch.nn.Module.")
    return network


def _in_a_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
