"""Digits and MNIST."""

import struct

import numpy as np
import pytest
import torch
from data_files import IMAGES, LABELS, idx, packed, pixels, write_idx
from sklearn.datasets import load_digits

from discreet import ConfigError
from discreet.data import load


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
    download = [tmp_path / "own", tmp_path / "shared" / "mnist", tmp_path / "cache" / "discreet" / "mnist"]
    for count, place in enumerate(download, 1):
        write_idx(place, train=count)
    assert len(load("mnist").train[1]) == 3
    monkeypatch.setenv("DISCREET_DATA", str(tmp_path / "shared"))
    assert len(load("mnist").train[1]) == 2
    assert len(load("mnist", folder=download[0]).train[1]) == 1
    (download[0] / "t10k-labels-idx1-ubyte.gz").unlink()
    assert len(load("mnist", folder=download[0]).train[1]) == 2


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
        (
            IMAGES,
            packed(struct.pack(">HBBIII", 0, 8, 3, 2**32 - 1, 28, 28)),
            r"announces 4,294,967,295 rows; at most 200,000",
        ),
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
