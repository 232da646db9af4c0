"""Where data sets are looked for, and what is downloaded."""

import hashlib
import urllib.error

import pytest
from data_files import IMAGES, LABELS, Server, error_of, write_idx

from discreet.data import download, load


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
