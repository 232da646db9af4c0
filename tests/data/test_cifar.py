"""CIFAR-10, in each of its forms."""

import io
import tarfile

import pytest
import torch
from data_files import (
    Server,
    error_of,
    image,
    pixels,
    write_cifar_binary,
    write_cifar_parquet,
    write_images,
    write_parquet,
)

from discreet.data import cifar, download, load


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
