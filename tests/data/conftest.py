import urllib.error

import pytest
from data_files import CSV

from discreet.data import download


def no_network(address):
    raise urllib.error.URLError("no network here")


@pytest.fixture(autouse=True)
def _nothing_outside(tmp_path, monkeypatch):
    """No test finds or leaves anything outside its folder, nor reaches the network."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("DISCREET_DATA", raising=False)
    monkeypatch.setattr(download, "_open", no_network)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text(CSV)
    return path
