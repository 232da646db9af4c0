"""Gradients of a complex parameter, as those of its real and imaginary parts: a norm is a norm, and noise is real."""

from collections.abc import Sequence

import torch
from torch import Tensor

from discreet.gradients.forms.base import PerExampleGrad


def real_parts(tensor: Tensor) -> Tensor:
    """A complex tensor as pairs of real numbers; another one as it is."""
    return torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor


class ComplexParts(PerExampleGrad):
    """Complex gradients [units, *shape] as real ones [units, *shape, 2], whose norms are the same."""

    adds_terms = True  # it may

    def __init__(self, form: PerExampleGrad, shape: torch.Size, dtype: torch.dtype) -> None:
        self.form, self.shape, self.dtype, self.units = form, shape, dtype, form.units

    @property
    def reads_parameters(self) -> bool:
        return self.form.reads_parameters

    def held(self) -> Sequence[Tensor]:
        return self.form.held()

    def norms(self) -> Tensor:
        return self.form.norms()

    def lengths(self) -> Tensor | None:
        return self.form.lengths()

    def add_weighted(self, weights: Tensor, out: Tensor) -> None:
        total = torch.zeros(self.shape, dtype=self.dtype, device=out.device)
        self.form.add_weighted(weights, total)
        out.add_(torch.view_as_real(total))

    def each(self, start: int, stop: int) -> Tensor:
        return real_parts(self.form.each(start, stop).to(self.dtype))

    def select(self, units: Tensor) -> "ComplexParts":
        return ComplexParts(self.form.select(units), self.shape, self.dtype)
