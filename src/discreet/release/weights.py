"""What each unit's bounded gradient is multiplied by, and the lengths that this is decided by."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor


def total(norms: Mapping[str, Tensor]) -> Tensor:
    """Each unit's squared norm over all parameters."""
    each = list(norms.values())
    try:
        return torch.stack(each).sum(0)
    except RuntimeError:  # on several devices, or of several types
        return torch.stack([n.to(each[0].device, torch.float64) for n in each]).sum(0)


def each_once(weights: Mapping[str, Tensor], change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """Weights changed, those that several parameters share only once."""
    changed: dict[int, Tensor] = {}
    each: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if id(weight) not in changed:
            changed[id(weight)] = change(weight)
        each[name] = changed[id(weight)]
    return each


def without_nan(weights: Tensor) -> Tensor:
    """Weights with 0 in place of what is not finite."""
    return weights.nan_to_num(0.0, 0.0, 0.0)


def joined(weights: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The weights of some units and those of others, one after the other; what parameters share, they share still."""
    found: dict[tuple[int, ...], Tensor] = {}
    names: dict[str, Tensor] = {}
    for name in weights[0]:
        pieces = [some[name] for some in weights]
        key = tuple(map(id, pieces))
        if key not in found:
            found[key] = torch.cat(pieces)
        names[name] = found[key]
    return names
