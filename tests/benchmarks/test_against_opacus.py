"""The comparison with Opacus: its arithmetic and its words on made-up results; no training."""

import math
from importlib.util import find_spec
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def against(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import against_opacus

    return against_opacus


def found(ours, theirs):
    def rows(accuracies):
        return [{"accuracy": a, "cpu": 20.0, "wall": 21.0, "memory": 400.0} for a in accuracies]

    about = {"date": "2026-01-01", "machine": "a machine", "versions": {}, "command": "python", "epochs": 1}
    settings = {"batch_size": 500, "rate": 1.0, "norm": 1.0, "delta": 1e-5, "seeds": len(ours), "epsilon": 3.0}
    noises = {"Opacus, PRV": {"noise": 1.01, "epsilon": 2.9}, "discreet": {"noise": 1.0, "epsilon": 3.0}}
    results = {"Opacus hooks": rows(theirs), "discreet": rows(ours), "discreet, its own noise": rows(ours)}
    return {"about": about | settings, "noises": noises, "results": results}


def test_a_difference_is_counted_in_its_standard_errors(against):
    assert against.mean_and_error([0.9, 0.92]) == pytest.approx((0.91, 0.01))
    assert against.difference([0.9, 0.92], [0.9, 0.92]) == 0
    assert against.difference([0.94, 0.96], [0.9, 0.92]) == pytest.approx(0.04 / math.hypot(0.01, 0.01))
    assert against.difference([0.9, 0.9], [0.8, 0.8]) == math.inf


def test_equal_and_unequal_accuracies_are_called_so(against):
    assert "equal within two" in against.verdict(found([0.9, 0.92], [0.91, 0.92]))
    assert "further apart than two" in against.verdict(found([0.9, 0.901], [0.8, 0.801]))


def test_the_tables_have_both_libraries_and_the_accountants_apart(against):
    from race import tables

    page = against.shown(found([0.9, 0.92], [0.91, 0.92]), tables.markdown)
    assert "| Opacus hooks | 1.0100 | 91.50% ± 0.50 |" in page
    assert "| discreet, its own noise | 1.0000 | 91.00% ± 1.00 |" in page
    assert "| Opacus, PRV | 1.0100 | +1.0% | 2.9000 |" in page


@pytest.mark.skipif(find_spec("opacus") is not None, reason="opacus is installed here")
def test_without_opacus_it_says_how_to_install_it(against):
    with pytest.raises(SystemExit, match="pip install opacus"):
        against.main([])


def test_a_batch_size_at_which_opacus_samples_otherwise_is_refused(against, monkeypatch):
    monkeypatch.setattr(against, "find_spec", lambda name: object())
    with pytest.raises(SystemExit, match="does not divide 60,000"):
        against.main(["--batch-size", "512"])
