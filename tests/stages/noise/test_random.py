import hashlib
import math
import multiprocessing
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from discreet.stages.noise import random as source
from discreet.stages.noise.random import CHUNK, KeyTree, SecureStream

SEEDED = KeyTree(seed=7)  # statistical tests are repeatable; each states its false-alarm rate for a fresh seed


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


class Words(SecureStream):
    """A source whose bytes are given, to look at the extremes."""

    def __init__(self, words, angles):
        super().__init__(bytes(32))
        self._bytes = np.concatenate(
            [np.array(words, np.int64).view(np.uint8), np.array(angles, np.int32).view(np.uint8)]
        )

    def octets(self, count, room=None):
        room[:count] = self._bytes[:count]
        return room[:count]


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
LARGEST = math.sqrt(-2 * math.log(2.0**-64))  # 9.42


def radius(word):
    """sqrt(-2 log u) with u = |word + 1/2| / 2^63 as a float64, from a logarithm that is right near 1 too."""
    u = abs(float(word) + 0.5) / 2**63
    return math.sqrt(-2 * (math.log1p(u - 1) if u > 0.5 else math.log(u)))


@DTYPES
def test_the_tail_reaches_beyond_nine_standard_deviations_and_no_value_is_infinite(dtype):
    words = [0, -1, 1, -2, 2**10, 2**62, -(2**62), 2**63 - 1, -(2**63)]  # all bits zero and all one are the first two
    values = Words(words, [0] * len(words)).normals(2 * len(words), dtype).double()
    found, expected = values[: len(words)].tolist(), [radius(w) for w in words]
    assert found == pytest.approx(expected, rel=1e-6 if dtype == torch.float32 else 1e-12)
    assert found[:2] == pytest.approx([LARGEST] * 2, rel=1e-6)
    assert values.isfinite().all()
    turned = Words([0] * 4, [0, -1, 2**31 - 1, -(2**31)]).normals(8, dtype)
    assert turned.isfinite().all()
    assert turned[:4].tolist() == pytest.approx([LARGEST, LARGEST, -LARGEST, -LARGEST], rel=1e-6)


@DTYPES
def test_radii_near_zero_are_not_rounded_away(dtype):
    """1 - u of 2^-10 to 2^-52, and the same with a bit more: each radius is itself, and none is its neighbour."""
    words = [2**63 - top - top // 4 * more for top in (2**n for n in range(11, 54)) for more in (0, 1)]
    values = Words(words, [0] * len(words)).normals(2 * len(words), dtype).double()
    found = values[: len(words)].tolist()
    assert found == pytest.approx([radius(w) for w in words], rel=1e-6 if dtype == torch.float32 else 1e-12)
    assert 0 < min(found) < 3e-8
    assert len(set(found[2:])) == len(words) - 2  # the first two differ by less than u's last bit


@DTYPES
def test_every_value_is_that_function_of_the_key_stream(dtype, monkeypatch):
    """Against numpy's long doubles, of the same bytes: several chunks, an odd count, a scale."""
    monkeypatch.setattr(source, "CHUNK", 1 << 12)
    count, precision = 3 * 2**12 + 777, 1e-6 if dtype == torch.float32 else 3e-15
    values = SEEDED.stream("function", 0).fill_normal(torch.empty(count, dtype=dtype), 0.37).double().numpy()
    stream = SEEDED.stream("function", 0)
    for start in range(0, count, 2**12):
        part = values[start : start + 2**12]
        pairs = (len(part) + 1) // 2
        random = stream.octets(12 * pairs)
        words, turns = random[: 8 * pairs].view(np.int64), random[8 * pairs :].view(np.int32)
        u = np.abs(words.astype(np.float64) + 0.5).astype(np.longdouble) / 2**63
        radii = 0.37 * np.sqrt(-2 * np.log(u))
        angles = turns * (np.longdouble(math.pi) / 2**31)
        first, second = part[:pairs], part[pairs:]
        assert np.all(np.abs(first - radii * np.cos(angles)) <= precision * radii)
        rest = len(second)
        assert np.all(np.abs(second - (radii * np.sin(angles))[:rest]) <= precision * radii[:rest])
        lengths = np.hypot(first[:rest], second)
        assert np.all(np.abs(lengths - radii[:rest]) <= precision * radii[:rest])


@DTYPES
def test_any_scale_is_a_multiple_of_the_same_values(dtype):
    standard = SEEDED.stream("scale", 0).normals(1000, dtype).double()
    for scale in (1e-30, 1e-11, 1e-10, 1.0, 1e10, 1e11, 1e30):
        values = SEEDED.stream("scale", 0).fill_normal(torch.empty(1000, dtype=dtype), scale).double()
        torch.testing.assert_close(values / scale, standard, rtol=1e-6, atol=0)
    assert not SEEDED.stream("scale", 0).fill_normal(torch.empty(1000, dtype=dtype), 0.0).any()


@DTYPES
def test_values_do_not_depend_on_the_number_of_threads(dtype):
    threads = torch.get_num_threads()
    try:
        found = []
        for number in (1, 2):
            torch.set_num_threads(number)
            found.append(SEEDED.stream("threads", 0).normals(CHUNK + 99, dtype))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)


@pytest.fixture
def three_threads(monkeypatch):
    """Three threads, for which few values are worth it; the shares that others than the first draw."""
    monkeypatch.setattr(source, "_SHARE", CHUNK)
    shares, fill = [], source._fill
    monkeypatch.setattr(source, "_fill", lambda *given: shares.append(len(given[2])) or fill(*given))
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield shares
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [3 * CHUNK, 3 * CHUNK + 1, 5 * CHUNK - 7, 11 * CHUNK])
@pytest.mark.parametrize("before", [0, 5, 16, 100_003])
def test_threads_share_a_stream_without_using_any_of_it_twice(dtype, count, before, three_threads):
    """The same bits as by one thread, wherever the stream was; and the stream goes on behind all of them."""
    together, alone = (SecureStream(bytes(range(32))) for _ in range(2))
    for stream in (together, alone):
        stream.octets(before)
    found = together.fill_normal(torch.empty(count, dtype=dtype), 0.7)
    assert three_threads
    assert sum(three_threads) < count
    torch.set_num_threads(1)
    assert torch.equal(found, alone.fill_normal(torch.empty(count, dtype=dtype), 0.7))
    assert np.array_equal(together.octets(1000), alone.octets(1000))


def test_what_fails_in_a_thread_is_not_lost(three_threads, monkeypatch):
    def fails(*_):
        raise MemoryError("no room")

    monkeypatch.setattr(source, "_fill", fails)
    with pytest.raises(MemoryError, match="no room"):
        SecureStream(bytes(32)).normals(4 * CHUNK)


def test_no_thread_draws_on_when_the_first_is_broken_off(three_threads, monkeypatch):
    """Or it would write where the next step's noise is."""
    done, fill = [], source._fill
    monkeypatch.setattr(source, "_fill", lambda *given: (fill(*given), done.append(len(given[2]))))

    def broken(*_):
        raise KeyboardInterrupt

    stream = SecureStream(bytes(32))
    monkeypatch.setattr(stream, "_fill", broken)
    with pytest.raises(KeyboardInterrupt):
        stream.normals(12 * CHUNK)
    assert sum(done) == 8 * CHUNK


def test_other_dtypes_and_strides_are_filled_too():
    standard = SEEDED.stream("other", 0).normals(100, torch.float32)
    half = SEEDED.stream("other", 0).normals(100, torch.bfloat16)
    torch.testing.assert_close(half, standard.to(torch.bfloat16))
    column = torch.zeros(100, 3)
    SEEDED.stream("other", 0).fill_normal(column[:, 1], 1.0)
    assert torch.equal(column[:, 1], standard)
    assert not column[:, ::2].any()


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

    class Fixed(SecureStream):
        def __init__(self, octets):
            self._octets = iter(octets)

        def octets(self, count, room=None):
            return np.array([next(self._octets) for _ in range(count)], np.uint8)

    rate = Fraction(int.from_bytes(range(1, 13), "big"), 256**12)
    digits = list(range(1, 13))
    assert not Fixed(digits).bernoulli(1, rate)[0]  # equal to the rate in every digit: not below it
    assert Fixed([*digits[:-1], 11]).bernoulli(1, rate)[0]
    assert not Fixed([*digits[:-1], 13]).bernoulli(1, rate)[0]


@pytest.mark.parametrize("rate", [Fraction(0), Fraction(1, 3), Fraction(256, 60_000), Fraction(3, 256), Fraction(1)])
def test_chosen_are_the_coins_that_are_true(rate):
    coins, chosen = (getattr(SEEDED.stream("chosen", 0), name)(5000, rate) for name in ("bernoulli", "chosen"))
    assert coins.dtype == np.bool_
    assert np.array_equal(np.flatnonzero(coins), chosen)


@pytest.mark.parametrize(
    ("seed", "count", "rate", "expected"),
    [
        (0, 1000, Fraction(1, 125), [252, 270, 401, 491, 685, 812, 868]),
        (1, 60_000, Fraction(1, 7500), [247, 9559, 12204, 26188, 30368, 39830, 51418, 56504, 58189]),
        (2, 40, Fraction(1, 3), [3, 5, 7, 9, 12, 13, 21, 24, 30, 39]),
        (4, 500, Fraction(0.02), [8, 118, 122, 245, 285, 379, 390]),
        (5, 12, Fraction(25, 32), [0, 2, 3, 4, 5, 7, 8, 9, 10, 11]),
    ],
)
def test_a_seed_chooses_what_it_always_has(seed, count, rate, expected):
    assert KeyTree(seed).stream("sampling", 5).chosen(count, rate).tolist() == expected


def test_the_draws_of_an_mnist_run_under_a_seed_stay_the_same():
    """Of 20 steps, by a digest."""
    draws = [KeyTree(6).stream("sampling", step).chosen(60_000, Fraction(256, 60_000)) for step in range(20)]
    assert [len(draw) for draw in draws[:5]] == [274, 250, 207, 227, 271]
    digest = hashlib.sha256(b"".join(draw.astype("<i8").tobytes() for draw in draws)).hexdigest()
    assert digest == "ac2aec2529f606d2f93c504b6310aa9979f1a1b983c103d21674fa532f47bb70"


def test_rate_one_takes_all():
    assert SEEDED.stream("all", 0).bernoulli(1000, Fraction(1)).all()


def test_streams_differ_by_purpose_step_and_root():
    one, two = KeyTree(), KeyTree()
    streams = [one.stream("noise", 0), one.stream("noise", 1), one.stream("sampling", 0), two.stream("noise", 0)]
    assert len({s.octets(32).tobytes() for s in streams}) == 4


def test_a_seed_repeats_and_no_seed_does_not():
    assert KeyTree(3).stream("noise", 5).octets(32).tobytes() == KeyTree(3).stream("noise", 5).octets(32).tobytes()
    assert KeyTree(3).stream("noise", 5).octets(32).tobytes() != KeyTree(4).stream("noise", 5).octets(32).tobytes()
    torch.manual_seed(0)
    first = KeyTree().stream("noise", 0).octets(32).tobytes()
    torch.manual_seed(0)
    assert KeyTree().stream("noise", 0).octets(32).tobytes() != first


def _child(root, queue):
    queue.put(root.stream("noise", 0).octets(32).tobytes())


def test_a_forked_process_does_not_share_the_stream():
    root, context = KeyTree(), multiprocessing.get_context("fork")
    queue = context.Queue()
    children = [context.Process(target=_child, args=(root, queue)) for _ in range(2)]
    for child in children:
        child.start()
    found = {queue.get(timeout=60) for _ in children} | {root.stream("noise", 0).octets(32).tobytes()}
    for child in children:
        child.join()
    assert len(found) == 3
