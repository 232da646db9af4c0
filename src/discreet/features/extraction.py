"""The public features of many images: one at a time by several threads, and kept on disk for the next run."""

import hashlib
import math
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet._check import check_int
from discreet.data.download import cache_folder
from discreet.data.files import Progress
from discreet.errors import ConfigError

_FORMAT = 2  # of what is kept: to be raised where an extractor computes something else
_TOLD = 100  # images between two words of progress
_SPARE = 1.2  # how much more room than it takes a disk must have

Halves = npt.NDArray[np.float16]


class Extractor(Protocol):
    """Public features: a function of one image, and of settings that its repr tells."""

    def shape(self, image: tuple[int, ...]) -> tuple[int, int]: ...
    def encoder(self, image: tuple[int, ...]) -> Callable[[Tensor], Tensor]: ...


@dataclass(frozen=True)
class Extracted:
    """Features of one kind, [images, places, channels], of which rows are read as they are asked for."""

    values: Halves

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def ndim(self) -> int:
        return self.values.ndim

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> Tensor:
        return torch.from_numpy(np.array(self.values[rows]))


def extract(
    extractor: Extractor,
    images: Tensor,
    *,
    workers: int | None = None,
    keep: bool = True,
    progress: Progress | None = None,
) -> Extracted:
    """The features of images [N, channels, height, width], or of texts [N, length], as float16.

    Guarantee: an image's features are bit for bit the same whichever other images there are, as each is encoded alone
    and from memory of its own: an example that is left out moves nobody else's features by a rounding error. Where an
    extractor takes several `at_once`, all batches have that size, and it was tried on made-up images before that an
    image's neighbours and its place in a batch change no bit; where they do, each is encoded alone.

    Args:
        extractor: such as Patches, Scattering, Upright or Backbone.
        images: values from 0 to 1; or tokens' numbers.
        workers: threads that take some images each; as many as there are processors by default.
        keep: write features to the cache (discreet/features in $XDG_CACHE_HOME or ~/.cache), readable for the owner
            alone, and read them from there when the same images are given with the same settings. They are as private
            as the images.
        progress: called as progress(done, total).

    Returns:
        The features, and where they are kept.
    """
    workers = os.cpu_count() or 1 if workers is None else check_int("workers", workers, least=1)
    if images.ndim != 4 and not getattr(extractor, "texts", False):
        raise ConfigError(f"features are of images [N, channels, height, width], not of shape {tuple(images.shape)}.")
    image = tuple(images.shape[1:])
    shape = (len(images), *extractor.shape(image))
    path = _place(extractor, images) if keep else None
    cached = None if path is None else _known(path, shape)
    if cached is not None:
        return Extracted(cached)
    scratch = None if path is None else _scratch(path, shape)
    values = np.empty(shape, np.float16) if scratch is None else scratch[1]
    try:
        encode = extractor.encoder(image)
        several = getattr(extractor, "at_once", 1)
        at_once = several if several > 1 and _alone_in_company(encode, image, several) else 1
        _fill(values, encode, images, at_once, workers, progress)
        if scratch is not None and path is not None and isinstance(values, np.memmap):
            values.flush()
            scratch[0].replace(path)
    finally:
        if scratch is not None:
            scratch[0].unlink(missing_ok=True)
    return Extracted(values)


def _fill(
    values: Halves,
    encode: Callable[[Tensor], Tensor],
    images: Tensor,
    at_once: int,
    workers: int,
    progress: Progress | None,
) -> None:
    def some(start: int) -> int:
        with torch.no_grad():
            end = min(start + _TOLD, len(images))
            for row in range(start, end, at_once):
                count = min(at_once, end - row)
                batch = torch.zeros(at_once, *images.shape[1:])
                batch[:count] = images[row : row + count]
                values[row : row + count] = encode(batch)[:count].numpy()
        return end - start

    done, threads = 0, torch.get_num_threads()
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
    try:
        for count in pool.map(some, range(0, len(images), _TOLD)):
            done += count
            if progress is not None:
                progress(done, len(images))
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)


@torch.no_grad()
def _alone_in_company(encode: Callable[[Tensor], Tensor], image: tuple[int, ...], count: int) -> bool:
    """Whether an image's features are the same bits at each place of a batch, and beside any others."""
    made = torch.Generator().manual_seed(0)
    if len(image) > 1:
        some = (torch.rand(2 * count, *image, generator=made) * 256).round() / 256
    else:  # texts: whole ones, and some that end before the others
        some = torch.randint(1, 32, (2 * count, *image), generator=made).float()
        some[count:] *= torch.arange(image[0]) < torch.randint(1, image[0] + 1, (count, 1), generator=made)
    first, second = encode(some[:count]), encode(some[count:])
    for shift in range(count):
        mixed = torch.cat([some[count : count + shift], some[:1], some[count + shift + 1 :]])
        found = encode(mixed)
        if not torch.equal(found[shift], first[0]) or not torch.equal(found[:shift], second[:shift]):
            return False
        if not torch.equal(found[shift + 1 :], second[shift + 1 :]):
            return False
    return True


# --- the cache -------------------------------------------------------------------------------------------------------


def _place(extractor: Extractor, images: Tensor) -> Path:
    """Where these features of these images are kept: a name that their settings and content make."""
    digest = hashlib.sha256(f"{_FORMAT} {extractor!r} {tuple(images.shape)}".encode())
    for part in images.split(1024):
        digest.update(part.contiguous().numpy().tobytes())
    return cache_folder("features") / f"{digest.hexdigest()[:32]}.npy"


def _known(path: Path, shape: Sequence[int]) -> Halves | None:
    """What was kept, or None if nothing was, or it is damaged."""
    try:
        array = np.load(path, mmap_mode="r")
    except (OSError, ValueError):
        return None
    return array if array.dtype == np.float16 and array.shape == tuple(shape) else None


def _scratch(path: Path, shape: tuple[int, ...]) -> tuple[Path, Halves] | None:
    """A file of this size to fill; None where there is no room for one."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(path.parent).free < 2 * _SPARE * math.prod(shape):
            return None
        os.close(os.open(scratch, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        return scratch, np.lib.format.open_memmap(scratch, "w+", np.float16, shape)
    except OSError:
        scratch.unlink(missing_ok=True)
        return None


__all__ = ["Extracted", "Extractor", "extract"]
