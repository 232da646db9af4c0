"""Rules for matrix products, and for parameters that meet every row: biases, scales, tables that are added."""

import torch
from torch import Tensor

from discreet.gradients.forms.base import PerExampleGrad, lengths_of
from discreet.gradients.forms.materialized import Materialised
from discreet.gradients.forms.outer import OuterProduct, OuterProducts
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
    right = ctx.cast(ctx.gradient)
    right = right if alpha == 1 else right * alpha
    if not ctx.one_row:
        return OuterProducts(ctx.split(left), ctx.split(right))
    norms = None if ctx.known_norms is None else ctx.known_norms.of(left)
    lengths = ctx.shared.get("lengths") if alpha == 1 else None
    return OuterProduct(ctx.cast(left), right, (None if norms is None else norms.sqrt(), lengths))


@rule("BmmBackward0", 1, saves=("self",), when=lambda at: at.shape[0] == 1 and at.rows.dim == 1)
def _one_matrix_for_all(ctx: OpContext) -> PerExampleGrad:
    """A batched product that is one product (einsum makes such)."""
    return OuterProducts(ctx.split(ctx.saved["self"])[:, :, 0], ctx.split(ctx.gradient)[:, :, 0], ctx.shape)


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
    gradient = ctx.cast(gradient)
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
