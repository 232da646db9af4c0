"""What a seeded run releases is what it always was: bit for bit on the recorded arithmetic, closely on any other."""

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from pinned.pinned_cases import CASES, UNREPEATABLE, fingerprint, kept

KNOWN = json.loads(Path(__file__).with_name("pinned.json").read_text())


@cache
def same_arithmetic():
    return fingerprint() == KNOWN["arithmetic"]


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_case_is_kept_and_none_else():
    assert set(KNOWN["released"]) == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_released_gradients_are_the_same(name):
    found, known = kept(CASES[name]()), KNOWN["released"][name]
    assert len(found) == len(known)
    for (_, values), (_, expected) in zip(found, known, strict=True):
        norm = expected[-1]
        assert values == pytest.approx(expected, rel=1e-4, abs=1e-6 * norm)
    if same_arithmetic() and name not in UNREPEATABLE:
        assert [digest for digest, _ in found] == [digest for digest, _ in known]
