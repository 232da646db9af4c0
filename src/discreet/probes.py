"""Probes that try to falsify the guarantee before the first release: do examples mix, is every gradient bounded?

Mixing that gradients show is found by the engine (it reweights the losses). What is detached from gradients, or carried
over from batch to batch, is found here by replaying: the model's call is run again on copies with one row replaced, and
no other row's output may change, then or in the next batch. Nothing is released.
"""

import copy
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from discreet.contracts import Contract
from discreet.errors import PrivacyError
from discreet.gradients import Engine
from discreet.gradients.engine import UnitGradients

ROWS = 8  # rows that are replayed
_UNITS = 4  # units whose contributions are made one by one


@dataclass
class Call:
    """One call of the model, as it can be made again: arguments, and the state of the random numbers before it."""

    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    random: Tensor


class Recorder:
    """A forward pre-hook that keeps the first call of the model; in a copy of the model it keeps its own."""

    def __init__(self) -> None:
        self.call: Call | None = None

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.call is None and torch.is_grad_enabled():
            detached = _map((args, kwargs), lambda t: t.detach())
            self.call = Call(detached, torch.get_rng_state())

    def __deepcopy__(self, memo: Any) -> "Recorder":
        return Recorder()

    def __reduce__(self) -> tuple[type["Recorder"], tuple[()]]:
        return Recorder, ()


# --- replaying -------------------------------------------------------------------------------------------------------


def replay(model: nn.Module, run: Callable[[nn.Module, Any], Any], batch: Any, rows: int, random: Tensor) -> bool:
    """Run the model on copies with one row replaced; a PrivacyError names the module where examples mix.

    `run(model, batch)` returns whatever is computed, one row for each of the batch's `rows`. False if the batch offers
    nothing to replace (a single row, rows that are all the same, or no tensor with a row for each).
    """
    chosen = _choose(batch, rows)
    if chosen is None:
        return False
    first, swapped, grown, row = chosen
    count = min(rows, ROWS)
    traces = []
    for starts in ((first, first, first), (swapped, first, grown)):
        try:
            twin = copy.deepcopy(model)
        except (RuntimeError, TypeError) as error:
            raise PrivacyError(
                f"the model cannot be copied ({error}), so it cannot be checked that it carries nothing from one batch "
                "to the next; keep no tensors with gradients on its modules, or attach with preflight=False."
            ) from error
        made = []
        with _traced(twin) as calls, _same_random_numbers(random), torch.no_grad():
            for start in starts:
                torch.set_rng_state(random)
                made.append((run(twin, start), list(calls)))
                calls.clear()
        traces.append(made)
    for turn, ((one, calls), (other, others)) in enumerate(zip(*traces, strict=True)):
        if turn == 1 and not _alike(one, other, count, None):
            raise PrivacyError(
                f"{_culprit(calls, others, count, None)} carries something from one batch to the next: the same batch "
                "gave other outputs after another one had come before it. Keep no state of the data in the model."
            )
        if turn != 1 and not _alike(one, other, count, row):
            raise PrivacyError(
                f"{_culprit(calls, others, count, row)} mixes examples: replacing one row of a batch changed the "
                "others' outputs, though no gradient shows it. Compute nothing over the batch (not even detached), or "
                "use statistics of public data."
            )
    return True


def _choose(batch: Any, rows: int) -> tuple[Any, Any, Any, int] | None:
    """A few rows of the batch; the same with the most extreme one replaced by the least extreme one; the same with it
    grown far out; and which row that is. None if nothing would change.
    """
    tensors = [t for t in _tensors(batch) if rows in t.shape]
    if rows < 2 or not tensors:
        return None
    sizes = torch.zeros(rows, dtype=torch.float64)
    for tensor in tensors:
        each = _rows_of(tensor, rows).detach().cpu().reshape(rows, -1)
        sizes += (each.abs() if each.is_complex() else each.double()).double().nan_to_num(0, 0, 0).square().sum(1)
    order = torch.argsort(sizes)
    kept = order if rows <= ROWS else torch.cat((order[: (ROWS + 1) // 2], order[-(ROWS // 2) :]))
    count = len(kept)
    first = _map(batch, lambda t: _pick(t, rows, kept))
    swap = torch.arange(count)
    swap[-1] = 0
    swapped = _map(first, lambda t: _pick(t, count, swap))
    grown = _map(first, lambda t: _grow(t, count))
    if all(torch.equal(a, b) for a, b in zip(_tensors(first), _tensors(swapped), strict=True)):
        return None
    return first, swapped, grown, count - 1


def _pick(tensor: Tensor, rows: int, chosen: Tensor) -> Tensor:
    """Some rows of a tensor that has so many; others are as they were."""
    if rows not in tensor.shape:
        return tensor
    return tensor.index_select(_dimension(tensor, rows), chosen.to(tensor.device))


def _grow(tensor: Tensor, rows: int) -> Tensor:
    """The last row times sixteen, where it is real; whole numbers are replaced by those of the second row."""
    if rows not in tensor.shape:
        return tensor
    made = _rows_of(tensor.clone(), rows)
    made[-1] = 16 * made[-1] if tensor.is_floating_point() else made[min(1, rows - 1)]
    return made.movedim(0, _dimension(tensor, rows))


def _dimension(tensor: Tensor, rows: int) -> int:
    """The dimension that holds the rows: the first of that size."""
    return tuple(tensor.shape).index(rows)


def _rows_of(tensor: Tensor, rows: int) -> Tensor:
    return tensor.movedim(_dimension(tensor, rows), 0)


def _tensors(value: Any) -> list[Tensor]:
    return [t for t in tree_flatten(value)[0] if isinstance(t, Tensor)]


def _map(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    leaves, spec = tree_flatten(value)
    return tree_unflatten([function(x) if isinstance(x, Tensor) else x for x in leaves], spec)


def _alike(one: Any, other: Any, count: int, row: int | None) -> bool:
    """Whether two outputs are equal but for rounding, apart from one row (None: in all of them)."""
    mine, theirs = _tensors(one), _tensors(other)
    if len(mine) != len(theirs):
        return False
    return all(_equal(a, b, count, row) for a, b in zip(mine, theirs, strict=True))


def _equal(a: Tensor, b: Tensor, count: int, row: int | None) -> bool:
    if a.shape != b.shape:
        return False
    if row is not None:
        dimensions = [d for d, size in enumerate(a.shape) if size == count]
        if not dimensions and a.dim() and a.shape[0] % count == 0 and a.shape[0]:
            a, b, dimensions = a.unflatten(0, (count, -1)), b.unflatten(0, (count, -1)), [0]
        keep = torch.arange(count) != row
        if dimensions:  # where sizes agree by chance, one reading in which nothing else changed is enough
            return any(
                _close(a.movedim(d, 0)[keep.to(a.device)], b.movedim(d, 0)[keep.to(a.device)]) for d in dimensions
            )
        return a.dim() == 0 or _close(a, b)
    return _close(a, b)


def _close(a: Tensor, b: Tensor) -> bool:
    if not a.is_floating_point():
        return torch.equal(a, b)
    scale = a.detach().abs().nan_to_num(0, 0, 0).max().item() if a.numel() else 0.0
    return torch.allclose(a, b, rtol=1e-4, atol=1e-5 * scale, equal_nan=True)


@contextmanager
def _same_random_numbers(state: Tensor) -> Generator[None]:
    before = torch.get_rng_state()
    torch.set_rng_state(state)
    try:
        yield
    finally:
        torch.set_rng_state(before)


_Trace = list[tuple[str, Any, Any]]


@contextmanager
def _traced(model: nn.Module) -> Generator[_Trace]:
    """Every module's inputs and outputs, in the order in which they end."""
    calls: _Trace = []
    handles = []
    for name, module in model.named_modules():

        def note(module: nn.Module, args: Any, kwargs: Any, output: Any, name: str = name) -> None:
            calls.append((name, _map((args, kwargs), _kept), _map(output, _kept)))

        handles.append(module.register_forward_hook(note, with_kwargs=True))
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _kept(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _culprit(calls: _Trace, others: _Trace, count: int, row: int | None) -> str:
    """The first module whose outputs differ; its parent if its inputs differed already."""
    for (name, inputs, outputs), (other, other_inputs, other_outputs) in zip(calls, others, strict=False):
        if name != other or not _alike(outputs, other_outputs, count, row):
            inside = name == other and _alike(inputs, other_inputs, count, row)
            found = name if inside else name.rpartition(".")[0]
            return f"module {found!r}" if found else "the model itself"
    return "the loss"


# --- the engine and the bound ----------------------------------------------------------------------------------------


def check_sums(gradients: UnitGradients, plain: Mapping[str, Tensor | None]) -> None:
    """The engine's sum over all units is autograd's, parameter by parameter."""
    norms = gradients.norms()
    found = {n: norms[n].new_zeros(p.shape) for n, p in gradients.parameters.items()}
    ones = {n: torch.ones(gradients.units, dtype=t.dtype, device=t.device) for n, t in found.items()}
    gradients.add_weighted(ones, found)
    for name, total in found.items():
        expected = plain[name]
        truth = torch.zeros_like(total) if expected is None else expected.to(total.dtype)
        if not truth.isfinite().all():
            continue
        size = max(float(truth.norm()), 1e-3 * float(norms[name].nan_to_num(0, 0, 0).sum().sqrt()))
        coarse = 0.05 if gradients.parameters[name].dtype in (torch.float16, torch.bfloat16) else 2e-3
        if float((total - truth).norm()) > coarse * size + 1e-12:
            raise PrivacyError(
                f"the gradients of parameter {name!r} do not add up to autograd's: a bug, or an op whose backward pass "
                "depends on the whole batch. Please report it; nothing was released."
            )


def check_bound(gradients: UnitGradients, weights: Mapping[str, Tensor], contract: Contract) -> None:
    """Leaving out any one unit moves each block of the sum by at most its norm: some contributions, made one by one."""
    norms = gradients.norms()
    for block in contract.blocks:
        members = [name for name in block.members if name in gradients.uses]
        if not members:
            continue
        size = sum(weights[n].double() ** 2 * norms[n].double() for n in members)
        for unit in torch.argsort(torch.as_tensor(size), descending=True)[:_UNITS].tolist():
            total = 0.0
            for name in members:
                one = gradients.uses[name].each(unit, unit + 1).double()
                total += float(weights[name][unit].double() ** 2 * one.square().sum())
            if total > (block.norm * 1.001) ** 2:
                raise PrivacyError(
                    f"one example moves the sum by {total**0.5:.4g} where the bound says {block.norm:.4g} "
                    f"({', '.join(block.members)}); the bound does not bound. Nothing was released."
                )


# --- for a user's own tests ------------------------------------------------------------------------------------------


def preflight(model: nn.Module, loss: Callable[[nn.Module, Any], Tensor], example: Any) -> None:
    """Try to falsify a model and a loss before any private data is touched; silent if nothing is found.

    `loss(model, batch)` returns one loss for each row of the batch; `example` is a batch of public or made-up rows,
    best a handful of different ones. Replays model and loss together, so labels' statistics are seen too; probes
    isolation by reweighting; and compares the engine's gradients with autograd's. Fit for a test of your own.
    """
    random = torch.get_rng_state()
    twin = copy.deepcopy(model)
    losses = loss(twin, example)
    if not isinstance(losses, Tensor) or losses.dim() != 1:
        raise PrivacyError("the loss must return one value for each row of the batch, shape (rows,).")
    parameters = {n: p for n, p in twin.named_parameters() if p.requires_grad}
    plain = torch.autograd.grad(losses.sum(), list(parameters.values()), retain_graph=True, allow_unused=True)
    gradients = Engine(twin).gradients(losses, len(losses), probe=True)
    with torch.no_grad():
        check_sums(gradients, dict(zip(parameters, plain, strict=True)))
    if not replay(model, loss, example, len(losses), random):
        raise PrivacyError("the example batch offers nothing to replay; give at least two rows that differ.")
    torch.set_rng_state(random)
