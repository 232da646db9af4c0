"""Microbatches: units' gradients averaged a few at a time, so that a microbatch's mean is what is bounded."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet.gradients import UnitGradients
from discreet.gradients.forms import Materialised, PerExampleGrad, parts, sum_dtype


class Microbatches:
    """`count` microbatches of about `size` units each; which unit goes where must not depend on the data."""

    def __init__(self, parameters: Mapping[str, Tensor], count: int, size: int) -> None:
        self.count, self._size, self._parameters = count, size, parameters
        self._means: dict[str, Tensor] = {}

    def clear(self) -> None:
        self._means.clear()

    def add_sound(self, gradients: UnitGradients, sound: Tensor | None, places: npt.NDArray[np.int64]) -> None:
        """Add the gradients of units that are finite and `sound` to their microbatches."""
        with torch.no_grad():
            finite = torch.stack([squared.isfinite() for squared in gradients.norms().values()]).all(0)
            finite = finite if sound is None else finite & sound
            kept = finite.nonzero().squeeze(1)
            self.add(gradients.select(kept), torch.from_numpy(places)[kept.cpu()])

    def add(self, gradients: UnitGradients, places: Tensor) -> None:
        """Add each unit's gradient to its microbatch, divided by the public size (not by how many came)."""
        for name, form in gradients.forms.items():
            parameter = self._parameters[name]
            dtype = sum_dtype(parameter.dtype)
            if name not in self._means:
                self._means[name] = parameter.new_zeros((self.count, *parameter.shape), dtype=dtype).detach()
            means = self._means[name]
            for start, stop in parts(gradients.units, parameter.numel() * means.element_size()):
                each = form.each(start, stop).to(dtype).reshape(stop - start, *parameter.shape)
                means.index_add_(0, places[start:stop].to(means.device), each, alpha=1 / self._size)

    def gradients(self) -> UnitGradients:
        """The microbatches' means, as the gradients of so many units."""
        forms: dict[str, PerExampleGrad] = {name: Materialised(means) for name, means in self._means.items()}
        return UnitGradients(forms, self.count, self._parameters)

    def share(self, rank: int, size: int) -> UnitGradients | None:
        """The means that are one of `size` ranks' to add, if there are any."""
        mine = torch.arange(rank, self.count, size)
        means = self.gradients()
        return None if not len(mine) else means if size == 1 else means.select(mine)
