"""Folders of files that are bombs, pipes, devices, or not what their names say."""

import shutil

import hostile_files
import pytest
from closed_box import wrong
from data_files import write_images

from discreet import ConfigError
from discreet.data.files import Unpacked, regular

KINDS = {
    "mnist": (hostile_files.idxs, ["--data", "mnist", "--folder", "data", "--set", "data.download=false"]),
    "cifar10": (hostile_files.cifars, ["--data", "cifar10", "--folder", "data", "--set", "data.download=false"]),
    "images": (hostile_files.pictures, ["--data", "data"]),
}
ACCEPTED = {"cut off"}  # an image of which only the end's sign is gone


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_folders_are_refused(kind, tmp_path):
    pytest.importorskip("PIL")
    pytest.importorskip("pyarrow")
    fills, arguments = KINDS[kind]
    calls = {}
    for number, (name, fill) in enumerate(fills().items()):
        inside = tmp_path / str(number) / "data"
        inside.mkdir(parents=True)
        if kind == "images":
            shutil.rmtree(inside)
            write_images(inside, count=2)
        fill(inside)
        if not (kind == "images" and name in ACCEPTED):
            calls[name] = ["train", *arguments, *hostile_files.SMALL], inside.parent
    assert wrong(calls, environment=hostile_files.ENVIRONMENT) == {}


def test_only_regular_files_and_links_to_them_are_read(tmp_path):
    (tmp_path / "a").write_text("a")
    (tmp_path / "link").symlink_to("a")
    assert regular(tmp_path / "link") == tmp_path / "link"
    for place in (tmp_path, "/dev/null", tmp_path / "nowhere", "a\0b"):
        with pytest.raises(ConfigError, match="cannot be read"):
            regular(place)


def test_what_unpacks_to_more_than_the_limit_is_refused_before_it_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv("DISCREET_LIMITS", "unpacked_bytes=1000")
    (tmp_path / "a.gz").write_bytes(hostile_files.packed(bytes(1000)))
    (tmp_path / "b.gz").write_bytes(hostile_files.packed(bytes(1001)))
    with Unpacked(tmp_path / "a.gz") as file:
        assert file.read() == bytes(1000)
    with Unpacked(tmp_path / "b.gz") as file, pytest.raises(ConfigError, match="more than 1,000 bytes"):
        file.read()
