"""What a model keeps between its calls: every tensor, array and container that can be reached from it.

A snapshot can be put back, so that a model can be tried without a trace, and two of them can be compared: what a
forward pass writes must not depend on the rows it saw.
"""

import dis
import gc
import hashlib
import pickle
import random
import types
import weakref
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_MOST = 100_000  # things that are looked at
_COPIED_BYTES = 1 << 28  # of tensors and arrays that are kept as they were; of others only sums are compared
_EXACT_BYTES = 1 << 20  # of a tensor whose every byte is compared
# Objects of these packages are not entered, but for modules: a trainer leads to the data, the optimizer and the screen.
CLOSED = {"torch", "numpy", "discreet", "lightning", "pytorch_lightning", "transformers", "accelerate", "flwr"}
CLOSED |= {"logging", "threading", "multiprocessing", "rich", "typing", "weakref", "io", "concurrent", "asyncio"}

_MISSING = object()
_PLAIN = (int, float, complex, str, bytes, bool, np.generic, type(None))
_CACHED = type(cache(lambda: 0))  # what functools.cache and lru_cache make of a function


class Snapshot:
    """What can be reached from some roots, as it is now."""

    def __init__(self, roots: Mapping[str, Any]) -> None:
        self._roots = dict(roots)
        self._put_back: list[tuple[Any, Any]] = []  # a container or generator, and what it held
        self._copies: list[tuple[Any, Any]] = []  # a tensor or array, and its values
        self.whole = True  # whether everything was reached
        bytes_left = _COPIED_BYTES
        count = 0
        for _, value in reachable(self._roots):
            count += 1
            if count > _MOST:
                self.whole = False
                break
            if isinstance(value, (Tensor, np.ndarray)):
                if not _readable(value):
                    self.whole = False
                    continue
                if isinstance(value, nn.Parameter) and value.nbytes > _EXACT_BYTES:
                    continue  # a forward pass that writes to one is found by its sum
                if isinstance(value, np.ndarray) and not value.flags.writeable:
                    continue
                if value.nbytes > bytes_left:
                    self.whole = False
                    continue
                bytes_left -= value.nbytes
                self._copies.append((value, _copied(value)))
            elif (held := _held(value)) is not _MISSING:
                self._put_back.append((value, held))

    def restore(self) -> None:
        """Everything is again as it was."""
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
        return contents(self._roots)


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
        if count > _MOST:
            break
        if isinstance(value, (Tensor, np.ndarray)):
            found[path] = _summary(value)
        elif isinstance(value, _PLAIN):
            found[path] = value
        elif isinstance(value, (dict, list, tuple, deque, set)):
            found[path] = (type(value).__name__, len(value))
        elif isinstance(value, (torch.Generator, np.random.Generator, random.Random)):
            found[path] = ("generator",)  # where a sequence of random numbers stands is no fact of the data
        elif isinstance(value, (array, bytearray)):
            found[path] = (type(value).__name__, bytes(value))
        elif not isinstance(value, (Mapping, frozenset, *_FIXED)) and not _opened(value):
            found[path] = _Same(value)
    return found


def plain_values(roots: Mapping[str, Any], without: Sequence[Any] = ()) -> dict[str, Any]:
    """The numbers and texts alone, by their path."""
    return {path: value for path, value in islice(reachable(roots, without), _MOST) if isinstance(value, _PLAIN)}


def digests(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same with a digest for each tensor, which takes no memory."""
    return {path: _digest(value) if isinstance(value, Tensor) else value for path, value in values.items()}


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    """The paths whose values are not the same."""
    return {path for path in {*one, *other} if not _same(one.get(path, _MISSING), other.get(path, _MISSING))}


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


# --- walking ---------------------------------------------------------------------------------------------------------


def reachable(roots: Mapping[str, Any], without: Sequence[Any] = ()) -> Iterator[tuple[str, Any]]:
    """Every value that can be reached, once, with its path."""
    seen: dict[int, Any] = {id(value): value for value in without}  # held, so that no identity is used twice
    waiting: deque[tuple[str, Any]] = deque(roots.items())
    while waiting:
        path, value = waiting.popleft()
        plain = isinstance(value, _PLAIN)
        if not plain:
            if id(value) in seen:
                continue
            seen[id(value)] = value
        yield path, value
        if not plain:
            for name, child in _children(value):
                waiting.append((f"{path}.{name}" if path else name, child))


def _children(value: Any) -> Sequence[tuple[str, Any]]:
    if isinstance(value, (Tensor, np.ndarray, type, types.ModuleType, weakref.ReferenceType, types.CellType)):
        return ()
    if isinstance(value, Mapping):
        return [(str(key), child) for key, child in list(value.items())]
    if isinstance(value, (list, tuple, deque)):
        return [(str(place), child) for place, child in enumerate(list(value))]
    if isinstance(value, (set, frozenset)):
        return [(str(place), child) for place, child in enumerate(sorted(value, key=repr))]
    if isinstance(value, types.MethodType):
        return ("self", value.__self__), ("function", value.__func__)
    if isinstance(value, types.BuiltinFunctionType):
        return (("self", value.__self__),)  # a generator's, or a module
    if isinstance(value, partial):
        return ("function", value.func), ("arguments", value.args), ("keywords", value.keywords)
    if isinstance(value, types.FunctionType):
        inside: list[tuple[str, Any]] = []
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                inside.append((name, cell.cell_contents))
            except ValueError:  # an empty cell
                continue
        return [*inside, ("defaults", value.__defaults__), *_named(value).items()]
    if isinstance(value, _CACHED):
        return ("function", value.__wrapped__), *((f"cached{place}", held) for place, held in enumerate(_cached(value)))
    if not _opened(value):
        return ()
    return [*_attributes(value), *(_forward(type(value)).items() if isinstance(value, nn.Module) else ())]


def _cached(function: Any) -> list[Any]:
    """What a cache holds: its keys and results."""
    held = [value for value in gc.get_referents(function) if not isinstance(value, type)]
    without = {id(function.__wrapped__), id(vars(function))}
    found = (list(value.values()) if type(value) is dict else [value] for value in held if id(value) not in without)
    return [value for some in found for value in some]


def _forward(kind: type) -> dict[str, Any]:
    """The functions of a module's class that its forward pass is made of: itself and what it names, and so on."""
    found: dict[str, Any] = {}
    waiting = ["forward"]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        written: Any = next((vars(k)[name] for k in kind.__mro__ if name in vars(k)), None)
        written = getattr(written, "__func__", getattr(written, "fget", written))  # of static methods, of properties
        function = getattr(written, "__wrapped__", written) if isinstance(written, _CACHED) else written
        if not isinstance(function, types.FunctionType) or (function.__module__ or "").partition(".")[0] in CLOSED:
            continue
        found[name] = written
        waiting += function.__code__.co_names
    return found


def _named(function: types.FunctionType) -> dict[str, Any]:
    """The globals that a function's code has the names of; of other functions those of the same file."""
    home, defined = function.__module__ or "", function.__globals__
    if home.partition(".")[0] in CLOSED:
        return {}
    found = {name: defined[name] for name in _names(function.__code__) if name in defined}
    return {
        name: value
        for name, value in found.items()
        if not isinstance(value, (type, types.ModuleType))
        and (not isinstance(value, types.FunctionType) or value.__module__ == home)
    }


@cache
def _names(code: types.CodeType) -> tuple[str, ...]:
    """The globals that code reads or writes, also within functions of its own."""
    mine = [str(i.argval) for i in dis.get_instructions(code) if i.opname.endswith(("_GLOBAL", "_NAME"))]
    inner = [name for c in code.co_consts if isinstance(c, types.CodeType) for name in _names(c)]
    return tuple(dict.fromkeys([*mine, *inner]))


def _opened(value: Any) -> bool:
    """Whether an object is entered."""
    if isinstance(value, nn.Module):
        return True
    module = type(value).__module__
    home = module.partition(".")[0]
    if module.startswith(("torch.distributions", "transformers.cache_utils")):
        return True
    return home not in CLOSED and home not in ("builtins", "array")


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Attributes by name; those of a module by the names that its own state has."""
    inside = getattr(value, "__dict__", None)
    for name, child in list(inside.items()) if isinstance(inside, dict) else ():
        if isinstance(value, nn.Module) and name in ("_parameters", "_buffers", "_modules") and child:
            yield from list(child.items())
        yield name, child
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            child = getattr(value, name, _MISSING)
            if child is not _MISSING and name not in ("__dict__", "__weakref__"):
                yield name, child


# --- keeping and putting back ----------------------------------------------------------------------------------------


def _held(value: Any) -> Any:
    """What a container holds now, without what is in it in turn."""
    if isinstance(value, (torch.Generator,)):
        return value.get_state()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, (list, set, deque, array, bytearray)):
        return list(value)
    if isinstance(value, types.FunctionType):
        return [_content(cell) for cell in value.__closure__ or ()], _named(value)
    if _opened(value) and isinstance(getattr(value, "__dict__", None), dict):
        return dict(vars(value))
    return _MISSING


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def _refill(value: Any, held: Any) -> None:
    if isinstance(value, torch.Generator):
        value.set_state(held)
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = held
    elif isinstance(value, random.Random):
        value.setstate(held)
    elif isinstance(value, dict):
        if not _identical(value, held):
            value.clear()
            value.update(held)
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
            if value.__globals__.get(name, _MISSING) is not content:
                value.__globals__[name] = content
    elif not _identical(vars(value), held):
        vars(value).clear()
        vars(value).update(held)


def _identical(one: dict[Any, Any], other: dict[Any, Any]) -> bool:
    """Whether two dictionaries hold the same objects in the same order."""
    return list(one) == list(other) and all(a is b for a, b in zip(one.values(), other.values(), strict=True))


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
