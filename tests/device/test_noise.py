"""Noise on a device that is not the host: the same key stream, a key for each device, nothing read by the host."""

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from elsewhere import DEVICE, waits

from discreet.stages.noise.chacha import key_stream
from discreet.stages.noise.random import KeyTree

KEY = bytes(range(7, 39))


def test_a_device_computes_the_same():
    made = key_stream(KEY, 5, 9, DEVICE).t().contiguous().cpu().numpy().astype("<i4").tobytes()
    ciphers = (Cipher(algorithms.ChaCha20(KEY, n.to_bytes(8, "little") + bytes(8)), mode=None) for n in range(5, 14))
    assert made == b"".join(cipher.encryptor().update(bytes(64)) for cipher in ciphers)


def test_each_device_and_purpose_has_a_key_of_its_own():
    tree = KeyTree(seed=1)
    one, other = tree.stream("noise", 0), tree.stream("noise", 1)
    made = [s.fill_normal(torch.empty(50, device=DEVICE), 1.0).cpu() for s in (one, other, one)]
    made.append(tree.stream("noise", 0).fill_normal(torch.empty(50, device=DEVICE), 1.0).cpu())
    made.append(tree.stream("noise", 0).fill_normal(torch.empty(50), 1.0))
    assert [torch.equal(made[0], m) for m in made] == [True, False, False, True, False]


def test_no_value_of_noise_passes_through_the_host():
    stream = KeyTree(seed=1).stream("noise", 0)
    stream.fill_normal(torch.empty(1, device=DEVICE), 1.0)  # the device is tried first, once
    with waits() as found:
        out = stream.fill_normal(torch.empty(5_000, device=DEVICE), 1.0)
    assert not found
    assert out.device == DEVICE
