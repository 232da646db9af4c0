"""Archives of arrays that are bombs, lie about their sizes, or hold what is no array."""

import hostile_files
import numpy as np
import pytest
from closed_box import wrong

from discreet import ConfigError
from discreet.data.archives import read_arrays


def test_hostile_archives_are_refused(tmp_path):
    calls = {}
    for number, (name, make) in enumerate(hostile_files.npzs().items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "t.npz").write_bytes(make())
        calls[name] = ["train", "--data", "t.npz", *hostile_files.SMALL], folder
    assert len(calls) >= 55
    assert wrong(calls, environment=hostile_files.ENVIRONMENT) == {}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_read_as_numpy_reads_them(save, tmp_path):
    arrays = {"x": np.asfortranarray(np.arange(12.0).reshape(4, 3)), "y": np.arange(4, dtype=np.uint8)}
    save(tmp_path / "t.npz", **arrays)
    found = read_arrays(str(tmp_path / "t.npz"))
    assert set(found) == {"x", "y"}
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


def test_the_limit_is_of_what_it_becomes_and_can_be_overridden(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "t.npz", x=np.zeros((4, 1000), "f4"), y=np.arange(4))
    monkeypatch.setenv("DISCREET_LIMITS", "unpacked_bytes=16000")
    with pytest.raises(
        ConfigError, match=r"unpacks to 16,\d+ bytes; at most 16,000 .* DISCREET_LIMITS=unpacked_bytes=N"
    ):
        read_arrays(str(tmp_path / "t.npz"))
    monkeypatch.setenv("DISCREET_LIMITS", "unpacked_bytes=17e3")
    assert read_arrays(str(tmp_path / "t.npz"))["x"].shape == (4, 1000)
