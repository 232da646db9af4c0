"""How large an example's gradient can be in a network with bounded activations, proven from its shape alone."""

import math
from collections.abc import Sequence
from typing import Literal

from discreet.contracts import Block, Certificate
from discreet.errors import ConfigError, positive

Head = Literal["cross-entropy", "belu cross-entropy", "belu squared"]


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
    positive("alpha", alpha)
    positive("beta", beta, zero=True)
    slope = max(1.0, alpha)
    inputs = [input_norm, *(math.sqrt(w) * (alpha + beta) for w in widths[1:-1])]
    outputs = [_head(head, widths[-1], alpha, beta, slope)]
    for norm in reversed(weight_norms):
        outputs.append(slope * norm * outputs[-1])
    blocks = tuple(
        Block((f"layer {i + 1}" if names is None else names[i],), d * math.hypot(h, 1), widths[i + 1] * (widths[i] + 1))
        for i, (d, h) in enumerate(zip(reversed(outputs), inputs, strict=True))
    )
    premises = (
        f"inputs were cut to l2 norm {input_norm:g}",
        "weight matrices were projected to their norms before every pass",
        "the gradient at the last layer was cut to its bound",
    )
    return Certificate(blocks, premises)


def _head(head: Head, classes: int, alpha: float, beta: float, slope: float) -> float:
    """The largest gradient of the loss at the last layer's linear outputs."""
    if head == "cross-entropy":
        return math.sqrt(2)
    if head == "belu cross-entropy":
        return slope * math.sqrt(2)
    if head == "belu squared":  # half the squared distance to a one-hot target
        others = (classes - 1) * _reach(alpha, beta, 0.0) ** 2
        return math.sqrt(others + _reach(alpha, beta, 1.0) ** 2)
    raise ConfigError(f"the loss {head!r} is not one of cross-entropy, belu cross-entropy, belu squared.")


def _reach(alpha: float, beta: float, target: float) -> float:
    """sup of |BELU(x) - target| BELU'(x): quadratics in the output, largest at ends and vertices."""

    def low(h: float) -> float:
        return abs(h - target) * (h + alpha)

    def high(h: float) -> float:
        return abs(h - target) * (alpha + beta - h)

    vertices = (target - alpha) / 2, (target + alpha + beta) / 2
    found = [abs(target), abs(beta - target)]
    found += [low(min(max(h, -alpha), 0.0)) for h in (-alpha, 0.0, *vertices)]
    found += [high(min(max(h, beta), alpha + beta)) for h in (beta, alpha + beta, *vertices)]
    return max(found)
