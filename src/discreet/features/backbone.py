"""Features of a public pretrained network, which stays as it is (De et al. 2022, section 5; Tramèr and Boneh 2021)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from discreet._check import check_int, check_positive
from discreet.errors import ConfigError
from discreet.models.pretrained import Body, ImageBody, public_network, sized

_VIEWS = 8  # in a batch: several hide what a call costs, more do not fit into the cache


@dataclass(frozen=True)
class Backbone:
    """What the last layer before the head of a public network says of an image or a text.

    Images are made `side` pixels wide and high, and the network's last map is averaged over a grid of `grid` x `grid`
    cells; with `mirror` the features are the mean of those of the image and of its mirror image. With `after`, the maps
    after these blocks of the network (from 1) are averaged, too, and stand beside: the last map's features have length
    1, and those of each other `weight`. Texts are rows of tokens' numbers, and have one place. BatchNorm layers are in
    evaluation mode: they use the statistics that the network came with.

    Guarantee: an example's features are a function of that example alone. What the network was trained on is assumed
    not to hold the private records (`assumption`).
    """

    network: str = "efficientnet-lite0"
    side: int = 128
    grid: int = 1
    mirror: bool = False
    precision: Literal["float32", "bfloat16"] = "float32"
    after: tuple[int, ...] = ()
    weight: float = 0.3

    def __post_init__(self) -> None:
        there = len(public_network(self.network).channels)
        object.__setattr__(self, "after", tuple(self.after))
        for number in self.after:
            if check_int("a block of Backbone's after", number, least=1) > there:
                raise ConfigError(f"Backbone's after names block {number}, and {self.network} has {there} to name.")
        if len(set(self.after)) < len(self.after):
            raise ConfigError(f"Backbone's after names a block twice: {list(self.after)}.")
        check_positive("Backbone's weight", self.weight)
        check_int("Backbone's grid", self.grid, least=1)
        if check_int("Backbone's side", self.side, least=32) % 32:
            raise ConfigError(f"Backbone's side is {self.side}; it is halved five times: take a multiple of 32.")
        if self.precision not in ("float32", "bfloat16"):
            raise ConfigError(f"Backbone's precision is {self.precision!r}; it must be 'float32' or 'bfloat16'.")

    @property
    def at_once(self) -> int:
        """How many examples the network takes in one batch."""
        return _VIEWS // (2 if self.mirror else 1)

    @property
    def texts(self) -> bool:
        """Whether it takes texts, and not images."""
        return public_network(self.network).takes == "texts"

    @property
    def assumption(self) -> str:
        """What a guarantee assumes of the network's weights."""
        return public_network(self.network).assumption

    def shape(self, image: tuple[int, ...]) -> tuple[int, int]:
        """How many places and channels the features of an example of this shape have."""
        wanted = 1 if self.texts else 3
        if len(image) != wanted:
            what = "texts of shape (length,)" if self.texts else "images of shape (channels, height, width)"
            raise ConfigError(f"{self.network} takes {what}, and an example's shape is {image}.")
        public = public_network(self.network)
        width = public.width + sum(public.channels[number - 1] for number in self.after)
        return (1 if self.texts else self.grid**2), width

    def encoder(self, image: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
        """A function from examples [N, *image] to features [N, places, channels]."""
        self.shape(image)
        return self.encoder_of(public_network(self.network).load())

    def encoder_of(self, body: Body) -> Callable[[Tensor], Tensor]:
        """The same with a network that is at hand; it is changed to the precision."""
        kind = torch.bfloat16 if self.precision == "bfloat16" else torch.float32
        body = body.to(kind)
        if not isinstance(body, ImageBody):
            return lambda texts: body(texts).float().unsqueeze(1)
        last: Any = {"memory_format": torch.channels_last}
        body = body.to(**last)
        views = 2 if self.mirror else 1

        def averaged(maps: Tensor) -> Tensor:
            """[N, places, channels]"""
            cells = F.adaptive_avg_pool2d(maps.float(), self.grid)
            return cells.view(views, -1, *cells.shape[1:]).mean(0).flatten(2).transpose(1, 2)

        def encode(images: Tensor) -> Tensor:
            images = sized(images, self.side)
            if self.mirror:
                images = torch.cat([images, images.flip(3)])
            found = [averaged(maps) for maps in body.maps(images.contiguous(**last), self.after)]
            if len(found) == 1:
                return found[0]
            lengths = [1.0, *[self.weight] * len(self.after)]
            return torch.cat([_long(part, length) for part, length in zip(found, lengths, strict=True)], 2)

        return encode


def _long(features: Tensor, length: float) -> Tensor:
    """Each example's features [N, places, channels] with this length; zeros stay zeros."""
    norms = features.flatten(1).norm(dim=1).clamp(min=torch.finfo(torch.float32).tiny)
    return features * (length / norms)[:, None, None]
