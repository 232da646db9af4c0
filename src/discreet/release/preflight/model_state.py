"""What a model keeps between its calls: every tensor, array and container that can be reached from it.

A snapshot can be put back, so that a model can be tried without a trace, and two of them can be compared: what a
forward pass writes must not depend on the rows it saw.
"""

import hashlib
import pickle
import random
import types
import weakref
from array import array
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from discreet.release.preflight.reachable import (
    CACHED,
    MISSING,
    MOST,
    PLAIN,
    class_values,
    is_opaque,
    is_opened,
    is_own,
    is_own_file,
    module_values,
    named,
    position,
    reachable,
    sealed,
)

_COPIED_BYTES = 1 << 28  # of tensors and arrays that are kept as they were; of others only sums are compared
_EXACT_BYTES = 1 << 20  # of a tensor whose every byte is compared


class Snapshot:
    """What can be reached from some roots, as it is now.

    Args:
        roots: what it is reached from, each by its name.
        without: objects that are not entered.
        large: the paths of tensors and arrays of more than 1 MB that are kept; None: all of them.
    """

    def __init__(
        self, roots: Mapping[str, Any], without: Sequence[Any] = (), large: Collection[str] | None = None
    ) -> None:
        self._roots, self._without = dict(roots), without
        self._put_back: list[tuple[Any, Any]] = []  # a container or generator, and what it held
        self._copies: list[tuple[Any, Any]] = []  # a tensor or array, and its values
        self._fixed: list[tuple[Any, Any]] = []  # what cannot be put back, and where it stood
        self.whole = True  # whether everything was reached, and could be put back
        bytes_left = _COPIED_BYTES
        count = 0
        for path, value in reachable(self._roots, without):
            count += 1
            if count > MOST:
                self.whole = False
                break
            if isinstance(value, (Tensor, np.ndarray)):
                if not _readable(value):
                    self.whole = False
                    continue
                if isinstance(value, nn.Parameter) and value.nbytes > _EXACT_BYTES:
                    continue  # a forward pass that writes to one is found by its sum
                if large is not None and value.nbytes > _EXACT_BYTES and path not in large:
                    continue
                if isinstance(value, np.ndarray) and not value.flags.writeable:
                    continue
                if value.nbytes > bytes_left:
                    self.whole = False
                    continue
                bytes_left -= value.nbytes
                self._copies.append((value, _copied(value)))
            elif (held := _held(value)) is not MISSING:
                self._put_back.append((value, held))
            elif (place := position(value)) is not None:
                self._fixed.append((value, place))

    def restore(self) -> None:
        """Everything is again as it was."""
        for value, place in self._fixed:
            self.whole = self.whole and _at(position(value), place)
        for container, held in self._put_back:
            _refill(container, held)
        with torch.no_grad():
            for value, copied in self._copies:
                if isinstance(value, np.ndarray):
                    value[...] = copied
                elif value.shape != copied.shape or value.dtype != copied.dtype:
                    value.data = copied.clone()
                elif not _same_tensor(value, copied):
                    value.data.copy_(copied)

    def drew(self, *, torch_too: bool = True) -> bool:
        """Whether a generator that can be reached is elsewhere than it was; with `torch_too` False, one not torch's."""
        kinds = (np.random.Generator, random.Random, *((torch.Generator,) if torch_too else ()))
        held = ((value, then) for value, then in self._put_back if isinstance(value, kinds))
        return any(pickle.dumps(_held(value)) != pickle.dumps(then) for value, then in held)

    def contents(self) -> dict[str, Any]:
        """What is there now, by its path: numbers and texts, copies of tensors, and lengths of containers."""
        return contents(self._roots, self._without)


class _Same:
    """An object that is not entered: the same as itself alone. It is held, so that no other gets its place."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


# types whose values never change, or hold nothing of a batch
_FIXED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.CodeType)
_FIXED += (range, slice, weakref.ReferenceType, torch.dtype, torch.device, torch.layout, torch.memory_format, partial)


def contents(roots: Mapping[str, Any], without: Sequence[Any] = ()) -> dict[str, Any]:
    """The values that can be reached, by their path: of large tensors a sum, of containers their length.

    `without` are objects that are not entered, nor told of.
    """
    found: dict[str, Any] = {}
    for count, (path, value) in enumerate(reachable(roots, without)):
        if count > MOST:
            break
        if isinstance(value, PLAIN):
            found[path] = value
        elif isinstance(value, (dict, list, tuple, deque, set)):
            found[path] = (type(value).__name__, len(value))
        elif isinstance(value, (Tensor, np.ndarray)):
            found[path] = _summary(value)
        elif isinstance(value, torch.Generator):
            found[path] = ("generator", value.initial_seed())
        elif isinstance(value, (np.random.Generator, random.Random)):
            found[path] = ("generator",)  # where a sequence of random numbers stands is no fact of the data
        elif isinstance(value, (array, bytearray)):
            found[path] = (type(value).__name__, bytes(value))
        elif is_opaque(value):
            found[path] = (type(value).__name__, 1, sealed(value))
        elif not isinstance(value, (Mapping, frozenset, *_FIXED)) and not is_opened(value):
            found[path] = _Same(value)
    return found


def digests(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same with a digest for each tensor, which takes no memory."""
    return {path: _digest(value) if isinstance(value, Tensor) else value for path, value in values.items()}


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    """The paths whose values are not the same."""
    return {path for path in {*one, *other} if not _same(one.get(path, MISSING), other.get(path, MISSING))}


def grown(one: Any, other: Any) -> bool:
    """Whether two tensors are the same where both have values: a table that was filled as far as it was needed."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor) or one.dim() != other.dim():
        return False
    common = tuple(slice(0, min(a, b)) for a, b in zip(one.shape, other.shape, strict=True))
    return one.shape != other.shape and one[common].numel() > 0 and _same_tensor(one[common], other[common])


class Random:
    """The state of every generator a forward pass may draw from."""

    def __init__(self) -> None:
        self._torch, self._numpy, self._python = torch.get_rng_state(), np.random.get_state(), random.getstate()
        self.seed = torch.initial_seed()

    def same(self, *, torch_too: bool = True) -> bool:
        """Whether nothing was drawn since; with `torch_too` False, by Python and NumPy."""
        return self.equals(Random(), torch_too=torch_too)

    def equals(self, other: "Random", *, torch_too: bool = True) -> bool:
        """Whether two states are the same; with `torch_too` False, those of Python and NumPy."""
        if torch_too and not torch.equal(self._torch, other._torch):
            return False
        arrays = all(np.array_equal(a, b) for a, b in zip(self._numpy, other._numpy, strict=True))
        return arrays and self._python == other._python

    def restore(self) -> None:
        torch.set_rng_state(self._torch)
        np.random.set_state(self._numpy)
        random.setstate(self._python)


# --- keeping and putting back ----------------------------------------------------------------------------------------


def _held(value: Any) -> Any:
    """What a container holds now, without what is in it in turn."""
    if isinstance(value, type):
        return class_values(value) if is_own(value) else MISSING
    if isinstance(value, types.ModuleType):
        return module_values(value) if is_own_file(value) else MISSING
    if isinstance(value, CACHED):
        return () if not value.cache_info().currsize else MISSING  # what was there cannot be put back
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, dict):
        return dict(dict.items(value))  # as it is kept, whatever a class of its own makes of a look-up
    if isinstance(value, (list, set, deque, array, bytearray)):
        return list(value)
    if isinstance(value, types.FunctionType):
        return [_content(cell) for cell in value.__closure__ or ()], named(value)
    if is_opened(value) and isinstance(getattr(value, "__dict__", None), dict):
        return dict(vars(value))
    return MISSING


def _at(one: Any, place: Any) -> bool:
    """Whether something stands where it stood."""
    if one is None or len(one) != len(place):
        return False
    return all(a is b or (type(a) is int and a == b) for a, b in zip(one, place, strict=True))


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _refill(value: Any, held: Any) -> None:
    if isinstance(value, dict):
        if not _identical(value, held):
            value.clear()
            value.update(held)
    elif isinstance(value, (type, types.ModuleType)):
        now = class_values(value) if isinstance(value, type) else module_values(value)
        for name in now.keys() - held.keys():
            delattr(value, name)
        for name, content in held.items():
            if now.get(name, MISSING) is not content:
                setattr(value, name, content)
    elif isinstance(value, CACHED):
        value.cache_clear()
    elif isinstance(value, torch.Generator):
        value.set_state(held)
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = held
    elif isinstance(value, random.Random):
        value.setstate(held)
    elif isinstance(value, set):
        if set(value) != set(held):
            value.clear()
            for item in held:
                value.add(item)
    elif isinstance(value, (array, bytearray)):
        if list(value) != held:
            del value[:]
            value.extend(held)
    elif isinstance(value, (list, deque)):
        if len(value) != len(held) or any(a is not b for a, b in zip(value, held, strict=True)):
            value.clear()
            value.extend(held)
    elif isinstance(value, types.FunctionType):
        contents, named = held
        for cell, content in zip(value.__closure__ or (), contents, strict=True):
            if _content(cell) is not content:
                cell.cell_contents = content
        for name, content in named.items():
            if value.__globals__.get(name, MISSING) is not content:
                value.__globals__[name] = content
    elif not _identical(vars(value), held):
        vars(value).clear()
        vars(value).update(held)


def _identical(one: dict[Any, Any], other: dict[Any, Any]) -> bool:
    """Whether two dictionaries hold the same objects in the same order."""
    if len(one) != len(other):
        return False
    return not one or ([*one] == [*other] and all(map(is_, one.values(), other.values())))


# --- values ----------------------------------------------------------------------------------------------------------


def _readable(value: Tensor | np.ndarray[Any, Any]) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype != object
    return value.layout == torch.strided and not value.is_meta and not hasattr(value, "to_local")


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value.detach().clone()


def _summary(value: Tensor | np.ndarray[Any, Any]) -> Any:
    """A copy of a small tensor; of a large one its shape and two sums."""
    if callable(local := getattr(value, "to_local", None)):  # a tensor that is spread over processes: this one's part
        value = local()
    if not _readable(value):
        return ("unreadable", tuple(value.shape), getattr(value, "_version", 0))
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, hashlib.blake2b(value.tobytes(), digest_size=16).digest())
    tensor = value
    if tensor.nbytes <= _EXACT_BYTES:
        return tensor.detach().cpu().clone()
    if isinstance(value, nn.Parameter):  # many and large, and hardly ever written to
        some = tensor.detach().reshape(-1)[:: max(1, tensor.numel() >> 14)]
        return (tuple(tensor.shape), str(tensor.dtype), tensor._version, repr(some.sum(dtype=torch.float64).item()))
    wide = tensor.detach()
    wide = wide.abs() if wide.is_complex() else wide
    sums = (wide.sum(dtype=torch.float64), wide.double().square().sum()) if wide.is_floating_point() else (wide.sum(),)
    return (tuple(tensor.shape), str(tensor.dtype), *(repr(s.item()) for s in sums))


def _digest(value: Tensor) -> tuple[Any, ...]:
    flat = value.contiguous().reshape(-1)
    raw = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return (tuple(value.shape), str(value.dtype), hashlib.blake2b(raw, digest_size=16).digest())


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and _same_tensor(one, other)
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return False
    if isinstance(one, float) and isinstance(other, float) and one != one and other != other:
        return True
    return type(one) is type(other) and bool(one == other)


def _same_tensor(one: Tensor, other: Tensor) -> bool:
    """Bit for bit, where a NaN is a NaN."""
    if torch.equal(one, other):
        return True
    if not (one.is_floating_point() or one.is_complex()):
        return False
    return one.dtype == other.dtype and bool(((one == other) | (one.isnan() & other.isnan())).all())
