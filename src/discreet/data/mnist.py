"""Well-known data that is read at once: scikit-learn's digits, and MNIST and Fashion-MNIST in IDX files."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch

from discreet._check import within
from discreet.data.dataset import Data, Pair
from discreet.data.download import Files
from discreet.data.files import reading, regular
from discreet.data.images import Octets, scaled
from discreet.errors import ConfigError

_DIGITS_TESTED = 360
_NUMERALS = tuple(map(str, range(10)))
_CLOTHES = (
    *("t-shirt", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)


def digits() -> Data:
    """scikit-learn's 1,797 images of 8 x 8, in a fixed random order; the last 360 are for testing."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ConfigError(
            "the digits come with scikit-learn, which is not installed; pip install 'discreet[data]'."
        ) from error
    bunch = load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(bunch.images, dtype=torch.float32)[order, None] / 16
    y = torch.tensor(bunch.target)[order]
    train, test = (x[:-_DIGITS_TESTED], y[:-_DIGITS_TESTED]), (x[-_DIGITS_TESTED:], y[-_DIGITS_TESTED:])
    return Data("digits", train, test, (1, 8, 8), 10, class_names=_NUMERALS)


def idx(name: str, source: Files) -> Data:
    """MNIST or Fashion-MNIST from the files that were found."""
    train, test = _idx_pair(*source.train), _idx_pair(*source.test)
    note = fewer(len(train[1]), len(test[1]), 60_000, 10_000)
    names = _CLOTHES if name == "fashion-mnist" else _NUMERALS
    return Data(name, train, test, (1, 28, 28), 10, note, class_names=names)


def _idx_pair(images: Path, labels: Path) -> Pair:
    """The images and labels of two IDX files."""
    x, y = _idx_array(images, (28, 28)), _idx_array(labels, ())
    if len(x) != len(y):
        raise ConfigError(f"{images} has {len(x)} images, but {labels} has {len(y)} labels; they must be as many.")
    check_labels(labels, y)
    return scaled(x[:, None]), torch.from_numpy(y).to(torch.int64)


def _idx_array(path: Path, shape: tuple[int, ...]) -> Octets:
    """The bytes in an IDX file of rows of this shape."""
    magic = struct.pack(">HBB", 0, 8, 1 + len(shape))  # unsigned bytes, of so many dimensions
    opened = gzip.open if path.suffix == ".gz" else open
    with reading(path, EOFError, zlib.error), opened(regular(path), "rb") as file:
        head = file.read(8 + 4 * len(shape))
        if head[:4] != magic or len(head) != 8 + 4 * len(shape):
            raise ConfigError(f"{path} begins with {head[:4].hex()}; an IDX file of this kind with {magic.hex()}.")
        count, *sizes = struct.unpack(f">{1 + len(shape)}I", head[4:])
        if tuple(sizes) != shape or count == 0:
            raise ConfigError(f"{path} has {count} rows of shape {tuple(sizes)}; it must have rows of shape {shape}.")
        within("images", count, f"{path} announces {count:,} rows")
        expected = count * math.prod(shape)
        content = file.read(expected + 1)
    if len(content) != expected:
        raise ConfigError(f"{path} has not the {expected:,} bytes that its beginning announces; get it again.")
    return np.frombuffer(content, np.uint8).reshape(count, *shape).copy()


def check_labels(path: Path, labels: Octets) -> None:
    """A label that is none of ten classes is a ConfigError that names the file."""
    if labels.max() > 9:
        raise ConfigError(f"{path} has labels up to {labels.max()}; they must be from 0 to 9.")


def fewer(train: int, test: int, all_train: int, all_test: int) -> str:
    """What must be said where a well-known data set is not all there."""
    if (train, test) == (all_train, all_test):
        return ""
    return f"{train:,} + {test:,} of {all_train:,} + {all_test:,} images"
