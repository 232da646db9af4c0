"""The gradients of a convolution's weight, unit by unit: its windows times its output's gradient, in several ways."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from discreet.gradients.forms.base import (
    GRAM,
    NORM_TIME,
    PRODUCT_TIME,
    RESULT_TIME,
    STORED,
    Cost,
    Kernel,
    cheapest_unstored,
    row_lengths,
    storing_kernels,
)
from discreet.gradients.forms.materialized import StorableGrads
from discreet.gradients.forms.outer import gram_norms, nearly_cancelling

WINDOW_BYTES = 1 << 21  # windows are unfolded for so many units at a time: they stay in the cache
GROUPED_RESULT = 0.9  # nanoseconds for each value of a gradient that a grouped convolution's backward writes
WIDE = 8  # rows of so many places are worth taking apart by events
LEAST_CHANNELS, NARROW = 8, 5  # with fewer channels that works on padding, so many times longer


class Convolution(StorableGrads):
    """Gradients of a convolution's weight: each image's windows times its output's gradient.

    | kernel       | how the gradients are made                                                           |
    | ------------ | ------------------------------------------------------------------------------------ |
    | unfold       | windows copied side by side, a few units at a time, and one batched product          |
    | grouped      | the library's own backward of a convolution with the units folded into its groups    |
    | gram         | not at all: norms from two Gram matrices, places x places                            |

    `unfold+keep` and `grouped+keep` store them for the sum, and so do, for a few units at a time, `unfold+chunked` and
    `grouped+chunked`; the others take the sum by the library's own backward.
    A transposed convolution is one whose input and output have changed places.
    """

    def __init__(
        self, inputs: Tensor, gradients: Tensor, units: int, shape: torch.Size, settings: Mapping[str, Any]
    ) -> None:
        self.inputs, self.gradients, self.units, self.shape, self.settings = inputs, gradients, units, shape, settings

    def held(self) -> Sequence[Tensor]:
        return self.inputs, self.gradients

    def _ways(self) -> list[str]:
        """The ways of making the gradients, and "gram"."""
        ways = ["unfold"]
        if not any(self.settings["output_padding"]):  # of which the native call knows nothing
            ways.append("grouped")
        return [*ways, GRAM.way] if int(self.settings["groups"]) == 1 else ways

    def kernels(self) -> dict[Kernel, Cost]:
        inputs, outputs = self._sides()
        groups, window = int(self.settings["groups"]), math.prod(self.shape[1:])
        places = math.prod(outputs.shape[2:]) * (inputs.shape[0] // self.units)
        size, channels = self.shape.numel(), self.shape[0] // groups
        product = PRODUCT_TIME * places * size
        narrow = NARROW if inputs.shape[1] // groups < LEAST_CHANNELS else 1
        made = {
            "unfold": product + self._copying() * places * window * groups + RESULT_TIME * size,
            "grouped": product * narrow + GROUPED_RESULT * size,
        }
        made = {way: time for way, time in made.items() if way in self._ways()}
        costs = {Kernel(way): Cost(time + NORM_TIME * size + product) for way, time in made.items()}
        for way, time in made.items():
            costs |= storing_kernels(way, time, size, inputs.element_size())
        if GRAM.way in self._ways():
            squares = places * places * (1.6 * PRODUCT_TIME * (window + channels) + 4 * NORM_TIME)
            twice = (1 + nearly_cancelling(places)) * product
            costs[GRAM] = Cost(twice + self._copying() * places * window + squares)
        return costs

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

    @property
    def _unit_bytes(self) -> int:
        return self.shape.numel() * self.inputs.element_size()

    def _chosen(self) -> Kernel:
        """The one that was chosen, if this convolution has it."""
        chosen = self.kernel
        return chosen if chosen is not None and chosen.way in self._ways() else cheapest_unstored(self.kernels())

    def _free(self) -> None:
        self.inputs, self.gradients = (t.new_empty(0, *t.shape[1:]) for t in (self.inputs, self.gradients))

    def _norms_of_grams(self) -> Tensor:
        return torch.cat([gram_norms(w, r, _making(w, r)) for w, r in self._windows(0, self.units)])

    def _lengths_of_terms(self) -> Tensor:
        window = math.sqrt(math.prod(self.shape[2:]))  # one value of the inputs is in at most so many places, squared
        inputs, gradients = (t.reshape(self.units, 1, -1) for t in (self.inputs, self.gradients))
        return window * (row_lengths(inputs) * row_lengths(gradients)).squeeze(1)

    def _add_terms(self, weights: Tensor, out: Tensor) -> None:
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

    def narrow(self, start: int, stop: int) -> "Convolution":
        per_unit = self.inputs.shape[0] // self.units
        images = slice(start * per_unit, stop * per_unit)
        chunk = Convolution(self.inputs[images], self.gradients[images], stop - start, self.shape, self.settings)
        chunk.kernel = None if self.kernel is None else Kernel(self.kernel.way, STORED)
        return chunk

    def _selected(self, units: Tensor) -> "Convolution":
        inputs, gradients = (
            images.unflatten(0, (self.units, -1))[units].flatten(0, 1) for images in (self.inputs, self.gradients)
        )
        return Convolution(inputs, gradients, len(units), self.shape, self.settings)

    def _sides(self) -> tuple[Tensor, Tensor]:
        """What windows are taken from, and what they are multiplied by."""
        sides = self.inputs, self.gradients
        return sides[::-1] if self.settings["transposed"] else sides

    def _make(self, start: int, stop: int) -> Tensor:
        if self._chosen().way == "grouped":
            return self._grouped(start, stop)
        groups, n = int(self.settings["groups"]), stop - start
        gradients = self.inputs.new_empty(n * groups, self.shape[0] // groups, math.prod(self.shape[1:]))
        first = 0
        for windows, results in self._windows(start, stop):
            last = first + len(windows)
            torch.bmm(results.mT, windows, out=gradients[first:last])
            first = last
        return gradients.view(n, *self.shape)

    def _grouped(self, start: int, stop: int) -> Tensor:
        """By one native call: the weight's gradient of a convolution in which each unit is a group of its own."""
        s, n, per_unit = self.settings, stop - start, self.inputs.shape[0] // self.units
        folded = []
        for side in self._sides():
            images = side[start * per_unit : stop * per_unit].unflatten(0, (n, per_unit))
            folded.append(images.transpose(0, 1).flatten(1, 2))
        inputs, outputs = folded
        weight = inputs.new_empty(n * self.shape[0], *self.shape[1:])  # only its shape is read
        gradients = torch.ops.aten.convolution_backward(
            outputs, inputs, weight, None, s["stride"], s["padding"], s["dilation"], False, [0] * len(s["stride"]),
            n * int(s["groups"]), [False, True, False],
        )[1]  # fmt: skip
        return gradients.view(n, *self.shape)

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


def _making(windows: Tensor, results: Tensor) -> Callable[[int, int], Tensor]:
    return lambda i, j: torch.bmm(results[i:j].mT, windows[i:j])
