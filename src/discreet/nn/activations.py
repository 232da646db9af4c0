"""Activations with bounded values and slopes: BELU (Jung et al.), tempered sigmoids (Papernot et al. 2021), tanh.

In a network of these no example's gradient can be larger than the shapes, the weights and the inputs allow, which
`discreet.bounds` turns into a certificate. By itself a bounded activation gives no privacy.
"""

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from discreet._check import check_positive
from discreet.errors import ConfigError

_LEAST, _MOST = 1e-15, 1e15  # settings whose products float32 and bfloat16 still hold


@dataclass(frozen=True)
class Bounded:
    """For every real x the value is from `low` to `high`, and the derivative is at most `slope` in absolute value.

    These are the figures of real numbers; a dtype rounds values and bounds alike.
    """

    low: float
    high: float
    slope: float


def belu(x: Tensor, alpha: float = 1.0, beta: float = 1.0) -> Tensor:
    """The bounded exponential linear unit: the identity from 0 to `beta`, with exponential tails of height `alpha`.

    | x              | value                             | derivative            |
    | -------------- | --------------------------------- | --------------------- |
    | x < 0          | alpha (e^x - 1)                   | alpha e^x             |
    | 0 <= x <= beta | x                                 | 1                     |
    | x > beta       | beta + alpha (1 - e^-(x - beta))  | alpha e^-(x - beta)   |
    | -inf, inf      | -alpha, alpha + beta              | 0                     |
    | nan            | nan                               | nan                   |

    Args:
        x: of any shape.
        alpha: the height of the tails.
        beta: where the upper tail begins.

    >>> belu(torch.tensor([-math.inf, 0.5, math.inf]), alpha=1.0, beta=2.0)
    tensor([-1.0000,  0.5000,  3.0000])
    """
    middle = x.clamp(0.0, beta)
    outside = x - middle  # 0, and of slope 0, wherever the middle branch holds: in every dtype one branch counts
    return middle - alpha * outside.sign() * torch.expm1(-outside.abs())


class BELU(nn.Module):
    """`belu` as a module: values from -alpha to alpha + beta, and a derivative of at most max(1, alpha).

    The derivative is continuous only for alpha = 1.
    """

    def __init__(self, alpha: float = 1.0, beta: float = 1.0) -> None:
        super().__init__()
        self.alpha: Final = _setting("BELU's alpha", alpha)
        self.beta: Final = _setting("BELU's beta", beta, zero=True)

    @property
    def low(self) -> float:
        """The largest lower bound of the values."""
        return -self.alpha

    @property
    def high(self) -> float:
        """The least upper bound of the values."""
        return self.alpha + self.beta

    @property
    def slope(self) -> float:
        """The largest absolute derivative."""
        return max(1.0, self.alpha)

    def forward(self, x: Tensor) -> Tensor:
        return belu(x, self.alpha, self.beta)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha:g}, beta={self.beta:g}"


class TemperedSigmoid(nn.Module):
    """scale * sigmoid(temperature * x) - offset: values from -offset to scale - offset; the default is tanh.

    It is computed as a tanh, which loses nothing near 0 where the offset is half the scale.
    """

    def __init__(self, scale: float = 2.0, temperature: float = 2.0, offset: float = 1.0) -> None:
        super().__init__()
        self.scale: Final = _setting("TemperedSigmoid's scale", scale)
        self.temperature: Final = _setting("TemperedSigmoid's temperature", temperature)
        self.offset: Final = _number("TemperedSigmoid's offset", offset)

    @property
    def low(self) -> float:
        """The largest lower bound of the values."""
        return -self.offset

    @property
    def high(self) -> float:
        """The least upper bound of the values."""
        return self.scale - self.offset

    @property
    def slope(self) -> float:
        """The largest absolute derivative, which is at 0."""
        return self.scale * self.temperature / 4

    def forward(self, x: Tensor) -> Tensor:
        half = self.scale / 2
        return half * torch.tanh(self.temperature / 2 * x) + (half - self.offset)

    def extra_repr(self) -> str:
        return f"scale={self.scale:g}, temperature={self.temperature:g}, offset={self.offset:g}"


class BoundedTanh(nn.Module):
    """bound * tanh(x / width): values from -bound to bound, almost linear for |x| well below `width`."""

    def __init__(self, bound: float = 1.0, width: float = 1.0) -> None:
        super().__init__()
        self.bound: Final = _setting("BoundedTanh's bound", bound)
        self.width: Final = _setting("BoundedTanh's width", width)

    @property
    def low(self) -> float:
        """The largest lower bound of the values."""
        return -self.bound

    @property
    def high(self) -> float:
        """The least upper bound of the values."""
        return self.bound

    @property
    def slope(self) -> float:
        """The largest absolute derivative, which is at 0."""
        return self.bound / self.width

    def forward(self, x: Tensor) -> Tensor:
        return self.bound * torch.tanh(x / self.width)

    def extra_repr(self) -> str:
        return f"bound={self.bound:g}, width={self.width:g}"


def bounds_of(module: nn.Module) -> Bounded | None:
    """What is known of an activation: its bounds, or None where nothing is.

    Known are BELU, TemperedSigmoid and BoundedTanh, and torch's Tanh, Sigmoid, Hardtanh and Softsign. A subclass may
    compute something else, and so may a module with hooks or with a `forward` of its own: for those, None.

    Args:
        module: an activation.

    >>> bounds_of(nn.Sigmoid())
    Bounded(low=0.0, high=1.0, slope=0.25)
    >>> bounds_of(nn.ReLU()) is None
    True
    """
    if _altered(module):
        return None
    kind = type(module)
    if kind in (nn.Tanh, nn.Softsign):
        return Bounded(-1.0, 1.0, 1.0)
    if kind is nn.Sigmoid:
        return Bounded(0.0, 1.0, 0.25)
    if isinstance(module, nn.Hardtanh) and kind is nn.Hardtanh:
        low, high = float(module.min_val), float(module.max_val)
        return Bounded(low, high, 1.0) if math.isfinite(low) and math.isfinite(high) else None
    if isinstance(module, (BELU, TemperedSigmoid, BoundedTanh)) and kind in (BELU, TemperedSigmoid, BoundedTanh):
        return Bounded(module.low, module.high, module.slope)
    return None


def _altered(module: nn.Module) -> bool:
    """Whether calling this module may do other than its class says."""
    hooks = (
        module._forward_pre_hooks,
        module._forward_hooks,
        module._backward_pre_hooks,
        module._backward_hooks,
    )
    return "forward" in vars(module) or any(hooks)


def _setting(name: str, value: float, *, zero: bool = False) -> float:
    """A positive number that every dtype can work with."""
    value = check_positive(name, value, zero=zero)
    if value and not _LEAST <= value <= _MOST:
        raise ConfigError(
            f"{name} is {value:g}; float32 needs it to be from {_LEAST:g} to {_MOST:g}: scale the inputs."
        )
    return value


def _number(name: str, value: float) -> float:
    """A number of either sign that every dtype can work with."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) <= _MOST:
        raise ConfigError(f"{name} is {value!r}; it must be a number from {-_MOST:g} to {_MOST:g}.")
    return float(value)
