"""What is read of torch's autograd that torch keeps to itself, in one place, and checked.

Torch saves values for the backward pass under names of its own (`_saved_mat1`), which may change with any version.
Every field that a rule, an op's description or a refusal names is looked up when it is declared: one that is missing
raises an error that names torch's version, instead of a wrong sum later.
"""

import re
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import cache
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor
from torch._C import _autograd
from torch._C import _functions as _ops

from discreet.errors import PrivacyError

Node = Any  # torch.autograd.graph.Node, whose saved values torch does not type
LEAF = "torch::autograd::AccumulateGrad"  # the name of the op that gathers a leaf's gradient
_BUILT_IN = re.compile(r"^(\w+?)Backward\d+$")
_OF_EVERY_OP = ("_sequence_nr", "_input_metadata", "name", "next_functions", "register_prehook")
_OF_EVERY_OUTPUT = ("shape", "dtype", "is_nested_tensor")
_INPUTS = {  # what ops keep of their inputs, by which it is told whether they are recomputed
    "AddmmBackward0": ("mat1",), "MmBackward0": ("self",), "MulBackward0": ("self", "other"), "BmmBackward0": ("self",),
    "ConvolutionBackward0": ("input",), "NativeLayerNormBackward0": ("input",), "EmbeddingBackward0": ("indices",),
}  # fmt: skip
TESTED = ">=2.13,<2.14"  # versions of torch with which all tests were run, as pyproject.toml has them
CHECKED: set[tuple[str, str]] = set()  # fields that were looked up, each with its op

sequence_number = methodcaller("_sequence_nr")  # an op's age: younger ops have larger numbers


@cache
def base_name(name: str) -> str | None:
    """Torch's name of an op without its variant ("Add" for "AddBackward0"); None for a function of one's own."""
    match = _BUILT_IN.match(name)
    return match.group(1) if match else None


@cache
def _variants() -> dict[str, list[type]]:
    """Torch's own ops, by their names with and without the variant."""
    kinds: dict[str, list[type]] = {}
    for name in dir(_ops):
        base = base_name(name)
        if base is not None:
            kinds.setdefault(base, []).append(getattr(_ops, name))
            kinds[name] = [getattr(_ops, name)]
    return kinds


def check_fields(op: str, fields: Iterable[str]) -> None:
    """Raise unless torch saves these fields in all variants of an op; an op that torch does not have is never met."""
    for kind in _variants().get(op, ()):
        for field in fields:
            _look_up(kind, f"_saved_{field}")
            CHECKED.add((op, field))


def check_one_field(op: str, fields: Sequence[str]) -> None:
    """Raise unless torch saves one of these fields in some variant of an op that torch has."""
    kinds = _variants().get(op, ())
    found = {field for field in fields for kind in kinds if hasattr(kind, f"_saved_{field}")}
    if kinds and fields and not found:
        raise unknown_field(op, " or ".join(f"_saved_{field}" for field in fields))
    CHECKED.update((op, field) for field in found)


def unknown_field(op: str, field: str) -> PrivacyError:
    """The error for a field that an op does not have."""
    return PrivacyError(
        f"torch {torch.__version__} has no {field!r} in the op {op!r}, which discreet reads to take gradients apart; "
        f"use a version of torch that it was tested with ({TESTED})."
    )


def _look_up(kind: Any, name: str) -> Any:
    if not hasattr(kind, name):
        raise unknown_field(getattr(kind, "__name__", str(kind)), name)
    return getattr(kind, name)


def _check_torch() -> None:
    """What is read of every op, of its outputs and of leaves is there."""
    for op, fields in _INPUTS.items():
        for field in _OF_EVERY_OP:
            _look_up(_look_up(_ops, op), field)
        check_fields(op, fields)
    with torch.enable_grad():
        parameter = torch.zeros((), requires_grad=True)
        product: Node = (parameter * 2).grad_fn
    for field in _OF_EVERY_OUTPUT:
        _look_up(product._input_metadata[0], field)
    leaf = product.next_functions[0][0]
    if leaf.name() != LEAF:
        raise unknown_field(leaf.name(), LEAF)
    _look_up(leaf, "variable")


_check_torch()
_set_one_order: Callable[..., None] = _look_up(torch._C, "_set_deterministic_algorithms")
next_sequence_number: Callable[[], int] = _look_up(_autograd, "_get_sequence_nr")  # what this thread's next op will get


@cache
def attributes(kind: type, fields: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Saved fields of a kind of op, each with the attribute that has it: torch's own, or one that a `ctx` was given."""
    return tuple((field, f"_saved_{field}" if hasattr(kind, f"_saved_{field}") else field) for field in fields)


def detached(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Saved values without their graph."""
    return tuple(value.detach() if isinstance(value, Tensor) else value for value in values)


@cache
def saved_fields(kind: type, without: str = "\0") -> Sequence[str]:
    """What ops of a kind save, by torch's names, but for names that begin with `without`."""
    return [name for name in dir(kind) if name.startswith("_saved_") and not name.startswith(without)]


def saved_tensors(node: Node, without: str = "\0") -> list[Tensor]:
    """The tensors that an op keeps for its backward pass."""
    values: list[Any] = list(getattr(node, "saved_tensors", ()))
    for name in saved_fields(type(node), without):
        value = getattr(node, name)
        values += value if isinstance(value, tuple) else (value,)
    return [value for value in values if isinstance(value, Tensor)]


def storage_key(tensor: Tensor) -> int:
    """What a tensor's memory is known by: not its address, at which there may be another's later."""
    return tensor.untyped_storage()._cdata


def recomputes(nodes: Iterable[Node]) -> bool:
    """Whether ops' saved values are recomputed when they are read (checkpointing): they can be read once in a pass."""
    differs = False

    def read_twice() -> None:
        nonlocal differs
        for node in nodes:
            for name in dict.fromkeys(field for fields in _INPUTS.values() for field in fields):
                first = getattr(node, f"_saved_{name}", None)
                if isinstance(first, Tensor):
                    differs |= first.data_ptr() != getattr(node, f"_saved_{name}").data_ptr()

    try:
        inside_backward(read_twice)
    except RuntimeError:  # read once already
        return True
    return differs


@contextmanager
def in_one_order() -> Generator[None]:
    """Within, what is computed twice has the same bits: on several threads some ops add up in an order of chance."""
    if torch.are_deterministic_algorithms_enabled():
        yield
        return
    _set_one_order(True, warn_only=True)  # torch's public function imports its compiler before it calls this
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an op that has no such order is compared as it is
            yield
    finally:
        _set_one_order(False)


class _Inside(torch.autograd.Function):
    """Runs a function inside a backward pass."""

    @staticmethod
    def forward(ctx: Any, start: Tensor, function: Callable[[], None]) -> Tensor:
        ctx.function = function
        return start.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.function()
        return gradients[0], None


def inside_backward(function: Callable[[], None]) -> None:
    """Run a function inside a backward pass of its own, where values that are recomputed are so once for all."""
    with torch.enable_grad():
        start = torch.zeros((), requires_grad=True)
        torch.autograd.grad(_Inside.apply(start, function), start)
