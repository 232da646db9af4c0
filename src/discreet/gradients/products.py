"""Products of many rows: torch's own, or oneDNN's, which torch has for convolutions and the like, where it is faster.

Every row of `linear` is computed from its own row alone, whichever library does it.
"""

import torch
from torch import Tensor

_WORTH = 1 << 24  # multiplications; with fewer, what a call of oneDNN costs beside them shows
_IMAGES = 16  # as which the rows of `outer` are seen: with fewer, torch would not ask oneDNN on one thread
_LONG = 1 << 11  # rows of `outer`, below which oneDNN is not faster


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """rows @ weight.t() + bias, for rows [many, n] and a weight [m, n]."""
    if _fits(rows, weight, len(weight)):
        return torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return rows @ weight.t() if bias is None else torch.addmm(bias, rows, weight.t())


def outer(left: Tensor, right: Tensor) -> Tensor:
    """left.t() @ right: the sum of the rows' outer products, as the gradient of a convolution by single points."""
    if left.shape[1] > right.shape[1]:  # the longer rows on the right are faster
        return outer(right, left).t()
    if len(left) < _LONG or len(left) % _IMAGES or not (right.is_contiguous() and _fits(left, right, right.shape[1])):
        return left.t() @ right
    weight = left.new_empty(left.shape[1], right.shape[1], 1, 1)  # its shape is all that is read
    g, x = (rows.view(_IMAGES, -1, 1, rows.shape[1]).permute(0, 3, 1, 2) for rows in (left, right))
    places = [1, 1], [0, 0], [1, 1], False, [0, 0], 1  # stride, padding, dilation, of no transposed one, groups
    _, found, _ = torch.ops.aten.convolution_backward(g, x, weight, None, *places, [False, True, False])
    return found[:, :, 0, 0]


def _fits(rows: Tensor, other: Tensor, times: int) -> bool:
    """Whether oneDNN can be asked, and is worth asking: each value of the rows is multiplied so many times."""
    plain = type(rows) is Tensor and rows.device.type == "cpu" and rows.dtype == other.dtype == torch.float32
    return plain and rows.is_contiguous() and rows.numel() * times >= _WORTH and _there()


def _there() -> bool:
    """Whether torch has oneDNN, and has not been told to leave it alone."""
    onednn = torch.backends.mkldnn
    return onednn.is_available() and bool(onednn.enabled) and hasattr(torch.ops.mkldnn, "_linear_pointwise")
