"""Images by class, from a folder, and how images are decoded."""

import io
import struct
import warnings
import zlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet._check import within
from discreet.data.dataset import Data, Split
from discreet.data.files import Progress, needed, reading, regular
from discreet.errors import ConfigError

Octets = npt.NDArray[np.uint8]
Labelled = Sequence[tuple[str, bytes | Path, int]]  # what to call an image, where it is, and its class

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # whatever a file's name says: others run programs
_GREY = ("1", "L")
_DEEP = ("I", "F")  # more than 8 bits a pixel: Pillow would cut them
_EVERY = 500  # images between two calls of progress


def image_folder(name: str, split: Split, limit: int | None, progress: Progress | None) -> Data:
    """Images by class, decoded; in the order of the seed."""
    folder = Path(name)
    names = class_names(folder)
    parted = set(names) == {"train", "test"}
    if parted:
        names = class_names(folder / "train")
        if not set(class_names(folder / "test")) <= set(names):
            raise ConfigError(f"{folder / 'test'} has classes that {folder / 'train'} has not.")
        parts = [labelled(folder / part, names, split, None) for part in ("train", "test")]
    else:
        images = labelled(folder, names, split, None)
        train, test = split.parts(name, len(images))
        parts = [[images[i] for i in rows.tolist()] for rows in (train, test)]
    if len(names) < 2:
        raise ConfigError(f"{folder} has {len(names)} folders of images; put each of two or more classes in its own.")
    files = [part[:limit] for part in parts]
    x, y, _ = decoded([image for part in files for image in part], progress, channels=None)
    inputs, labels, count = scaled(x), torch.from_numpy(y), len(files[0])
    test_part = (inputs[count:], labels[count:]) if files[1] else None
    return Data(
        name, (inputs[:count], labels[:count]), test_part, tuple(x.shape[1:]), len(names), class_names=tuple(names)
    )


def class_names(folder: Path) -> list[str]:
    """The folders in a folder, sorted."""
    with reading(folder):
        return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def labelled(folder: Path, names: Sequence[str], split: Split, limit: int | None) -> Labelled:
    """The images in a folder's class folders, in the order of the seed."""
    images: list[tuple[str, bytes | Path, int]] = []
    for number, name in enumerate(names):
        inside = folder / name
        with reading(inside):
            paths = sorted(inside.iterdir()) if inside.is_dir() else []
        pictures = [p for p in paths if p.suffix.lower() in IMAGES and not p.name.startswith(".")]
        if not pictures and inside.is_dir():
            raise ConfigError(f"{inside} has no images ({', '.join(IMAGES)}).")
        images += [(str(path), path, number) for path in pictures]
    if not images:
        raise ConfigError(f"{folder} has no images in folders by class.")
    return [images[i] for i in split.order(len(images)).tolist()[:limit]]


def decoded(
    images: Labelled, progress: Progress | None, *, channels: int | None
) -> tuple[Octets, npt.NDArray[np.int64], set[str]]:
    """The pixels [N, channels, height, width], the labels, and the formats the images were in.

    Without `channels` (1 or 3): one if all images are grey, else three. All images must be of one size.
    """
    pillow = needed("PIL.Image", images[0][0])
    bombs = (pillow.DecompressionBombError, pillow.DecompressionBombWarning)
    errors = (SyntaxError, ValueError, EOFError, struct.error, zlib.error, MemoryError, OverflowError, *bombs)
    pixels: list[Octets] = []
    size = 0
    formats: set[str] = set()
    for number, (where, source, _) in enumerate(images, 1):
        file = io.BytesIO(source) if isinstance(source, bytes) else regular(source)
        with _quiet(*bombs[1:]), reading(where, *errors), pillow.open(file, formats=_FORMATS) as image:
            wide, high = image.size
            within("pixels", wide * high, f"{where} is {wide:,} x {high:,} pixels")
            size += wide * high * (1 if image.mode in _GREY and channels is None else 3)
            within("unpacked_bytes", size, f"the images up to {where} unpack to {size:,} bytes")
            formats.add(str(image.format))
            if image.mode.startswith(_DEEP):
                raise ConfigError(f"{where} has more than 8 bits a pixel; convert it to 8 bits.")
            if pixels and image.size != pixels[0].shape[:0:-1]:
                sizes = [" x ".join(map(str, size)) for size in (image.size, pixels[0].shape[:0:-1])]
                raise ConfigError(f"{where} is {sizes[0]}, but others are {sizes[1]}; make all images one size.")
            grey = channels == 1 or (image.mode in _GREY and channels is None)
            array = np.asarray(image.convert("L" if grey else "RGB"))
        pixels.append(array[None] if grey else array.transpose(2, 0, 1))
        if progress is not None and (number % _EVERY == 0 or number == len(images)):
            progress(number, len(images))
    most = max(len(p) for p in pixels)
    full = np.ascontiguousarray(np.stack([np.broadcast_to(p, (most, *p.shape[1:])) for p in pixels]))
    return full, np.array([label for *_, label in images], np.int64), formats


@contextmanager
def _quiet(*kinds: type[Warning]) -> Generator[None]:
    """What would only be warned of is an error."""
    with warnings.catch_warnings():
        for kind in kinds:
            warnings.simplefilter("error", kind)
        yield


def scaled(pixels: Octets) -> Tensor:
    """Bytes as numbers from 0 to 1."""
    return torch.from_numpy(pixels).to(torch.float32).div_(255)
