"""Private statistics of features: what one row may change, what is counted, and what comes out."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from discreet import BudgetExhausted, ConfigError, Ledger, Poisson, calibrate, methods, verify
from discreet.accounting import cost
from discreet.accounting import gaussian as gdp
from discreet.accounting.events import Event
from discreet.features import Whitening
from discreet.features import statistics as module
from discreet.stages.sensitivity import GRID

GENERATOR = torch.Generator().manual_seed(0)


def exact(tensor, scale):
    """The squared l2 norm in whole numbers."""
    return sum(int(v) ** 2 for v in (tensor / scale).flatten().tolist())


def sums(rows, mean):
    return module._sum(rows), *module._moments(rows, mean)


extremes = st.lists(
    st.sampled_from([0.0, 1.0, -1.0, 1e-30, 1e30, 3.4e38, 1e-45, 0.1, -7.3, math.nan, math.inf]), min_size=6, max_size=6
)


@given(extremes, st.integers(0, 5))
def test_one_row_moves_each_sum_by_at_most_one(row, others):
    """Added or taken away, exactly: the sums are of whole numbers."""
    rows = torch.randn(others, 2, 3, generator=torch.Generator().manual_seed(others))
    one = torch.tensor(row).view(1, 2, 3)
    mean = torch.full((6,), 0.3, dtype=torch.float64)
    before, after = sums(rows, mean), sums(torch.cat([rows, one]), mean)
    for a, b, scale in zip(before, after, (GRID, GRID**2, GRID**2), strict=True):
        assert exact(b - a, scale) <= round(1 / scale) ** 2


def test_a_row_moves_the_sums_by_as_much_as_is_counted():
    one = torch.zeros(1, 2, 3)
    one[0, 1, 1] = 5.0
    for moved in sums(one, torch.zeros(6, dtype=torch.float64)):
        assert float(moved.norm()) == pytest.approx(1, abs=1e-5)


def test_a_row_that_is_not_finite_counts_for_nothing():
    rows = torch.randn(4, 2, 3, generator=GENERATOR)
    broken = torch.cat([rows, torch.full((1, 2, 3), math.nan)])
    mean = torch.full((6,), 0.1, dtype=torch.float64)
    assert all(torch.equal(a, b) for a, b in zip(sums(rows, mean), sums(broken, mean), strict=True))


def test_sums_are_the_same_in_pieces(monkeypatch):
    rows = torch.randn(50, 3, 5, generator=GENERATOR).half()
    mean = torch.zeros(15, dtype=torch.float64)
    whole = sums(rows, mean)
    monkeypatch.setattr(module, "_ROWS", 7)
    monkeypatch.setattr(module, "_STRIP", 2)
    assert all(torch.equal(a, b) for a, b in zip(whole, sums(rows, mean), strict=True))
    flat = torch.nn.functional.normalize(rows.flatten(1).double(), dim=1).view(50, 3, 5)
    assert torch.allclose(whole[1], torch.einsum("npc,npd->cd", flat, flat), atol=1e-3)
    assert torch.allclose(whole[2], torch.einsum("npc,nqc->pq", flat, flat), atol=1e-3)


def test_all_three_cost_what_three_gaussian_queries_cost():
    whitening = Whitening(20.0, 8.0, 6.0)
    apart = gdp.epsilon(math.sqrt(1 / 20**2 + 1 / 8**2 + 1 / 6**2), 1e-5)
    together = cost([whitening.cost()], 1e-5).epsilon
    assert together == pytest.approx(apart, rel=1e-6)
    assert whitening.cost("replace") == Event(1.0, whitening.multiplier, 1, adjacency="replace")


def test_statistics_are_counted_before_a_row_is_read(tmp_path):
    class Unreadable:
        ndim, shape = 3, (10, 2, 3)

        def __len__(self):
            raise RuntimeError("the rows were read")

    path = tmp_path / "ledger.jsonl"
    with pytest.raises(RuntimeError, match="were read"):
        Whitening().fit(Unreadable(), path, size=10)
    assert verify(path).queries == ("a mean and second moments of features, noise 20, 5, 5",)
    capped = Ledger(tmp_path / "data.jsonl", dataset="d", epsilon=0.1, delta=1e-5)
    with pytest.raises(BudgetExhausted):
        Whitening().fit(Unreadable(), capped, size=10)


def test_a_known_seed_is_known_in_the_ledger(tmp_path):
    rows = torch.randn(5, 2, 3, generator=GENERATOR)
    path = tmp_path / "ledger.jsonl"
    Whitening().fit(rows, path, size=5, seed=1)
    assert "fixed seed" in path.read_text()


def test_training_is_calibrated_for_what_is_left():
    alone = methods.dp_sgd(examples=1000, batch_size=100, steps=50, epsilon=3.0)
    beside = [Whitening().cost()]
    both = calibrate(alone, 3.0, beside=beside)
    assert both.mechanism.noise.multiplier > alone.mechanism.noise.multiplier
    assert 2.99 < both.guarantee(beside=beside).epsilon <= 3.0
    assert both.sampling == Poisson(examples=1000, batch_size=100)


def test_rows_are_whitened_as_far_as_the_power_says(tmp_path):
    """With hardly any noise and power 1/2, channels have moments alike before rows get their length."""
    mixed = torch.einsum("cd,npd->npc", torch.tensor([[3.0, 1, 0], [0, 1, 0.5], [0, 0, 0.3]]), _rows(4000)) + 0.7
    quiet = Whitening(0.1, 0.1, 0.1, channel_power=0.5, place_power=0.0, length=2.0)
    whitened = quiet.fit(mixed, tmp_path / "a.jsonl", size=4000)
    made = whitened(mixed)
    assert torch.allclose(made.norm(dim=1), torch.full((4000,), 2.0), atol=1e-4)
    assert torch.allclose(whitened.mean, F.normalize(mixed.flatten(1), dim=1).mean(0), atol=1e-3)
    centred = F.normalize(F.normalize(mixed.flatten(1), dim=1) - whitened.mean, dim=1).view(-1, 2, 3)
    alike = whitened.by_channel @ (torch.einsum("npc,npd->cd", centred, centred) / 4000 * 3) @ whitened.by_channel
    assert torch.allclose(alike, torch.eye(3), atol=0.02)
    assert torch.allclose(whitened.by_place, torch.eye(2), atol=1e-5)


def test_a_whitened_row_depends_on_itself_alone(tmp_path):
    rows = _rows(20)
    whitened = Whitening().fit(rows, tmp_path / "a.jsonl", size=20)
    assert torch.allclose(whitened(rows)[3], whitened(rows[3:4])[0], atol=1e-6)
    broken = rows.clone()
    broken[0] = math.nan
    assert torch.allclose(whitened(broken)[1:], whitened(rows)[1:], atol=1e-6)
    assert whitened(broken).isfinite().all()


def _rows(count):
    return torch.randn(count, 2, 3, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Whitening(mean_noise=0.0), "mean_noise"),
        (lambda: Whitening(channel_power=2.0), "from 0 to 1"),
        (lambda: Whitening().fit(torch.zeros(3, 4), "ledger.jsonl", size=3), "places, channels"),
        (lambda: Whitening().fit(torch.zeros(3, 4, 2), "ledger.jsonl", size=0), "size"),
    ],
)
def test_what_cannot_be_is_refused(make, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=words):
        make()
    assert list(tmp_path.iterdir()) == []
