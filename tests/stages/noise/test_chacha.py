"""ChaCha20 on tensors, bit for bit beside the reference; and the normal values that are made of it."""

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from discreet import PrivacyError
from discreet.stages.noise import chacha
from discreet.stages.noise.chacha import DeviceStream, key_stream

CPU = torch.device("cpu")
KEY = bytes(range(7, 39))


def octets(words):
    return words.t().contiguous().cpu().numpy().astype("<i4").tobytes()


def by_reference(key, first, blocks):
    """Block by block, as the package refuses to go past a count of 32 bits by itself."""
    ciphers = (
        Cipher(algorithms.ChaCha20(key, n.to_bytes(8, "little") + bytes(8)), mode=None)
        for n in range(first, first + blocks)
    )
    return b"".join(cipher.encryptor().update(bytes(64)) for cipher in ciphers)


def test_a_published_vector():
    """The key stream of a key of zeros (RFC 8439, appendix A.1, the first vector)."""
    assert octets(key_stream(bytes(32), 0, 1, CPU))[:16].hex() == "76b8e0ada0f13d90405d6ae55386bd28"


@settings(max_examples=30)
@given(st.binary(min_size=32, max_size=32), st.integers(0, 2**62), st.integers(1, 40))
def test_it_is_the_reference_bit_for_bit(key, first, blocks):
    assert octets(key_stream(key, first, blocks, CPU)) == by_reference(key, first, blocks)


@pytest.mark.parametrize("first", [0, 2**31 - 3, 2**32 - 3, 2**33 - 3, 2**62])
def test_counts_go_on_where_words_end(first):
    assert octets(key_stream(KEY, first, 7, CPU)) == by_reference(KEY, first, 7)


def test_a_device_that_computes_something_else_is_refused(monkeypatch):
    monkeypatch.setattr(chacha, "_quarters", lambda *rows: None)
    with pytest.raises(PrivacyError, match="does not compute ChaCha20"):
        chacha._check_device.__wrapped__(CPU)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_are_normal_in_the_middle_and_in_the_tails(dtype):
    """Kolmogorov-Smirnov on 200,001 values, and on the outermost percent; alarm below 1e-6."""
    drawn = DeviceStream(KEY, CPU).fill_normal(torch.empty(200_001, dtype=dtype), 2.5).double().numpy() / 2.5
    assert stats.kstest(drawn, "norm").pvalue > 1e-6
    size = np.sort(np.abs(drawn))[-2_000:]
    assert stats.kstest(stats.norm.sf(size[1:]) / stats.norm.sf(size[0]), "uniform").pvalue > 1e-6
    halves = drawn[:100_000], drawn[100_001:]  # a pair shares a radius, and nothing else
    assert abs(np.corrcoef(*halves)[0, 1]) < 5 / np.sqrt(100_000)


def test_nothing_is_drawn_twice(monkeypatch):
    monkeypatch.setattr(chacha, "CHUNK", 1000)
    stream = DeviceStream(KEY, CPU)
    drawn = torch.cat([stream.fill_normal(torch.empty(n, dtype=torch.float64), 1.0) for n in (2500, 1, 2, 999)])
    assert len(drawn.unique()) == len(drawn)


def test_where_there_are_no_long_numbers_it_is_not_drawn():
    assert [chacha.draws_there(torch.device(d)) for d in ("cpu", "mps", "cuda:1", "xpu")] == [False, False, True, True]
