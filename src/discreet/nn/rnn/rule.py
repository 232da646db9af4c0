"""The rule for a recurrence: a sum of outer products over the steps for a weight, a sum over the steps for a bias."""

from torch import Tensor

from discreet.gradients.forms.base import GRAM, PRODUCT_TIME, Cost, Kernel, PerExampleGrad
from discreet.gradients.forms.outer import OuterProducts, gram, gram_time, nearly_cancelling, norms_of_grams
from discreet.gradients.layout import Rows
from discreet.gradients.rules import OpContext, rule
from discreet.nn.rnn.products import outer


@rule(
    "RecurrentWeightsBackward",
    *(0, 1, 2, 3),
    saves=("saved_tensors", "rows", "shared"),
    when=lambda at: at.rows.dim < 2,  # of batch, steps and gates
)
def _recurrent(ctx: OpContext) -> PerExampleGrad | Tensor:
    """A sum of outer products over the steps for a weight, a sum over the steps for a bias."""
    x, before = (tensor.transpose(0, 1) for tensor in ctx.saved["saved_tensors"])
    size, gradient = ctx.saved["rows"], ctx.gradient
    of_hidden = ctx.number in (1, 3)
    part = gradient[..., -size:] if of_hidden else gradient[..., :size]
    name = "hidden" if of_hidden and gradient.shape[2] != size else "input"
    memo = ctx.saved["shared"].look(gradient)
    if ctx.number > 1:
        if "sum" not in memo:  # over the steps, as a product: faster than a sum over an outer dimension
            first = gradient.to(ctx.dtype).movedim(ctx.rows.dim, 0)
            steps = first.transpose(0, 1).flatten(1)
            total = (steps.new_ones(len(steps)) @ steps).view(len(first), -1)
            memo["sum"] = Rows(0, ctx.rows.interleaved).split(total, ctx.units).sum(1)
        return memo["sum"][:, -size:] if of_hidden else memo["sum"][:, :size]
    factor = before if of_hidden else x
    left, right = ctx.split(part).flatten(1, 2), ctx.split(factor).flatten(1, 2)
    if ctx.rows != Rows(0) or left.shape[1] != gradient.shape[1]:
        return OuterProducts(left, right)
    return StepProducts(left, right, memo, name, shared=gradient.shape[2] == size)


class StepProducts(OuterProducts):
    """Outer products with one row a time step, read time first; two weights share the Gram matrix of their gradient."""

    def __init__(self, left: Tensor, right: Tensor, memo: dict[str, Tensor], name: str, *, shared: bool) -> None:
        super().__init__(left, right)
        self._memo, self._name, self._shared = memo, f"{name} gram", shared
        self._lengths: Tensor | None = None

    def kernels(self) -> dict[Kernel, Cost]:
        """Gram matrices are cheaper than elsewhere: gradients of steps rarely point the same way, and half of the one
        on the left is the other weight's."""
        costs = super().kernels()
        if self._shared and GRAM in costs:
            rows, a = self.left.shape[1:]
            cost = nearly_cancelling(rows) * PRODUCT_TIME * rows * a * self.right.shape[2]
            costs[GRAM] = Cost(costs[GRAM].time - cost - gram_time(rows, a) / 2)
        return costs

    def _norms_of_grams(self) -> Tensor:
        if self._name not in self._memo:
            self._memo[self._name] = gram(self.left)
        left, right = self._memo[self._name], gram(self.right)
        one, other = (g.diagonal(dim1=1, dim2=2).clamp(min=_SMALL).double() for g in (left, right))
        self._lengths = one.mul_(other).sqrt_().sum(1)
        return norms_of_grams(left, right, self._make)

    def _lengths_of_terms(self) -> Tensor | None:
        return super()._lengths_of_terms() if self._lengths is None else self._lengths

    def _add_terms(self, weights: Tensor, out: Tensor) -> None:
        left, right = (tensor.transpose(0, 1) for tensor in (self.left, self.right))  # time first, as they were made
        if left.shape[2] < right.shape[2]:
            left = left * weights[:, None]
        else:
            right = right * weights[:, None]
        out.add_(outer(left.flatten(0, 1), right.flatten(0, 1)))


_SMALL = 1e-24  # shorter squared lengths count as this one: far below, float32 would lose them
