"""A running average of the weights: it is computed from released weights, so it costs nothing."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from discreet.errors import ConfigError


class Average:
    """The running average of a model's parameters; with decay 0 there is none, and every method does nothing."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._parameters = dict(model.named_parameters())
        self._decay, self._count = decay, 0
        self.weights = {n: p.detach().clone() for n, p in self._parameters.items()} if decay else {}

    @torch.no_grad()
    def update(self) -> None:
        if not self._decay:
            return
        self._count += 1
        decay = min(self._decay, (1 + self._count) / (10 + self._count))  # the first weights are soon forgotten
        for name, weight in self.weights.items():
            weight.lerp_(self._parameters[name], 1 - decay)

    @contextmanager
    def used(self) -> Generator[None]:
        """The model has the averaged weights within the block."""
        own = {n: p.detach().clone() for n, p in self._parameters.items() if n in self.weights}
        self.keep()
        try:
            yield
        finally:
            for name, weight in own.items():
                self._parameters[name].data.copy_(weight)

    def keep(self) -> None:
        """The model has the averaged weights from now on."""
        for name, weight in self.weights.items():
            self._parameters[name].data.copy_(weight)

    def state(self) -> dict[str, Any]:
        return {"count": self._count, "weights": self.weights}

    def restore(self, state: dict[str, Any]) -> None:
        if set(state["weights"]) != set(self.weights):
            raise ConfigError("the checkpoint was made with another averaging; continue with the same.")
        self._count = int(state["count"])
        for name, weight in state["weights"].items():
            self.weights[name].copy_(weight)
