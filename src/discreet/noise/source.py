"""The secure random source: AES-256 in counter mode, keyed from the operating system's entropy."""

import hashlib
import math
import os
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

Octets = npt.NDArray[np.uint8]
Coins = npt.NDArray[np.bool_]
Rooms = dict[tuple[int, torch.dtype], tuple[Octets, list[Tensor]]]

CHUNK = 1 << 19  # values drawn at a time: each call on a chunk is worth its own cost
_ZEROS = memoryview(bytes(6 * CHUNK + 12))


class Source:
    """A stream of secret random numbers.

    Guarantee: the stream is the key stream of AES-256-CTR under a key that is derived from 256 bits of the
    operating system's entropy (or from `seed`, which makes it reproducible and not secret), a purpose and
    a number; two streams of one root never share a key.
    """

    def __init__(self, key: bytes, rooms: "Rooms | None" = None) -> None:
        self._cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        self._rooms = {} if rooms is None else rooms

    def octets(self, count: int, room: Octets | None = None) -> Octets:
        """`count` uniform bytes, in `room` (at least 16 bytes longer) if there is one."""
        out = np.empty(count + 16, np.uint8) if room is None else room
        self._cipher.update_into(_ZEROS[:count] if count <= len(_ZEROS) else bytes(count), out.data)
        return out[:count]

    def normals(self, count: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """`count` standard normal values."""
        return self.fill_normal(torch.empty(count, dtype=dtype), 1.0)

    def fill_normal(self, out: Tensor, scale: float) -> Tensor:
        """Fill a flat tensor with normal values of standard deviation `scale`.

        By polar coordinates: a radius sqrt(-2 log u) from 63 random bits, in float64 so that neither its tail (9.4
        standard deviations) nor its neighbourhood of zero is rounded away, and an angle from 32 more, in out's dtype.
        """
        most = (min(len(out), CHUNK) + 1) // 2  # pairs at a time; their rooms are used again and again
        if (most, out.dtype) not in self._rooms:
            floats = [torch.empty(most, dtype=dtype) for dtype in (torch.float64, out.dtype, out.dtype, out.dtype)]
            self._rooms[most, out.dtype] = np.empty(12 * most + 16, np.uint8), floats
        octets, (squared, radii, angles, cosines) = self._rooms[most, out.dtype]
        for start in range(0, len(out), CHUNK):
            part = out[start : start + CHUNK]
            pairs, rest = (len(part) + 1) // 2, len(part) // 2
            random = torch.from_numpy(self.octets(12 * pairs, octets))
            square, radius, angle, cosine = squared[:pairs], radii[:pairs], angles[:pairs], cosines[:pairs]
            square.copy_(random[: 8 * pairs].view(torch.int64).bitwise_and_(2**63 - 1))
            square.add_(0.5).mul_(2.0**-63).log_().mul_(-2.0)
            radius.copy_(square).sqrt_().mul_(scale)
            angle.copy_(random[8 * pairs :].view(torch.int32)).mul_(2.0**-31 * math.pi)
            torch.mul(radius, torch.cos(angle, out=cosine), out=part[:pairs])
            torch.mul(radius[:rest], angle.sin_()[:rest], out=part[pairs:])
        return out

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
        kept = np.empty(0, np.uint64)
        while len(kept) < count:
            drawn = self.octets(8 * (count - len(kept))).view(np.uint64)
            kept = np.concatenate((kept, drawn[drawn <= last]))
        return (kept % np.uint64(limit)).astype(np.int64)

    def bernoulli(self, count: int, rate: Fraction) -> Coins:
        """`count` independent coins that are true with probability exactly `rate`.

        One byte decides most coins; the few that tie with the rate's first byte are decided by a coin for
        the rest of the rate, and so on: no rounding anywhere.
        """
        if rate >= 1:
            return np.ones(count, np.bool_)
        first, rest = divmod(rate * 256, 1)
        octets = self.octets(count)
        chosen = octets < int(first)
        if rest:
            tied = np.flatnonzero(octets == int(first))
            if len(tied):
                chosen[tied] = self.bernoulli(len(tied), rest)
        return chosen


class Root:
    """A root key, from which every stream of a run is derived: one for each purpose and step.

    A forked process gets a new root, so parent and child never share a stream (a seeded root is public anyway
    and stays).
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seeded = seed is not None
        self._key = hashlib.sha256(f"discreet seed {seed}".encode()).digest() if self.seeded else os.urandom(32)
        self._process = os.getpid()
        self._rooms: Rooms = {}  # where all streams work, one after another: fresh memory is dear

    def stream(self, purpose: str, number: int) -> Source:
        """The stream for `purpose` at step `number`. Ask once for each pair: asking again repeats the stream."""
        if self._process != os.getpid() and not self.seeded:
            self._key, self._process = os.urandom(32), os.getpid()
        label = f"{purpose} {number}".encode()
        return Source(hashlib.blake2b(label, key=self._key, digest_size=32).digest(), self._rooms)
