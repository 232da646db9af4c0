"""The secure random source, keyed from the operating system: AES-256 in counter mode; on devices, ChaCha20."""

import hashlib
import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from torch import Tensor

from discreet.errors import PrivacyError
from discreet.stages.noise.chacha import DeviceStream, draws_there

Octets = npt.NDArray[np.uint8]
Coins = npt.NDArray[np.bool_]
Values = npt.NDArray[Any]

CHUNK = 1 << 16  # values drawn at a time: few enough to stay in the cache, many enough to be worth the calls
_ZEROS = memoryview(bytes(6 * CHUNK + 12))
_BLOCK = 16  # bytes of the key stream that one count makes
_SHARE = 4 * CHUNK  # values that are worth another thread
_LEAST, _MOST = 1e-10, 1e10  # scales whose squares fit into float32 with all that a squared radius may be
_SINE = [(-1) ** k / math.factorial(2 * k + 1) for k in range(9)]  # of the power series, for up to pi / 4


class SecureStream:
    """A stream of secret random numbers.

    Guarantee: the stream is the key stream of AES-256-CTR under a key that is derived from 256 bits of the
    operating system's entropy (or from `seed`, which makes it reproducible and not secret), a purpose and
    a number; two streams of one root never share a key.
    """

    def __init__(self, key: bytes, room: "Scratch | None" = None) -> None:
        self._key, self._room = key, Scratch() if room is None else room
        self._there: dict[torch.device, DeviceStream] = {}
        self._enter(0)

    def _enter(self, place: int) -> None:
        """Go to a place of the key stream: it is made of a count, and can be entered anywhere."""
        counts, rest = divmod(place, _BLOCK)
        self._cipher: CipherContext = Cipher(algorithms.AES(self._key), modes.CTR(counts.to_bytes(_BLOCK))).encryptor()
        self._place = place
        if rest:
            self._cipher.update(_ZEROS[:rest])

    def octets(self, count: int, room: Octets | None = None) -> Octets:
        """`count` uniform bytes, in `room` (at least 16 bytes longer) if there is one."""
        out = np.empty(count + 16, np.uint8) if room is None else room
        self._cipher.update_into(_ZEROS[:count] if count <= len(_ZEROS) else bytes(count), out.data)
        self._place += count
        return out[:count]

    def normals(self, count: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """`count` standard normal values."""
        return self.fill_normal(torch.empty(count, dtype=dtype), 1.0)

    def fill_normal(self, out: Tensor, scale: float) -> Tensor:
        """Fill a flat tensor with normal values of standard deviation `scale`.

        By polar coordinates: a radius sqrt(-2 log u) from 63 random bits, the logarithm in float64 so that neither the
        radius' tail (9.4 standard deviations) nor its neighbourhood of zero is rounded away, and an angle from 32 more;
        the rest is in out's dtype. Of many values every thread makes its share, with the same bits as one for all. A
        tensor on another device is filled there, from a stream of its own.
        """
        if draws_there(out.device):
            return self._on(out.device).fill_normal(out, scale)
        if out.dtype not in (torch.float32, torch.float64):
            return out.copy_(self.fill_normal(torch.empty(len(out)), scale))
        values = out.numpy()
        folded = min(max(scale, _LEAST), _MOST)  # the part of the scale that the squared radius takes
        threads = min(torch.get_num_threads(), len(values) // _SHARE)
        factor = -2 * folded * folded
        if threads > 1:
            self._fill_together(values, factor, threads)
        else:
            self._fill(values, factor)
        return out if folded == scale else out.mul_(scale / folded)

    def _fill_together(self, values: Values, factor: float, threads: int) -> None:
        """Have every thread make its share of the values."""
        share = -(-len(values) // (threads * CHUNK)) * CHUNK
        others = [(start, values[start : start + share]) for start in range(share, len(values), share)]
        place = self._place
        jobs = [_pool(os.getpid()).submit(_fill, self._key, place + 6 * start, part, factor) for start, part in others]
        try:
            self._fill(values[:share], factor)
        finally:
            wait(jobs)  # also where this one is broken off: nobody writes to values when it is over
        for job in jobs:
            job.result()
        if jobs:
            self._enter(place + 12 * ((len(values) + 1) // 2))

    def _on(self, device: torch.device) -> DeviceStream:
        """The stream of a device, under a key that no other stream has."""
        if device not in self._there:
            label = f"ChaCha20 {len(self._there)}".encode()
            self._there[device] = DeviceStream(hashlib.blake2b(label, key=self._key, digest_size=32).digest(), device)
        return self._there[device]

    def _fill(self, values: Values, factor: float) -> None:
        """A share of the values, in chunks that stay in the cache: six octets each."""
        for start in range(0, len(values), CHUNK):
            part = values[start : start + CHUNK]
            pairs, room = (len(part) + 1) // 2, self._room
            if pairs != room.pairs or part.dtype != room.dtype:
                room.cut(pairs, part.dtype)
            self.octets(12 * pairs, room.octets)
            room.fill(part, factor)

    def uniforms(self, count: int) -> npt.NDArray[np.float64]:
        """`count` values in (0, 1], each (k + 1/2) / 2^63 of 63 random bits: fine where it matters, near zero."""
        return ((self.octets(8 * count).view(np.uint64) >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-63

    def signs(self, count: int) -> npt.NDArray[np.float64]:
        """`count` fair signs, +1 or -1."""
        return np.unpackbits(self.octets((count + 7) // 8), count=count).astype(np.float64) * 2 - 1

    def permutation(self, count: int) -> npt.NDArray[np.intp]:
        """A uniformly random order of `count` things: that of random keys, drawn again if two are equal."""
        while True:
            keys = self.octets(8 * count).view(np.uint64)
            order = np.argsort(keys)
            if not np.any(keys[order[1:]] == keys[order[:-1]]):
                return order

    def subset(self, count: int, size: int) -> npt.NDArray[np.intp]:
        """A uniformly random set of `size` of `count` things: those with the smallest random keys."""
        if size >= count:
            return np.arange(count)
        while True:
            keys = self.octets(8 * count).view(np.uint64)
            order = np.argpartition(keys, size)  # the one at `size` is in its place, smaller ones before it
            if keys[order[:size]].max() < keys[order[size]]:
                return order[:size]

    def below(self, limit: int, count: int) -> npt.NDArray[np.int64]:
        """`count` uniformly random whole numbers from 0 to limit - 1: exactly, as what is past the last whole multiple
        of the limit is drawn again."""
        last = np.uint64(2**64 - 2**64 % limit - 1)
        accepted = np.empty(0, np.uint64)
        while len(accepted) < count:
            drawn = self.octets(8 * (count - len(accepted))).view(np.uint64)
            accepted = np.concatenate((accepted, drawn[drawn <= last]))
        return (accepted % np.uint64(limit)).astype(np.int64)

    def bernoulli(self, count: int, rate: Fraction) -> Coins:
        """`count` independent coins that are true with probability exactly `rate`.

        One byte decides most coins; the few that tie with the rate's first byte are decided by a coin for
        the rest of the rate, and so on: no rounding anywhere.
        """
        coins = np.zeros(count, np.bool_)
        coins[self.chosen(count, rate)] = True
        return coins

    def chosen(self, count: int, rate: Fraction) -> npt.NDArray[np.intp]:
        """Which of `count` such coins are true, in order."""
        numerator, denominator = rate.numerator, rate.denominator
        if numerator >= denominator:
            return np.arange(count)
        first, rest = divmod(numerator * 256, denominator)
        octets = self.octets(count)
        if not rest:
            return (octets < first).nonzero()[0]
        chosen = (octets <= first).nonzero()[0]
        true = octets[chosen] != first
        tied = (~true).nonzero()[0]
        while len(tied):  # one in 256 has not been decided by its octet
            first, rest = divmod(rest * 256, denominator)
            octets = self.octets(len(tied))
            true[tied[octets < first]] = True
            tied = tied[octets == first] if rest else tied[:0]
        return chosen[true]


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """Threads that draw: a process's own, as a fork has none of them."""
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix=f"discreet-noise-{process}")


def _fill(key: bytes, place: int, values: Values, factor: float) -> None:
    """A thread's share, from a place of the key stream on."""
    if not hasattr(_of_thread, "room"):
        _of_thread.room = Scratch()
    source = SecureStream(key, _of_thread.room)
    source._enter(place)
    source._fill(values, factor)


_of_thread = threading.local()


class Scratch:
    """Where chunks of random bytes become normal values, one after another: fresh memory is dear."""

    def __init__(self) -> None:
        self.pairs, self.dtype, self._memory = 0, np.dtype(np.float32), np.empty(0, np.uint8)

    def cut(self, pairs: int, dtype: "np.dtype[Any]") -> None:
        """Make room for so many pairs of values."""
        self.pairs, self.dtype = pairs, dtype
        room = -(-pairs // 8) * 8  # so that each part begins where a line of the cache does
        if len(self._memory) < 20 * room + 16:
            self._memory = torch.empty(20 * room + 16, dtype=torch.uint8).numpy()
        self._radii = self._memory[: dtype.itemsize * pairs].view(dtype)
        self.octets = self._memory[8 * room :][: 12 * pairs + 16]
        self._words = self.octets[: 8 * pairs].view(np.int64)
        self._turns = self.octets[8 * pairs : 12 * pairs].view(np.int32)
        self._squares = self._words.view(np.float64)  # in place of the words, and angles in place of the squares
        self._angles = self.octets[: dtype.itemsize * pairs].view(dtype)

    def fill(self, out: Values, factor: float) -> None:
        """Make values of `octets`: 8 for each pair's radius, then 4 for each pair's angle.

        `factor` is -2 for standard normal values, and goes with the variance.
        """
        first, second = out[: self.pairs], out[self.pairs :]
        squares, radii, angles = self._squares, self._radii, self._angles
        np.copyto(squares, self._words)
        np.add(squares, 0.5, squares)  # k + 1/2 for a signed k of 64 bits: in size, j + 1/2 for a j of 63
        np.absolute(squares, squares)
        np.multiply(squares, 2.0**-63, squares)
        np.log(squares, squares)
        np.copyto(radii, squares, "same_kind")
        np.multiply(radii, factor, radii)
        np.sqrt(radii, radii)
        np.copyto(angles, self._turns, "same_kind")
        if out.dtype == np.float32:
            np.multiply(angles, 2.0**-31 * math.pi, angles)
            np.cos(angles, first)
            np.sin(angles[: len(second)], second)
        else:
            np.multiply(angles, 2.0**-33 * math.pi, angles)
            _turn(angles, first, second)
        np.multiply(first, radii, first)
        np.multiply(second, radii[: len(second)], second)


def _turn(quarters: Values, cosines: Values, sines: Values) -> None:
    """Cosines and sines of four times these angles of at most pi / 4, in float64 (numpy's own are slow there, and
    torch's wait for all threads); there may be one sine less."""
    squares = quarters * quarters
    sine = np.full_like(quarters, _SINE[-1])
    for coefficient in _SINE[-2::-1]:
        sine *= squares
        sine += coefficient
    sine *= quarters
    np.multiply(sine, sine, squares)
    np.subtract(1.0, squares, quarters)
    np.sqrt(quarters, quarters)  # the cosine
    sine *= quarters
    sine *= 2.0  # of twice the angle
    squares *= -2.0
    squares += 1.0  # the cosine of twice the angle
    np.multiply(sine[: len(sines)], squares[: len(sines)], sines)
    sines *= 2.0
    np.multiply(sine, sine, cosines)
    cosines *= -2.0
    cosines += 1.0


class KeyTree:
    """A root key, from which every stream of a run is derived: one for each purpose and step.

    A forked process gets a new root, so parent and child never share a stream (a seeded root is public anyway
    and stays). `key` is 32 secret bytes that several processes share.
    """

    def __init__(self, seed: int | None = None, key: bytes | None = None) -> None:
        self.seeded = seed is not None
        secret = os.urandom(32) if key is None else key
        self._key = hashlib.sha256(f"discreet seed {seed}".encode()).digest() if self.seeded else secret
        self._process = os.getpid()
        self._room = Scratch()  # where all streams work, one after another: fresh memory is dear

    def __reduce__(self) -> str:
        raise PrivacyError("this holds the secret key of a run's noise and draws, and is not copied.")

    def stream(self, purpose: str, number: int) -> SecureStream:
        """The stream for `purpose` at step `number`. Ask once for each pair: asking again repeats the stream."""
        if self._process != os.getpid() and not self.seeded:
            self._key, self._process = os.urandom(32), os.getpid()
        label = f"{purpose} {number}".encode()
        return SecureStream(hashlib.blake2b(label, key=self._key, digest_size=32).digest(), self._room)
