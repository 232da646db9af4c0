"""What an image's patches share with a dictionary that was learned from images of nothing (Coates et al. 2011)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from discreet._check import check_int, check_positive
from discreet.errors import ConfigError
from discreet.features.leaves import dead_leaves

Encoder = Callable[[Tensor], Tensor]

_LEARNED_FROM = 200_000  # patches, for the whitening; those with contrast among them are clustered
_CLUSTERED = 60_000
_FLAT = 0.3  # of the patches have little contrast, and are no examples for the dictionary
_ROUNDS = 15
_OVERLAP = 1.5  # how far a pool reaches, in cells


@dataclass(frozen=True)
class Patches:
    """How much of each of `atoms` patches is in each part of an image, and how much of its negative.

    Patches of `size` x `size` of synthetic images (features/leaves.py) have their mean removed, are divided by
    sqrt(variance + contrast) in units of 0..255, whitened (with `whitening` added to the variances), and clustered by
    spherical k-means: the dictionary. Each patch of an image, at every place, is treated the same way; of its product y
    with an atom it keeps relu(y - threshold) and relu(-y - threshold), averaged over `grid` x `grid` overlapping cells.
    With `mirror` the features of the mirrored image are added. `padding` repeats an image's edge pixels around it.

    Guarantee: no private data is in the dictionary, and an image's features are a function of that image alone.
    """

    atoms: int = 640
    size: int = 6
    threshold: float = 0.5
    contrast: float = 10.0
    whitening: float = 0.1
    grid: int = 3
    padding: int = 0
    mirror: bool = False
    images: int = 800
    seed: int = 0
    precision: Literal["float32", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        check_int("Patches' atoms", self.atoms, least=1, most=_CLUSTERED // 4)
        check_int("Patches' size", self.size, least=2, most=16)
        check_int("Patches' grid", self.grid, least=1)
        check_int("Patches' padding", self.padding, least=0)
        check_int("Patches' images", self.images, least=1)
        check_int("Patches' seed", self.seed, least=0)
        check_positive("Patches' threshold", self.threshold, zero=True)
        check_positive("Patches' contrast", self.contrast)
        check_positive("Patches' whitening", self.whitening)
        if self.precision not in ("float32", "bfloat16"):
            raise ConfigError(f"Patches' precision is {self.precision!r}; it must be 'float32' or 'bfloat16'.")

    def shape(self, image: tuple[int, ...]) -> tuple[int, int]:
        """How many places and channels the features of an image of this shape (channels, height, width) have."""
        if len(image) != 3 or image[0] not in (1, 3):
            raise ConfigError(f"patches are of grey or colour images; an example's shape is {image}.")
        least = min(image[1:]) + 2 * self.padding - self.size + 1
        if least < self.grid:
            raise ConfigError(
                f"an image of {image[1]} x {image[2]} has {max(0, least)} places for a patch of {self.size} pixels, "
                f"fewer than the grid's {self.grid}; take smaller patches or a coarser grid."
            )
        return self.grid**2, 2 * self.atoms

    def encoder(self, image: tuple[int, ...]) -> Encoder:
        """A function from images [N, *image] with values from 0 to 1 to features [N, places, channels]."""
        places, _ = self.shape(image)
        rows, columns = (side + 2 * self.padding - self.size + 1 for side in image[1:])
        kind = torch.bfloat16 if self.precision == "bfloat16" else torch.float32
        filters = dictionary(self, image[0])
        pool = torch.einsum("ai,bj->abij", _pool(rows, self.grid), _pool(columns, self.grid))
        pools = [pool] + ([pool.flip(3)] if self.mirror else [])
        if self.mirror:  # the mirrored image's patches are the image's, mirrored: so the atoms are
            patches = filters.view(self.atoms, image[0], self.size, self.size)
            filters = torch.cat([filters, patches.flip(3).reshape_as(filters)])
        atoms = filters.T.to(kind).contiguous()
        spread = [p.reshape(places, -1).to(kind).contiguous() for p in pools]

        def pooled(values: Tensor) -> Tensor:
            parts = values.split(self.atoms, 2)
            return torch.stack([p @ part for p, part in zip(spread, parts, strict=True)]).sum(0)

        def encode(images: Tensor) -> Tensor:
            seen = F.unfold(self._padded(images * 255), self.size).transpose(1, 2)
            seen = seen - seen.mean(2, keepdim=True)
            seen = seen / torch.sqrt(seen.var(2, keepdim=True) + self.contrast)
            activations = F.softshrink(
                seen.to(kind) @ atoms, self.threshold
            )  # of which the two are the parts above and below 0
            differences, sums = pooled(activations), pooled(activations.abs())
            return torch.cat([sums + differences, sums - differences], 2).float() / 2

        return encode

    def _padded(self, images: Tensor) -> Tensor:
        return F.pad(images, (self.padding,) * 4, mode="replicate") if self.padding else images


@lru_cache(maxsize=4)
def dictionary(patches: Patches, channels: int) -> Tensor:
    """The atoms, whitening included, as filters [atoms, values of a patch]."""
    generator = torch.Generator().manual_seed(patches.seed)
    images = dead_leaves(patches.images, seed=patches.seed)
    if channels == 1:
        images = images.mean(1, keepdim=True)
    seen = F.unfold(images, patches.size).transpose(1, 2).flatten(0, 1)
    seen = seen[torch.randperm(len(seen), generator=generator)[:_LEARNED_FROM]]
    seen = seen - seen.mean(1, keepdim=True)
    seen = seen / torch.sqrt(seen.var(1, keepdim=True) + patches.contrast)
    centred = seen - seen.mean(0)
    values, vectors = torch.linalg.eigh(centred.T @ centred / len(seen))
    whiten = (vectors / torch.sqrt(values.clamp(min=0) + patches.whitening)) @ vectors.T
    seen = seen @ whiten
    length = seen.norm(dim=1)
    with_contrast = seen[length > length.quantile(_FLAT)]
    return _clusters(with_contrast[:_CLUSTERED], patches.atoms, generator) @ whiten


def _clusters(rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Spherical k-means: unit vectors, such that each row is near to one of them or to its negative."""
    if len(rows) < count:
        raise ConfigError(f"there are {len(rows)} synthetic patches to learn {count} atoms from; take more images.")
    centres = F.normalize(rows[torch.randperm(len(rows), generator=generator)[:count]], dim=1)
    for _ in range(_ROUNDS):
        products = rows @ centres.T
        nearest = products.abs().argmax(1, keepdim=True)
        weighted = rows * products.gather(1, nearest)
        sums = torch.zeros_like(centres).index_add_(0, nearest[:, 0], weighted)
        empty = sums.norm(dim=1) < 1e-6
        sums[empty] = rows[torch.randperm(len(rows), generator=generator)[: int(empty.sum())]]
        centres = F.normalize(sums, dim=1)
    return centres


def _pool(places: int, cells: int) -> Tensor:
    """Weights [cells, places] of overlapping triangles, each adding up to 1."""
    cell = places / cells
    centres = (torch.arange(cells) + 0.5) * cell - 0.5
    weights = (1 - (torch.arange(places) - centres[:, None]).abs() / (_OVERLAP * cell)).clamp(min=0)
    return weights / weights.sum(1, keepdim=True)
