import math
import multiprocessing
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from discreet.noise.source import CHUNK, Root, Source

SEEDED = Root(seed=7)  # statistical tests are repeatable; each states its false-alarm rate for a fresh seed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normals_follow_the_normal_law(dtype):
    """Kolmogorov-Smirnov on 10^6 values; false-alarm rate 1e-6."""
    values = SEEDED.stream("ks", dtype.itemsize).normals(1_000_000, dtype).double().numpy()
    assert stats.kstest(values, "norm").pvalue > 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tails_have_the_right_mass(dtype):
    """Counts beyond 3, 4 and 5 in 10^7 values against the binomial law; false-alarm rate 3e-6."""
    values = torch.cat([SEEDED.stream("tails", i).normals(1_000_000, dtype) for i in range(10)]).abs()
    for beyond in (3.0, 4.0, 5.0):
        probability = 2 * stats.norm.sf(beyond)
        count = int((values > beyond).sum())
        assert 5e-7 < stats.binom.cdf(count, len(values), probability) < 1 - 5e-7


class Words(Source):
    """A source whose bytes are given, to look at the extremes."""

    def __init__(self, words, angles):
        super().__init__(bytes(32))
        self._bytes = np.concatenate(
            [np.array(words, np.int64).view(np.uint8), np.array(angles, np.int32).view(np.uint8)]
        )

    def octets(self, count, room=None):
        return self._bytes[:count].copy()


def test_the_tail_reaches_beyond_eight_standard_deviations_and_no_value_is_infinite():
    words = [0, 1, 2**10, 2**62, 2**63 - 1, -1]
    values = Words(words, [0] * 6).normals(12).double()
    radius = values[:6]
    expected = [math.sqrt(-2 * math.log((w % 2**63 + 0.5) / 2**63)) for w in words]
    torch.testing.assert_close(radius, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-9)
    assert 9.3 < radius[0] < 9.5
    assert values.isfinite().all()


def test_odd_counts_and_several_chunks():
    for count in (0, 1, 2, 3, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3):
        assert SEEDED.stream("count", count).normals(count).shape == (count,)


def test_coins_are_exact_for_any_fraction():
    """Frequencies of 4 * 10^6 coins against the binomial law; false-alarm rate 1e-6 each."""
    for i, rate in enumerate(
        [Fraction(1, 3), Fraction(256, 60_000), Fraction(1, 256), Fraction(255, 256), Fraction(0.1)]
    ):
        count = int(SEEDED.stream("coins", i).bernoulli(4_000_000, rate).sum())
        assert 5e-7 < stats.binom.cdf(count, 4_000_000, float(rate)) < 1 - 5e-7


def test_coins_consume_the_digits_of_the_rate_one_after_another():
    """A coin that ties with every byte of the rate but the last is decided by the last: no rounding at 2^-53."""

    class Fixed(Source):
        def __init__(self, octets):
            self._octets = iter(octets)

        def octets(self, count, room=None):
            return np.array([next(self._octets) for _ in range(count)], np.uint8)

    rate = Fraction(int.from_bytes(range(1, 13), "big"), 256**12)
    digits = list(range(1, 13))
    assert not Fixed(digits).bernoulli(1, rate)[0]  # equal to the rate in every digit: not below it
    assert Fixed([*digits[:-1], 11]).bernoulli(1, rate)[0]
    assert not Fixed([*digits[:-1], 13]).bernoulli(1, rate)[0]


def test_rate_one_takes_all():
    assert SEEDED.stream("all", 0).bernoulli(1000, Fraction(1)).all()


def test_streams_differ_by_purpose_step_and_root():
    one, two = Root(), Root()
    streams = [one.stream("noise", 0), one.stream("noise", 1), one.stream("sampling", 0), two.stream("noise", 0)]
    assert len({s.octets(32).tobytes() for s in streams}) == 4


def test_a_seed_repeats_and_no_seed_does_not():
    assert Root(3).stream("noise", 5).octets(32).tobytes() == Root(3).stream("noise", 5).octets(32).tobytes()
    assert Root(3).stream("noise", 5).octets(32).tobytes() != Root(4).stream("noise", 5).octets(32).tobytes()
    torch.manual_seed(0)
    first = Root().stream("noise", 0).octets(32).tobytes()
    torch.manual_seed(0)
    assert Root().stream("noise", 0).octets(32).tobytes() != first


def _child(root, queue):
    queue.put(root.stream("noise", 0).octets(32).tobytes())


def test_a_forked_process_does_not_share_the_stream():
    root, context = Root(), multiprocessing.get_context("fork")
    queue = context.Queue()
    children = [context.Process(target=_child, args=(root, queue)) for _ in range(2)]
    for child in children:
        child.start()
    found = {queue.get(timeout=60) for _ in children} | {root.stream("noise", 0).octets(32).tobytes()}
    for child in children:
        child.join()
    assert len(found) == 3
