"""Names and options of data sets."""

import math
import os
import random
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from data_files import (
    CSV,
    SCHEMA,
    X,
    Y,
    error_of,
    write_cifar_binary,
    write_cifar_parquet,
    write_idx,
    write_images,
    write_npz,
)

from discreet import ConfigError
from discreet.data import Data, dataset, load

REAL = os.environ.get("DISCREET_DATA", "")


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
