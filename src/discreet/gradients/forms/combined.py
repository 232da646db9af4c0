"""Several uses of one parameter: their gradients add up before a norm is taken."""

from collections.abc import Sequence

import torch
from torch import Tensor

from discreet.gradients.forms.base import PerExampleGrad, parts, squared_norms


def combine(forms: Sequence[PerExampleGrad]) -> PerExampleGrad:
    """The gradients of several uses of one parameter as one form, cross terms and all."""
    if len(forms) == 1:
        return forms[0]
    first, *others = (form.as_term() for form in forms)
    return first.joined(others) or Several([first, *others])


class Several(PerExampleGrad):
    """Forms of different kinds, with their cross terms: made unit by unit in parts, added, and then measured."""

    adds_terms = True

    def __init__(self, forms: Sequence[PerExampleGrad]) -> None:
        self.forms, self.units = forms, forms[0].units

    def held(self) -> Sequence[Tensor]:
        return [tensor for form in self.forms for tensor in form.held()]

    @property
    def reads_parameters(self) -> bool:
        return any(form.reads_parameters for form in self.forms)

    def each(self, start: int, stop: int) -> Tensor:
        first, *rest = self.forms
        total = first.each(start, stop).clone()
        for form in rest:
            total += form.each(start, stop)
        return total

    def norms(self) -> Tensor:
        size = self.each(0, 1).nbytes
        return torch.cat([squared_norms(self.each(i, j)) for i, j in parts(self.units, size)])

    def lengths(self) -> Tensor:
        lengths = [(form, form.lengths()) for form in self.forms]
        return torch.stack([form.norms().double().sqrt() if of is None else of for form, of in lengths]).sum(0)

    def add_weighted(self, weights: Tensor, out: Tensor) -> None:
        for form in self.forms:
            form.add_weighted(weights, out)

    def select(self, units: Tensor) -> "Several":
        return Several([form.select(units) for form in self.forms])
