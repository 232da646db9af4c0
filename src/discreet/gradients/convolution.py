"""The gradients of a convolution's weight, unit by unit: its windows times its output's gradient, in several ways."""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from discreet.gradients.forms import (
    KEEP,
    NORM,
    PRODUCT,
    RESULT,
    TURNS,
    Cost,
    InTurns,
    Kept,
    Measure,
    Use,
    gram_norms,
    keeping,
    leanest,
    nearly_cancelling,
    parts,
    row_lengths,
    squared_norms,
)

WINDOW_BYTES = 1 << 21  # windows are unfolded for so many units at a time: they stay in the cache
GROUPED_RESULT = 0.9  # nanoseconds for each value of a gradient that a grouped convolution's backward writes
WIDE = 8  # rows of so many places are worth taking apart by events
LEAST_CHANNELS, NARROW = 8, 5  # with fewer channels that works on padding, so many times longer


class Convolution(InTurns):
    """Gradients of a convolution's weight: each image's windows times its output's gradient.

    | kernel       | how the gradients are made                                                           |
    | ------------ | ------------------------------------------------------------------------------------ |
    | unfold       | windows copied side by side, a few units at a time, and one batched product          |
    | grouped      | the library's own backward of a convolution with the units folded into its groups    |
    | gram         | not at all: norms from two Gram matrices, places x places                            |

    `unfold+keep` and `grouped+keep` keep them for the sum, and so do, for a few units at a time, `unfold+turns` and
    `grouped+turns`; the others take it by the library's own backward.
    A transposed convolution is one whose input and output have changed places.
    """

    def __init__(
        self, inputs: Tensor, gradients: Tensor, units: int, shape: torch.Size, settings: Mapping[str, Any]
    ) -> None:
        self.inputs, self.gradients, self.units, self.shape = inputs, gradients, units, shape
        self.settings, self.kernel = settings, None
        self._kept: Kept | None = None

    def held(self) -> list[Tensor]:
        return [self.inputs, self.gradients]

    def kernels(self) -> dict[str, Cost]:
        inputs, outputs = self._sides()
        groups, window = int(self.settings["groups"]), math.prod(self.shape[1:])
        places = math.prod(outputs.shape[2:]) * (inputs.shape[0] // self.units)
        size, channels = self.shape.numel(), self.shape[0] // groups
        product = PRODUCT * places * size
        ways = {"unfold": product + self._copying() * places * window * groups + RESULT * size}
        if not any(self.settings["output_padding"]):  # of which the native call knows nothing
            narrow = inputs.shape[1] // groups < LEAST_CHANNELS
            ways["grouped"] = product * (NARROW if narrow else 1) + GROUPED_RESULT * size
        found = {way: Cost(made + NORM * size + product) for way, made in ways.items()}
        for way, made in ways.items():
            found |= keeping(way, made, size, inputs.element_size())
        if groups == 1:
            squares = places * places * (1.6 * PRODUCT * (window + channels) + 4 * NORM)
            twice = (1 + nearly_cancelling(places)) * product
            found["gram"] = Cost(twice + self._copying() * places * window + squares)
        return found

    def _copying(self) -> float:
        """Nanoseconds for each value of the windows: short rows and strides are dear."""
        outputs = self._sides()[1]
        if math.prod(self.shape[2:]) == 1 and outputs.shape[2:] == self._sides()[0].shape[2:]:
            return 0.0
        strided = int(self.settings["stride"][-1]) > self._phases()
        return 0.2 + 3 / outputs.shape[-1] + (0.4 if strided else 0.0)

    def _phases(self) -> int:
        """By how much rows are taken apart, so that windows at a stride lie side by side: the stride, if it fits."""
        stride, outputs = int(self.settings["stride"][-1]), self._sides()[1]
        fits = self.shape[-1] % stride == 0 and int(self.settings["dilation"][-1]) == 1
        return stride if fits and outputs.shape[-1] >= WIDE else 1

    def norms(self) -> Tensor:
        if self._kept is None and self._kernel() == "gram":
            return torch.cat([gram_norms(w, r, _making(w, r)) for w, r in self._windows(0, self.units)])
        return self.measured(squared_norms)

    def measured(self, measure: Measure) -> Tensor:
        """What is asked of the gradients, which are made for it, and kept if the kernel says so."""
        if self._kept is not None:
            return self._kept.measured(measure)
        way, _, keep = self._kernel().partition("+")
        size = self.shape.numel() * self.inputs.element_size()
        if "+" + keep != KEEP:
            return torch.cat([measure(self._make(i, j, way)) for i, j in parts(self.units, size)])
        self._kept, found = Kept.made(partial(self._make, way=way), self.units, size, measure)
        self.inputs, self.gradients = (t.new_empty(0, *t.shape[1:]) for t in (self.inputs, self.gradients))  # may go
        return found

    def _kernel(self) -> str:
        """The one that was chosen, if this convolution has it."""
        kernels = self.kernels()
        return self.kernel if self.kernel in kernels else leanest(kernels)

    def lengths(self) -> Tensor | None:
        if self._kept is not None:
            return None
        window = math.sqrt(math.prod(self.shape[2:]))  # one value of the inputs is in at most so many places, squared
        inputs, gradients = (t.reshape(self.units, 1, -1) for t in (self.inputs, self.gradients))
        return window * (row_lengths(inputs) * row_lengths(gradients)).squeeze(1)

    def add_weighted(self, weights: Tensor, out: Tensor) -> None:
        if self._kept is not None:
            self._kept.add_weighted(weights, out)
            return
        s = self.settings
        images = weights.repeat_interleave(self.inputs.shape[0] // self.units)
        weighted = self.gradients * images.view(-1, *[1] * (self.gradients.dim() - 1))
        weight = out.new_empty(self.shape)  # only its shape is read
        out.add_(
            torch.ops.aten.convolution_backward(
                weighted, self.inputs, weight, None, s["stride"], s["padding"], s["dilation"], s["transposed"],
                s["output_padding"], s["groups"], [False, True, False],
            )[1]
        )  # fmt: skip

    def each(self, start: int, stop: int) -> Tensor:
        if self._kept is not None:
            return self._kept.each(start, stop)
        return self._make(start, stop, self._kernel().partition("+")[0])

    @property
    def turn(self) -> int:
        waits = self._kept is None and self.kernel is not None and self.kernel.endswith(TURNS)
        return self.shape.numel() * self.inputs.element_size() if waits else 0

    def narrow(self, start: int, stop: int) -> Use:
        per_unit = self.inputs.shape[0] // self.units
        images = slice(start * per_unit, stop * per_unit)
        found = Convolution(self.inputs[images], self.gradients[images], stop - start, self.shape, self.settings)
        found.kernel = None if self.kernel is None else self.kernel.removesuffix(TURNS) + KEEP
        return found

    def select(self, units: Tensor) -> Use:
        if self._kept is not None:
            return self._kept.select(units)

        def of(images: Tensor) -> Tensor:
            return images.unflatten(0, (self.units, -1))[units].flatten(0, 1)

        found = Convolution(of(self.inputs), of(self.gradients), len(units), self.shape, self.settings)
        found.kernel = self.kernel
        return found

    def _sides(self) -> tuple[Tensor, Tensor]:
        """What windows are taken from, and what they are multiplied by."""
        sides = self.inputs, self.gradients
        return sides[::-1] if self.settings["transposed"] else sides

    def _make(self, start: int, stop: int, way: str) -> Tensor:
        """The gradients of units start..stop, [n, *shape]."""
        if way == "grouped":
            return self._grouped(start, stop)
        groups, n = int(self.settings["groups"]), stop - start
        found = self.inputs.new_empty(n * groups, self.shape[0] // groups, math.prod(self.shape[1:]))
        first = 0
        for windows, results in self._windows(start, stop):
            last = first + len(windows)
            torch.bmm(results.mT, windows, out=found[first:last])
            first = last
        return found.view(n, *self.shape)

    def _grouped(self, start: int, stop: int) -> Tensor:
        """By one native call: the weight's gradient of a convolution in which each unit is a group of its own."""
        s, n, per_unit = self.settings, stop - start, self.inputs.shape[0] // self.units
        folded = []
        for side in self._sides():
            images = side[start * per_unit : stop * per_unit].unflatten(0, (n, per_unit))
            folded.append(images.transpose(0, 1).flatten(1, 2))
        inputs, outputs = folded
        weight = inputs.new_empty(n * self.shape[0], *self.shape[1:])  # only its shape is read
        found = torch.ops.aten.convolution_backward(
            outputs, inputs, weight, None, s["stride"], s["padding"], s["dilation"], False, [0] * len(s["stride"]),
            n * int(s["groups"]), [False, True, False],
        )[1]  # fmt: skip
        return found.view(n, *self.shape)

    def _windows(self, start: int, stop: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Windows [n * groups, places, window] and what they meet [n * groups, places, outputs], some units at a time.

        The windows lie in memory as [window, places], which is how they are copied fastest.
        """
        s, per_unit = self.settings, self.inputs.shape[0] // self.units
        inputs, outputs = self._sides()
        groups, spatial, events = int(s["groups"]), outputs.dim() - 2, self._phases()
        kernel, stride = [*self.shape[2:]], [int(v) for v in s["stride"]]
        kernel[-1], stride[-1] = kernel[-1] // events, stride[-1] // events
        padding = [int(p) for p in reversed(s["padding"]) for _ in range(2)]
        padding[1] += -(inputs.shape[-1] + sum(padding[:2])) % events
        window, channels = math.prod(self.shape[1:]), outputs.shape[1] // groups
        places_per_unit = per_unit * math.prod(outputs.shape[2:])
        size = max(1, WINDOW_BYTES // (groups * window * places_per_unit * inputs.element_size()))
        for first in range(start, stop, size):
            last = min(stop, first + size)
            images = inputs[first * per_unit : last * per_unit]
            if any(padding):
                images = torch.nn.functional.pad(images, padding)
            images = images.reshape(*images.shape[:-1], -1, events).movedim(-1, 2)  # [images, channels, events, ...]
            images = images.contiguous() if events > 1 else images
            for d in range(spatial):
                reach = int(s["dilation"][d]) * (kernel[d] - 1) + 1
                images = images.unfold(3 + d, reach, stride[d])[..., :: int(s["dilation"][d])]
                images = images.narrow(3 + d, 0, outputs.shape[2 + d])
            # [images, channels, events, *places, *kernel] to [units * groups, window, images of a unit * places]
            n = last - first
            images = images.reshape(n, per_unit, groups, -1, *images.shape[2:])
            places = tuple(range(5, 5 + spatial))
            kernels = tuple(range(5 + spatial, 5 + 2 * spatial))
            images = images.permute(0, 2, 3, *kernels, 4, 1, *places).reshape(n * groups, window, -1)
            results = outputs[first * per_unit : last * per_unit].reshape(n, per_unit, groups, channels, -1)
            results = results.permute(0, 2, 1, 4, 3).reshape(n * groups, -1, channels)
            yield images.mT, results


def _making(windows: Tensor, results: Tensor) -> Any:
    return lambda i, j: torch.bmm(results[i:j].mT, windows[i:j])
