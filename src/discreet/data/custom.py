"""Data of one's own: arrays in an .npz file, or what a function returns."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from inspect import signature
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset

from discreet._check import within
from discreet.data.archives import read_arrays
from discreet.data.dataset import Data, Pair, Split, first_example
from discreet.errors import ConfigError, PrivacyError
from discreet.release.batching import length_of

_COUNTED = "the number of classes is the largest label's, taken to be public"
_NOT_SETS = (str, bytes, Mapping, Tensor)


def npz(name: str, classes: int | None, split: Split) -> Data:
    """Data from the arrays x, y and perhaps test_x, test_y of a file; nothing pickled is read."""
    tensors = {key: _tensor(name, key, array) for key, array in read_arrays(name).items()}
    if "test_x" in tensors:
        return _from_pairs(name, (tensors["x"], tensors["y"]), (tensors["test_x"], tensors["test_y"]), classes)
    return _from_pairs(name, *split.of_pair(name, tensors["x"], tensors["y"]), classes)


def _tensor(name: str, key: str, array: npt.NDArray[Any]) -> Tensor:
    """An array as inputs or labels."""
    if array.ndim == 0:
        raise ConfigError(f"{name}: {key} is a single number; it must have a row for each example.")
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):  # what float32 cannot hold is found not to be finite later
            return torch.from_numpy(array.astype(np.float32, copy=False))
    if key.endswith("y") and array.dtype.kind in "iu":
        return torch.from_numpy(array.astype(np.int64, copy=False))
    allowed = "whole numbers (classes) or real ones" if key.endswith("y") else "real numbers, scaled by constants"
    raise ConfigError(f"{name}: {key} is of {array.dtype}; it must be of {allowed}.")


def _from_pairs(name: str, train: Pair, test: Pair | None, classes: int | None) -> Data:
    """Data from tensors, with their shape and classes found out."""
    pairs = [train] if test is None else [train, test]
    for x, y in pairs:
        if len(x) == 0 or len(x) != len(y):
            raise ConfigError(f"{name} has {len(x)} inputs and {len(y)} labels; it must have as many, and some.")
    note = ""
    if train[1].is_floating_point():
        if classes is not None:
            raise ConfigError(f"{name} has real labels, so classes {classes} does not apply; give whole numbers.")
    elif classes is None:
        classes, note = max(2, *(int(y.max()) + 1 for _, y in pairs)), _COUNTED
    if classes is not None:
        within("categories", classes, f"{name} has {classes:,} classes")
    return Data(name, train, test, tuple(train[0].shape[1:]), classes, note)


def from_function(name: str, classes: int | None, split: Split, options: Mapping[str, Any]) -> Data:
    """What a function returns, checked."""
    module, _, attribute = name.partition(":")
    try:
        function = getattr(import_module(module), attribute, None)
    except (ImportError, ValueError, TypeError) as error:
        raise ConfigError(f"{name}: {module!r} cannot be imported ({error}); is its folder in PYTHONPATH?") from error
    if not callable(function):
        raise ConfigError(f"{name}: the module {module!r} has no function {attribute!r}.")
    try:
        signature(function).bind(**options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} cannot be called with {dict(options)}: {error}.") from error
    try:
        returned = function(**options)
    except (ConfigError, PrivacyError):
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{name} failed: {type(error).__name__}: {error}") from error
    if isinstance(returned, Data):
        if classes not in (None, returned.classes):
            raise ConfigError(f"{name} says it has {returned.classes} classes, not {classes}; leave classes out.")
        return returned
    return _made(name, returned, classes, split)


def _made(name: str, returned: Any, classes: int | None, split: Split) -> Data:
    """Data from what a function returned, if it is one of the things it may return."""
    parts = tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)
    tensors = tuple(p for p in parts if isinstance(p, Tensor))
    if len(tensors) == len(parts) and len(parts) in (2, 4):
        if any(t.ndim == 0 for t in tensors):
            raise ConfigError(f"{name} returned a single number where rows are needed.")
        if len(parts) == 2:
            return _from_pairs(name, *split.of_pair(name, tensors[0], tensors[1]), classes)
        return _from_pairs(name, (tensors[0], tensors[1]), (tensors[2], tensors[3]), classes)
    pairs = [p for p in parts if isinstance(p, (tuple, list)) and len(p) == 2 and all(isinstance(t, Tensor) for t in p)]
    if len(pairs) == len(parts) == 2:
        return _from_pairs(name, (pairs[0][0], pairs[0][1]), (pairs[1][0], pairs[1][1]), classes)
    sets = [p for p in parts if hasattr(p, "__getitem__") and hasattr(p, "__len__") and not isinstance(p, _NOT_SETS)]
    if len(sets) != len(parts) or len(sets) not in (1, 2) or not all(isinstance(s, Dataset) for s in sets):
        raise ConfigError(
            f"{name} returned {_kinds(returned)}; it must return a Data, a Dataset, a pair of map-style Datasets, or "
            "tensors x, y (and test_x, test_y)."
        )
    return _from_sets(name, sets, classes, split)


def _kinds(returned: Any) -> str:
    """What something is, in a few words."""
    if isinstance(returned, (tuple, list)):
        return f"a {type(returned).__name__} of {', '.join(type(part).__name__ for part in returned) or 'nothing'}"
    return f"a {type(returned).__name__}"


def _from_sets(name: str, sets: Sequence[Dataset[Any]], classes: int | None, split: Split) -> Data:
    """Data from one data set, which is split, or two; their first example says the shape."""
    try:
        count = length_of(sets[0])
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    x, y = first_example(name, sets[0])
    if classes is None and not y.is_floating_point():
        named = getattr(sets[0], "classes", None)
        if not isinstance(named, Sequence):
            raise ConfigError(f"{name}: nothing says how many classes the data set has; give classes=, or a Data.")
        classes = len(named)
    test: Dataset[Any] | None
    if len(sets) == 2:
        train, test = sets
    else:
        rows = split.parts(name, count)
        train, test = (Subset(sets[0], part.tolist()) for part in rows)
        test = test if len(rows[1]) else None
    return Data(name, train, test, tuple(x.shape[1:]), classes)
