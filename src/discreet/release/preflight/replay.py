"""Probes that try to falsify the guarantee before the first release: do examples mix, is every gradient bounded?

Mixing that gradients show is found by the engine (it reweights the losses). What is detached from gradients, or carried
over from batch to batch, is found here by replaying: the model's call is run again on copies with one row replaced, and
no other row's output may change, then or in the next batch. Nothing is released.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from discreet.errors import PrivacyError
from discreet.release.preflight.model_state import Random
from discreet.release.preflight.reachable import reachable

_MOST_CALLS = 8  # of the model in one batch that are replayed
_REPLAY_BYTES = 1 << 22  # of a batch's inputs; of a larger one only some rows are replayed
_FEWEST_ROWS = 16
_SHARED_BYTES = 1 << 20  # frozen parameters of this size are not copied


@dataclass
class Calls:
    """The model's calls in one batch, as they can be made again: arguments, random numbers and autocast before them."""

    arguments: list[tuple[tuple[Any, ...], dict[str, Any]]]
    random: Random
    autocast: list[tuple[str, torch.dtype]]


class Recorder:
    """A forward pre-hook that keeps the model's calls; in a copy of the model it keeps its own."""

    def __init__(self) -> None:
        self.calls: Calls | None = None

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.is_grad_enabled():
            return
        if self.calls is None:
            devices = [d for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)]
            self.calls = Calls([], Random(), [(d, torch.get_autocast_dtype(d)) for d in devices])
        if len(self.calls.arguments) < _MOST_CALLS:
            self.calls.arguments.append(_map((args, kwargs), lambda t: t.detach()))

    def __deepcopy__(self, memo: Any) -> "Recorder":
        return Recorder()

    def __reduce__(self) -> tuple[type["Recorder"], tuple[()]]:
        return Recorder, ()


Run = Callable[[nn.Module, Any], Any]


def replay(model: nn.Module, run: Run, batch: Any, rows: int, state: Random, *, strict: bool = False) -> bool:
    """Run the model on copies with one row replaced; a PrivacyError names the module where examples mix.

    `run(model, batch)` returns whatever is computed, one row for each of the batch's `rows`. False where that cannot be
    told: a single row, rows that are all the same, a model that cannot be copied or run again, or (but for `strict`)
    arguments whose sizes leave open which of them hold rows.
    """
    failure: PrivacyError | None = None
    for dimensions, certain in _readings(batch, rows):
        try:
            _look(model, run, batch, rows, dimensions, state)
        except PrivacyError as error:
            failure = failure or error
            if strict:
                break
            continue
        except _CannotTellError:
            return False
        return certain
    if failure is None or not _repeats(model, run, batch, state):
        return False
    raise failure


class _CannotTellError(Exception):
    """Nothing can be learned from a replay."""


def _look(model: nn.Module, run: Run, batch: Any, rows: int, dimensions: list[int | None], state: Random) -> None:
    """Compare on some of the rows where a batch is large; on all of them if the model takes no fewer."""
    some, kept = _thinned(batch, rows, dimensions)
    if kept < rows:
        try:
            _compare(model, run, _changed(some, kept, dimensions), kept, state)
            return _count(model, run, some, kept, dimensions, state)
        except _CannotTellError:
            pass
    _compare(model, run, _changed(batch, rows, dimensions), rows, state)
    return _count(model, run, batch, rows, dimensions, state)


def _readings(batch: Any, rows: int) -> Iterator[tuple[list[int | None], bool]]:
    """Which dimension of each tensor holds the rows, most likely first, and whether that settles it.

    Sizes may agree by chance: a mask over time, a sequence-first tensor, positions. Those are read in other ways too.
    """
    tensors = _tensors(batch)
    options = [[d for d, size in enumerate(t.shape) if size == rows] for t in tensors]
    if rows < 2 or not any(options):
        return
    first = next(i for i, o in enumerate(options) if o)
    yield [o[0] if o else None for o in options], True
    for dimension in options[first]:
        clear = [o[0] if len(o) == 1 else None for o in options]
        clear[first] = dimension
        yield clear, True
        lists = [t.dim() == 1 and not t.is_floating_point() for t in tensors]
        yield (
            [None if alone and i != first else d for i, (d, alone) in enumerate(zip(clear, lists, strict=True))],
            False,
        )


_Changed = tuple[Any, Any, Callable[[], Any], int]


def _changed(batch: Any, rows: int, dimensions: list[int | None]) -> _Changed:
    """The batch; with its most extreme row replaced by the least extreme one; how it grows far; and which it is."""
    leaves = _tensors(batch)
    sizes = torch.zeros(rows, dtype=torch.float64)
    for tensor, dimension in zip(leaves, dimensions, strict=True):
        if dimension is not None:
            view = tensor.detach().movedim(dimension, 0)
            blocks = view.split(max(1, (rows << 17) // max(1, view.numel())))
            sizes += torch.cat([_sizes(block) for block in blocks]).cpu()
    row, other = int(sizes.argmax()), int(sizes.argmin())
    if row == other:
        raise _CannotTellError

    def replaced(grown: bool) -> Any:
        made = []
        for tensor, dimension in zip(leaves, dimensions, strict=True):
            value = tensor.clone()
            if dimension is not None:
                view = value.movedim(dimension, 0)
                view[row] = 16 * view[row] if grown and tensor.is_floating_point() else view[other]
            made.append(value)
        remaining = iter(made)
        return _map(batch, lambda t: next(remaining))

    swapped = replaced(grown=False)
    if all(torch.equal(a, b) for a, b in zip(leaves, _tensors(swapped), strict=True)):
        raise _CannotTellError
    return batch, swapped, lambda: replaced(grown=True), row


def _sizes(rows: Tensor) -> Tensor:
    """The squared length of each row, of what is finite in it."""
    each = rows.reshape(len(rows), -1)
    return (each.abs() if each.is_complex() else each).double().nan_to_num(0, 0, 0).square().sum(1)


def _thinned(batch: Any, rows: int, dimensions: list[int | None]) -> tuple[Any, int]:
    """A batch that would take much memory, with only some of its rows, picked at random; and how many they are."""
    pairs = list(zip(_tensors(batch), dimensions, strict=True))
    size = sum(t.nbytes for t, dimension in pairs if dimension is not None)
    kept = max(_FEWEST_ROWS, rows * _REPLAY_BYTES // max(1, size))
    if kept >= rows:
        return batch, rows
    generator = torch.Generator()
    generator.seed()
    chosen = torch.randperm(rows, generator=generator)[:kept].sort().values
    made = iter(t if d is None else t.index_select(d, chosen.to(t.device)) for t, d in pairs)
    return _map(batch, lambda t: next(made)), kept


def _compare(model: nn.Module, run: Run, changed: _Changed, rows: int, state: Random) -> None:
    """Raise if another row's output, the model's own state, or the next batch's output depends on the row."""
    batch, swapped, grow, row = changed
    before = _frozen(model)
    one, other = _copy(model), _copy(model)
    mine, theirs = _made(run, one, batch, state), _made(run, other, swapped, state)
    for name, value in _frozen(model).items():
        if value != before[name]:
            raise _carries(name)
    if not _alike(mine, theirs, rows, row):
        where = _culprit(_traced_calls(model, run, batch, state), _traced_calls(model, run, swapped, state), rows, row)
        raise PrivacyError(
            f"{where} mixes examples: replacing one row of a batch changed the others' outputs, though no gradient "
            "shows it. Compute nothing over the batch (not even detached), or use statistics of public data."
        )
    for (name, value), (_, written) in zip(_state(one), _state(other), strict=True):
        if not torch.equal(value, written) and not (value.isnan().any() and written.isnan().any()):
            raise _carries(name)
    if not _alike(_made(run, one, batch, state), _made(run, other, batch, state), rows, None):
        after = (_traced_calls(model, run, batch, state, before=start) for start in (batch, swapped))
        raise PrivacyError(
            f"{_culprit(*after, rows, None)} carries something from one batch to the next: the same batch gave other "
            "outputs after another one had come before it. Keep no state of the data in the model."
        )
    grown = grow()
    try:
        far = _made(run, other, grown, state)
    except _CannotTellError:  # values out of the range it accepts
        return
    if not _alike(_made(run, one, batch, state), far, rows, row):
        where = _culprit(_traced_calls(model, run, batch, state), _traced_calls(model, run, grown, state), rows, row)
        raise PrivacyError(
            f"{where} mixes examples: one row of a batch grew, and the others' outputs changed, though no gradient "
            "shows it. Compute nothing over the batch (not even detached), or use statistics of public data."
        )


def _count(model: nn.Module, run: Run, batch: Any, rows: int, dimensions: list[int | None], state: Random) -> None:
    """Raise if a row's output depends on how many others there are, or on its place among them.

    Nothing can be told of a model that takes no fewer rows, or that draws random numbers: they fall to other rows then.
    """
    some = iter(t if d is None else t.narrow(d, 1, 2) for t, d in zip(_tensors(batch), dimensions, strict=True))
    if rows < 4 or _draws(run, _copy(model), batch, state):
        return
    try:
        two = _tensors(_made(run, _copy(model), _map(batch, lambda t: next(some)), state))
        all_of_them = _tensors(_made(run, _copy(model), batch, state))
    except _CannotTellError:
        return
    for a, b in zip(all_of_them, two, strict=False):
        if a.dim() == b.dim() > 0 and len(a) == rows and len(b) == 2 and a.shape[1:] == b.shape[1:]:
            scale = float(a.detach().abs().nan_to_num(0, 0, 0).max()) if a.is_floating_point() else 0.0
            # other sizes are other kernels, which round in other ways; in few bits, that shows
            if scale and not torch.allclose(a[1:3].float(), b.float(), rtol=0.0, atol=0.05 * scale, equal_nan=True):
                raise PrivacyError(
                    "the model itself mixes examples: the same rows gave other outputs where there were fewer in the "
                    "batch. Whether an example takes part must change nothing for the others: use neither the number "
                    "of rows nor a row's place among them."
                )


def _draws(run: Run, model: nn.Module, batch: Any, state: Random) -> bool:
    """Whether random numbers are drawn."""
    before = Random()
    try:
        state.restore()
        with torch.no_grad():
            run(model, _map(batch, lambda t: t.clone()))
        return not state.same()
    except Exception:
        return True
    finally:
        before.restore()


def _carries(name: str) -> PrivacyError:
    return PrivacyError(
        f"module {name.rpartition('.')[0]!r} carries something from one batch to the next: its {name!r} is "
        "written in the forward pass and depends on the data, past any noise. Keep no state of the data in it."
    )


def _repeats(model: nn.Module, run: Run, batch: Any, state: Random) -> bool:
    """Whether the same batch gives the same outputs twice, from the same state."""
    try:
        return _alike(_made(run, _copy(model), batch, state), _made(run, _copy(model), batch, state), 0, None)
    except _CannotTellError:
        return False


def _copy(model: nn.Module) -> nn.Module:
    """A copy with state of its own; large frozen parameters are shared, as a base may not fit twice."""
    try:
        return copy.deepcopy(model, {id(p): p for _, p in _shared(model)})
    except Exception as error:
        raise _CannotTellError from error


def _made(run: Run, model: nn.Module, batch: Any, state: Random) -> Any:
    before = Random()
    state.restore()
    try:
        with torch.no_grad():
            return run(model, _map(batch, lambda t: t.clone()))
    except Exception as error:
        raise _CannotTellError from error
    finally:
        before.restore()


def _shared(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, p) for name, p in model.named_parameters() if not p.requires_grad and p.nbytes >= _SHARED_BYTES)


def _frozen(model: nn.Module) -> dict[str, tuple[int, str]]:
    """What tells whether a shared parameter was written to: its version, and its sum."""
    wide = {name: torch.complex128 if p.is_complex() else torch.float64 for name, p in _shared(model)}
    return {name: (p._version, repr(p.detach().sum(dtype=wide[name]).item())) for name, p in _shared(model)}


def _state(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters and buffers, by name."""
    return [*model.named_parameters(), *model.named_buffers()]


def _tensors(value: Any) -> list[Tensor]:
    return [t for t in tree_flatten(value)[0] if isinstance(t, Tensor)]


def _outputs(value: Any) -> list[Tensor]:
    """The tensors of a model's output, also those inside of objects; where there are none, nothing can be told."""
    found = _tensors(value) or [t for _, t in reachable({"": value}) if isinstance(t, Tensor)]
    if not found:
        raise _CannotTellError
    return found


def _map(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    leaves, spec = tree_flatten(value)
    return tree_unflatten([function(x) if isinstance(x, Tensor) else x for x in leaves], spec)


def _alike(one: Any, other: Any, rows: int, row: int | None) -> bool:
    """Whether two outputs are equal but for rounding, apart from one row (None: in all of them)."""
    mine, theirs = _outputs(one), _outputs(other)
    if len(mine) != len(theirs):
        return False
    return all(_equal(a, b, rows, row) for a, b in zip(mine, theirs, strict=True))


def _equal(a: Tensor, b: Tensor, rows: int, row: int | None) -> bool:
    if a.shape != b.shape:
        return False
    if row is None or _close(a, b):
        return _close(a, b)
    dimensions = [d for d, size in enumerate(a.shape) if size == rows]
    if not dimensions and a.dim() and a.shape[0] and a.shape[0] % rows == 0:
        a, b, dimensions = a.unflatten(0, (rows, -1)), b.unflatten(0, (rows, -1)), [0]
    if not dimensions:  # a value for the whole batch: whether it is used for all rows is not to be seen
        raise _CannotTellError
    keep = torch.arange(rows, device=a.device) != row
    # where sizes agree by chance, one reading in which nothing else changed is enough
    return any(_close(a.movedim(d, 0)[keep], b.movedim(d, 0)[keep]) for d in dimensions)


def _close(a: Tensor, b: Tensor) -> bool:
    if not a.is_floating_point():
        return torch.equal(a, b)
    scale = a.detach().abs().nan_to_num(0, 0, 0).max().item() if a.numel() else 0.0
    return torch.allclose(a, b, rtol=1e-4, atol=1e-5 * scale, equal_nan=True)


_Trace = list[tuple[str, Any, Any]]


def _traced_calls(model: nn.Module, run: Run, batch: Any, state: Random, before: Any = None) -> _Trace:
    """Every module's inputs and outputs, in the order in which they end; with another batch `before` it, if given."""
    twin = _copy(model)
    calls: _Trace = []
    if before is not None:
        _made(run, twin, before, state)
    for name, module in twin.named_modules():

        def note(module: nn.Module, args: Any, kwargs: Any, output: Any, name: str = name) -> None:
            calls.append((name, _map((args, kwargs), _kept), _map(output, _kept)))

        module.register_forward_hook(note, with_kwargs=True)
    _made(run, twin, batch, state)
    return calls


def _kept(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _culprit(calls: _Trace, others: _Trace, count: int, row: int | None) -> str:
    """The first module whose outputs differ; its parent if its inputs differed already."""
    for (name, inputs, outputs), (other, other_inputs, other_outputs) in zip(calls, others, strict=False):
        try:
            if name == other and _alike(outputs, other_outputs, count, row):
                continue
            inside = name == other and _alike(inputs, other_inputs, count, row)
        except _CannotTellError:
            inside = False
        found = name if inside else name.rpartition(".")[0]
        return f"module {found!r}" if found else "the model itself"
    return "the loss"
