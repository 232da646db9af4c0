"""A plan on `meta` is the plan of the same network where its values are."""

from pathlib import Path

import pytest

SIZES = 50, 64, 128, 1, 8, 2


@pytest.fixture(autouse=True)
def _folder(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))


@pytest.mark.parametrize("memory", [1.3, 0.0])
def test_kernels_and_peaks_are_those_of_the_cpu(memory):
    from memory_plan import planned

    _, *there = planned(SIZES, 4, 16, "meta", memory)
    _, *here = planned(SIZES, 4, 16, "cpu", memory)
    assert there == here
    kernels, ordinary, peak = here
    assert len(kernels) == 7 + 1
    assert peak >= ordinary > 0


def test_shards_add_up_to_the_model():
    from memory_plan import planned, shares

    model, _, _, peak = planned(SIZES, 4, 16)
    found = shares(model, 2, peak)
    assert found["parameters"] == sum(2 * p.numel() for p in model.parameters())
    assert found["optimizer"] == 2 * found["sums"] == 2 * found["parameters"]
