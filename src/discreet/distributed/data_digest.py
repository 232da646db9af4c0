"""Whether ranks have the same rows in the same order: keyed digests of them are exchanged when a loop begins.

A draw is dealt out by row numbers. If one rank's row 5 is another rank's row 9 (a split without a seed, files listed in
any order), one example can be drawn by both in one step, and counts twice. So ranks whose rows differ are refused.

Digests are BLAKE2b under a key that is drawn for the comparison, told to the ranks alone, and forgotten: they say
whether rows are equal, and nothing else to whoever has not the key.
"""

import hashlib
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from discreet.distributed.ranks import Ranks, is_sharded
from discreet.release.batching import length_of, tensors_of
from discreet.stages.noise.random import KeyTree

SOME = 256  # rows that are compared of data of which nothing but its rows is known
_TWICE = 8  # of these, rows that are read twice
_BLOCK = 1 << 24  # bytes of a tensor that are read at a time
_DIFFERENT = (
    "ranks have different rows, or the same rows in another order: one example could be drawn by two of them in one "
    "step, and would count twice. Give every rank the same data in the same order (seed the split and the shuffle, "
    "sort listings of files); or say sharded=True where each rank has a part of the data of its own. Nothing was drawn."
)


class SameRows:
    """The comparison, loop after loop. What it found is what a ledger's lines say of rows (discreet.ledger.same_rows).

    Of tensors all rows are compared; as long as they are the same tensors, and torch knows of no write to them, later
    loops compare 256 secret rows, to see what torch does not. Of other data it is always 256 (or all of fewer).
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._known: list[tuple[weakref.ref[Tensor], int]] = []  # tensors that were compared, and their versions

    def compare(self, data: Any) -> str:
        """Raise on all ranks if their rows differ; otherwise how far they were compared: "all", "some" or "none"."""
        if self._ranks.alone:
            return "all"
        key = self._ranks.lead("comparing the rows", lambda: os.urandom(32))
        dense = tensors_of(data)
        if dense is not None and not all(map(_is_dense, dense)):
            dense = None
        told = self._ranks.exchange("the kind of rows", (dense is not None, self._knows(dense)))
        known, tensors_everywhere = all(known for _, known in told), all(kind for kind, _ in told)
        if dense is None or known or not tensors_everywhere:
            found = self._some(data, key)
            return "all" if known and found == "some" else found
        with self._ranks.reported():
            mine = of_tensors(dense, key)
        if len(set(self._ranks.exchange("the digest of all rows", mine))) > 1:
            raise self._ranks.all_raise(_DIFFERENT)
        self._known = [(weakref.ref(tensor), tensor._version) for tensor in dense]
        return "all"

    def _knows(self, tensors: Sequence[Tensor] | None) -> bool:
        """Whether these tensors were compared, and torch knows of no write since."""
        if tensors is None or len(tensors) != len(self._known):
            return False
        return all(
            tensor is known() and tensor._version == version
            for tensor, (known, version) in zip(tensors, self._known, strict=True)
        )

    def _some(self, data: Any, key: bytes) -> str:
        """Compare rows that are chosen in secret.

        A row that differs is read again before anybody is blamed: where a rank reads another row the second time
        (augmentation at random), nothing can be said.
        """
        length, read = length_of(data), _reader(data)
        chosen = KeyTree(None, key).stream("compared rows", 0).subset(length, min(SOME, length)).tolist()

        def same_again(places: Sequence[int]) -> bool:
            return all(of_row(read(chosen[place]), key) == mine[place] for place in places)

        with self._ranks.reported():
            mine = [of_row(read(row), key) for row in chosen]
            sure = None not in mine and same_again(range(min(_TWICE, len(chosen))))
        told = self._ranks.exchange("digests of some rows", (mine, sure))
        if not all(theirs for _, theirs in told):
            return "none"
        each = zip(*(digests for digests, _ in told), strict=True)
        differing = [place for place, digests in enumerate(each) if len(set(digests)) > 1]
        if not differing:
            return "some"
        with self._ranks.reported():
            repeated = same_again(differing)
        if all(self._ranks.exchange("rows read again", repeated)):
            raise self._ranks.all_raise(_DIFFERENT)
        return "none"


def _reader(data: Any) -> Callable[[int], Any]:
    """What reads a row by its number."""
    tensors = None if isinstance(data, Tensor) else tensors_of(data)
    return data.__getitem__ if tensors is None else lambda row: tuple(tensor[row] for tensor in tensors)


# --- digests ---------------------------------------------------------------------------------------------------------


class _NoDigest(TypeError):
    """A value of a kind that cannot be looked into."""


def of_tensors(tensors: Sequence[Tensor], key: bytes) -> bytes:
    """The digest of all rows of some tensors, their order, shapes and types."""
    found = hashlib.blake2b(key=key, digest_size=32)
    for tensor in tensors:
        _feed(found, tensor)
    return found.digest()


def of_row(row: Any, key: bytes) -> bytes | None:
    """The digest of whatever a row is made of; None where it holds what cannot be looked into."""
    try:
        return _of(row, key)
    except (_NoDigest, RecursionError):
        return None


def _of(value: Any, key: bytes) -> bytes:
    """A value's digest: of its type, and of its content or its parts' digests."""
    found = hashlib.blake2b(key=key, digest_size=32)
    found.update(f"{type(value).__module__}.{type(value).__qualname__} ".encode())
    if value is None or isinstance(value, (int, float, complex)):
        found.update(repr(value).encode())
    elif isinstance(value, str):
        found.update(value.encode("utf-8", "surrogatepass"))
    elif isinstance(value, (bytes, bytearray, memoryview)):
        found.update(bytes(value))
    elif isinstance(value, Tensor):
        if not _is_dense(value):
            raise _NoDigest
        _feed(found, value)
    elif isinstance(value, (Mapping, AbstractSet, list, tuple)) or is_dataclass(value):
        for digest in _parts(value, key):
            found.update(digest)
    else:  # arrays, and what is one to numpy: scalars, images
        array = _as_array(value)
        found.update(f"{getattr(value, 'mode', '')} {array.dtype.str} {array.shape} ".encode())
        if array.dtype.hasobject:
            for part in array.reshape(-1).tolist():
                found.update(_of(part, key))
        else:
            found.update(array.tobytes())
    return found.digest()


def _parts(value: Any, key: bytes) -> list[bytes]:
    """The digests of a container's parts; of those without an order, sorted."""
    if isinstance(value, Mapping):
        return sorted(_of(name, key) + _of(part, key) for name, part in value.items())
    if isinstance(value, AbstractSet):
        return sorted(_of(part, key) for part in value)
    if isinstance(value, (list, tuple)):
        return [_of(part, key) for part in value]
    return [_of(getattr(value, field.name), key) for field in fields(value)]


def _as_array(value: Any) -> "np.ndarray[Any, Any]":
    if not isinstance(value, (np.ndarray, np.generic)) and not (
        hasattr(value, "__array_interface__") or hasattr(value, "__array__")
    ):
        raise _NoDigest
    array = np.asarray(value)
    if array.dtype.hasobject and array.ndim == 0:
        raise _NoDigest
    return array


def _is_dense(tensor: Tensor) -> bool:
    """Whether a tensor's values can be read as they lie in memory."""
    odd = tensor.is_nested or tensor.is_quantized or tensor.is_meta or is_sharded(tensor)
    return tensor.layout == torch.strided and not odd


def _feed(into: hashlib.blake2b, tensor: Tensor) -> None:
    """Add a tensor's type, shape and values to a digest, a block of rows at a time."""
    into.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
    if not tensor.numel():
        return
    rows = tensor.detach().reshape(1) if tensor.dim() == 0 else tensor.detach()
    size = max(1, _BLOCK // max(1, rows[0].numel() * rows.element_size()))
    for block in rows.split(size):
        plain = block.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        into.update(plain.view(torch.uint8).numpy().data)
