"""Data of one's own: arrays in a file, and functions that a name points at."""

import sys

import numpy as np
import pytest
import torch
from data_files import X, Y, error_of, rows_of, write_npz
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from discreet import ConfigError
from discreet.data import Data, load


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
        ({"x": np.array([{}, []], object), "y": Y[:2]}, "x is of pickled objects, which are not read"),
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
