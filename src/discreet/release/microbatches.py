"""Microbatches: units' gradients averaged in a fixed number of slots, so that a slot's mean is what is bounded."""

from collections.abc import Mapping

from torch import Tensor, nn

from discreet.gradients import UnitGradients
from discreet.gradients.forms import Materialised, PerExampleGrad, parts, sum_dtype


class Microbatches:
    """`count` slots of about `size` units each; which unit goes where must not depend on the data."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], count: int, size: int) -> None:
        self.count, self._size, self._parameters = count, size, parameters
        self._means: dict[str, Tensor] = {}

    def clear(self) -> None:
        self._means.clear()

    def add(self, gradients: UnitGradients, slots: Tensor) -> None:
        """Add each unit's gradient to its slot, divided by the public size (not by how many came)."""
        for name, form in gradients.forms.items():
            parameter = self._parameters[name]
            dtype = sum_dtype(parameter.dtype)
            if name not in self._means:
                self._means[name] = parameter.new_zeros((self.count, *parameter.shape), dtype=dtype).detach()
            means = self._means[name]
            for start, stop in parts(gradients.units, parameter.numel() * means.element_size()):
                each = form.each(start, stop).to(dtype).reshape(stop - start, *parameter.shape)
                means.index_add_(0, slots[start:stop].to(means.device), each, alpha=1 / self._size)

    def gradients(self) -> UnitGradients:
        """The slots' means, as the gradients of so many units."""
        forms: dict[str, PerExampleGrad] = {name: Materialised(means) for name, means in self._means.items()}
        return UnitGradients(forms, self.count, self._parameters)
