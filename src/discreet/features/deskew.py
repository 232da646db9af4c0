"""Writing set upright: an image is sheared, moved and scaled by its own moments before features are taken of it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from discreet._check import check_positive
from discreet.errors import ConfigError
from discreet.features.patches import Patches
from discreet.features.scattering import Scattering

_WIDE, _HIGH = 0.27, 0.37  # the spread that scaling goes towards, where the image reaches from -1 to 1
_SCALES = 0.6, 1.5  # no more than so much
_LEAST = 1e-3  # added to the spread squared: a shape without height is not sheared
_INK = 1e-6  # with less in it, an image is as good as empty and stays what it is


@dataclass(frozen=True)
class Upright:
    """An extractor's features of images that are upright: light shapes on black, such as digits.

    Brightness is taken for mass. Its centre is moved to the middle, and rows are shifted against each other until
    `shear` (1: all) of the slant is gone, the slope of x on y. With `spread`, a power, width and height are scaled
    towards those of a usual digit: 0 leaves them, 1 makes the standard deviations of x and y the same in all images.

    Guarantee: an image's features are a function of that image alone.
    """

    extractor: Patches | Scattering
    shear: float = 1.0
    spread: float = 0.0

    def __post_init__(self) -> None:
        for name in ("shear", "spread"):
            if not check_positive(f"Upright's {name}", getattr(self, name), zero=True) <= 1:
                raise ConfigError(f"Upright's {name} is {getattr(self, name)!r}; it must be from 0 to 1.")

    def shape(self, image: tuple[int, ...]) -> tuple[int, int]:
        """How many places and channels the features of an image of this shape (channels, height, width) have."""
        return self.extractor.shape(image)

    def encoder(self, image: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
        """A function from images [N, *image] with values from 0 to 1 to features [N, places, channels]."""
        encode = self.extractor.encoder(image)
        return lambda images: encode(self.turned(images))

    def turned(self, images: Tensor) -> Tensor:
        """The images [N, channels, height, width], upright.

        Args:
            images: [rows, channels, height, width].
        """
        y, x = (torch.linspace(-1 + 1 / side, 1 - 1 / side, side) for side in images.shape[2:])
        mass = images.mean(1)
        total = mass.sum((1, 2))
        inked = total > _INK
        mass = mass / torch.where(inked, total, 1.0)[:, None, None]
        middle_x, middle_y = (mass.sum(1) * x).sum(1), (mass.sum(2) * y).sum(1)
        across, down = x - middle_x[:, None], y - middle_y[:, None]
        slanted, high = torch.einsum("nyx,ny,nx->n", mass, down, across), (mass.sum(2) * down.square()).sum(1)
        slope = self.shear * slanted / (high + _LEAST)
        wide = (mass.sum(1) * across.square()).sum(1) - 2 * slope * slanted + slope.square() * high
        scale_x, scale_y = (
            torch.where(inked, ((extent.clamp(min=0).sqrt() / usual) ** self.spread).clamp(*_SCALES), 1.0)
            for extent, usual in ((wide, _WIDE), (high, _HIGH))
        )
        none = torch.zeros_like(slope)
        rows = [scale_x, slope * scale_y, middle_x], [none, scale_y, middle_y]  # from a pixel to where it is taken from
        turns = torch.stack([torch.stack(row, 1) for row in rows], 1)
        sources = F.affine_grid(turns, list(images.shape), align_corners=False)
        return F.grid_sample(images, sources, mode="bicubic", align_corners=False).clamp(0, 1)
