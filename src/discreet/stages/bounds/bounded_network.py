"""A network whose every example's gradient is bounded by its shape (Jung et al.): no gradient is taken apart or cut.

Inputs are cut before the first layer, weights are projected before every pass, and the gradient of the loss is cut
where it enters the last layer. Given that, certificate.py proves the rest, and one ordinary backward pass
yields the bounded sum.
"""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

from discreet._check import check_int, check_positive
from discreet.accounting.events import Claimed, Event
from discreet.errors import ConfigError
from discreet.stages.bounds.certificate import (
    Activation,
    Convolution,
    Flatten,
    Head,
    Layer,
    Linear,
    Pool,
    Stage,
    belu_activation,
    belu_stages,
    head_norm,
    members_of,
    network_certificate,
)
from discreet.stages.sensitivity import Certificate, Contract, Layout, norm_of

if TYPE_CHECKING:
    from torch import nn

    from discreet.stages.bounds.gate import Gate

Projection = Literal["spectral", "frobenius"]

_KINDS: dict[str, Any] = {
    "linear": Linear,
    "convolution": Convolution,
    "activation": Activation,
    "pool": Pool,
    "flatten": Flatten,
}


@dataclass(frozen=True)
class BoundedNetwork:
    """A Sequential of Linear and convolutional layers with bounded activations between them, as it is.

    - `input_norm`: each example's inputs, all its values in one row, are scaled to at most this l2 norm;
    - `weight_norm`: the largest norm of the weights of layers 2, 3, ..., one number for all or one for each;
    - `loss`: sets the largest gradient at the last layer's linear outputs (certificate.head_norm).
      Any loss may be used: where its gradient is longer, it is cut;
    - `projection`: weights keep their singular values up to the norm ("spectral"), or are scaled to have it as the root
      of their sum of squares ("frobenius"), which is cheaper and stricter;
    - `input_shape`: one example's shape, needed where there are convolutions or pooling;
    - `stages`: what `fit_to(model)` found.

    Guarantee: one unit changes the sum of each layer's gradient, weight and bias, by at most its block's norm in l2.

    | a unit's                      | contribution                              |
    | ----------------------------- | ----------------------------------------- |
    | inputs longer than the norm   | the gradient for the shortened inputs     |
    | inputs with nan or inf        | the gradient for inputs of zeros          |
    | outputs or loss not finite    | 0                                         |
    """

    input_norm: float
    weight_norm: float | tuple[float, ...] = 1.0
    loss: Head = "cross-entropy"
    projection: Projection = "spectral"
    input_shape: tuple[int, ...] = ()
    stages: tuple[tuple[Any, ...], ...] = ()
    needs: ClassVar[str] = "outputs"

    def __post_init__(self) -> None:
        check_positive("BoundedNetwork's input_norm", self.input_norm)
        if isinstance(self.weight_norm, (list, tuple)):
            object.__setattr__(self, "weight_norm", tuple(self.weight_norm))
        for norm in self.weight_norm if isinstance(self.weight_norm, tuple) else (self.weight_norm,):
            check_positive("BoundedNetwork's weight_norm", norm)
        for name, value, words in (("loss", self.loss, Head), ("projection", self.projection, Projection)):
            if value not in get_args(words):
                raise ConfigError(
                    f"BoundedNetwork's {name} is {value!r}; it must be one of {', '.join(get_args(words))}."
                )
        if not isinstance(self.input_shape, (list, tuple)) or not isinstance(self.stages, (list, tuple)):
            raise ConfigError("BoundedNetwork's input_shape and stages are lists; leave stages to fit_to(model).")
        object.__setattr__(self, "input_shape", tuple(self.input_shape))
        for size in self.input_shape:
            check_int("a size of BoundedNetwork's input_shape", size, least=1)
        object.__setattr__(self, "stages", tuple(_plain(_stage(values)) for values in self.stages))
        if self.stages:
            self._certificate()

    @classmethod
    def of_widths(cls, widths: Sequence[int], alpha: float, beta: float, **settings: Any) -> Self:
        """The bound of a plain network without the network: Sequential(Linear, BELU(alpha, beta), Linear, ...).

        Args:
            widths: inputs, hidden layers, outputs.
            alpha: BELU's bound below.
            beta: BELU's bound above.
            settings: the fields of BoundedNetwork.

        >>> bound = BoundedNetwork.of_widths((1024, 32, 10), 1.0, 2.0, input_norm=28.0, weight_norm=1.96)
        >>> round(norm_of(bound.contract(bound.layout, None)), 1)
        81.3
        """
        if not isinstance(widths, Sequence) or len(widths) < 2:
            raise ConfigError(f"the widths are {widths!r}; a network has at least two, inputs and outputs.")
        stages = belu_stages(widths, alpha, beta, [str(2 * i) for i in range(len(widths) - 1)])
        if settings.get("loss", cls.loss) != "cross-entropy":
            stages = *stages, belu_activation(alpha, beta)
        return cls(stages=tuple(_plain(stage) for stage in stages), **settings)

    def fit_to(self, model: "nn.Module") -> "BoundedNetwork":
        """The same for this model, if it is a network that can be bounded; a ConfigError names the module if not."""
        return replace(self, stages=read_network(model))

    @property
    def layout(self) -> Layout | None:
        """The parameters of the network it was fitted to."""
        if not self.stages:
            return None
        parameters: dict[str, tuple[int, ...]] = {}
        for layer in self._layers:
            parameters.update(zip(members_of(layer), (layer.weight_shape, (layer.outputs,)), strict=False))
        return Layout(tuple(parameters), tuple(parameters.values()))

    def start(self, layout: Layout) -> None:
        """Nothing changes from step to step."""

    def contract(self, layout: Layout, state: None) -> Certificate:
        if not self.stages:
            raise ConfigError("BoundedNetwork does not know its network; use bound.fit_to(model).")
        if layout != self.layout:
            raise ConfigError(
                f"BoundedNetwork was fitted to a network with other parameters ({', '.join(self._known.names)}) than "
                f"this one ({', '.join(layout.names)}); use bound.fit_to(model)."
            )
        return self._certificate()

    def claims(self, event: Event, contract: Contract, scales: tuple[float, ...]) -> tuple[Claimed, ...]:
        """What paper 002 says of such a network: that alpha + beta bounds every layer's gradient."""
        activations = {stage for stage in map(_stage, self.stages) if isinstance(stage, Activation)}
        if len(activations) != 1 or next(iter(activations)).kind != "BELU" or event.law is not None:
            return ()
        height = activations.pop().high
        bounds = ", ".join(f"{block.norm:.4g}" for block in contract.blocks)
        return (
            Claimed(
                "paper 002: alpha + beta bounds every layer's gradient",
                (replace(event, multiplier=scales[0] / height),),
                "false",
                f"alpha + beta = {height:g} bounds the outputs of an activation, not gradients: what is proven is "
                f"{bounds} layer by layer, and {norm_of(contract):.4g} together",
            ),
        )

    def install(self, model: "nn.Module") -> "Gate":
        """Put the hooks on the model that keep the certificate's premises true."""
        if not self.stages or read_network(model) != self.stages:
            raise ConfigError("BoundedNetwork was not fitted to this network; use bound.fit_to(model).")
        from discreet.stages.bounds.gate import Gate

        return Gate(model, self)

    @property
    def head_norm(self) -> float:
        """The largest gradient at the last layer's linear outputs."""
        last = _stage(self.stages[-1])
        return head_norm(self.loss, self._layers[-1].outputs, last if isinstance(last, Activation) else None)

    @property
    def weight_norms(self) -> tuple[float, ...]:
        """The largest norms of the weights of layers 2, 3, ..."""
        return (
            self.weight_norm if isinstance(self.weight_norm, tuple) else (self.weight_norm,) * (len(self._layers) - 1)
        )

    @property
    def _layers(self) -> list[Layer]:
        return [stage for stage in map(_stage, self.stages) if isinstance(stage, (Linear, Convolution))]

    @property
    def _known(self) -> Layout:
        layout = self.layout
        assert layout is not None
        return layout

    def _certificate(self) -> Certificate:
        stages = [_stage(values) for values in self.stages]
        if not self._layers:
            raise ConfigError("BoundedNetwork's stages hold no Linear or convolutional layer; use bound.fit_to(model).")
        return network_certificate(
            stages,
            input_norm=self.input_norm,
            weight_norms=self.weight_norms,
            head_norm=self.head_norm,
            input_shape=self.input_shape,
        )


# --- stages as plain values, and of modules --------------------------------------------------------------------------


def _plain(stage: Stage) -> tuple[Any, ...]:
    """A stage as strings, numbers and tuples."""
    kind = next(kind for kind, made in _KINDS.items() if type(stage) is made)
    return kind, *astuple(stage)


def _stage(values: Any) -> Stage:
    """The stage that these plain values describe."""
    if not isinstance(values, (list, tuple)) or not values or values[0] not in tuple(_KINDS):
        raise ConfigError(f"{values!r} is no stage of a network; leave BoundedNetwork's stages to fit_to(model).")
    settings = (tuple(v) if isinstance(v, list) else v for v in values[1:])
    try:
        return _KINDS[values[0]](*settings)
    except TypeError as error:
        raise ConfigError(f"{values!r} is no stage of a network: {error}.") from error


def walk_modules(model: "nn.Module", prefix: str = "") -> Iterator[tuple[str, "nn.Module"]]:
    """The modules of a Sequential in the order they are called, those of inner ones in their place."""
    for name, module in model._modules.items():
        assert module is not None
        if class_of(module) == "Sequential":
            _check_unaltered(prefix + name, module)
            yield from walk_modules(module, f"{prefix}{name}.")
        else:
            yield prefix + name, module


def read_network(model: "nn.Module") -> tuple[tuple[Any, ...], ...]:
    """The stages of a model as plain values, or a ConfigError that names the module that is none."""
    if class_of(model) != "Sequential" or "forward" in vars(model):
        raise ConfigError(
            f"the model is a {type(model).__name__} with a forward pass of its own; a bounded network is a "
            "torch.nn.Sequential, exactly. Use Clip for other models."
        )
    stages = []
    for name, module in walk_modules(model):
        _check_unaltered(name, module)
        stages.append(_stage_of(name, module))
    if stages and isinstance(stages[0], Activation):
        raise ConfigError("the model begins with an activation; apply it to the data, and begin with a layer.")
    expected = [n for s in stages if isinstance(s, (Linear, Convolution)) for n in members_of(s)]
    if not expected:
        raise ConfigError("the model has no Linear or convolutional layer, so there is nothing to bound.")
    parameters = dict(model.named_parameters())
    for name in (*expected, *parameters):
        if name not in parameters:
            raise ConfigError(f"parameter {name!r} is shared with another layer; a bounded network uses each one once.")
        if name not in expected:
            raise ConfigError(f"parameter {name!r} belongs to no Linear or convolutional layer of the network.")
        parameter = parameters[name]
        if not parameter.requires_grad or not parameter.is_floating_point():
            raise ConfigError(f"parameter {name!r} is frozen or not real; all of a bounded network is trained.")
        if parameter.element_size() < 4:
            raise ConfigError(
                f"parameter {name!r} is {parameter.dtype}, in which the whole batch would be summed and rounded; use "
                "float32 or float64 for a bounded network."
            )
        if bool(parameter._backward_hooks):
            raise ConfigError(f"parameter {name!r} has a gradient hook, which nothing bounds; remove it.")
    return tuple(_plain(stage) for stage in stages)


def _stage_of(name: str, module: Any) -> Stage:
    from discreet.nn.activations import bounds_of

    kind = class_of(module)
    where = f"module {name!r} ({type(module).__name__})"
    if kind == "Linear":
        return Linear(name, module.in_features, module.out_features, module.bias is not None)
    if kind in ("Conv1d", "Conv2d"):
        if module.padding_mode != "zeros" or module.groups != 1 or set(module.dilation) != {1}:
            raise ConfigError(f"{where} has groups, dilation or a padding other than zeros; nothing is proven for it.")
        kernel = tuple(module.kernel_size)
        if isinstance(module.padding, str):
            padding = tuple(k - 1 if module.padding == "same" else 0 for k in kernel)
        else:
            padding = tuple(2 * p for p in module.padding)
        bias = module.bias is not None
        return Convolution(name, module.in_channels, module.out_channels, kernel, tuple(module.stride), padding, bias)
    if kind in ("AvgPool1d", "AvgPool2d", "MaxPool1d", "MaxPool2d"):
        return _pool_of(where, kind, module)
    if kind == "Flatten":
        if (module.start_dim, module.end_dim) != (1, -1):
            raise ConfigError(f"{where} does not make one row of each example; use nn.Flatten().")
        return Flatten()
    bounded = bounds_of(module)
    if bounded is None:
        raise ConfigError(
            f"{where} cannot be part of a bounded network: that is Linear, Conv1d and Conv2d layers, bounded "
            "activations (those of discreet.nn, nn.Tanh, nn.Sigmoid), pooling and Flatten, each of exactly that class."
        )
    return Activation(type(module).__name__, bounded.low, bounded.high, bounded.slope)


def _pool_of(where: str, kind: str, module: Any) -> Pool:
    dimensions = int(kind[-2])
    window, stride, padding, dilation = (
        value if isinstance(value, tuple) else (value,) * dimensions
        for value in (module.kernel_size, module.stride, module.padding, getattr(module, "dilation", 1))
    )
    other = getattr(module, "divisor_override", None) is not None or getattr(module, "return_indices", False)
    if set(padding) != {0} or set(dilation) != {1} or module.ceil_mode or other:
        raise ConfigError(
            f"{where} has padding, dilation, ceil_mode, a divisor of its own or returns indices; nothing is proven "
            "for it."
        )
    try:
        return Pool("average" if kind.startswith("Avg") else "max", window, stride)
    except ConfigError as error:
        raise ConfigError(f"{where} cannot be bounded: {error}") from error


def class_of(module: Any) -> str:
    """The name of torch's own class of which this is an instance, exactly; of any other class the empty string.

    Classes are told by their full names, so that planning needs no torch; a subclass that took its base's name is none.
    """
    full = [f"{c.__module__}.{c.__qualname__}" for c in type(module).__mro__]
    own = full[0].startswith("torch.nn.modules.") and full.count(full[0]) == 1
    return type(module).__qualname__ if own else ""


def _check_unaltered(name: str, module: Any) -> None:
    """Refuse a module of which a hook or a forward of its own may make something else."""
    from discreet.stages.bounds.gate import GateHook

    if "forward" in vars(module) or module._compiled_call_impl is not None:
        raise ConfigError(f"module {name!r} ({type(module).__name__}) has a forward pass of its own or is compiled.")
    hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    hooks = [h for h in hooks if not isinstance(h, GateHook)]
    if hooks or module._backward_hooks or module._backward_pre_hooks:
        raise ConfigError(
            f"module {name!r} ({type(module).__name__}) has a hook, which may change what it computes; remove it."
        )
