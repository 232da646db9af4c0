"""A cure for exploding gradients: the tanh filter of Amian on what flows back through time.

It bounds no example's share of a parameter's gradient, so it gives no privacy by itself.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet._check import check_int, check_positive
from discreet.errors import ConfigError


class _Filter(torch.autograd.Function):
    """The identity, with another gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, c: float, k: float) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float, float], output: Tensor) -> None:
        _, ctx.c, ctx.k = inputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        gradient = gradients[0].nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf)
        return ctx.c * torch.tanh(gradient / ctx.k), None, None


def filter_gradient(x: Tensor, c: float = 1.0, k: float = 1.0) -> Tensor:
    """x itself; a gradient g that flows back through it becomes c * tanh(g / k), element by element.

    So no element of it exceeds `c`, and far below `k` it is g * c / k: with c = k small gradients pass unchanged.
    It gives no privacy by itself.

    | g         | what flows on     |
    | --------- | ----------------- |
    | finite    | c * tanh(g / k)   |
    | -inf, inf | -c, c             |
    | nan       | 0                 |

    Args:
        x: what is returned.
        c: what no element of the gradient exceeds.
        k: how large a gradient is when it begins to bend.

    >>> x = torch.zeros(3, requires_grad=True)
    >>> filter_gradient(x, c=2.0, k=2.0).backward(torch.tensor([0.5, 1e9, math.nan]))
    >>> x.grad
    tensor([0.4898, 2.0000, 0.0000])
    """
    return _Filter.apply(x, check_positive("the filter's c", c), check_positive("the filter's k", k))


class GradientFilter(nn.Module):
    """`filter_gradient` as a module, to be put between two others; it gives no privacy by itself."""

    def __init__(self, c: float = 1.0, k: float = 1.0) -> None:
        super().__init__()
        self.c = check_positive("GradientFilter's c", c)
        self.k = check_positive("GradientFilter's k", k)

    def forward(self, x: Tensor) -> Tensor:
        return filter_gradient(x, self.c, self.k)

    def extra_repr(self) -> str:
        return f"c={self.c:g}, k={self.k:g}"


class FilteredRNN(nn.Module):
    """torch.nn.RNN, but for the gradient: what flows back through the hidden state is filtered at every time step.

    Outputs, parameters and their names and first values are those of torch.nn.RNN, so that state dicts load both ways.
    At every step each element of the gradient that comes back from the next step is at most `c` (filter_gradient), so
    it cannot grow with the length of a sequence. The filter sees the gradient of the loss as it is: under a mean over
    B examples gradients are B times as small, and `c` and `k` are best chosen so too.

    It gives no privacy by itself. A filtered gradient does not scale with the loss, so a probe of an attached model
    takes a few more passes to see that examples are apart.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: Literal["tanh", "relu"] = "tanh",
        batch_first: bool = False,
        c: float = 1.0,
        k: float = 1.0,
    ) -> None:
        super().__init__()
        self.input_size = check_int("FilteredRNN's input_size", input_size, least=1)
        self.hidden_size = check_int("FilteredRNN's hidden_size", hidden_size, least=1)
        self.num_layers = check_int("FilteredRNN's num_layers", num_layers, least=1)
        if nonlinearity not in ("tanh", "relu"):
            raise ConfigError(f"FilteredRNN's nonlinearity is {nonlinearity!r}; it must be 'tanh' or 'relu'.")
        self.nonlinearity = nonlinearity
        self.batch_first = batch_first
        self.c = check_positive("FilteredRNN's c", c)
        self.k = check_positive("FilteredRNN's k", k)
        for layer in range(num_layers):
            size = hidden_size if layer else input_size
            self.register_parameter(f"weight_ih_l{layer}", nn.Parameter(torch.empty(hidden_size, size)))
            self.register_parameter(f"weight_hh_l{layer}", nn.Parameter(torch.empty(hidden_size, hidden_size)))
            self.register_parameter(f"bias_ih_l{layer}", nn.Parameter(torch.empty(hidden_size)))
            self.register_parameter(f"bias_hh_l{layer}", nn.Parameter(torch.empty(hidden_size)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters as torch.nn.RNN does, in the same order."""
        width = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -width, width)

    def forward(self, x: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Outputs of every step, and the last hidden state of every layer, in torch.nn.RNN's shapes."""
        if not isinstance(x, Tensor) or x.dim() not in (2, 3) or 0 in x.shape or x.shape[-1] != self.input_size:
            given = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            wanted = "(batch, length, input_size)" if self.batch_first else "(length, batch, input_size)"
            raise ConfigError(
                f"FilteredRNN got {given}; it takes a tensor of shape {wanted} or (length, input_size), with "
                f"input_size {self.input_size} and nothing empty; pad sequences of different lengths."
            )
        sequence = x[:, None] if x.dim() == 2 else x.transpose(0, 1) if self.batch_first else x
        shape = (self.num_layers, sequence.shape[1], self.hidden_size)
        first = x.new_zeros(shape) if hx is None else hx[:, None] if x.dim() == hx.dim() == 2 else hx
        if first.shape != shape:
            raise ConfigError(f"FilteredRNN's first hidden state has shape {tuple(first.shape)}; it must be {shape}.")
        last = []
        for layer, hidden in enumerate(first):
            sequence = self._layer(layer, sequence, hidden)
            last.append(sequence[-1])
        state = torch.stack(last)
        if x.dim() == 2:
            return sequence[:, 0], state[:, 0]
        return (sequence.transpose(0, 1) if self.batch_first else sequence), state

    def _layer(self, layer: int, sequence: Tensor, hidden: Tensor) -> Tensor:
        """One layer's hidden states, step by step."""
        names = (f"{kind}_l{layer}" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        weight_ih, weight_hh, bias_ih, bias_hh = (getattr(self, name) for name in names)
        activate = torch.tanh if self.nonlinearity == "tanh" else torch.relu
        states = []
        for now in F.linear(sequence, weight_ih, bias_ih):
            hidden = activate(now + F.linear(_Filter.apply(hidden, self.c, self.k), weight_hh, bias_hh))
            states.append(hidden)
        return torch.stack(states)

    def extra_repr(self) -> str:
        return (
            f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}, nonlinearity={self.nonlinearity}, "
            f"batch_first={self.batch_first}, c={self.c:g}, k={self.k:g}"
        )
