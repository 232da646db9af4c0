"""CIFAR-10 in any of its forms: parquet files of images, the binary version, its archive, folders of images."""

import hashlib
import math
import tarfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from discreet._check import within
from discreet.data.columns import column_names, read_columns
from discreet.data.dataset import Data, Split, notes
from discreet.data.download import CIFAR_FILES, Files, cache_folder
from discreet.data.files import Progress, Unpacked, reading, regular, whole_file
from discreet.data.images import Octets, class_names, decoded, labelled, scaled
from discreet.data.mnist import check_labels, fewer
from discreet.errors import ConfigError

_SHAPE = (3, 32, 32)
_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_RECORD = 1 + math.prod(_SHAPE)
_JPEG = "JPEG copies, not the original images"

Bytes = tuple[Octets, Octets]  # images and labels


def cifar10(source: Files, limit: int | None, progress: Progress | None) -> Data:
    """CIFAR-10 from the files that were found; of images to be decoded only the first `limit` of each part are."""
    kind = source.train[0].suffix
    note = ""
    if kind == ".parquet":
        (train, test), note = _tables(source, limit, progress)
    elif kind == ".bin":
        train, test = (_records((p, _content(p)) for p in paths) for paths in (source.train, source.test))
    elif kind == ".gz":
        train, test = _archive(source.train[0])
    else:
        (train, test), note = _folders(source, limit, progress)
    cut = limit is not None and len(train[1]) == limit
    missing = "" if cut else fewer(len(train[1]), len(test[1]), 50_000, 10_000)
    parts = [(scaled(x), torch.from_numpy(y.astype(np.int64))) for x, y in (train, test)]
    return Data("cifar10", parts[0], parts[1], _SHAPE, 10, notes(note, missing), class_names=_NAMES)


def _content(path: Path) -> bytes:
    with reading(path):
        size = regular(path).stat().st_size
        within("unpacked_bytes", size, f"{path} has {size:,} bytes")
        return path.read_bytes()


def _archive(path: Path) -> tuple[Bytes, Bytes]:
    """The binary version in its archive; nothing is unpacked, and no path in it is followed."""
    contents: dict[str, bytes] = {}
    errors = (tarfile.TarError, EOFError, zlib.error)
    with reading(path, *errors), Unpacked(regular(path)) as content, tarfile.open(fileobj=content, mode="r|") as packed:
        for member in packed:
            name = Path(member.name).name
            inside = packed.extractfile(member) if name in CIFAR_FILES and member.isfile() else None
            if inside is not None:
                contents[name] = inside.read()
    missing = [name for name in CIFAR_FILES if name not in contents]
    if missing:
        raise ConfigError(f"{path} has no {missing[0]}; get it again.")
    files = [(path / name, contents[name]) for name in CIFAR_FILES]
    return _records(files[:-1]), _records(files[-1:])


def _records(files: Iterable[tuple[Path, bytes]]) -> Bytes:
    """Records of a label and the red, green and blue bytes."""
    parts = []
    for path, content in files:
        if len(content) == 0 or len(content) % _RECORD:
            raise ConfigError(f"{path} has {len(content):,} bytes, not a multiple of {_RECORD:,}; get it again.")
        parts.append(np.frombuffer(content, np.uint8).reshape(-1, _RECORD))
        check_labels(path, parts[-1][:, 0])
    records = np.concatenate(parts)
    return records[:, 1:].reshape(-1, *_SHAPE).copy(), records[:, 0].copy()


def _folders(source: Files, limit: int | None, progress: Progress | None) -> tuple[tuple[Bytes, Bytes], str]:
    (train,), (test,) = source.train, source.test
    names = class_names(train)
    if len(names) != 10:
        raise ConfigError(f"{train} has {len(names)} folders of images; CIFAR-10 has 10 classes.")
    order = Split(0.0, 0)
    parts, jpeg = [], False
    for folder in (train, test):
        x, y, formats = decoded(labelled(folder, names, order, limit), progress, channels=3)
        if x.shape[1:] != _SHAPE:
            raise ConfigError(f"{folder} has images of {x.shape[2]} x {x.shape[3]}; CIFAR-10's are 32 x 32.")
        parts.append((x, y.astype(np.uint8)))
        jpeg |= "JPEG" in formats
    return (parts[0], parts[1]), _JPEG if jpeg else ""


def _tables(source: Files, limit: int | None, progress: Progress | None) -> tuple[tuple[Bytes, Bytes], str]:
    """Images from parquet files, or as they were decoded from the same files before."""
    digest = hashlib.sha256()
    for path in (*source.train, *source.test):
        with reading(path), regular(path).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    cached = cache_folder("cifar10") / f"decoded-{digest.hexdigest()[:32]}.safetensors"
    decoded = _cached(cached, limit)
    if decoded is not None:
        return decoded
    train, train_jpeg = _table(source.train, limit, progress)
    test, test_jpeg = _table(source.test, limit, progress)
    note = _JPEG if train_jpeg or test_jpeg else ""
    if limit is None:
        _keep(cached, (train, test), note)
    return (train, test), note


_CACHED = ("train_x", "train_y", "test_x", "test_y")


def _cached(path: Path, limit: int | None) -> tuple[tuple[Bytes, Bytes], str] | None:
    """What was decoded before, or None if it was not, or is damaged."""
    try:
        with safe_open(path, "np") as file:
            arrays = [file.get_slice(name)[:limit] for name in _CACHED]
            note = file.metadata()["note"]
    except (OSError, SafetensorError, KeyError, TypeError):
        return None
    train, test = (arrays[0], arrays[1]), (arrays[2], arrays[3])
    right = all(x.dtype == y.dtype == np.uint8 and x.shape == (len(y), *_SHAPE) for x, y in (train, test))
    return ((train, test), note) if right and all(y.max(initial=0) <= 9 for _, y in (train, test)) else None


def _keep(path: Path, parts: tuple[Bytes, Bytes], note: str) -> None:
    """Keep what was decoded for the next time; where that is not possible it is decoded again."""
    arrays = dict(zip(_CACHED, (torch.from_numpy(array) for part in parts for array in part), strict=True))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as out:
            out.write(save(arrays, {"note": note}))
    except (OSError, SafetensorError):
        return


def _table(paths: Sequence[Path], limit: int | None, progress: Progress | None) -> tuple[Bytes, bool]:
    """Images and labels, and whether one of the images is a JPEG."""
    images: list[tuple[str, bytes | Path, int]] = []
    for path in paths:
        names = column_names(path)
        image = next((name for name in ("img", "image") if name in names), None)
        if image is None or "label" not in names:
            raise ConfigError(f"{path} has the columns {', '.join(names)}; CIFAR-10's are img and label.")
        columns = read_columns(path, [image, "label"])
        for row, (cell, label) in enumerate(zip(columns[image], columns["label"], strict=True), 1):
            content = cell.get("bytes") if isinstance(cell, dict) else cell
            if not isinstance(content, bytes) or not isinstance(label, int) or not 0 <= label <= 9:
                raise ConfigError(f"{path}: row {row} is not an image's bytes and a label from 0 to 9.")
            images.append((f"{path}: row {row}", content, label))
    if not images:
        raise ConfigError(f"{paths[0]} has no images.")
    x, y, formats = decoded(images[:limit], progress, channels=3)
    if x.shape[1:] != _SHAPE:
        raise ConfigError(f"{paths[0]} has images of {x.shape[2]} x {x.shape[3]}; CIFAR-10's are 32 x 32.")
    return (x, y.astype(np.uint8)), "JPEG" in formats
