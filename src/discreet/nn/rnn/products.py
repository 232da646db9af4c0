"""Products of many rows: torch's own, or oneDNN's, which torch has for convolutions, where it is faster.

A row is a place of an image then, and the convolution one by single points. Every row of `linear` is computed from its
own row alone, whichever library does it.
"""

import torch
from torch import Tensor

_WORTH = 1 << 24  # multiplications; with fewer, what a call of oneDNN costs beside them shows
_IMAGES = 16  # as which rows are seen: with fewer, torch would not ask oneDNN on one thread
_LONG = 1 << 11  # rows below which oneDNN is not faster
_POINTS = [1, 1], [0, 0], [1, 1], False, [0, 0], 1  # stride, padding, dilation, of no transposed one, groups


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """rows @ weight.t() + bias, for rows [many, n] and a weight [m, n]."""
    if _fits(rows, weight, len(weight)):
        product = torch.convolution(_images(rows), weight[:, :, None, None], bias, *_POINTS)
        return product.permute(0, 2, 3, 1).reshape(len(rows), len(weight))
    return rows @ weight.t() if bias is None else torch.addmm(bias, rows, weight.t())


def outer(left: Tensor, right: Tensor) -> Tensor:
    """left.t() @ right: the sum of the rows' outer products, as the gradient of such a convolution's weight."""
    if left.shape[1] > right.shape[1]:  # the longer rows on the right are faster
        return outer(right, left).t()
    if not (right.is_contiguous() and _fits(left, right, right.shape[1])):
        return left.t() @ right
    weight = left.new_empty(left.shape[1], right.shape[1], 1, 1)  # its shape is all that is read
    wanted = [False, True, False]
    product = torch.ops.aten.convolution_backward(_images(left), _images(right), weight, None, *_POINTS, wanted)[1]
    return product[:, :, 0, 0]


def _images(rows: Tensor) -> Tensor:
    return rows.view(_IMAGES, -1, 1, rows.shape[1]).permute(0, 3, 1, 2)


def _fits(rows: Tensor, other: Tensor, times: int) -> bool:
    """Whether oneDNN can be asked, and is worth asking: each value of the rows is multiplied so many times."""
    plain = type(rows) is Tensor and rows.device.type == "cpu" and rows.dtype == other.dtype == torch.float32
    many = len(rows) >= _LONG and len(rows) % _IMAGES == 0 and rows.numel() * times >= _WORTH
    onednn = torch.backends.mkldnn
    return plain and many and rows.is_contiguous() and onednn.is_available() and bool(onednn.enabled)
