"""How many rows a step takes at a time: by what one row keeps, and by what an error says."""

import pytest
import torch
from torch import nn

from discreet.release import chunk_size
from discreet.release.chunk_size import chunk_that_fits, ran_out


def model(width):
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))


@pytest.mark.parametrize(
    ("error", "ran"),
    [
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("no memory of this"), False),
    ],
)
def test_whether_memory_ran_out(error, ran):
    assert ran_out(error) is ran


def test_it_grows_with_memory_and_falls_with_what_a_row_keeps(monkeypatch):
    def fits(width, free):
        monkeypatch.setattr(chunk_size, "free_memory", lambda device: free)
        return chunk_that_fits(model(width), torch.zeros(4), 1, batch_size=1e9)

    small, large, wide = fits(1000, 1 << 24), fits(1000, 1 << 26), fits(4000, 1 << 26)
    assert 1 <= small < wide < large
    assert large / small == pytest.approx(4, rel=0.05)
    assert large / wide == pytest.approx(4, rel=0.05)


def test_it_is_no_more_than_two_batches_and_at_least_one_row(monkeypatch):
    assert chunk_that_fits(model(4), torch.zeros(4), 1, batch_size=2.5) == 5
    monkeypatch.setattr(chunk_size, "free_memory", lambda device: 1)
    assert chunk_that_fits(model(4), torch.zeros(4), 1, batch_size=100) == 1


def test_the_model_and_torchs_coins_are_left_as_they_were():
    trained = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    before, coins = [p.clone() for p in trained.parameters()], torch.get_rng_state()
    chunk_that_fits(trained, torch.zeros(4), 1, batch_size=10)
    assert torch.equal(torch.get_rng_state(), coins)
    assert all(torch.equal(p, q) for p, q in zip(trained.parameters(), before, strict=True))
    assert all(p.grad is None for p in trained.parameters())
