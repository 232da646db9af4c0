"""ChaCha20 in tensor operations: secret random numbers that are made on the device where they are needed."""

import math
from functools import cache

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from torch import Tensor

from discreet.errors import PrivacyError

CHUNK = 1 << 22  # values drawn at a time: each operation is a kernel of its own, which large ones are worth
_WORDS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)  # "expand 32-byte k"
_LOW = 0xFFFFFFFF


def key_stream(key: bytes, first: int, blocks: int, device: torch.device) -> Tensor:
    """Blocks of ChaCha20's key stream, from a count on: int32 [16, blocks], a column for each block of 64 bytes.

    Guarantee: bit for bit the key stream of `key` (32 bytes) with a 64-bit count of blocks and a nonce of zeros.
    """
    words = [int.from_bytes(key[i : i + 4], "little") for i in range(0, 32, 4)]
    counts = torch.arange(first, first + blocks, dtype=torch.int64, device=device)
    start = torch.empty(16, blocks, dtype=torch.int32, device=device)
    for row, word in enumerate((*_WORDS, *words)):
        start[row] = _signed(word)
    start[12], start[13], start[14:] = _wrapped(counts & _LOW), _wrapped(counts >> 32), 0
    a, b, c, d = start.clone().split(4)
    for _ in range(10):
        _quarters(a, b, c, d)
        b, c, d = b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0)
        _quarters(a, b, c, d)
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    return torch.cat((a, b, c, d)).add_(start)


def _quarters(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> None:
    """Four quarter rounds at once, of every block: additions wrap around."""
    for one, two, other, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        one.add_(two)
        other.bitwise_xor_(one)
        high = other << by
        other.bitwise_right_shift_(32 - by).bitwise_and_((1 << by) - 1).bitwise_or_(high)


def _signed(word: int) -> int:
    return (word ^ 0x80000000) - 0x80000000


def _wrapped(words: Tensor) -> Tensor:
    return ((words ^ 0x80000000) - 0x80000000).to(torch.int32)


class DeviceStream:
    """Normal values made on a device, from the key stream of ChaCha20 under a secret key of its own.

    The law is that of `SecureStream.fill_normal`, from as many random bits; the values are others.
    """

    def __init__(self, key: bytes, device: torch.device) -> None:
        _check_device(device)
        self._key, self._device, self._count = key, device, 0

    def fill_normal(self, out: Tensor, scale: float) -> Tensor:
        """Fill a flat tensor of the device with normal values of standard deviation `scale`."""
        for start in range(0, len(out), CHUNK):
            self._fill(out[start : start + CHUNK], scale)
        return out

    def _fill(self, out: Tensor, scale: float) -> None:
        pairs = (len(out) + 1) // 2
        blocks = -(-3 * pairs // 16)
        words = key_stream(self._key, self._count, blocks, self._device).view(-1)
        self._count += blocks
        low, high, turns = words[: 3 * pairs].view(3, pairs)
        whole = high.long().mul_(1 << 32).add_(low.long().bitwise_and_(_LOW))
        # k + 1/2 for a signed k of 64 bits: in size, j + 1/2 for a j of 63
        radii = whole.double().add_(0.5).abs_().mul_(2.0**-63).log_().mul_(-2.0).sqrt_().mul_(scale).to(out.dtype)
        angles = turns.to(out.dtype).mul_(2.0**-31 * math.pi)
        rest = len(out) - pairs
        torch.mul(angles.cos(), radii, out=out[:pairs])
        torch.mul(angles[:rest].sin(), radii[:rest], out=out[pairs:])


@cache
def draws_there(device: torch.device) -> bool:
    """Whether noise can be drawn on a device: wherever there are numbers of 64 bits, which Apple's lack."""
    return device.type not in ("cpu", "meta", "mps")


@cache
def _check_device(device: torch.device) -> None:
    """Raise unless a device computes the key stream that the reference has, before its first value is used."""
    key = bytes(range(32))
    stream = key_stream(key, (1 << 32) - 2, 4, device).t().contiguous().cpu().numpy().tobytes()
    if stream != reference(key, (1 << 32) - 2, 4):
        raise PrivacyError(
            f"{device} does not compute ChaCha20 as the reference does, so its noise cannot be trusted; train on "
            "another device, and send in what `discreet doctor` prints."
        )


def reference(key: bytes, first: int, blocks: int) -> bytes:
    """The same blocks by the cryptography package, which goes on with a new count where its 32 bits end."""
    stream = b""
    while blocks:
        some = min(blocks, (1 << 32) - (first & _LOW))
        cipher = Cipher(algorithms.ChaCha20(key, first.to_bytes(8, "little") + bytes(8)), mode=None)
        stream += cipher.encryptor().update(bytes(64 * some))
        first, blocks = first + some, blocks - some
    return stream
