"""Images of nothing: leaves that fell on each other, with the sizes, edges, shading and texture of natural scenes.

Shapes of random kind, place and turn occlude each other, their radii r by the density r^-3 (Lee, Mumford and Huang
2001), so that patches have much of the statistics of photographs'. No real image is behind them.
"""

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet._check import check_int

_FINER = 3  # drawn so many times larger, and then averaged
_LEAVES = 120  # on an image
_RADII = 4.0, 60.0  # of leaves, in drawn pixels
_BETWEEN = 20.0, 235.0  # brightness
_TINT = 28.0 * np.array([1.0, 0.5, 1.0])
_TEXTURE = 8.0  # the strongest, a standard deviation
_SHADE = 0.25  # from the middle to an edge, at most

Values = npt.NDArray[np.float64]


def dead_leaves(count: int, *, side: int = 32, seed: int = 0) -> Tensor:
    """So many colour images [count, 3, side, side] with values from 0 to 255; the same for the same seed.

    Args:
        count: how many.
        side: their height and width in pixels.
        seed: of the generator that draws them.

    >>> dead_leaves(2, side=8).shape
    torch.Size([2, 3, 8, 8])
    """
    check_int("the number of images", count, least=1)
    check_int("an image's side", side, least=2)
    random = np.random.default_rng(check_int("seed", seed, least=0))
    return torch.from_numpy(np.stack([_image(side, random) for _ in range(count)])).float()


def _image(side: int, random: np.random.Generator) -> Values:
    large = side * _FINER
    canvas = np.empty((3, large, large))
    canvas[:] = _colour(random)
    for _ in range(_LEAVES):
        _drop(canvas, random)
    image = canvas.reshape(3, side, _FINER, side, _FINER).mean((2, 4))
    image += _TEXTURE * random.uniform() * _texture(side, random)
    across = np.linspace(-1, 1, side)
    image *= 1 + random.uniform(-_SHADE, _SHADE) * across + random.uniform(-_SHADE, _SHADE) * across[:, None]
    return image.clip(0, 255)


def _colour(random: np.random.Generator) -> Values:
    grey = random.uniform(*_BETWEEN)
    return (grey + random.standard_normal(3) * _TINT).clip(0, 255)[:, None, None]


def _drop(canvas: Values, random: np.random.Generator) -> None:
    """One leaf on top: an ellipse, a box, a polygon in a circle, or a bar."""
    large = canvas.shape[-1]
    least, most = _RADII
    radius = 1 / math.sqrt(random.uniform(most**-2, least**-2))
    x, y = random.uniform(-5, large + 5, 2)
    colour, kind, turn = _colour(random), random.integers(4), random.uniform(0, math.pi)
    long, wide = radius, radius * random.uniform(0.2, 1)
    corners = np.sort(random.uniform(0, 2 * math.pi, random.integers(3, 7)))
    if kind == 3:
        long, wide = 2 * radius, max(1.0, 0.12 * radius)
    reach = math.hypot(long, max(long if kind == 2 else 0.0, wide)) + 1
    left, right = max(0, math.floor(x - reach)), min(large, math.ceil(x + reach))
    top, bottom = max(0, math.floor(y - reach)), min(large, math.ceil(y + reach))
    if left >= right or top >= bottom:
        return
    across, down = np.arange(left, right) + 0.5 - x, (np.arange(top, bottom) + 0.5 - y)[:, None]
    along, beside = (
        across * math.cos(turn) + down * math.sin(turn),
        down * math.cos(turn) - across * math.sin(turn),
    )
    if kind == 0:
        inside = (along / long) ** 2 + (beside / wide) ** 2 <= 1
    elif kind == 2:
        inside = _polygon(along, beside, radius * np.cos(corners), radius * np.sin(corners))
    else:
        inside = (abs(along) <= long) & (abs(beside) <= wide)
    np.copyto(canvas[:, top:bottom, left:right], colour, where=inside)


def _polygon(along: Values, beside: Values, x: Values, y: Values) -> npt.NDArray[np.bool_]:
    """What is to the left of every side, from corner to corner against the clock."""
    inside = np.ones(np.broadcast_shapes(along.shape, beside.shape), dtype=bool)
    for a, b, c, d in zip(x, y, np.roll(x, -1), np.roll(y, -1), strict=True):
        inside &= (c - a) * (beside - b) >= (d - b) * (along - a)
    return inside


def _texture(side: int, random: np.random.Generator) -> Values:
    """Noise whose amplitudes fall like 1 / frequency, of standard deviation 1."""
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.fftfreq(side))
    frequency[0, 0] = np.inf
    noise = np.fft.ifft2(np.fft.fft2(random.standard_normal((side, side))) / frequency).real
    return noise / noise.std()
