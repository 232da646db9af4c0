"""Random numbers held constant, so that runs on batches of other sizes can be compared."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_EXTREMES = (1e-6, 1 - 1e-6)  # where in what may be drawn a coin shows either side


_FAR_OUT = 8.0  # deviations, which chance does not exceed


class ConstantDraws(TorchDispatchMode):
    """Random numbers are constants, whatever the size that is drawn: at this place in what may be drawn.

    With a `bit`, draws have the other place whose number has that bit.
    """

    def __init__(self, place: float = 0.5, bit: int | None = None) -> None:
        super().__init__()
        self._place, self._bit = place, bit
        self._draws = 0
        self.all = True  # whether all could be held

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded not in func.tags:
            if func.__name__.partition(".")[0] in _ORDERING and _one_value(args[0]):
                self.all = False  # ties of numbers that are held decide nothing
            return found
        if "attention" in func.__name__:  # which draws only if it is to drop something
            self.all = self.all and not _named(func, args, kwargs or {}).get("dropout_p", 0.0)
            return found
        name, given = func.__name__, _named(func, args, kwargs or {})
        if "native_dropout" in name:
            return args[0].clone(), torch.ones_like(found[1])
        if not isinstance(found, Tensor):
            self.all = False
            return found
        if "randperm" in name:  # every row for the next one, so that what is mixed by it shows
            return torch.arange(len(found), dtype=found.dtype, device=found.device).roll(1)
        turned = self._bit is not None and self._draws >> self._bit & 1
        self._draws += 1
        return found.copy_(_usual(name, given, found, 1 - self._place if turned else self._place))


_ORDERING = {"sort", "argsort", "topk"}


def _one_value(tensor: Tensor) -> bool:
    return tensor.numel() > 1 and bool((tensor == tensor.reshape(-1)[0]).all())


def _usual(name: str, given: Mapping[str, Any], drawn: Tensor, place: float) -> Tensor:
    """A value that may be drawn, as a function of the distribution alone: one for each place."""
    if "bernoulli" in name or "dropout" in name:
        chance = given.get("p", given.get("self"))
        chance = torch.as_tensor(chance if "p" in given or "bernoulli" in name else 1.0, device=drawn.device)
        return chance > 0 if place <= 0.5 else chance >= 1
    if "multinomial" in name:
        chances = given["self"]
        rare = torch.where(chances > 0, chances, math.inf).argmin(-1, keepdim=True)
        return chances.argmax(-1, keepdim=True) if place <= 0.5 else rare
    if "poisson" in name or "binomial" in name:
        return given.get("self", given.get("count")).round()
    if name.startswith("normal") and isinstance(given.get("mean"), Tensor):
        return given["mean"]
    if "exponential" in name:
        return torch.as_tensor(place if place <= 0.5 else _FAR_OUT, device=drawn.device)
    if "randn" in name or name.startswith("normal"):
        mean, spread = given.get("mean", 0.0), given.get("std", 1.0)
        return torch.as_tensor(mean + spread * (0.5 + 2 * _FAR_OUT * (place - 0.5)), device=drawn.device)
    low, high = given.get("low", given.get("from", 0)), given.get("to", given.get("high", 1))
    if high is None:
        return torch.as_tensor(low, device=drawn.device)
    if not drawn.is_floating_point():
        return torch.as_tensor(high - 1 if place > 0.5 else low, device=drawn.device)
    return torch.as_tensor(low + (high - low) * place, device=drawn.device)


def _named(func: Any, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an op, by their names; those that were left out have their usual values."""
    declared = func._schema.arguments
    usual = {argument.name: argument.default_value for argument in declared if argument.has_default_value()}
    return usual | dict(zip((argument.name for argument in declared), args, strict=False)) | dict(kwargs)
