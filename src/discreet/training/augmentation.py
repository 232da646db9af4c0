"""Changed copies of images, at random: what is averaged before it is bounded costs no privacy."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from discreet._check import check_int
from discreet.errors import ConfigError


@dataclass(frozen=True)
class Images:
    """Mirror images left to right by a coin, and move each by up to `shift` pixels each way, zeros moving in.

    Each row of a batch, [rows, channels, height, width], is changed on its own.
    """

    flip: bool = False
    shift: int = 0

    def __post_init__(self) -> None:
        check_int("an augmentation's shift", self.shift, least=0, most=1000)

    def __call__(self, images: Tensor) -> Tensor:
        if images.dim() != 4:
            raise ConfigError(f"inputs of shape {tuple(images.shape[1:])} are no images, so they cannot be changed so.")
        if self.flip:
            coins = torch.rand(len(images), device=images.device) < 0.5
            images = torch.where(coins[:, None, None, None], images.flip(3), images)
        if self.shift:
            images = self._moved(images)
        return images

    def _moved(self, images: Tensor) -> Tensor:
        rows, channels, height, width = images.shape
        padded = F.pad(images, (self.shift,) * 4)
        by = torch.randint(2 * self.shift + 1, (2, rows, 1), device=images.device)
        down = by[0] + torch.arange(height, device=images.device)
        right = by[1] + torch.arange(width, device=images.device)
        moved = padded.gather(2, down[:, None, :, None].expand(-1, channels, -1, padded.shape[3]))
        return moved.gather(3, right[:, None, None, :].expand(-1, channels, height, -1))
