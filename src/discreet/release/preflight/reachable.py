"""What can be reached from a model or a loss: attributes, containers, closures, globals, own classes, caches."""

import dis
import gc
import pickle
import random
import sys
import types
import weakref
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cache, partial
from itertools import islice
from typing import Any

import numpy as np
from torch import Tensor, nn

# Objects of these packages are not entered, but for modules: a trainer leads to the data, the optimizer and the screen.
CLOSED = {"torch", "numpy", "discreet", "lightning", "pytorch_lightning", "transformers", "accelerate", "flwr"}
CLOSED |= {"logging", "threading", "multiprocessing", "rich", "typing", "weakref", "io", "concurrent", "asyncio"}

MISSING = object()
MOST = 100_000  # things that are looked at
PLAIN = (int, float, complex, str, bytes, bool, np.generic, type(None))
CACHED = type(cache(lambda: 0))  # what functools.cache and lru_cache make of a function
_CONTAINERS = (dict, OrderedDict, list, tuple, set)
_TAKEN_APART = (*PLAIN, Mapping, list, tuple, set, frozenset, deque, array, type, types.ModuleType, types.FunctionType)
_TAKEN_APART += (types.MethodType, types.BuiltinFunctionType, types.CellType, weakref.ReferenceType, partial, CACHED)
_TAKEN_APART += (ContextVar, Tensor, np.ndarray, random.Random)
_SILENT = {"_thread", "_io", "_csv", "_socket", "_ssl"}  # locks and files: what is read back from one is not seen
_METHODS = (types.FunctionType, staticmethod, classmethod, property, CACHED)


def reachable(roots: Mapping[str, Any], without: Sequence[Any] = ()) -> Iterator[tuple[str, Any]]:
    """Every value that can be reached, once, with its path."""
    seen: dict[int, Any] = {id(value): value for value in without}  # held, so that no identity is used twice
    waiting: deque[tuple[str, Any]] = deque(roots.items())
    while waiting:
        path, value = waiting.popleft()
        plain = isinstance(value, PLAIN)
        if not plain:
            if id(value) in seen:
                continue
            seen[id(value)] = value
        yield path, value
        if not plain:
            for name, child in _children(value):
                waiting.append((f"{path}.{name}" if path else name, child))


def plain_values(roots: Mapping[str, Any], without: Sequence[Any] = ()) -> dict[str, Any]:
    """The numbers and texts alone, by their path."""
    return {path: value for path, value in islice(reachable(roots, without), MOST) if isinstance(value, PLAIN)}


def is_opened(value: Any) -> bool:
    """Whether an object is entered."""
    if isinstance(value, nn.Module):
        return True
    module = type(value).__module__
    home = module.partition(".")[0]
    if module.startswith(("torch.distributions", "transformers.cache_utils")):
        return True
    return home not in CLOSED and home not in ("builtins", "array")


def is_opaque(value: Any) -> bool:
    """Whether an object is entered and has no attributes: what it holds is in compiled code (a Decimal, a queue)."""
    if (
        isinstance(value, _TAKEN_APART)
        or not is_opened(value)
        or type(value).__module__ in _SILENT
        or _is_iterator(value)
    ):
        return False
    return not hasattr(value, "__dict__") and not any(True for _ in _attributes(value))


def sealed(value: Any) -> Any:
    """What such an object holds, as one that can be compared; one that cannot be told of is like no other."""
    try:
        return hash(pickle.dumps(value))
    except Exception:  # whatever its own code raises
        return object()


def is_own(kind: type) -> bool:
    """Whether a class is of none of these packages, nor of Python's own."""
    home = kind.__module__
    if not isinstance(home, str):  # compiled: it says of its objects where they are from
        return False
    home = home.partition(".")[0]
    return home not in CLOSED and home not in sys.stdlib_module_names


def class_values(kind: type) -> dict[str, Any]:
    """What a class holds beside its functions."""
    return {
        name: value
        for name, value in list(vars(kind).items())
        if not isinstance(value, _METHODS) and not (name.startswith("__") and name.endswith("__"))
        if name != "_abc_impl" and not isinstance(value, (types.GetSetDescriptorType, types.MemberDescriptorType))
    }


def is_own_file(module: types.ModuleType) -> bool:
    """Whether a module is a file of one's own: none of these packages, of Python's, or of what was installed."""
    home, file = module.__name__.partition(".")[0], getattr(module, "__file__", None) or ""
    installed = not file or "site-packages" in file or "dist-packages" in file
    return not installed and home not in CLOSED and home not in sys.stdlib_module_names


def module_values(module: types.ModuleType) -> dict[str, Any]:
    """What a module holds beside functions, classes and other modules: settings."""
    defined = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)
    return {
        name: value
        for name, value in list(vars(module).items())
        if not (name.startswith("__") and name.endswith("__")) and not isinstance(value, defined)
    }


def named(function: types.FunctionType) -> dict[str, Any]:
    """The globals that a function's code has the names of; of other functions and classes those of the same file."""
    home, defined = function.__module__ or "", function.__globals__
    if home.partition(".")[0] in CLOSED:
        return {}
    found = {name: defined[name] for name in _names(function.__code__) if name in defined}
    return {
        name: value
        for name, value in found.items()
        if (not isinstance(value, types.ModuleType) or is_own_file(value))
        and (not isinstance(value, (types.FunctionType, type)) or value.__module__ == home)
    }


def position(value: Any) -> Any:
    """Where something stands that cannot be put back: an iterator, a variable of a context; None for all else."""
    if isinstance(value, ContextVar):
        return (value.get(MISSING),)
    if is_opaque(value):
        return (sealed(value),)
    if isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        return None if frame is None else (frame.f_lasti, *frame.f_locals.values())
    return tuple(_reduced(value)) if _is_iterator(value) else None


def _children(value: Any) -> Sequence[tuple[str, Any]]:
    if type(value) in _CONTAINERS and not value:
        return ()  # most of what a module holds: its hooks
    if isinstance(value, type):
        return [*_of_class(value), *_classes(value)] if is_own(value) else ()  # and that of the class itself
    if isinstance(value, nn.Parameter):
        return (("attributes", vars(value)),)
    if isinstance(value, types.ModuleType):
        return list(module_values(value).items()) if is_own_file(value) else ()
    if isinstance(value, (Tensor, np.ndarray, weakref.ReferenceType, types.CellType)):
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
        return list(_of_function(value))
    if isinstance(value, CACHED):
        return ("function", value.__wrapped__), *((f"cached{place}", held) for place, held in enumerate(cached(value)))
    if isinstance(value, ContextVar) or _is_iterator(value):
        return [(str(place), child) for place, child in enumerate(position(value) or ())]
    return [*_attributes(value), *_classes(value)] if is_opened(value) else ()


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function holds: its closure, its defaults, attributes of its own, and the globals that it names."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # an empty cell
            continue
    yield "defaults", function.__defaults__
    yield "keywords", function.__kwdefaults__
    if (function.__module__ or "").partition(".")[0] not in CLOSED:
        yield "attributes", vars(function)  # also where it has none yet
    yield from named(function).items()


def _of_class(kind: type) -> Iterator[tuple[str, Any]]:
    """What a class holds, and the functions that it has."""
    yield from class_values(kind).items()
    for name, value in list(vars(kind).items()):
        if isinstance(value, _METHODS):
            function = getattr(value, "__func__", getattr(value, "fget", value))  # of static methods, of properties
            written = function.__wrapped__ if isinstance(function, CACHED) else function
            if isinstance(written, types.FunctionType):
                yield name, function


def _classes(value: Any) -> Iterator[tuple[str, Any]]:
    """The classes of an object that are of one's own."""
    for kind in type(value).__mro__:
        if is_own(kind):
            yield kind.__name__, kind


def cached(function: Any) -> list[Any]:
    """What a cache holds: its keys and results."""
    held = [value for value in gc.get_referents(function) if not isinstance(value, type)]
    without = {id(function.__wrapped__), id(vars(function))}
    found = (list(value.values()) if type(value) is dict else [value] for value in held if id(value) not in without)
    return [value for some in found for value in some]


@cache
def _names(code: types.CodeType) -> tuple[str, ...]:
    """The globals that code reads or writes, also within functions of its own."""
    mine = [str(i.argval) for i in dis.get_instructions(code) if i.opname.endswith(("_GLOBAL", "_NAME"))]
    inner = [name for c in code.co_consts if isinstance(c, types.CodeType) for name in _names(c)]
    return tuple(dict.fromkeys([*mine, *inner]))


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
            child = getattr(value, name, MISSING)
            if child is not MISSING and name not in ("__dict__", "__weakref__"):
                yield name, child


def _is_iterator(value: Any) -> bool:
    """Whether this is one of Python's own iterators."""
    return type(value).__module__ in ("builtins", "itertools") and hasattr(type(value), "__next__")


def _reduced(value: Any) -> Iterator[Any]:
    """What an iterator goes over, and where it is."""
    try:
        waiting = list(value.__reduce__()[1:])
    except TypeError:
        waiting = [object()]  # nobody can tell: it is never where it was
    while waiting:
        part = waiting.pop(0)
        if type(part) is tuple:
            waiting += part
        elif _is_iterator(part):
            yield from position(part) or ()
        else:
            yield part


__all__ = ["CACHED", "CLOSED", "MISSING", "MOST", "PLAIN", "cached", "class_values", "is_opened", "is_own", "named"]
__all__ += ["is_opaque", "is_own_file", "module_values", "plain_values", "position", "reachable", "sealed"]
