"""Rules for matrix products, and for parameters that meet every row: biases, scales, tables that are added."""

import torch
from torch import Tensor

from discreet.gradients.forms.base import PerExampleGrad
from discreet.gradients.forms.materialized import Materialised
from discreet.gradients.forms.outer import OuterProduct, OuterProducts, lengths_of
from discreet.gradients.forms.segments import GroupedProducts
from discreet.gradients.layout import Rows
from discreet.gradients.rules.registry import OpContext, Placement, along_first, rule

# --- products ---------------------------------------------------------------------------------------------------------


@rule("AddmmBackward0", 2, saves=("mat1", "alpha"), when=along_first, any_rows=True)
def _addmm_weight(ctx: OpContext) -> PerExampleGrad:
    return _product(ctx, ctx.saved["mat1"], ctx.saved["alpha"])


@rule("MmBackward0", 1, saves=("self",), when=along_first, any_rows=True)
def _mm_weight(ctx: OpContext) -> PerExampleGrad:
    return _product(ctx, ctx.saved["self"], 1)


def _product(ctx: OpContext, left: Tensor, alpha: float) -> PerExampleGrad:
    right = ctx.gradient if ctx.gradient.dtype == ctx.dtype else ctx.cast(ctx.gradient)
    right = right if alpha == 1 else right * alpha
    if not ctx.one_row:
        return OuterProducts(ctx.split(left), ctx.split(right))
    norms = None if ctx.known_norms is None else ctx.known_norms.of(left)
    lengths = ctx.shared.get("lengths") if alpha == 1 else None
    left = left if left.dtype == ctx.dtype else ctx.cast(left)
    return OuterProduct(left, right, (None if norms is None else norms.sqrt(), lengths))


@rule("MmBackward0", 0, saves=("mat2",), when=lambda at: at.rows.dim == 1, any_rows=True)
def _mm_from_the_left(ctx: OpContext) -> PerExampleGrad:
    return OuterProducts(ctx.split(ctx.gradient), ctx.split(ctx.saved["mat2"]))


@rule("BmmBackward0", 1, saves=("self",), when=lambda at: at.rows.dim == 1, any_rows=True)
def _matrices_by_head(ctx: OpContext) -> PerExampleGrad:
    """A matrix for each entry of the batch dimension, which is no unit's: heads, or one (einsum makes such)."""
    if ctx.shape[0] == 1:
        return OuterProducts(ctx.split(ctx.saved["self"])[:, :, 0], ctx.split(ctx.gradient)[:, :, 0], ctx.shape)
    return _by_head(ctx, ctx.saved["self"], ctx.gradient)


@rule("BmmBackward0", 0, saves=("mat2",), when=lambda at: at.rows.dim == 2, any_rows=True)
def _matrices_by_head_from_the_left(ctx: OpContext) -> PerExampleGrad:
    return _by_head(ctx, ctx.gradient.mT, ctx.saved["mat2"].mT)


def _by_head(ctx: OpContext, left: Tensor, right: Tensor) -> PerExampleGrad:
    """From [heads, rows, ...] of both sides."""
    heads, rows = left.shape[:2]
    owner = ctx.owners.repeat(heads)
    group = torch.arange(heads, device=owner.device).repeat_interleave(rows)
    left, right = (ctx.cast(side).flatten(0, 1) for side in (left, right))
    return GroupedProducts(left, right, owner, group, ctx.units, ctx.shape)


def _rows_by_group(at: Placement) -> bool:
    return at.rows.dim == 0 and len(at.output) == 2 and len(at.shape) == 3


@rule("GroupedMmBackward0", 1, saves=("self", "offs"), when=_rows_by_group, any_rows=True)
def _grouped(ctx: OpContext) -> PerExampleGrad:
    """Rows sorted by group, each by the matrix of its group (experts); those after the last offset are nobody's."""
    ends = ctx.saved["offs"].long()
    owner = ctx.owners
    group = torch.searchsorted(ends, torch.arange(len(owner), device=ends.device), right=True)
    group = torch.where(group < len(ends), group, -1)
    return GroupedProducts(ctx.cast(ctx.saved["self"]), ctx.cast(ctx.gradient), owner, group, ctx.units, ctx.shape)


# --- broadcasting: a parameter that meets every row -------------------------------------------------------------------


def broadcast(at: Placement) -> bool:
    """A condition: the parameter has not the units' dimension itself, so that it is the same for every unit."""
    if at.one_row and at.output == (at.units, *at.shape):
        return True
    return _aligned(at.output, at.shape)[at.rows.dim] == 1


def _aligned(output: torch.Size, shape: torch.Size) -> tuple[int, ...]:
    return (*(1,) * (len(output) - len(shape)), *shape)


@rule("AddmmBackward0", 0, saves=("beta",), when=broadcast, any_rows=True)
def _addmm_bias(ctx: OpContext) -> PerExampleGrad | Tensor:
    """One row a unit is the gradient, whose length the weight's rule needs, too."""
    beta, gradient = ctx.saved["beta"], ctx.gradient
    if beta != 1 or not ctx.one_row or gradient.shape != (ctx.units, *ctx.shape):
        return _sum_to_shape(ctx, gradient if beta == 1 else gradient * beta)
    gradient = gradient if gradient.dtype == ctx.dtype else ctx.cast(gradient)
    ctx.shared["lengths"] = lengths = lengths_of(gradient)
    return Materialised(gradient, lengths * lengths)


@rule("AddBackward0", 0, when=broadcast, any_rows=True)
@rule("SubBackward0", 0, when=broadcast, any_rows=True)
@rule("ExpandBackward0", 0, when=broadcast, any_rows=True)
def _added(ctx: OpContext) -> Tensor:
    return _sum_to_shape(ctx, ctx.gradient)


@rule("AddBackward0", 1, saves=("alpha",), when=broadcast, any_rows=True)
def _added_second(ctx: OpContext) -> Tensor:
    return _sum_to_shape(ctx, ctx.gradient * ctx.saved["alpha"])


@rule("SubBackward0", 1, saves=("alpha",), when=broadcast, any_rows=True)
def _subtracted(ctx: OpContext) -> Tensor:
    return _sum_to_shape(ctx, ctx.gradient * -ctx.saved["alpha"])


@rule("MulBackward0", 0, saves=("other",), when=broadcast, any_rows=True)
def _multiplied(ctx: OpContext) -> Tensor:
    return _sum_to_shape(ctx, ctx.gradient * ctx.saved["other"])


@rule("MulBackward0", 1, saves=("self",), when=broadcast, any_rows=True)
def _multiplied_second(ctx: OpContext) -> Tensor:
    return _sum_to_shape(ctx, ctx.gradient * ctx.saved["self"])


@rule("WhereBackward0", 0, 1, saves=("condition",), when=broadcast)
def _chosen(ctx: OpContext) -> Tensor:
    """A parameter where a mask is set, or where it is not (T5 masks its relative positions so)."""
    condition = ctx.saved["condition"]
    return _sum_to_shape(ctx, ctx.gradient.masked_fill(condition if ctx.number else ~condition, 0.0))


def _repeats_in_units(at: Placement) -> bool:
    """Along dimension 0, a whole number of times a unit."""
    return (
        at.rows == Rows(0)
        and at.output[1:] == at.shape[1:]
        and len(at.output) == len(at.shape)
        and at.output[0] // at.units % at.shape[0] == 0
    )


@rule("RepeatBackward0", 0, when=_repeats_in_units)
def _repeated(ctx: OpContext) -> Tensor:
    """A parameter repeated along dimension 0 (InstanceNorm does so)."""
    return ctx.split(ctx.gradient).unflatten(1, (-1, ctx.shape[0])).sum(1)


def _sum_to_shape(ctx: OpContext, gradient: Tensor) -> Tensor:
    """Each unit's gradient, summed over the dimensions along which the parameter was broadcast."""
    shape = ctx.shape
    if ctx.one_row and gradient.shape == (ctx.units, *shape):  # there is nothing to sum
        return ctx.cast(gradient)
    dim, aligned = ctx.rows.dim, _aligned(gradient.shape, shape)
    split = ctx.split(gradient)  # [units, rows, *other dimensions]
    target = (ctx.units, 1, *aligned[:dim], *aligned[dim + 1 :])
    dims = [d for d in range(1, split.dim()) if target[d] == 1 and split.shape[d] != 1]
    summed = split.sum(dims, keepdim=True) if dims else split
    return summed.reshape(ctx.units, *shape)
