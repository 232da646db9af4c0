"""Files of data sets, made as small as they can be, in the forms that are read."""

import gzip
import hashlib
import io
import struct

import numpy as np
import pytest

from discreet import ConfigError
from discreet.data import download, load

DELTA = 1e-5


def error_of(*arguments, **options):
    """The one line that loading fails with."""
    with pytest.raises(ConfigError) as caught:
        load(*map(str, arguments), **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def packed(content):
    """Gzipped without the time, so that a test has the same name wherever it is collected."""
    return gzip.compress(content, mtime=0)


def idx(array):
    """An array of bytes as an IDX file."""
    array = np.asarray(array, np.uint8)
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def pixels(count, *shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def write_idx(folder, train=12, test=4, zipped=True):
    """A small MNIST; returns its arrays."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = []
    for prefix, count in (("train", train), ("t10k", test)):
        parts = {"images-idx3": pixels(count, 28, 28, seed=count), "labels-idx1": np.arange(count) % 10}
        for kind, array in parts.items():
            name = f"{prefix}-{kind}-ubyte" + (".gz" if zipped else "")
            (folder / name).write_bytes(packed(idx(array)) if zipped else idx(array))
            arrays.append(array)
    return arrays


def image(array, kind="PNG"):
    """An image file's bytes."""
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(array).save(out, kind)
    return out.getvalue()


def write_parquet(path, columns):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def write_cifar_parquet(folder, train=11, test=3, kind="JPEG"):
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", train), ("test", test)):
        images = [{"bytes": image(p, kind)} for p in pixels(count, 32, 32, 3, seed=count)]
        write_parquet(folder / f"{part}.parquet", {"img": images, "label": [i % 10 for i in range(count)]})


def cifar_records(count, seed=0):
    records = pixels(count, 3073, seed=seed)
    records[:, 0] = np.arange(count) % 10
    return records


def write_cifar_binary(folder):
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: cifar_records(3, seed=i) for i, name in enumerate(download.CIFAR_FILES)}
    for name, records in files.items():
        (folder / name).write_bytes(records.tobytes())
    return np.concatenate([files[name] for name in download.CIFAR_TRAIN]), files["test_batch.bin"]


def write_images(folder, names=("cat", "dog"), count=5, shape=(6, 5, 3), kind="PNG"):
    for number, name in enumerate(names):
        inside = folder / name
        inside.mkdir(parents=True)
        for i, array in enumerate(pixels(count, *shape, seed=number)):
            (inside / f"{i}.{kind.lower()}").write_bytes(image(array, kind))
    return folder


CSV = "id,age,job,pay\n1,0,clerk,no\n2,120,cook,yes\n3,60,,no\n4,,miner,yes\n5,500,cook,yes\n"


SCHEMA = {
    "ignore": ["id"],
    "age": {"low": 0, "high": 120},
    "job": {"categories": ["clerk", "cook"]},
    "pay": {"classes": ["no", "yes"]},
}


def rows_of(data):
    """All rows of a data set in tensors, as a sorted list, with their labels."""
    parts = [data.train] + ([] if data.test is None else [data.test])
    return sorted((*x.flatten().tolist(), float(y)) for part in parts for x, y in zip(*part, strict=True))


IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


class Answer(io.BytesIO):
    """What a server sends."""

    def __init__(self, content, length):
        super().__init__(content)
        self.headers = {} if length is None else {"Content-Length": str(length)}


class Server:
    """Files by address, with their right sums unless told otherwise."""

    def __init__(self, monkeypatch, name, files, *, announce=True):
        self.files, self.announce, self.asked = dict(files), announce, []
        address = download.REMOTE[name][0]
        sums = {file: hashlib.sha256(content).hexdigest() for file, content in files.items()}
        monkeypatch.setitem(download.REMOTE, name, (address, sums))
        monkeypatch.setattr(download, "_open", self.open)

    def open(self, address):
        self.asked.append(address)
        content = self.files[address.rsplit("/", 1)[1]]
        if isinstance(content, Exception):
            raise content
        return Answer(content, len(content) if self.announce else None)


def write_npz(path, **arrays):
    np.savez(path, **arrays)
    return path


X, Y = np.random.default_rng(0).normal(size=(10, 3)), np.arange(10) % 3


def changed(**rules):
    return {**SCHEMA, **rules}


def without(name):
    return {key: rule for key, rule in SCHEMA.items() if key != name}
