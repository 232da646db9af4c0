"""A steady step of a two-layer network can be followed: so many calls, and so many changes of file, at most."""

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CALLS, CHANGES = 150, 60


@pytest.mark.parametrize("functions", [False, True])
def test_a_steady_step_is_short(functions, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import step_calls

    steps = sorted(step_calls.trace(functions=functions), key=len)
    one = steps[len(steps) // 2]
    assert len(one) <= CALLS
    assert step_calls.changes(one) <= CHANGES
