"""Whitening that costs nothing: by the moments that features have on images of nothing, much like real ones'."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from discreet._check import check_int, check_positive
from discreet.errors import ConfigError
from discreet.features.deskew import Upright
from discreet.features.leaves import dead_leaves
from discreet.features.patches import Patches
from discreet.features.pca import unit
from discreet.features.scattering import Scattering

_LEAST = 1e-3  # of the mean eigenvalue: directions with less are not amplified any further
_AT_ONCE = 4


@dataclass(frozen=True)
class Rehearsed:
    """An extractor's features, centred and whitened as its features of synthetic images ask for.

    Rows are made unit and have the mean of such rows of `images` images of dead leaves taken off; channels are
    multiplied by these rows' second moments to the power -`power`, and only the `channels` directions with the largest
    moments are kept (all, if not given), the largest last. What is then asked of private data has less to correct.

    Guarantee: no private data is in it, and an image's features are a function of that image alone.
    """

    extractor: Patches | Scattering | Upright
    power: float = 0.25
    channels: int | None = None
    images: int = 2000
    seed: int = 1

    def __post_init__(self) -> None:
        if not check_positive("Rehearsed's power", self.power, zero=True) <= 1:
            raise ConfigError(f"Rehearsed's power is {self.power!r}; it must be from 0 to 1.")
        check_int("Rehearsed's images", self.images, least=1)
        check_int("Rehearsed's seed", self.seed, least=0)
        if self.channels is not None:
            check_int("Rehearsed's channels", self.channels, least=1)

    def shape(self, image: tuple[int, ...]) -> tuple[int, int]:
        """How many places and channels the features of an image of this shape (channels, height, width) have."""
        places, channels = self.extractor.shape(image)
        if self.channels is None:
            return places, channels
        if self.channels > channels:
            raise ConfigError(f"Rehearsed's channels are {self.channels}, and there are {channels}; keep fewer.")
        return places, self.channels

    def encoder(self, image: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
        """A function from images [N, *image] with values from 0 to 1 to features [N, places, channels]."""
        places, channels = self.shape(image)
        encode = self.extractor.encoder(image)
        mean, by_channel = rehearse(self, image)
        inner = self.extractor.extractor if isinstance(self.extractor, Upright) else self.extractor
        kind = torch.bfloat16 if getattr(inner, "precision", "") == "bfloat16" else torch.float32
        by_channel = by_channel.to(kind)

        def whitened(images: Tensor) -> Tensor:
            rows = unit(encode(images).flatten(1)) - mean
            whitened_rows = rows.view(-1, len(by_channel)).to(kind) @ by_channel
            length = math.sqrt(places * channels)  # so that values are about 1, for float16
            return (unit(whitened_rows.float().view(len(images), -1)) * length).view(-1, places, channels)

        return whitened


@lru_cache(maxsize=4)
def rehearse(rehearsed: Rehearsed, image: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The mean of rows of synthetic images, flat, and what multiplies their channels."""
    _, channels = rehearsed.extractor.shape(image)
    encode = rehearsed.extractor.encoder(image)
    images = dead_leaves(rehearsed.images, side=max(image[1:]), seed=rehearsed.seed)[:, :, : image[1], : image[2]] / 255
    if image[0] == 1:
        images = images.mean(1, keepdim=True)
    rows = unit(torch.cat([encode(part) for part in images.split(_AT_ONCE)]).flatten(1))
    mean = rows.mean(0)
    flat = unit(rows - mean).view(-1, channels)
    values, vectors = torch.linalg.eigh(flat.T @ flat * (channels / len(images)))
    channels_kept = channels if rehearsed.channels is None else rehearsed.channels
    return mean, (vectors * values.clamp(min=_LEAST) ** -rehearsed.power)[:, channels - channels_kept :]
