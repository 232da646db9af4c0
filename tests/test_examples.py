"""The example scripts run from start to end on bundled data."""

import pytest
from scripts import EXAMPLES, run


@pytest.mark.parametrize("part", ["optimizers", "schedules", "pca"])
def test_experiments_with_dp_sgd(part, monkeypatch, capsys):
    rows = run("dp_sgd.py", ["--epochs", "6", "--batch-size", "128", "--only", part], monkeypatch, capsys)[2:]
    assert len(rows) >= 2
    for _, accuracy, epsilon, _ in rows:
        assert float(accuracy) > 50
        assert float(epsilon) <= 3


def test_the_influence_of_the_clipping_norm(monkeypatch, capsys):
    rows = run("dp_sgd.py", ["--epochs", "6", "--batch-size", "128", "--only", "clipping"], monkeypatch, capsys)[2:]
    assert len({row[2] for row in rows}) == 1  # the noise follows the norm, so privacy does not depend on it


def test_a_language_model_learns_private_notes_through_adapters(monkeypatch, capsys):
    """To a stated budget: perplexity falls by more than a tenth; in each of ten runs by about a quarter."""
    rows = run("lora.py", ["--epsilon", "3", "--batch-size", "200", "--public-steps", "100"], monkeypatch, capsys)[2:]
    (_, before), (adapted, after) = rows
    assert float(after) < 0.9 * float(before)
    assert 2.5 < float(adapted.rpartition("epsilon ")[2]) <= 3


def test_graphs_side_by_side_are_trained_as_a_batch(monkeypatch, recwarn):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import graphs

    _, proven = graphs.train(steps=6, examples=200, batch_size=30)
    assert proven.epsilon <= 8
    assert not [w for w in recwarn if "in a batch of its own" in str(w.message)]


@pytest.mark.parametrize("name", ["tanh_filter", "adaptive", "belu"])
def test_presets_side_by_side(name, monkeypatch, capsys):
    rows = run("methods.py", ["--epochs", "6", "--batch-size", "128", "--only", name], monkeypatch, capsys)[2:]
    for method, accuracy, epsilon, claim, _ in rows:
        assert float(accuracy) > 30
        if "published" in method:
            assert "false" in claim
            assert float(epsilon) > 2 * float(claim.split(",")[0])
        else:
            assert float(epsilon) <= 3
    assert any("published" in row[0] for row in rows)
