import gzip
import hashlib
import io
import json
import math
import os
import random
import struct
import sys
import tarfile
import urllib.error
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from discreet import BudgetExhausted, ConfigError, Ledger, methods
from discreet.accounting import cost
from discreet.accounting import gaussian as gdp
from discreet.data import Data, cifar, dataset, download, load, private_ranges, ranges, ranges_cost

DELTA = 1e-5
REAL = os.environ.get("DISCREET_DATA", "")


@pytest.fixture(autouse=True)
def _nothing_outside(tmp_path, monkeypatch):
    """No test finds or leaves anything outside its folder, nor reaches the network."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("DISCREET_DATA", raising=False)
    monkeypatch.setattr(download, "_open", no_network)


def no_network(address):
    raise urllib.error.URLError("no network here")


def error_of(*arguments, **options):
    """The one line that loading fails with."""
    with pytest.raises(ConfigError) as caught:
        load(*map(str, arguments), **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- files to read ---------------------------------------------------------------------------------------------------


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


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text(CSV)
    return path


def rows_of(data):
    """All rows of a data set in tensors, as a sorted list, with their labels."""
    parts = [data.train] + ([] if data.test is None else [data.test])
    return sorted((*x.flatten().tolist(), float(y)) for part in parts for x, y in zip(*part, strict=True))


# --- digits, MNIST ---------------------------------------------------------------------------------------------------


def test_digits_are_scikit_learns_in_a_fixed_order():
    data = load("digits")
    assert (data.name, data.shape, data.classes, data.note) == ("digits", (1, 8, 8), 10, "")
    assert [len(part[1]) for part in (data.train, data.test)] == [1797 - 360, 360]
    source = load_digits()
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0)).tolist()
    for (x, y), rows in ((data.train, order[:-360]), (data.test, order[-360:])):
        assert y.tolist() == source.target[rows].tolist()
        for place in (0, 7, -1):
            assert (16 * x[place, 0]).tolist() == source.images[rows[place]].tolist()
    everything = torch.cat((data.train[0], data.test[0]))
    assert (everything.min(), everything.max()) == (0, 1)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("zipped", [True, False])
def test_idx_files_are_read(name, zipped, tmp_path):
    x, y, test_x, test_y = write_idx(tmp_path / "here", zipped=zipped)
    data = load(name, folder=tmp_path / "here")
    assert (data.name, data.shape, data.classes) == (name, (1, 28, 28), 10)
    assert torch.equal(data.train[0] * 255, torch.tensor(x)[:, None].float())
    assert torch.equal(data.test[0] * 255, torch.tensor(test_x)[:, None].float())
    assert data.train[1].tolist() == y.tolist()
    assert data.test[1].tolist() == test_y.tolist()
    assert data.note == "12 + 4 of 60,000 + 10,000 images"


def test_a_folder_comes_before_the_shared_one_and_that_before_the_cache(tmp_path, monkeypatch):
    places = [tmp_path / "own", tmp_path / "shared" / "mnist", tmp_path / "cache" / "discreet" / "mnist"]
    for count, place in enumerate(places, 1):
        write_idx(place, train=count)
    assert len(load("mnist").train[1]) == 3
    monkeypatch.setenv("DISCREET_DATA", str(tmp_path / "shared"))
    assert len(load("mnist").train[1]) == 2
    assert len(load("mnist", folder=places[0]).train[1]) == 1
    (places[0] / "t10k-labels-idx1-ubyte.gz").unlink()
    assert len(load("mnist", folder=places[0]).train[1]) == 2


IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
GOOD = idx(pixels(12, 28, 28))


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        (IMAGES, b"", "begins with ;"),
        (IMAGES, b"not gzip", "cannot be read: Not a gzipped file"),
        (IMAGES, packed(GOOD)[:-30], "cannot be read"),
        (IMAGES, packed(GOOD)[:-8] + bytes(8), "cannot be read: CRC check failed"),
        (IMAGES, packed(GOOD[:-1]), "has not the 9,408 bytes"),
        (IMAGES, packed(GOOD + b"x"), "has not the 9,408 bytes"),
        (IMAGES, packed(GOOD[:10]), "begins with"),
        (IMAGES, packed(b"\x00\x00\x0d" + GOOD[3:]), "begins with 00000d03"),
        (IMAGES, packed(idx(np.arange(12))), "begins with 00000801"),
        (IMAGES, packed(idx(pixels(12, 28, 27))), r"rows of shape \(28, 27\)"),
        (IMAGES, packed(idx(pixels(0, 28, 28))), "has 0 rows"),
        (IMAGES, packed(struct.pack(">HBBIII", 0, 8, 3, 2**32 - 1, 28, 28)), "has 4294967295 rows"),
        (IMAGES, packed(idx(pixels(11, 28, 28))), "has 11 images, but"),
        (LABELS, packed(idx(np.arange(12))), "has labels up to 11"),
        (LABELS, packed(idx(np.arange(5))), "has 12 images, but"),
    ],
)
def test_damaged_idx_files_are_named(file, content, words, tmp_path):
    write_idx(tmp_path / "here")
    (tmp_path / "here" / file).write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        load("mnist", folder=tmp_path / "here")
    assert str(tmp_path / "here" / file) in str(caught.value)


# --- downloads -------------------------------------------------------------------------------------------------------


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


def small_mnist(tmp_path):
    write_idx(tmp_path / "origin")
    return {name: (tmp_path / "origin" / name).read_bytes() for name in download.IDX_FILES}


@pytest.mark.parametrize("announce", [True, False])
def test_a_download_is_kept_in_the_cache_and_not_repeated(announce, tmp_path, monkeypatch):
    server = Server(monkeypatch, "mnist", small_mnist(tmp_path), announce=announce)
    calls = []
    data = load("mnist", progress=lambda done, total: calls.append((done, total)))
    assert len(data.train[1]) == 12
    assert server.asked == ["https://ossci-datasets.s3.amazonaws.com/mnist/" + f for f in download.IDX_FILES]
    sizes = [len(content) for content in server.files.values()]
    assert calls == [(size, size if announce else 0) for size in sizes]
    kept = sorted(p.name for p in (tmp_path / "cache" / "discreet" / "mnist").iterdir())
    assert kept == sorted(download.IDX_FILES)
    load("mnist")
    assert len(server.asked) == 4


def test_a_download_goes_to_the_folder_if_there_is_one_and_fetches_what_is_missing(tmp_path, monkeypatch):
    server = Server(monkeypatch, "fashion-mnist", small_mnist(tmp_path))
    write_idx(tmp_path / "here", zipped=False)
    (tmp_path / "here" / "t10k-labels-idx1-ubyte").unlink()
    load("fashion-mnist", folder=tmp_path / "here")
    assert [a.rsplit("/", 1)[1] for a in server.asked] == ["t10k-labels-idx1-ubyte.gz"]
    assert (tmp_path / "here" / "t10k-labels-idx1-ubyte.gz").is_file()


@pytest.mark.parametrize("how", ["changed", "cut"])
def test_a_file_with_another_sum_is_not_kept(how, tmp_path, monkeypatch):
    server = Server(monkeypatch, "mnist", small_mnist(tmp_path))
    right = server.files[LABELS]
    server.files[LABELS] = right[:-1] if how == "cut" else right[:-1] + bytes([right[-1] ^ 1])
    message = error_of("mnist", folder=tmp_path / "here")
    assert hashlib.sha256(server.files[LABELS]).hexdigest() in message
    assert "nothing was kept" in message
    assert LABELS in message
    assert [p.name for p in (tmp_path / "here").iterdir()] == [IMAGES]


@pytest.mark.parametrize("error", [urllib.error.URLError("unreachable"), TimeoutError("too slow"), OSError("reset")])
def test_a_failed_download_leaves_nothing_and_says_what_to_put_where(error, tmp_path, monkeypatch):
    server = Server(monkeypatch, "mnist", small_mnist(tmp_path))
    server.files[IMAGES] = error
    message = error_of("mnist")
    assert all(file in message for file in download.IDX_FILES)
    assert str(tmp_path / "cache" / "discreet" / "mnist") in message
    assert list((tmp_path / "cache" / "discreet" / "mnist").iterdir()) == []


def test_an_interruption_leaves_nothing(tmp_path, monkeypatch):
    Server(monkeypatch, "mnist", small_mnist(tmp_path))

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load("mnist", progress=stop)
    assert list((tmp_path / "cache" / "discreet" / "mnist").iterdir()) == []


@pytest.mark.parametrize("name", sorted(download.REMOTE))
def test_without_download_nothing_is_asked_for(name, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "_open", pytest.fail)
    message = error_of(name, download=False)
    assert "may not be downloaded" in message
    assert str(tmp_path / "cache" / "discreet" / name) in message


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be downloaded" in error_of("mnist", folder=tmp_path / "file" / "below")


@pytest.mark.parametrize("name", sorted(download.REMOTE))
def test_sums_are_sha256(name):
    assert all(len(bytes.fromhex(s)) == 32 for s in download.REMOTE[name][1].values())


# --- CIFAR-10 --------------------------------------------------------------------------------------------------------


def test_cifar_is_read_from_parquet_and_cached(tmp_path, monkeypatch):
    write_cifar_parquet(tmp_path / "here", kind="PNG")
    data = load("cifar10", folder=tmp_path / "here")
    assert (data.shape, data.classes, data.note) == ((3, 32, 32), 10, "11 + 3 of 50,000 + 10,000 images")
    expected = torch.tensor(pixels(11, 32, 32, 3, seed=11)).permute(0, 3, 1, 2)
    assert torch.equal((data.train[0] * 255).round(), expected.float())
    assert data.train[1].tolist() == [i % 10 for i in range(11)]
    (kept,) = (tmp_path / "cache" / "discreet" / "cifar10").iterdir()
    assert kept.suffix == ".safetensors"
    monkeypatch.setattr(cifar, "decoded", pytest.fail)
    again = load("cifar10", folder=tmp_path / "here")
    assert torch.equal(again.train[0], data.train[0])
    assert torch.equal(again.test[1], data.test[1])
    assert len(load("cifar10", folder=tmp_path / "here", limit=2).train[1]) == 2


def test_jpeg_copies_are_said_to_be_copies_also_from_the_cache(tmp_path):
    write_cifar_parquet(tmp_path / "here")
    first, again = load("cifar10", folder=tmp_path / "here"), load("cifar10", folder=tmp_path / "here")
    assert "JPEG copies" in first.note
    assert again.note == first.note
    assert "JPEG copies" in load("cifar10", folder=tmp_path / "here", limit=2).note


@pytest.mark.parametrize("damage", [b"", b"nonsense", "cut", "other", "labels"])
def test_a_damaged_cache_is_made_again(damage, tmp_path):
    write_cifar_parquet(tmp_path / "here")
    data = load("cifar10", folder=tmp_path / "here")
    (kept,) = (tmp_path / "cache" / "discreet" / "cifar10").iterdir()
    right = kept.read_bytes()
    from safetensors.torch import save

    far = {"train_x": torch.zeros(2, 3, 32, 32), "train_y": torch.tensor([1, 10])}
    far |= {"test_x": far["train_x"] + 0, "test_y": far["train_y"] * 0}
    wrong = {
        "cut": right[:-5],
        "other": save({n: torch.zeros(3) for n in cifar._CACHED}, {"note": ""}),
        "labels": save({n: t.to(torch.uint8) for n, t in far.items()}, {"note": ""}),
    }
    kept.write_bytes(wrong[damage] if isinstance(damage, str) else damage)
    assert torch.equal(load("cifar10", folder=tmp_path / "here").train[0], data.train[0])
    assert kept.read_bytes() == right


def test_other_files_are_not_taken_for_the_cached_ones(tmp_path):
    write_cifar_parquet(tmp_path / "one", train=4)
    write_cifar_parquet(tmp_path / "two", train=5)
    assert [len(load("cifar10", folder=tmp_path / f).train[1]) for f in ("one", "two", "one")] == [4, 5, 4]


def test_the_folder_of_the_data_gets_no_cache_and_an_impossible_cache_does_no_harm(tmp_path, monkeypatch):
    write_cifar_parquet(tmp_path / "shared" / "cifar10")
    monkeypatch.setenv("DISCREET_DATA", str(tmp_path / "shared"))
    (tmp_path / "blocked").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "blocked"))
    assert len(load("cifar10").train[1]) == 11
    assert sorted(p.name for p in (tmp_path / "shared" / "cifar10").iterdir()) == ["test.parquet", "train.parquet"]


def test_a_limit_decodes_no_more_and_caches_nothing(tmp_path):
    write_cifar_parquet(tmp_path / "here")
    calls = []
    data = load("cifar10", folder=tmp_path / "here", limit=2, progress=lambda *c: calls.append(c))
    assert (len(data.train[1]), len(data.test[1])) == (2, 2)
    assert calls == [(2, 2), (2, 2)]
    assert "the first 2 examples" in data.note
    assert not (tmp_path / "cache" / "discreet" / "cifar10").exists()


@pytest.mark.parametrize("below", ["", "cifar-10-batches-bin"])
def test_the_binary_version_is_read(below, tmp_path):
    train, test = write_cifar_binary(tmp_path / "here" / below)
    data = load("cifar10", folder=tmp_path / "here")
    assert data.train[1].tolist() == train[:, 0].tolist()
    assert torch.equal((data.train[0] * 255).round(), torch.tensor(train[:, 1:]).reshape(-1, 3, 32, 32).float())
    assert torch.equal((data.test[0] * 255).round(), torch.tensor(test[:, 1:]).reshape(-1, 3, 32, 32).float())


def archive(folder, names=download.CIFAR_FILES, below="cifar-10-batches-bin/"):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as packed:
        for name in names:
            content = (folder / name).read_bytes()
            member = tarfile.TarInfo(below + name)
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))
    return out.getvalue()


@pytest.mark.parametrize("below", ["cifar-10-batches-bin/", "../../", "/"])
def test_the_binary_version_is_downloaded_and_read_from_its_archive(below, tmp_path, monkeypatch):
    train, _ = write_cifar_binary(tmp_path / "origin")
    Server(monkeypatch, "cifar10", {download.CIFAR_ARCHIVE: archive(tmp_path / "origin", below=below)})
    data = load("cifar10")
    assert data.train[1].tolist() == train[:, 0].tolist()
    assert torch.equal((data.train[0] * 255).round(), torch.tensor(train[:, 1:]).reshape(-1, 3, 32, 32).float())
    assert [p.name for p in (tmp_path / "cache" / "discreet" / "cifar10").iterdir()] == [download.CIFAR_ARCHIVE]


def test_damaged_archives_are_named(tmp_path):
    write_cifar_binary(tmp_path / "origin")
    path = tmp_path / "here" / download.CIFAR_ARCHIVE
    path.parent.mkdir()
    sound = archive(tmp_path / "origin")
    for content, words in (
        (sound[: len(sound) // 2], "cannot be read"),
        (b"nothing", "cannot be read"),
        (archive(tmp_path / "origin", download.CIFAR_FILES[:-1]), "has no test_batch.bin"),
    ):
        path.write_bytes(content)
        message = error_of("cifar10", folder=path.parent)
        assert words in message
        assert str(path) in message


def test_damaged_binary_files_are_named(tmp_path):
    write_cifar_binary(tmp_path / "here")
    path = tmp_path / "here" / "data_batch_3.bin"
    for content, words in (
        (path.read_bytes()[:-1], "not a multiple of 3,073"),
        (b"", "has 0 bytes"),
        (bytes([10]) + bytes(3072), "has labels up to 10"),
    ):
        path.write_bytes(content)
        message = error_of("cifar10", folder=path.parent)
        assert words in message
        assert str(path) in message


CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def test_cifar_is_read_from_folders_by_class(tmp_path):
    for part in ("train", "test"):
        write_images(tmp_path / "here" / part, CLASSES, 2, (32, 32, 3))
    data = load("cifar10", folder=tmp_path / "here")
    assert sorted(data.train[1].tolist()) == [i // 2 for i in range(20)]
    cats = data.train[0][data.train[1] == 3]
    expected = torch.tensor(pixels(2, 32, 32, 3, seed=3)).permute(0, 3, 1, 2) / 255
    assert {x.sum().item() for x in cats} == {x.sum().item() for x in expected}
    assert "JPEG" not in data.note


def test_folders_that_are_not_cifar_are_refused(tmp_path):
    for name, classes, shape, words in (
        ("nine", CLASSES[:9], (32, 32, 3), "has 9 folders"),
        ("small", CLASSES, (8, 8, 3), "has images of 8 x 8"),
    ):
        for part in ("train", "test"):
            write_images(tmp_path / name / part, classes, 1, shape)
        assert words in error_of("cifar10", folder=tmp_path / name)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"img": [{"bytes": b"nonsense"}], "label": [1]}, "row 1 cannot be read"),
        ({"img": [{"bytes": image(pixels(1, 32, 32, 3)[0])[:-99]}], "label": [1]}, "row 1 cannot be read"),
        ({"img": [{"bytes": image(pixels(1, 8, 8, 3)[0])}], "label": [1]}, "has images of 8 x 8"),
        ({"img": [{"bytes": image(pixels(1, 32, 32, 3)[0])}], "label": [10]}, "row 1 is not an image's bytes and"),
        ({"img": [{"bytes": image(pixels(1, 32, 32, 3)[0])}], "label": ["1"]}, "row 1 is not an image's bytes and"),
        ({"img": ["nothing"], "label": [1]}, "row 1 is not an image's bytes and"),
        ({"img": [{"bytes": b""}][:0], "label": [1][:0]}, "has no images"),
        ({"picture": [1], "label": [1]}, "has the columns picture, label"),
        ({"img": [1], "class": [1]}, "has the columns img, class"),
    ],
)
def test_parquet_files_that_are_not_cifar_are_refused(columns, words, tmp_path):
    write_cifar_parquet(tmp_path / "here")
    write_parquet(tmp_path / "here" / "train.parquet", columns)
    message = error_of("cifar10", folder=tmp_path / "here")
    assert words in message
    assert str(tmp_path / "here" / "train.parquet") in message


# --- folders of images -----------------------------------------------------------------------------------------------


def test_a_folder_of_images_by_class_is_split(tmp_path):
    folder = write_images(tmp_path / "pets")
    data = load(str(folder))
    assert (data.shape, data.classes) == ((3, 6, 5), 2)
    assert (len(data.train[1]), len(data.test[1])) == (8, 2)
    expected = [(*p.transpose(2, 0, 1).ravel().tolist(), n) for n in (0, 1) for p in pixels(5, 6, 5, 3, seed=n)]
    found = [(*(round(255 * v) for v in row[:-1]), int(row[-1])) for row in rows_of(data)]
    assert sorted(found) == sorted(expected)
    assert load(str(folder), test_fraction=0).test is None
    assert load(str(folder), seed=1).train[1].tolist() != data.train[1].tolist()


def test_train_and_test_folders_stay_apart(tmp_path):
    write_images(tmp_path / "pets" / "train", count=3)
    write_images(tmp_path / "pets" / "test", ("dog",), count=2)
    data = load(str(tmp_path / "pets"))
    assert sorted(data.train[1].tolist()) == [0, 0, 0, 1, 1, 1]
    assert data.test[1].tolist() == [1, 1]


def test_grey_images_have_one_channel_and_mixed_ones_three(tmp_path):
    folder = write_images(tmp_path / "pets", shape=(4, 4))
    assert load(str(folder)).shape == (1, 4, 4)
    (folder / "cat" / "colour.png").write_bytes(image(pixels(1, 4, 4, 3)[0]))
    assert load(str(folder)).shape == (3, 4, 4)


def test_other_files_in_a_folder_of_images_are_left_alone(tmp_path):
    folder = write_images(tmp_path / "pets")
    (folder / ".hidden").mkdir()
    (folder / "cat" / ".x.png").write_text("")
    (folder / "cat" / "readme.txt").write_text("")
    assert len(rows_of(load(str(folder)))) == 10


def test_a_limit_of_images_is_a_mix_of_classes(tmp_path):
    data = load(str(write_images(tmp_path / "pets", count=40, shape=(2, 2))), limit=20)
    assert len(data.train[1]) == 20
    assert set(data.train[1].tolist()) == {0, 1}


def break_folder(folder, how):
    file = folder / "cat" / "1.png"
    if how == "nonsense":
        file.write_text("nonsense")
    elif how == "cut":
        file.write_bytes(file.read_bytes()[:-40])
    elif how == "size":
        file.write_bytes(image(pixels(1, 6, 6, 3)[0]))
    elif how == "deep":
        file.write_bytes(image(np.zeros((6, 5), np.uint16)))
    elif how == "empty class":
        (folder / "eel").mkdir()
        return folder / "eel"
    elif how == "one class":
        (folder / "dog").rename(folder.parent / "dog")
        return folder
    elif how == "test class":
        write_images(folder.parent / "new" / "train")
        write_images(folder.parent / "new" / "test", ("eel",))
        return folder.parent / "new" / "test"
    elif how == "nothing":
        (folder.parent / "new").mkdir()
        return folder.parent / "new"
    return file


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("nonsense", "cannot be read: cannot identify image"),
        ("cut", "cannot be read"),
        ("size", "make all images one size"),
        ("deep", "more than 8 bits"),
        ("empty class", "has no images"),
        ("one class", "has 1 folders of images"),
        ("test class", "has classes that"),
        ("nothing", "has no images in folders by class"),
    ],
)
def test_bad_folders_of_images_are_named(how, words, tmp_path):
    folder = write_images(tmp_path / "pets")
    named = break_folder(folder, how)
    message = error_of(tmp_path / "new" if (tmp_path / "new").exists() else folder)
    assert words in message
    assert str(named if how != "size" else folder) in message
    assert ("cannot be read" in message) == (how in ("nonsense", "cut"))


# --- .npz ------------------------------------------------------------------------------------------------------------


def write_npz(path, **arrays):
    np.savez(path, **arrays)
    return path


X, Y = np.random.default_rng(0).normal(size=(10, 3)), np.arange(10) % 3


def test_npz_is_read_and_split(tmp_path):
    data = load(str(write_npz(tmp_path / "a.npz", x=X, y=Y)), test_fraction=0.3)
    assert (data.shape, data.classes) == ((3,), 3)
    assert (len(data.train[1]), len(data.test[1])) == (7, 3)
    assert rows_of(data) == sorted((*x, float(y)) for x, y in zip(X.astype(np.float32).tolist(), Y, strict=True))
    assert "taken to be public" in data.note


def test_npz_with_a_test_part_and_stated_classes(tmp_path):
    path = write_npz(tmp_path / "a.npz", x=X, y=Y.astype(np.uint8), test_x=X[:2], test_y=Y[:2])
    data = load(str(path), classes=5)
    assert (data.classes, data.note, len(data.test[1])) == (5, "", 2)
    assert torch.equal(data.train[0], torch.tensor(X, dtype=torch.float32))


def test_npz_with_real_labels_is_for_regression(tmp_path):
    data = load(str(write_npz(tmp_path / "a.npz", x=X, y=X[:, 0])))
    assert data.classes is None
    assert data.train[1].dtype == torch.float32


BAD = X.copy()
BAD[4, 1] = np.nan


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": X}, "has the arrays x;"),
        ({}, "has the arrays none;"),
        ({"x": X, "y": Y, "x_test": X}, "has the arrays x, x_test, y;"),
        ({"x": X, "y": Y, "test_x": X}, "has the arrays test_x, x, y;"),
        ({"x": X, "y": Y[:-1]}, "has 10 inputs and 9 labels"),
        ({"x": X, "y": Y, "test_x": X, "test_y": Y[1:]}, "has 10 inputs and 9 labels"),
        ({"x": X[:0], "y": Y[:0]}, "has 0 inputs"),
        ({"x": X[:, :0], "y": Y}, "hold nothing"),
        ({"x": X, "y": Y, "test_x": X[:0], "test_y": Y[:0]}, "has 0 inputs"),
        ({"x": BAD, "y": Y}, "inputs that are not finite"),
        ({"x": X * 1e39, "y": Y}, "inputs that are not finite"),
        ({"x": X, "y": BAD[:, 1]}, "labels that are not finite"),
        ({"x": X, "y": Y - 1}, "labels out of range"),
        ({"x": X.astype(int), "y": Y}, "x is of int64"),
        ({"x": X.astype(complex), "y": Y}, "x is of complex128"),
        ({"x": X.astype("U9"), "y": Y}, "x is of <U9"),
        ({"x": X, "y": Y.astype("U9")}, "y is of <U9"),
        ({"x": X, "y": Y > 1}, "y is of bool"),
        ({"x": X, "y": Y[:, None]}, "labels of shape"),
        ({"x": X.sum(), "y": Y}, "x is a single number"),
        ({"x": X, "y": Y, "test_x": X[:, :2], "test_y": Y}, "examples of shape"),
        ({"x": X, "y": Y, "test_x": X, "test_y": X[:, 0]}, "it must be of torch.float32 and torch.int64"),
        ({"x": np.array([{}, []], object), "y": Y[:2]}, "cannot be read: Object arrays cannot be loaded"),
    ],
)
def test_bad_npz_files_are_named(arrays, words, tmp_path):
    path = write_npz(tmp_path / "a.npz", **arrays)
    message = error_of(path)
    assert words in message
    assert str(path) in message


def test_labels_beyond_the_stated_classes_are_refused(tmp_path):
    path = write_npz(tmp_path / "a.npz", x=X, y=Y)
    assert "they must be from 0 to 1" in error_of(path, classes=2)
    assert "real labels" in error_of(write_npz(tmp_path / "b.npz", x=X, y=X[:, 0]), classes=2)


def test_what_is_no_zip_file_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", X)
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    assert "cannot be read: File is not a zip file" in error_of(tmp_path / "a.npz")
    (tmp_path / "b.npz").write_bytes(b"")
    assert "cannot be read" in error_of(tmp_path / "b.npz")
    assert "cannot be read" in error_of(tmp_path / "missing.npz")


# --- tables ----------------------------------------------------------------------------------------------------------


def test_a_table_is_scaled_by_what_the_schema_says(table):
    data = load(str(table), label="pay", schema=SCHEMA, test_fraction=0.2)
    assert (data.shape, data.classes, data.name) == ((3,), 2, str(table))
    assert (len(data.train[1]), len(data.test[1])) == (4, 1)
    assert rows_of(data) == sorted(
        [
            (-1.0, 1.0, 0.0, 0.0),
            (1.0, 0.0, 1.0, 1.0),
            (0.0, 0.0, 0.0, 0.0),  # no job
            (0.0, 0.0, 0.0, 1.0),  # no age, unknown job
            (1.0, 0.0, 1.0, 1.0),  # an age that is cut
        ]
    )


def test_parquet_and_csv_give_the_same(table, tmp_path):
    columns = {
        "id": [1, 2, 3, 4, 5],
        "age": [0.0, 120.0, 60.0, None, 500.0],
        "job": ["clerk", "cook", None, "miner", "cook"],
        "pay": ["no", "yes", "no", "yes", "yes"],
    }
    write_parquet(tmp_path / "people.parquet", columns)
    one, other = (load(str(p), schema=SCHEMA) for p in (table, tmp_path / "people.parquet"))
    assert torch.equal(one.train[0], other.train[0])
    assert torch.equal(one.test[1], other.test[1])


def test_the_schema_may_be_a_toml_file_and_the_label_the_column_with_classes(table, tmp_path):
    path = tmp_path / "schema.toml"
    path.write_text(
        'ignore = ["id"]\n[age]\nlow = 0\nhigh = 120\n[job]\ncategories = ["clerk", "cook"]\n'
        '[pay]\nclasses = ["no", "yes"]\n'
    )
    assert torch.equal(load(str(table), schema=path).train[0], load(str(table), label="pay", schema=SCHEMA).train[0])


def test_a_number_can_be_the_label(table):
    schema = {"ignore": ["id", "pay"], "age": {"low": -120, "high": 120}, "job": {"categories": ["cook"]}}
    table.write_text(CSV.replace("4,,", "4,-500,"))
    data = load(str(table), label="age", schema=schema, test_fraction=0)
    assert data.classes is None
    assert data.shape == (1,)
    assert sorted(data.train[1].tolist()) == [-1.0, 0.0, 0.5, 1.0, 1.0]


def test_numbers_can_be_categories_and_classes(tmp_path):
    schema = {"a": {"categories": [1, 2]}, "y": {"classes": [0, 1]}}
    (tmp_path / "a.csv").write_text("a,y\n1,0\n2,1\n")
    write_parquet(tmp_path / "a.parquet", {"a": [1.0, 2.0], "y": [0, 1]})
    for name in ("a.csv", "a.parquet"):
        assert rows_of(load(str(tmp_path / name), schema=schema)) == [(0.0, 1.0, 1.0), (1.0, 0.0, 0.0)]


def test_csv_files_as_they_come(tmp_path):
    """A byte order mark, spaces after commas, quotes, windows' line ends, blank lines, and numbers as people write."""
    text = '\ufeffa, y\r\n"1e1", "no"\r\n\r\n NaN ,"no"\r\n-inf, yes\r\n NA, yes\r\n'
    (tmp_path / "a.csv").write_bytes(text.encode())
    schema = {"a": {"low": 0, "high": 20}, "y": {"classes": ["no", "yes"]}}
    assert rows_of(load(str(tmp_path / "a.csv"), schema=schema)) == [(-1, 1), (0, 0), (0, 0), (0, 1)]


def test_a_column_may_be_called_ignore(tmp_path):
    (tmp_path / "a.csv").write_text("ignore,y\n1,0\n0,1\n")
    schema = {"ignore": {"low": 0, "high": 1}, "y": {"classes": [0, 1]}}
    assert load(str(tmp_path / "a.csv"), schema=schema).shape == (1,)


@given(st.integers(2, 60), st.integers(0, 5), st.floats(0, 0.49), st.data())
def test_the_split_does_not_depend_on_what_the_rows_hold(count, seed, fraction, data):
    """Row i is row i of the training part whatever it and the others hold."""
    split = dataset.Split(fraction, seed)
    labels = st.lists(st.integers(0, 9), min_size=count, max_size=count)
    y, other = (torch.tensor(data.draw(labels)) for _ in range(2))
    numbers = torch.arange(count)[:, None].float()
    (train, _), test = split.of_pair("a", numbers, y)
    (again, _), _ = split.of_pair("a", numbers, other)
    assert torch.equal(train, again)
    tested = [] if test is None else test[0][:, 0].tolist()
    assert sorted(train[:, 0].tolist() + tested) == list(range(count))
    assert len(tested) == round(count * fraction)


def changed(**rules):
    return {**SCHEMA, **rules}


def without(name):
    return {key: rule for key, rule in SCHEMA.items() if key != name}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (None, "needs a schema"),
        (without("ignore"), "says nothing of column 'id'"),
        (without("age"), "says nothing of column 'age'"),
        (changed(wage={"low": 0, "high": 1}), "has no column 'wage'"),
        (changed(ignore=["id", "age"]), "both describes and ignores column 'age'"),
        (changed(ignore="id"), "column 'ignore' is 'id'"),
        (changed(ignore=[1]), "ignore is [1]"),
        (changed(age={"low": 0}), "column 'age' is {'low': 0}"),
        (changed(age={"low": 0, "high": 1, "categories": ["a"]}), "column 'age' is"),
        (changed(age=120), "column 'age' is 120"),
        (changed(age={"low": 5, "high": 5}), "low 5 and high 5"),
        (changed(age={"low": 5, "high": 1}), "low 5 and high 1"),
        (changed(age={"low": math.nan, "high": 1}), "low nan and high 1"),
        (changed(age={"low": 0, "high": math.inf}), "low 0 and high inf"),
        (changed(age={"low": -1.7e308, "high": 1.7e308}), "must be finite numbers"),
        (changed(age={"low": "0", "high": 1}), "low '0' and high 1"),
        (changed(age={"low": False, "high": True}), "low False and high True"),
        (changed(job={"categories": []}), "has categories []"),
        (changed(job={"categories": "ab"}), "has categories 'ab'"),
        (changed(job={"categories": ["a", "a"]}), "give a list of 1 or more that differ"),
        (changed(job={"categories": [1, 1.0]}), "give a list of 1 or more that differ"),
        (changed(pay={"classes": ["no"]}), "give a list of 2 or more that differ"),
        (changed(pay={"categories": ["no", "yes"]}), "call them classes"),
        (changed(job={"classes": ["clerk", "cook"]}), "column 'job' has classes, but is not the label"),
        (without("pay"), "says nothing of the label column 'pay'"),
        ({"ignore": ["id", "age", "job"], "pay": SCHEMA["pay"]}, "no column but the label"),
        (3, "a schema is 3"),
        ("missing.toml", "missing.toml cannot be read"),
    ],
)
def test_schemas_that_do_not_fit_are_refused(schema, words, table):
    assert words in error_of(table, label="pay", schema=schema)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        ("id,age,job,pay\n", "has no rows"),
        ("id,age,job\n1,2,cook\n", "has no column 'pay'"),
        ("id,age,age,pay\n1,2,3,no\n", "several columns called 'age'"),
        (CSV + "6,7,cook\n", "row 6 has 3 cells"),
        (CSV + "6,7,cook,no,more\n", "row 6 has 5 cells"),
        (CSV + "6,old,cook,no\n", "row 6 has no number in column 'age'"),
        (CSV + "6,1_0,cook,no\n", "row 6 has no number in column 'age'"),
        (CSV + "6,7,cook,perhaps\n", "row 6 has in label column 'pay' none of the schema's classes (no, yes)"),
        (CSV + "6,7,cook,\n", "row 6 has in label column 'pay' none"),
        (CSV + '6,7,"cook,no\n', "cannot be read: unexpected end of data"),
        (CSV + '6,7,"co"ok,no\n', "cannot be read"),
        (CSV + "6,7," + "x" * 200_000 + ",no\n", "cannot be read: field larger than field limit"),
        (b"id,age,job,pay\n1,2,\xff\xfe,no\n", "cannot be read: 'utf-8' codec"),
        (CSV.replace(",", ";"), "has no column 'age'"),
    ],
)
def test_bad_tables_are_named(content, words, table):
    table.write_bytes(content if isinstance(content, bytes) else content.encode())
    message = error_of(table, label="pay", schema=SCHEMA)
    assert words in message
    assert str(table) in message


def test_errors_do_not_say_what_is_in_a_private_row(table):
    table.write_text(CSV + "6,confidential,cook,no\n")
    assert "confidential" not in error_of(table, schema=SCHEMA)
    table.write_text(CSV + "6,7,cook,confidential\n")
    assert "confidential" not in error_of(table, schema=SCHEMA)


def test_a_missing_number_cannot_be_a_label(table):
    schema = {"ignore": ["id", "pay"], "age": {"low": 0, "high": 120}, "job": {"categories": ["cook"]}}
    assert "row 4 has no label in column 'age'" in error_of(table, label="age", schema=schema)
    assert "0 columns have classes" in error_of(table, schema=schema)


def test_other_bad_tables(table, tmp_path):
    assert "cannot be read" in error_of(tmp_path / "missing.csv", schema=SCHEMA)
    (tmp_path / "a.toml").write_text("age = {")
    assert "a.toml cannot be read" in error_of(table, schema=tmp_path / "a.toml")
    (tmp_path / "a.toml").write_bytes(b"\xff")
    assert "a.toml cannot be read" in error_of(table, schema=tmp_path / "a.toml")


def test_bad_parquet_files_are_named(tmp_path):
    path = tmp_path / "a.parquet"
    write_parquet(path, {"a": [1.0, 2.0], "y": ["no", "yes"]})
    sound = path.read_bytes()
    schema = {"a": {"low": 0, "high": 1}, "y": {"classes": ["no", "yes"]}}
    load(str(path), schema=schema)
    for content in (b"", b"nonsense", sound[:-9], sound[:4] + bytes(40) + sound[44:]):
        path.write_bytes(content)
        message = error_of(path, schema=schema)
        assert f"{path} cannot be read" in message
    write_parquet(path, {"a": [[1.0], [2.0]], "y": ["no", "yes"]})
    assert "row 1 has no number in column 'a'" in error_of(path, schema=schema)


@pytest.mark.parametrize(
    ("name", "missing", "package"),
    [("a.parquet", "pyarrow.parquet", "pyarrow"), ("pets", "PIL.Image", "Pillow"), ("digits", "sklearn.datasets", "")],
)
def test_what_is_not_installed_is_named_with_the_extra(name, missing, package, tmp_path, monkeypatch):
    write_parquet(tmp_path / "a.parquet", {"a": [1.0], "y": ["no"]})
    write_images(tmp_path / "pets")
    monkeypatch.setitem(sys.modules, missing, None)
    options = {"schema": {"a": {"low": 0, "high": 1}, "y": {"classes": ["no", "yes"]}}} if "." in name else {}
    message = error_of(name if name == "digits" else tmp_path / name, **options)
    assert "pip install 'discreet[data]'" in message
    assert package in message


# --- functions -------------------------------------------------------------------------------------------------------


class Pairs(Dataset):
    def __init__(self, count, classes=None, label=1):
        self.count, self.label = count, label
        if classes is not None:
            self.classes = classes

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.full((2,), float(index)), self.label


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


TX, TY = torch.tensor(X, dtype=torch.float32), torch.tensor(Y)


@pytest.fixture
def made(monkeypatch):
    """Load what a function returns."""

    def loaded(value, **options):
        fake = type(sys)("made_for_test")
        fake.make = lambda: value
        monkeypatch.setitem(sys.modules, "made_for_test", fake)
        return load("made_for_test:make", **options)

    return loaded


def test_a_function_is_called_with_the_options(tmp_path, monkeypatch):
    (tmp_path / "mine_for_test.py").write_text(
        "import torch\nfrom discreet.data import Data\n"
        "def make(count, classes_=2):\n"
        "    return Data('mine', (torch.zeros(count, 4), torch.ones(count).long()), None, (4,), classes_, 'a note')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    data = load("mine_for_test:make", count=5, classes_=3)
    assert (data.name, len(data.train[1]), data.classes, data.note) == ("mine", 5, 3, "a note")
    assert "missing a required argument: 'count'" in error_of("mine_for_test:make")
    assert "unexpected keyword argument 'amount'" in error_of("mine_for_test:make", count=1, amount=2)
    assert "has no function 'other'" in error_of("mine_for_test:other")
    assert "says it has 2 classes, not 9" in error_of("mine_for_test:make", count=1, classes=9)
    assert "cannot be imported" in error_of("not_there_for_test:make")
    assert "cannot be imported" in error_of(":make")
    monkeypatch.delitem(sys.modules, "mine_for_test")


def test_a_function_may_return_tensors(made):
    data = made((TX, TY))
    assert (len(data.train[1]), len(data.test[1]), data.classes) == (8, 2, 3)
    for value in ((TX, TY, TX[:3], TY[:3]), ((TX, TY), (TX[:3], TY[:3])), [[TX, TY], [TX[:3], TY[:3]]]):
        data = made(value, classes=4)
        assert (len(data.train[1]), len(data.test[1]), data.classes) == (10, 3, 4)


def test_a_function_may_return_data_sets(made):
    data = made(Pairs(10, ["a", "b"]))
    assert (len(data.train), len(data.test), data.shape, data.classes) == (8, 2, (2,), 2)
    assert sorted(x[0].item() for part in (data.train, data.test) for x, _ in part) == list(range(10))
    data = made((Pairs(10), Pairs(3)), classes=2)
    assert (len(data.train), len(data.test)) == (10, 3)
    assert made(TensorDataset(TX, TX[:, 0])).classes is None
    assert made(Pairs(10, ["a", "b"]), test_fraction=0).test is None
    assert len(made(Pairs(10, ["a", "b"]), limit=3).train) == 3


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "returned a NoneType"),
        ("text", "returned a str"),
        ((), "returned a tuple of nothing"),
        (TX, "returned a Tensor"),
        ((TX, TY, TX), "returned a tuple of Tensor, Tensor, Tensor"),
        ((TX, TY[1:]), "has 10 inputs and 9 labels"),
        ((TX[:0], TY[:0]), "has 0 inputs"),
        ((TX[0, 0], TY), "returned a single number"),
        ((TX.double(), TY), "is of torch.float64 and torch.int64"),
        ((TX, TY.int()), "is of torch.float32 and torch.int32"),
        ((TX, TY - 1), "labels out of range"),
        ((TX / 0, TY), "not finite"),
        (Stream(), "returned a Stream"),
        (DataLoader(TensorDataset(TX, TY)), "returned a DataLoader"),
        (Pairs(0, ["a", "b"]), "the data has no examples"),
        (Pairs(5), "give classes="),
        (Pairs(5, ["a"]), "it must be a whole number >= 2"),
        (Pairs(5, ["a", "b"], label=2), "labels out of range"),
        (Pairs(5, ["a", "b"], label="a"), "not a tensor and a number"),
        (Pairs(5, label=0.5), "is of torch.float32 and torch.float64"),
        (Pairs(5, ["a", "b"], label=None), "not an input and a label"),
        (TensorDataset(TX), "not an input and a label"),
        ((Pairs(5, ["a", "b"]), TensorDataset(TX, TY)), "examples of shape (3,)"),
    ],
)
def test_what_a_function_returns_is_checked(value, words, made):
    with pytest.raises(ConfigError) as caught:
        made(value)
    assert words in str(caught.value)
    assert str(caught.value).startswith("made_for_test:make")


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ((TX, TY, TY), "is 3 tensors"),
        ((TX,), "is 1 tensors"),
        (DataLoader([1]), "a DataLoader draws its own"),
        ((), "tuple"),
    ],
)
def test_data_checks_its_parts(part, words):
    with pytest.raises(ConfigError, match=f"mine: the test part.*{words}"):
        Data("mine", (TX, TY), part, (3,), 3)


# --- names and options -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mnits", "digits.txt", "", "no/folder", "x" * 5000, "a\0b", None, 3])
def test_unknown_names_say_what_can_be_named(name):
    with pytest.raises(ConfigError, match="name one of digits, mnist, fashion-mnist, cifar10"):
        load(name)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("digits", {"label": "y"}, "label is an option for a table"),
        ("digits", {"schema": {}}, "schema is an option for a table"),
        ("digits", {"folder": "x"}, "folder is an option for one of mnist"),
        ("digits", {"classes": 10}, "classes is an option for an .npz file"),
        ("digits", {"colour": "red"}, "colour is an option for a function"),
        ("a.csv", {"classes": 3}, "classes is an option for"),
        ("digits", {"test_fraction": 1.0}, "test_fraction is 1.0"),
        ("digits", {"test_fraction": -0.1}, "test_fraction is -0.1"),
        ("digits", {"test_fraction": math.nan}, "test_fraction is nan"),
        ("digits", {"seed": -1}, "seed is -1"),
        ("digits", {"seed": 2**64}, "seed is too large"),
        ("digits", {"limit": 0}, "limit is 0"),
        ("a.npz", {"classes": 1}, "classes is 1"),
    ],
)
def test_options_that_make_no_sense_are_refused(name, options, words):
    assert words in error_of(name, **options)


def test_too_few_rows_to_split_are_refused(tmp_path):
    path = write_npz(tmp_path / "a.npz", x=X[:1], y=Y[:1])
    assert "leaves none to train on" in error_of(path, test_fraction=0.6)
    assert load(str(path)).test is None


def test_a_limit_is_noted_only_if_it_cuts():
    assert load("digits", limit=100).note == "the first 100 examples"
    assert [len(p[1]) for p in (load("digits", limit=400).train, load("digits", limit=400).test)] == [400, 360]
    assert load("digits", limit=10**6).note == ""


def test_loading_draws_nothing_from_the_global_generator(tmp_path):
    path = write_npz(tmp_path / "a.npz", x=X, y=Y)
    state = torch.random.get_rng_state()
    load(str(path))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_importing_it_imports_nothing_that_only_some_data_needs():
    import subprocess

    code = "import sys, discreet.data; assert not {'sklearn', 'pyarrow', 'PIL'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_pickle_is_read():
    source = "".join(path.read_text() for path in Path(dataset.__file__).parent.glob("*.py"))
    assert "allow_pickle=False" in source
    assert "import pickle" not in source
    assert "torch.load" not in source
    assert "allow_pickle=True" not in source


@pytest.mark.parametrize("kind", ["idx", "bin", "npz", "png", "csv", "safetensors"])
def test_whatever_is_in_a_file_it_is_read_or_refused(kind, tmp_path, fuzz_count):
    """Bytes changed, cut out and added: data that is as it says, or a ConfigError, and nothing else."""
    folder = tmp_path / "here"
    folder.mkdir()
    if kind == "idx":
        write_idx(folder, zipped=False)
        path, arguments = folder / "train-images-idx3-ubyte", ("mnist", {"folder": folder})
    elif kind == "bin":
        write_cifar_binary(folder)
        path, arguments = folder / "data_batch_1.bin", ("cifar10", {"folder": folder})
    elif kind == "npz":
        path = write_npz(folder / "a.npz", x=X, y=Y)
        arguments = (str(path), {})
    elif kind == "png":
        write_images(folder, count=1)
        path, arguments = folder / "cat" / "0.png", (str(folder), {})
    elif kind == "csv":
        path, arguments = folder / "a.csv", (str(folder / "a.csv"), {"schema": SCHEMA})
        path.write_text(CSV)
    else:
        write_cifar_parquet(folder, train=1, test=1)
        load("cifar10", folder=folder)
        (path,) = (tmp_path / "cache" / "discreet" / "cifar10").iterdir()
        arguments = ("cifar10", {"folder": folder})
    sound, dice = path.read_bytes(), random.Random(kind)
    for _ in range(fuzz_count // 7):
        content = bytearray(sound)
        for _ in range(dice.randint(1, 4)):
            place = dice.randrange(min(len(content), dice.choice((40, 400, 10**6))))
            length = dice.choice((0, 1, 1, 1, 9))
            content[place : place + length] = dice.randbytes(dice.choice((0, 1, 1, 1, 9)))
        path.write_bytes(content)
        with suppress(ConfigError):
            assert isinstance(load(arguments[0], **arguments[1]), Data)


# --- ranges that nobody can state ------------------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path):
    return tmp_path / "run" / "ledger.jsonl"


def counts(columns, low=1e-6, high=1e6):
    return ranges._counts(columns, list(columns), ranges._edges(low, high))


CELLS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([None, "", "text", "1e9", "-3", "nan", 0, 10**400, True, [1, 2], b"7", 1e-6, -1e-6, 1e6, -0.0]),
)


def test_what_is_left_out_of_the_ranges_is_asked_for(table, ledger):
    found = private_ranges(table, ["age"], noise=50.0, ledger=ledger, seed=0)
    assert found == {}
    schema = {**without("age"), **found}
    assert "says nothing of column 'age'" in error_of(table, schema=schema)


@given(st.integers(1, 4), st.integers(1, 6), st.data())
def test_one_row_moves_the_counts_by_at_most_the_square_root_of_the_columns(width, height, data):
    row = st.lists(CELLS, min_size=width, max_size=width)
    rows = data.draw(st.lists(row, min_size=height, max_size=height))
    other = data.draw(row)

    def counted(rows):
        return counts({f"c{i}": [r[i] for r in rows] for i in range(width)})

    whole, removed, replaced = counted(rows), counted(rows[1:]), counted([other, *rows[1:]])
    assert np.square(whole - removed).sum() <= width
    assert np.square(whole - replaced).sum() <= 2 * width
    assert whole.sum(1).max() <= height


def test_the_bounds_are_attained():
    columns = {"a": [1.0, 5.0], "b": [-3.0, 7.0]}
    first, other = ({k: [v[i]] for k, v in columns.items()} for i in (0, 1))
    assert np.square(counts(columns) - counts(other)).sum() == 2
    assert np.square(counts(first) - counts(other)).sum() == 4


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 3.7, 1e-6, -1e-6, 1e6, -1e6, 1e300, math.inf, -math.inf, 1e-300])
def test_every_number_is_in_one_bin_and_that_bin_holds_it(value):
    edges = ranges._edges(1e-6, 1e6)
    (row,) = counts({"a": [value]})
    assert row.sum() == 1
    place = int(row.argmax())
    cut = min(max(value, edges[0]), edges[-1])
    assert edges[place] <= cut <= edges[place + 1]
    assert np.all(np.diff(edges) > 0)
    assert edges[-1] >= 1e6 * (1 - 1e-12)


def test_forms_of_the_same_column_count_the_same():
    values = [1.0, -2.0, 300.0, math.nan]
    usual = counts({"a": values})
    for form in (np.array(values), torch.tensor(values), np.array(values, object), [str(v) for v in values]):
        assert np.array_equal(counts({"a": form}), usual)


def test_ranges_are_found_and_fit_a_schema(tmp_path, ledger):
    dice = np.random.default_rng(0)
    ages, debts = dice.uniform(18, 90, 4000), -dice.uniform(0, 30_000, 4000)
    found = private_ranges({"age": ages, "debt": debts}, ["age", "debt"], noise=5.0, ledger=ledger, seed=1)
    assert found["age"]["low"] <= 18.5
    assert 89 <= found["age"]["high"] <= 180
    assert -66_000 <= found["debt"]["low"] <= -29_000
    assert -600 < found["debt"]["high"] <= 1
    lines = [f"{a},{d},{'yes' if a > 40 else 'no'}" for a, d in zip(ages, debts, strict=True)]
    (tmp_path / "a.csv").write_text("age,debt,y\n" + "\n".join(lines))
    data = load(str(tmp_path / "a.csv"), schema={**found, "y": {"classes": ["no", "yes"]}})
    assert data.shape == (2,)
    again = private_ranges(tmp_path / "a.csv", ["age", "debt"], noise=5.0, ledger=ledger, seed=1)
    assert again == found


def test_a_few_rows_far_out_do_not_decide_the_range(ledger):
    values = np.concatenate((np.full(5000, 1.5), np.full(20, 1e5)))
    found = private_ranges({"a": values}, ["a"], noise=1.0, ledger=ledger, seed=0)["a"]
    assert found["low"] <= 1.5 <= found["high"] < 4
    wide = private_ranges({"a": values}, ["a"], noise=1.0, ledger=ledger, seed=0, tail=0)["a"]
    assert wide["high"] >= 1e5


def test_a_column_that_does_not_stand_out_of_the_noise_is_left_out(ledger):
    table = {"few": [1.0] * 3 + [None] * 997, "text": ["x"] * 1000, "many": [1.0] * 1000}
    found = private_ranges(table, list(table), noise=10.0, ledger=ledger, seed=0)
    assert list(found) == ["many"]


def test_the_noise_is_that_of_all_columns_together(ledger, monkeypatch):
    """Four columns of nothing: their counts are noise alone, of twice the multiplier. Five standard errors: a false
    alarm in about one of 10^6 seeds."""
    seen = []
    monkeypatch.setattr(ranges, "_between", lambda noisy, *rest: seen.append(noisy))
    for seed in range(20):
        private_ranges({n: [] for n in "abcd"}, list("abcd"), noise=3.0, ledger=ledger, seed=seed)
    values = np.concatenate(seen)
    assert np.sqrt(np.square(values).mean()) == pytest.approx(6.0, rel=5 / math.sqrt(2 * len(values)))
    assert len(np.unique(values)) == len(values)


class Watched(dict):
    """Columns that may be read only after something is in the ledger."""

    def __init__(self, ledger, columns):
        super().__init__(columns)
        self.ledger = ledger

    def __getitem__(self, name):
        assert "ranges of 1 columns" in self.ledger.read_text()
        raise RuntimeError("the data was read")


def test_the_query_is_counted_before_the_data_is_read(ledger):
    with pytest.raises(RuntimeError, match="the data was read"):
        private_ranges(Watched(ledger, {"a": []}), ["a"], noise=2.0, ledger=ledger)
    (line,) = map(json.loads, ledger.read_text().splitlines())
    assert line["kind"] == "query"
    assert line["phase"]["multiplier"] == 2.0


def test_of_a_file_only_the_names_are_read_before(table, ledger, monkeypatch):
    def watched(path, wanted):
        assert ledger.exists()
        raise RuntimeError("the data was read")

    monkeypatch.setattr(ranges, "read_columns", watched)
    with pytest.raises(RuntimeError, match="the data was read"):
        private_ranges(table, ["age"], noise=2.0, ledger=ledger)


def test_a_cap_is_kept(table, ledger, monkeypatch):
    monkeypatch.setattr(ranges, "read_columns", pytest.fail)
    capped = Ledger(ledger, dataset="people", epsilon=0.5, delta=DELTA)
    with pytest.raises(BudgetExhausted):
        private_ranges(table, ["age"], noise=1.0, ledger=capped)


def test_a_fixed_seed_is_written_down_and_no_seed_draws_anew(ledger):
    values = {"a": [1.0] * 5}
    private_ranges(values, ["a"], noise=1.0, ledger=ledger, seed=1)
    private_ranges(values, ["a"], noise=1.0, ledger=ledger)
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert "fixed seed" in lines[0]["broken"]
    assert "broken" not in lines[1]


@pytest.mark.parametrize("noise", [0.7, 4.0, 10.0])
def test_the_cost_is_that_of_one_gaussian_query(noise):
    for adjacency in ("zero-out", "add-remove"):
        event = ranges_cost(noise, adjacency)
        assert (event.rate, event.steps, event.adjacency) == (1.0, 1, adjacency)
        assert cost([event], DELTA).epsilon == pytest.approx(gdp.epsilon(1 / noise, DELTA), rel=1e-12)
    found = cost([ranges_cost(noise, "replace")], DELTA).epsilon
    assert found == pytest.approx(gdp.epsilon(math.sqrt(2) / noise, DELTA), rel=1e-12)


def test_the_cost_is_accounted_together_with_a_run(ledger):
    plan = methods.dp_sgd(examples=1000, batch_size=10, steps=50, noise=1.0, delta=DELTA)
    alone = cost([plan.event(None)], DELTA).epsilon
    assert cost([plan.event(None), ranges_cost(5.0)], DELTA).epsilon > alone


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"columns": "age"}, "columns are 'age'"),
        ({"columns": []}, "columns are []"),
        ({"columns": ["age", "age"]}, "each once"),
        ({"columns": ["wage"]}, "has no column 'wage'"),
        ({"noise": 0.0}, "noise is 0.0"),
        ({"noise": math.nan}, "noise is nan"),
        ({"low": 0.0}, "low is 0.0"),
        ({"low": 2.0, "high": 1.0}, "low must be below high"),
        ({"high": math.inf}, "high is inf"),
        ({"tail": 0.5}, "tail is 0.5"),
        ({"tail": -0.1}, "tail is -0.1"),
        ({"ledger": None}, "is no ledger"),
        ({"adjacency": "near"}, "adjacency is 'near'"),
        ({"table": "people.txt"}, "is no table"),
        ({"table": 3}, "is no table"),
        ({"table": "missing.csv"}, "cannot be read"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_anything_is_counted(options, words, table, ledger):
    settings = {"table": table, "columns": ["age"], "noise": 1.0, "ledger": ledger, **options}
    with pytest.raises(ConfigError) as caught:
        private_ranges(settings.pop("table"), settings.pop("columns"), **settings)
    assert words in str(caught.value)
    assert not ledger.exists()


@pytest.mark.parametrize("column", [np.ones((3, 2)), torch.ones(3, 1), np.float64(3)])
def test_a_row_cannot_be_in_several_bins_of_a_column(column, ledger):
    with pytest.raises(ConfigError, match="one value for each row"):
        private_ranges({"a": np.asarray(column)}, ["a"], noise=1.0, ledger=ledger)


def test_columns_of_different_lengths_are_refused(ledger):
    with pytest.raises(ConfigError, match="different lengths"):
        private_ranges({"a": [1.0], "b": [1.0, 2.0]}, ["a", "b"], noise=1.0, ledger=ledger)


# --- the real data ---------------------------------------------------------------------------------------------------

real = pytest.mark.skipif(not REAL, reason="DISCREET_DATA does not say where the real data sets are")


@real
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_the_real_idx_files(name, monkeypatch):
    monkeypatch.setenv("DISCREET_DATA", REAL)
    data = load(name, download=False)
    assert [len(part[1]) for part in (data.train, data.test)] == [60_000, 10_000]
    assert data.note == ""
    assert data.train[0].max() == 1
    assert data.train[1].bincount().min() > 5000
    if name == "mnist":
        assert data.train[1][:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]


@real
def test_some_of_the_real_cifar(monkeypatch):
    monkeypatch.setenv("DISCREET_DATA", REAL)
    data = load("cifar10", download=False, limit=300)
    assert [len(part[1]) for part in (data.train, data.test)] == [300, 300]
    assert data.train[1].bincount(minlength=10).min() > 10
    assert data.note == "JPEG copies, not the original images; the first 300 examples"
    assert 0.4 < data.train[0].mean() < 0.55
