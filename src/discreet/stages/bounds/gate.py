"""What keeps a bounded network's premises true: hooks that cut inputs, project weights and stop the loss's gradient."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.nn.modules import module as module_hooks

from discreet.errors import ConfigError, PrivacyError
from discreet.stages.bounds.bounded_network import BoundedNetwork, Projection, class_of, read_network, walk_modules

if TYPE_CHECKING:
    from torch import Tensor, nn

_GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)


class Gate:
    """What `BoundedNetwork.install` puts on a model: hooks that cut, project and keep the last layer's outputs.

    With gradients on, whoever calls the model gets outputs that no longer lead into it: the gradient of the loss ends
    there, and only `sums` takes it further, bounded.
    """

    def __init__(self, model: "nn.Module", bound: BoundedNetwork) -> None:
        from discreet.gradients.graph import now

        self._model, self._bound = model, bound
        modules = [module for _, module in walk_modules(model)]
        layers = [module for module in modules if class_of(module) in ("Linear", "Conv1d", "Conv2d")]
        self._chain = modules[: modules.index(layers[-1]) + 1]  # up to the last layer's linear outputs
        self._head_norm = bound.head_norm
        self._begin = _Begin(bound, self)
        self._handles = [
            model.register_forward_pre_hook(self._begin, prepend=True, with_kwargs=True),
            self._chain[0].register_forward_pre_hook(_Cut(bound, self)),
            self._chain[-1].register_forward_hook(_Part(bound, self)),
            model.register_forward_hook(_End(bound, self), always_call=True),
        ]
        self.running = False  # the model is in its forward pass
        self.inputs: Tensor | None = None
        self._pass: _Pass | None = None
        self._passes, self._since = 0, now()

    def keep(self, output: "Tensor", leaf: "Tensor") -> None:
        """Remember what the last layer made, and what was handed on in its place."""
        assert self.inputs is not None
        self._pass = _Pass(self.inputs, output, leaf)
        self._passes += 1

    def clear(self) -> None:
        """Forget the outputs of earlier forward passes."""
        from discreet.gradients.graph import now

        self._pass, self.inputs, self.running = None, None, False
        self._passes, self._since = 0, now()

    def remove(self) -> None:
        """Take the hooks off: the model is as it was."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.clear()

    def sums(self, losses: "Tensor", units: int) -> "dict[str, Tensor]":
        """The sum over units of their gradients, each bounded as the certificate says.

        The losses, one a unit, must come from the one forward pass with gradients since `clear`. What is not finite
        contributes exactly zero.
        """
        try:
            return self._sums(losses, units)
        finally:
            self.clear()

    def _sums(self, losses: "Tensor", units: int) -> "dict[str, Tensor]":
        parameters = dict(self._model.named_parameters())
        if not losses.requires_grad:
            raise PrivacyError(
                "the losses carry no gradient, so there is nothing to learn from; call the model with gradients on."
            )
        last_pass = self._check_pass(losses, units)
        self.check_network()
        if not self._begin.unchanged(self._model):
            raise PrivacyError(
                "the weights changed between the forward pass and the backward pass; step the optimizer after it."
            )
        rows = self._rows(losses, last_pass.leaf, parameters)
        finite = losses.detach().isfinite() & last_pass.output.detach().isfinite().all(1)
        rows = _cut(rows.where(finite[:, None], 0.0), self._head_norm)
        gradients = self._backward(last_pass.output, rows, parameters)
        if _finite(gradients):
            return gradients
        return self._again(last_pass.inputs, rows, finite.nonzero().squeeze(1), parameters)

    def _check_pass(self, losses: "Tensor", units: int) -> "_Pass":
        last_pass = self._pass
        if last_pass is None or self._passes != 1:
            raise PrivacyError(
                f"the model was called {self._passes} times with gradients on for this batch; a bounded network is "
                "called exactly once, on the whole batch. Use torch.no_grad() for other calls."
            )
        if losses.shape != (units,) or len(last_pass.leaf) != units:
            raise PrivacyError(
                "there are losses or outputs for more or fewer rows than the batch has; give the model the batch as it "
                "was drawn, and one loss for each of its rows."
            )
        if not last_pass.leaf[:0].clone().requires_grad:
            raise PrivacyError("gradients are off (torch.no_grad); turn them on to take a private step.")
        return last_pass

    def check_network(self) -> None:
        """The network is still the one the certificate is about, and nobody listens in on its passes."""
        listeners = [name for name in _GLOBAL_HOOKS if getattr(module_hooks, name)]
        if listeners:
            raise PrivacyError(
                f"torch's {listeners[0]} has hooks for all modules, which may change what they compute; remove them to "
                "use a bounded network."
            )
        try:
            same = read_network(self._model) == self._bound.stages
        except ConfigError as error:
            raise PrivacyError(f"the network was changed after attach, so its certificate is void: {error}") from error
        if not same or [m for _, m in walk_modules(self._model)][: len(self._chain)] != self._chain:
            raise PrivacyError("the network was changed after attach, so its certificate is void; attach it again.")
        try:
            with disable_saved_tensors_hooks(""):
                pass
        except RuntimeError as error:
            raise PrivacyError(
                "saved tensors are hooked (checkpointing, offloading), so what the backward pass reads is not what the "
                "forward pass wrote; run a bounded network without."
            ) from error

    def _rows(self, losses: "Tensor", leaf: "Tensor", parameters: "Mapping[str, Tensor]") -> "Tensor":
        """The gradient of the losses at the last layer's outputs, if each row of it is one unit's own."""
        from discreet.gradients.graph import gradients_at, walk
        from discreet.gradients.layout import Matching, Rows, random_labels, subsets

        graph = walk(losses, {id(p): name for name, p in parameters.items()} | {id(leaf): ""}, self._since)
        reached = sorted({name for name in graph.leaves.values() if name})
        if reached:
            raise PrivacyError(
                f"the losses use parameter {reached[0]!r} past the model's outputs (a penalty, or a second use of a "
                "weight), which the certificate does not bound; compute losses from the outputs alone."
            )
        if not graph.leaves:
            raise PrivacyError("the losses do not depend on the outputs of the model for this batch.")
        edge = next(iter(graph.leaves)), 0

        def gradient(weights: "Tensor") -> "Tensor":
            gradients = gradients_at(graph, losses, [edge], weights, retain=True)
            return gradients[edge] if edge in gradients else leaf.detach() * 0

        plain = gradient(losses.detach().new_ones(len(losses)))
        labels = random_labels(len(losses), losses.dtype)
        for rounds in (labels, subsets(len(losses), losses.dtype)):
            matching = Matching(plain, len(losses))
            for label in rounds:
                matching.compare(gradient(label.to(losses.device)), label)
            match = matching.found(Rows(0))
            if match is not None and match.rows.dim == 0:
                return plain
        raise PrivacyError(
            "the loss mixes examples: one row's outputs have influence on another row's loss. Use a loss that is "
            "computed row by row (reduction='none', no statistics of the batch)."
        )

    def _backward(self, output: "Tensor", rows: "Tensor", parameters: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
        """The gradient of sum(rows * output) for each parameter."""
        from discreet.gradients.graph import gradients_at, walk

        graph = walk(output, {id(p): name for name, p in parameters.items()}, self._since)
        if sorted(graph.leaves.values()) != sorted(parameters) or graph.unmanaged_leaves:
            raise PrivacyError("the network was changed after attach, so its certificate is void; attach it again.")
        names = {(i, 0): name for i, name in graph.leaves.items()}
        by_edge = gradients_at(graph, output, list(names), rows, retain=False)
        by_name = {names[edge]: gradient for edge, gradient in by_edge.items()}
        return {
            name: by_name[name] if name in by_name else p.detach().new_zeros(p.shape) for name, p in parameters.items()
        }

    def _again(
        self, inputs: "Tensor", rows: "Tensor", chosen: "Tensor", parameters: "Mapping[str, Tensor]"
    ) -> "dict[str, Tensor]":
        """The sums over the chosen rows alone, by another pass; rows that yield nothing finite are left out.

        A product with zero would not do: zero times a value that is not finite is not zero.
        """
        if not len(chosen):
            return _zeros(parameters)
        output = inputs[chosen]
        for module in self._chain:
            output = module.forward(output)
        again = self._backward(output, rows[chosen], parameters)
        if _finite(again):
            return again
        if len(chosen) == 1:
            return _zeros(parameters)
        halves = [self._again(inputs, rows, half, parameters) for half in chosen.tensor_split(2)]
        return {name: halves[0][name] + halves[1][name] for name in parameters}


@dataclass(frozen=True)
class _Pass:
    """A forward pass: its cut inputs, the last layer's outputs, and the leaf that was handed on in their place."""

    inputs: "Tensor"
    output: "Tensor"
    leaf: "Tensor"


class GateHook:
    """A hook of a gate. In a copy of the model it has no gate: it cuts and projects, and keeps nothing."""

    def __init__(self, bound: BoundedNetwork, gate: Gate | None = None) -> None:
        self.bound, self.gate = bound, gate

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.bound,)


class _Begin(GateHook):
    """Before the model's forward pass: weights are projected."""

    def __init__(self, bound: BoundedNetwork, gate: Gate | None = None) -> None:
        super().__init__(bound, gate)
        names = [f"{layer.name}.weight" for layer in bound._layers[1:]]
        self._limits = dict(zip(names, bound.weight_norms, strict=True))
        self._known: dict[str, Tensor] = {}  # weights as they were found or made short enough

    def __call__(self, model: "nn.Module", args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if len(args) != 1 or kwargs:
            raise PrivacyError("a bounded network is called with one argument, the batch of inputs, by position.")
        for name, limit in self._limits.items():
            weight = model.get_parameter(name)
            if not self._is_known(name, weight):
                _project(name, weight, limit, self.bound.projection)
                self._known[name] = weight.detach().clone()
        if self.gate is not None:
            if torch.is_grad_enabled():
                self.gate.check_network()
            self.gate.running = True

    def unchanged(self, model: "nn.Module") -> bool:
        """Whether the weights are those of the last pass; by their values, as versions can be bypassed."""
        return all(self._is_known(name, model.get_parameter(name)) for name in self._limits)

    def _is_known(self, name: str, weight: "Tensor") -> bool:
        known = self._known.get(name)
        same = known is not None and (known.dtype, known.device) == (weight.dtype, weight.device)
        return same and known is not None and known.equal(weight.detach())


class _Cut(GateHook):
    """Before the first module: each row of the inputs is cut to its norm."""

    def __init__(self, bound: BoundedNetwork, gate: Gate | None = None) -> None:
        super().__init__(bound, gate)
        self._expected = bound.input_shape or (bound._layers[0].inputs,)

    def __call__(self, module: "nn.Module", args: tuple[Any, ...]) -> "Tensor":
        inputs = args[0]
        shape = tuple(inputs.shape[1:])
        flat = class_of(module) == "Flatten" and not self.bound.input_shape
        if inputs.dim() < 2 or ((math.prod(shape),) if flat else shape) != self._expected:
            raise PrivacyError(
                f"the inputs have shape {shape} each; the certificate is for rows of shape {self._expected}, with the "
                "examples along the first dimension."
            )
        cut = _cut(inputs.detach().clone(), self.bound.input_norm)  # what the caller writes to theirs is not seen
        if self.gate is not None and self.gate.running:
            self.gate.inputs = cut
        return cut


class _Part(GateHook):
    """After the last layer: with gradients on, the outputs that are handed on no longer lead into the network."""

    def __call__(self, module: Any, args: tuple[Any, ...], output: "Tensor") -> "Tensor | None":
        if self.gate is None or not self.gate.running or not output.requires_grad:
            return None
        if output.dtype != module.weight.dtype:
            raise PrivacyError(
                f"the outputs are {output.dtype} and the weights {module.weight.dtype}: autocast rounds weights past "
                "the norms they were projected to. Run a bounded network without autocast."
            )
        leaf = output.detach().requires_grad_()
        leaf.register_post_accumulate_grad_hook(_refuse_plain)
        self.gate.keep(output, leaf)
        return leaf.clone()  # so that the loss may change it in place


class _End(GateHook):
    """After the model's forward pass, however it ended."""

    def __call__(self, model: "nn.Module", args: tuple[Any, ...], output: Any) -> None:
        if self.gate is not None:
            self.gate.running = False


def _refuse_plain(leaf: "Tensor") -> None:
    """Runs when a plain backward pass arrived at the last layer's outputs: takes its gradient away, and says so."""
    leaf.grad = None
    raise PrivacyError(
        "loss.backward() was called on an attached model, which would train without privacy; use "
        "private.backward(losses) with one loss per example, or private.detach() first."
    )


def _cut(rows: "Tensor", limit: float) -> "Tensor":
    """Each row, all its values together, scaled to l2 norm at most `limit`, rounding included.

    Rows that are short enough stay as they are, bit for bit; those with values that are not finite become zeros.
    """
    rows = rows.detach()
    wide = rows.flatten(1).double()
    norms = wide.norm(dim=1, keepdim=True)
    if bool((norms <= limit).all()):
        return rows
    wide = wide.where(norms.isfinite(), 0.0)
    short = norms <= limit
    factors = (limit / norms).where(~short & norms.isfinite(), 1.0)
    margin = 1e-6
    while True:
        cut = (wide * factors.where(short, factors * (1 - margin))).to(rows.dtype)
        if bool((cut.double().norm(dim=1) <= limit).all()):
            return cut.view(rows.shape)
        margin *= 4


def _project(name: str, weight: "Tensor", limit: float, projection: Projection) -> None:
    """Make a weight, as a matrix [outputs, the rest], at most `limit` long, in place; in float64, rounding included."""
    import numpy as np

    matrix = weight.detach().flatten(1).double().cpu().numpy()
    if not np.isfinite(matrix).all():
        raise PrivacyError(f"parameter {name!r} is not finite: training has diverged. Use a smaller learning rate.")
    length = float(np.linalg.norm(matrix))
    if length <= limit:
        return
    if projection == "frobenius":
        order = None

        def shortened(most: float) -> Any:
            return matrix * (most / length)

    else:
        order = 2
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        if values[0] <= limit:
            return

        def shortened(most: float) -> Any:
            return (left * np.minimum(values, most)) @ right

    margin = 1e-6
    while True:
        rounded = weight.detach().double().new_tensor(shortened(limit * (1 - margin))).to(weight.dtype)
        if np.linalg.norm(rounded.double().cpu().numpy(), order) <= limit:
            weight.detach().copy_(rounded.view(weight.shape))
            return
        margin *= 4


def _zeros(parameters: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    return {name: p.detach().new_zeros(p.shape) for name, p in parameters.items()}


def _finite(gradients: "Mapping[str, Tensor]") -> bool:
    return all(bool(g.sum().isfinite()) for g in gradients.values())  # one that is not makes its sum so
