"""Gradients of something that is made of a parameter (a slice, a normalised weight), pulled back to the parameter."""

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from discreet.gradients.forms.base import (
    GRAM,
    ROWS,
    Cost,
    Kernel,
    PerExampleGrad,
    parts,
    squared_norms,
    sum_dtype,
)
from discreet.gradients.forms.complex_parts import real_parts
from discreet.gradients.forms.materialized import Materialised


class Prepared(PerExampleGrad):
    """Gradients of something that is made of a parameter: `form` has them, and they are pulled back to the parameter.

    `isometric`: the preparation only rearranges, so that norms stay. A preparation in less than float32 rounds what
    is pulled through it, and one whose backward is not `linear` does more: then each unit is pulled on its own and
    measured afterwards, never their sum.
    """

    adds_terms = True

    def __init__(
        self, form: PerExampleGrad, edge: GradientEdge, parameter: nn.Parameter, *, isometric: bool, linear: bool = True
    ) -> None:
        self.form, self.edge, self.parameter, self.isometric, self.linear = form, edge, parameter, isometric, linear
        self.units = form.units
        self._made: Any = edge.node._input_metadata[edge.output_nr]  # shape and dtype of what was made
        short = torch.finfo(self._made.dtype).bits < 32 or torch.finfo(parameter.dtype).bits < 32
        self._coarse = short or not linear
        self._measured: tuple[Tensor, Tensor] | None = None  # squared norms of what was made, and after the pull
        self._total: Tensor | None = None  # what chunks have added up, to be pulled

    @property
    def kernel(self) -> Kernel | None:
        return self.form.kernel

    @kernel.setter
    def kernel(self, kernel: Kernel | None) -> None:
        self.form.kernel = kernel

    def kernels(self) -> dict[Kernel, Cost]:
        """Those of the form it is made of, but for those that make no gradients to be pulled."""
        costs = self.form.kernels()
        if self._keeps_norms:
            return costs
        return {kernel: cost for kernel, cost in costs.items() if kernel.way not in (GRAM.way, ROWS.way)}

    def held(self) -> Sequence[Tensor]:
        return self.form.held()

    @property
    def reads_parameters(self) -> bool:
        return not self.isometric or self.form.reads_parameters

    @property
    def _keeps_norms(self) -> bool:
        return self.isometric and not self._coarse

    @property
    def made_shape(self) -> torch.Size:
        """The shape of what was made."""
        return torch.Size(self._made.shape)

    def _pull(self, gradients: Tensor, *, batched: bool) -> Tensor:
        return _pulled(self.edge, self.parameter, gradients.to(self._made.dtype), batched=batched)

    def pull(self, gradients: Tensor) -> Tensor:
        """What gradients of what was made, one a unit, are for the parameter."""
        return _pulled_each(self.edge, self.parameter, gradients.to(self._made.dtype))

    def each(self, start: int, stop: int) -> Tensor:
        return self.pull(self.form.each(start, stop))

    def _parts(self) -> list[tuple[int, int]]:
        return parts(self.units, self.parameter.numel() * 4)

    def norms(self) -> Tensor:
        return self.form.norms() if self._keeps_norms else self._measure()[1].clone()

    @cached_property
    def rescaling(self) -> "Rescaling | None":
        """The preparation as a rescaling, where it is one: then norms can be told without a pull."""
        # on a device each unit is pulled: a host that looks whether it is one would wait
        return Rescaling.of(self) if self.parameter.is_cpu and not self._coarse else None

    def _measure(self) -> tuple[Tensor, Tensor]:
        if self._measured is None:
            measure = partial(self._measure_part, rescaling=self.rescaling)
            columns = self.form.measured(measure, self.parameter.numel() * 4)
            self._measured = columns[:, 0], columns[:, 1]
        return self._measured

    def _measure_part(self, gradients: Tensor, rescaling: "Rescaling | None") -> Tensor:
        """Squared norms before and after the pull, as two columns."""
        if rescaling is None:
            return torch.stack([squared_norms(gradients), squared_norms(self.pull(gradients))], 1)
        return torch.stack(self.rescaled_norms(gradients, rescaling)[:2], 1)

    def rescaled_norms(self, gradients: Tensor, rescaling: "Rescaling") -> tuple[Tensor, Tensor, Tensor]:
        """Squared norms before and after the pull by its rescaling, and the latter without what is taken out."""
        before, after, longest = rescaling.norms(gradients)
        for unit in torch.nonzero(~(after >= 0.02 * longest)).flatten().tolist():  # rounding would show
            after[unit] = squared_norms(self.pull(gradients[unit : unit + 1]))[0]
        return before, after, longest

    def lengths(self) -> Tensor | None:
        """Of the terms after they are pulled: by how much that lengthens is taken from the unit it lengthens most."""
        if self._coarse:
            return None
        terms = self.form.lengths()
        if self.isometric:
            return terms
        before, after = self._measure()
        terms = before.double().sqrt() if terms is None else terms
        ratios = after.double().sqrt() / terms
        return terms * ratios.where(terms > 0, 0.0).nan_to_num(0, 0, 0).max()

    def add_weighted(self, weights: Tensor, out: Tensor) -> None:
        if self._coarse:
            for i, j in self._parts():
                Materialised(self.each(i, j)).add_weighted(weights[i:j], out)
            return
        total = self._room()
        self.form.add_weighted(weights, total)
        out.add_(self._pull(total, batched=False))

    def _room(self) -> Tensor:
        """For a sum of what was made."""
        dtype = sum_dtype(self.parameter.dtype, self._made.dtype)
        return self.parameter.new_zeros(self.made_shape, dtype=dtype)

    def select(self, units: Tensor) -> "Prepared":
        form = self.form.select(units)
        return Prepared(form, self.edge, self.parameter, isometric=self.isometric, linear=self.linear)

    @property
    def chunk_bytes(self) -> int:
        made = self.form.chunk_bytes
        pulled = self.parameter.numel() * sum_dtype(self.parameter.dtype).itemsize
        larger = made and not self._keeps_norms and self.made_shape.numel() < self.parameter.numel()
        return made + pulled if larger else made  # what is larger than what was made is no rescaling, and is pulled

    def narrow(self, start: int, stop: int) -> PerExampleGrad:
        chunk = self.form.narrow(start, stop)
        if self._keeps_norms or self.rescaling is not None:
            return PulledLater(self, chunk)
        return Materialised(self.pull(chunk.each(0, stop - start)))

    def add_later(self, weights: Tensor, chunk: PerExampleGrad) -> None:
        """Add the sum over a chunk of weight * gradient before the pull; `take_total` is what it comes to."""
        self._total = self._room() if self._total is None else self._total
        chunk.add_weighted(weights, self._total)

    def take_total(self) -> Tensor | None:
        total, self._total = self._total, None
        return None if total is None else self._pull(total, batched=False)


def _pulled(edge: GradientEdge, parameter: nn.Parameter, gradients: Tensor, *, batched: bool) -> Tensor:
    found = torch.autograd.grad(
        [edge], [parameter], [gradients], retain_graph=True, is_grads_batched=batched, allow_unused=True
    )[0]
    if found is None:
        shape = (*gradients.shape[:1], *parameter.shape) if batched else parameter.shape
        return parameter.new_zeros(shape)
    return found.detach().to(sum_dtype(parameter.dtype))


def _pulled_each(edge: GradientEdge, parameter: nn.Parameter, gradients: Tensor) -> Tensor:
    try:
        return _pulled(edge, parameter, gradients, batched=True)
    except RuntimeError:  # an op without a batched form
        return torch.stack([_pulled(edge, parameter, g, batched=False) for g in gradients])


_LINEAR = 1e-5  # of a gradient's largest value: what rounding may make of a linear map


def is_linear(edge: GradientEdge, parameter: nn.Parameter) -> bool:
    """Whether gradients are pulled back linearly: a sum as its parts, and what is large or small as the rest.

    A derivative is linear. A backward pass of one's own (of quantised weights, say) may cut gradients off or round
    them, and then a sum of bounded gradients must not be pulled as one.
    """
    made: Any = edge.node._input_metadata[edge.output_nr]
    generator = torch.Generator()
    generator.seed()
    drawn = torch.complex64 if made.dtype.is_complex else torch.float32
    both = torch.randn(2, *made.shape, generator=generator, dtype=drawn)
    one, two = both.to(parameter.device, made.dtype)
    scales = [1.0, 1.0, 2.0**20, 2.0**-20]
    tried = torch.stack([one, two, *(scale * one for scale in scales[2:]), one - 2 * two])
    found = real_parts(_pulled_each(edge, parameter, tried)).double().reshape(len(tried), -1)
    if not found.shape[1]:
        return True
    expected = torch.stack([scales[2] * found[0], scales[3] * found[0], found[0] - 2 * found[1]])
    largest = expected.abs().amax(1).maximum(found[2:].abs().amax(1))
    return bool(((expected - found[2:]).abs().amax(1) <= _LINEAR * largest).all())


class PulledLater(PerExampleGrad):
    """A chunk of prepared gradients: measured as what is pulled, and added before it is, once for all chunks."""

    adds_terms = True

    def __init__(self, whole: Prepared, form: PerExampleGrad) -> None:
        self.whole, self.form, self.units = whole, form, form.units
        self._lengths: Tensor | None = None

    def norms(self) -> Tensor:
        rescaling = None if self.whole.isometric else self.whole.rescaling
        if rescaling is None:
            return self.form.norms()

        def measure(gradients: Tensor) -> Tensor:
            return torch.stack(self.whole.rescaled_norms(gradients, rescaling)[1:], 1)

        columns = self.form.measured(measure, self.whole.parameter.numel() * 4)
        self._lengths = columns[:, 1].double().sqrt()
        return columns[:, 0].clone()

    def lengths(self) -> Tensor | None:
        """Of what is added, and partly taken out again by the pull."""
        return self.form.lengths() if self._lengths is None else self._lengths

    def add_weighted(self, weights: Tensor, out: Tensor) -> None:
        """Nothing is added to `out` yet: the whole form's `take_total` has it, after the last chunk."""
        self.whole.add_later(weights, self.form)

    def each(self, start: int, stop: int) -> Tensor:
        return self.whole.pull(self.form.each(start, stop))

    def select(self, units: Tensor) -> "PulledLater":
        return PulledLater(self.whole, self.form.select(units))


class Rescaling:
    """A preparation that rescales each output's weights and takes out of them along their mean and themselves.

    Standardised and normalised weights are such: for output o a gradient v becomes a v + U M U'v, with U the two
    directions (constant, and the weights less their mean) and a number a and a matrix M of o's own. So norms after it
    follow from the norm before it and two inner products. Whether it is one is seen each time by three pulls. The two
    directions, each with the same random one added or taken off, determine a and M, and show what else an output's own
    gradient would become; a random combination of the two, another one for each output, shows whether M is the
    output's own: where a norm is of all outputs together, it is not.
    """

    def __init__(self, scale: Tensor, matrix: Tensor, directions: Tensor) -> None:
        self._scale, self._directions = scale, directions
        self._form = scale[:, None, None] * (matrix + matrix.mT) + matrix @ matrix.mT

    @classmethod
    def of(cls, prepared: Prepared) -> "Rescaling | None":
        """The form of a preparation, if it has it."""
        weight = prepared.parameter.detach()
        if prepared.made_shape != weight.shape or weight.dim() < 2 or weight[0].numel() < 4 or weight.numel() < 16:
            return None  # of another shape, or too small for a draw to show what it is not
        flat = weight.reshape(len(weight), -1).to(sum_dtype(weight.dtype))
        generator = torch.Generator()
        generator.seed()
        directions = torch.stack([torch.ones_like(flat), flat - flat.mean(1, keepdim=True)], 1)
        directions /= torch.linalg.vector_norm(directions, dim=2, keepdim=True)
        random = torch.rand(flat.shape, generator=generator).to(flat).sub_(0.5)
        random -= ((random[:, None] @ directions.mT) @ directions)[:, 0]  # or little of a short one might lie outside
        random /= 2 * torch.linalg.vector_norm(random, dim=1, keepdim=True)
        signs = torch.tensor([0.5, -0.5])  # apart, or what leaks from both alike would cancel
        mixed = (torch.rand(len(flat), 1, 2, generator=generator).add_(0.5) * signs).to(flat) @ directions
        tried = torch.cat([directions + torch.stack([random, -random], 1), mixed], 1)  # [outputs, 3, values]
        pulled = prepared.pull(tried.transpose(0, 1).reshape(3, *weight.shape))
        pulled = pulled.reshape(3, *flat.shape).transpose(0, 1)
        inside = tried @ directions.mT  # [outputs, 3, 2]
        outside = tried[:, 0] - (inside[:, :1] @ directions)[:, 0]
        scale = (outside * pulled[:, 0]).sum(1) / outside.square().sum(1)
        scales = scale[:, None, None]
        matrix = _inverse(inside[:, :2]) @ (pulled[:, :2] @ directions.mT) - scales * torch.eye(2).to(scale)
        expected = scales * tried + (inside @ matrix) @ directions
        error = torch.linalg.vector_norm(expected - pulled, dim=2)
        size = torch.linalg.vector_norm(pulled, dim=2).amax(1, keepdim=True)
        allowed = 64 * torch.finfo(flat.dtype).eps * size
        return cls(scale, matrix, directions) if bool((error <= allowed).all()) else None

    def norms(self, gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Squared norms before and after, and the latter without what is taken out."""
        rows = gradients.reshape(len(gradients), len(self._scale), -1)
        squared = squared_norms(rows.flatten(0, 1)).view(len(rows), -1)
        inner = torch.bmm(self._directions, rows.permute(1, 2, 0)).mT  # [outputs, units, 2]
        taken = ((inner @ self._form) * inner).sum((0, 2))
        longest = squared @ self._scale.square()
        return squared.sum(1), longest + taken, longest


def _inverse(matrices: Tensor) -> Tensor:
    """Of matrices [n, 2, 2]; not finite where there is none."""
    a, b, c, d = matrices.flatten(1).unbind(1)
    return torch.stack([d, -b, -c, a], 1).view(-1, 2, 2) / (a * d - b * c)[:, None, None]
