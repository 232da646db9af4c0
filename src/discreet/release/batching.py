"""From drawn indices to batches: tensors by one index select, data sets through torch's own loader."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_flatten
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from discreet.errors import ConfigError, PrivacyError

Collate = Callable[[list[Any]], Any]
Draw = npt.NDArray[np.intp]


class PaddedCollate:
    """A collate function for which an empty draw is one padding row of constants."""

    def __init__(self, collate: Collate, example: Any) -> None:
        self._collate = collate
        self.padding = padding_row(collate, example)

    def __call__(self, examples: list[Any]) -> Any:
        return self._collate(examples) if examples else self.padding


def padding_row(collate: Collate, example: Any) -> Any:
    """A batch of constants in the form of a batch of one example, of which only the form is looked at.

    It is made of an example of constants, so that what the collate function counts (rows, units, offsets) is right; or,
    where none can be made or it has another form, it is the example's own batch with every value a constant.
    """
    made = collate([example])
    try:
        blank = collate([constant_like(example)])
    except Exception:  # whatever a function says of an example that is none
        return constant_like(made)
    return blank if _form(blank) == _form(made) else constant_like(made)


def _form(batch: Any) -> list[Any]:
    """What a batch is made of, but for values."""
    return [(p.shape, p.dtype) if isinstance(p, Tensor) else type(p) for p in parts_of(batch)]


def parts_of(batch: Any) -> list[Any]:
    """What a batch is made of, inside mappings and objects that torch's pytrees do not enter, too."""
    if type(batch) is tuple:
        for part in batch:
            if not isinstance(part, Tensor) or part.is_nested:
                break
        else:
            return list(batch)
    parts: list[Any] = []
    for leaf in tree_flatten(batch)[0]:
        if isinstance(leaf, Tensor):
            parts += tensors_in(leaf)
        elif isinstance(leaf, Mapping):
            parts += [part for value in leaf.values() for part in parts_of(value)]
        elif isinstance(leaf, tuple):  # a packed sequence
            parts += [part for value in leaf for part in parts_of(value)]
        elif isinstance(inside := getattr(leaf, "__dict__", None), dict) and not isinstance(leaf, nn.Module):
            parts += [part for value in inside.values() for part in parts_of(value)]
        else:
            parts.append(leaf)
    return parts


def tensors_in(tensor: Tensor) -> list[Tensor]:
    """A tensor; or what a nested one is made of."""
    if not tensor.is_nested:
        return [tensor]
    if tensor.layout == torch.jagged:
        jagged: Any = tensor  # whose own methods torch does not type
        return [jagged.values(), jagged.offsets()]
    return list(tensor.unbind())


def length_of(data: Any) -> int:
    """The number of examples, or a ConfigError that says what data may be."""
    if isinstance(data, DataLoader):
        raise ConfigError(
            "a DataLoader draws its own batches, which would not be those that are accounted; pass its data set to "
            "private.batches(data), or make the loader with batch_sampler=private.batch_sampler()."
        )
    if isinstance(data, IterableDataset) or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise ConfigError(
            f"{type(data).__name__} cannot be drawn from: it has no rows by number; use a map-style Dataset or a "
            "tuple of tensors."
        )
    if isinstance(data, tuple):
        if not data or not all(isinstance(t, Tensor) for t in data):
            raise ConfigError("data given as a tuple must be a tuple of tensors, one row an example.")
        lengths = {len(t) for t in data}
        if len(lengths) > 1:
            raise ConfigError(f"the tensors have different lengths ({sorted(lengths)}); one row an example in each.")
        length = lengths.pop()
    else:
        length = len(data)
    if length == 0:
        raise ConfigError("the data has no examples.")
    return length


def as_tensors(data: Any) -> tuple[Tensor, Tensor]:
    """Inputs and targets, all in memory."""
    found = tensors_of(data)
    if found is None:
        found = tuple(default_collate([data[i] for i in range(len(data))]))
    inputs, targets = found
    return inputs, targets


def load(
    data: Any,
    draws: Iterator[Draw],
    *,
    collate_fn: Collate | None = None,
    num_workers: int = 0,
    pin_memory: bool = False,
    fixed: bool = False,
) -> Iterator[Any]:
    """One batch for each draw, in order; an empty draw is one padding row.

    Tensors are indexed in this process, whatever the number of workers; if they are `fixed`, a draw of all rows is the
    tensors themselves.
    """
    tensors = tensors_of(data)
    if tensors is not None and collate_fn is None:
        return _select(tensors, draws, single=isinstance(data, Tensor), fixed=fixed)
    if isinstance(data, tuple):
        data = TensorDataset(*data)
    collate = PaddedCollate(collate_fn or default_collate, data[0])
    loader = DataLoader(
        data, batch_sampler=_Once(draws), collate_fn=collate, num_workers=num_workers, pin_memory=pin_memory
    )
    return iter(loader)


def reader(data: Any, collate_fn: Collate | None) -> tuple[Callable[[int], Any], Collate]:
    """How a row is read by its number, and how a batch is made of some rows."""
    tensors = tensors_of(data)
    if tensors is None:
        return data.__getitem__, collate_fn or default_collate
    if collate_fn is not None:
        found = TensorDataset(*tensors) if isinstance(data, tuple) else data
        return found.__getitem__, collate_fn
    if isinstance(data, Tensor):
        return lambda i: data[i], torch.stack
    return lambda i: tuple(t[i] for t in tensors), lambda rows: tuple(
        torch.stack(column) for column in zip(*rows, strict=True)
    )


def tensors_of(data: Any) -> tuple[Tensor, ...] | None:
    """The tensors that data consists of, if it is nothing else."""
    if isinstance(data, Tensor):
        return (data,)
    if type(data) is TensorDataset:
        return data.tensors
    return data if isinstance(data, tuple) else None


def _select(tensors: tuple[Tensor, ...], draws: Iterator[Draw], *, single: bool, fixed: bool) -> Iterator[Any]:
    everything = np.arange(len(tensors[0]))
    starts = [_starts(t) for t in tensors]
    for draw in draws:
        if fixed and np.array_equal(draw, everything):
            yield tensors[0] if single else tensors
            continue
        index = torch.from_numpy(draw)
        if len(index):
            selected = []
            for tensor, start in zip(tensors, starts, strict=True):
                places = index.to(tensor.device)
                if start is not None:  # rows are far apart in memory: to read how each begins has the processor wait
                    start.index_select(0, places)  # for all of them together, and not for one after the other
                selected.append(tensor.index_select(0, places))
            rows = tuple(selected)
        else:
            rows = padding_of(tensors)
        yield rows[0] if single else rows


def _starts(tensor: Tensor) -> Tensor | None:
    """The first value of each row, where rows are long and in the processor's memory."""
    if tensor.dim() < 2 or not tensor.numel() or tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return None
    return tensor.as_strided((len(tensor),), (tensor.stride(0),))


def padding_of(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """One row of zeros for each tensor."""
    return tuple(t.new_zeros((1, *t.shape[1:])) for t in tensors)


class _Once:
    """Draws as a batch sampler."""

    def __init__(self, draws: Iterator[Draw]) -> None:
        self._draws = draws

    def __iter__(self) -> Iterator[list[int]]:
        return (draw.tolist() for draw in self._draws)


def constant_like(batch: Any) -> Any:
    """The same structure with every value a constant: never a row of data."""
    if isinstance(batch, PackedSequence):
        return batch._replace(data=torch.zeros_like(batch.data))  # the rest is its form
    if isinstance(batch, Tensor):
        return torch.zeros_like(batch)
    if isinstance(batch, np.ndarray):
        return np.zeros_like(batch)
    if isinstance(batch, Mapping):
        return type(batch)({key: constant_like(value) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(constant_like(value) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(constant_like(value) for value in batch)
    if batch is None or isinstance(batch, (str, bytes, int, float, bool)):
        return None if batch is None else type(batch)()
    raise ConfigError(
        f"a batch holds {type(batch).__name__}, of which no padding row can be made for an empty draw; have "
        "collate_fn return tensors, numbers or strings."
    )


def checked_draw(drawn: Any, length: int) -> Draw:
    """What a sampler drew, as a set of indices of `length` rows; one that came twice would count twice.

    Errors do not show the draw, which is secret.
    """
    indices = np.asarray(drawn)
    if indices.ndim == 1 and len(indices) == 0:
        return np.empty(0, np.intp)
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise PrivacyError(f"the sampler drew {type(drawn).__name__}, which is no list of indices of the data.")
    rising = bool((indices[1:] > indices[:-1]).all())  # as most draw: then the first and the last say it all
    least, most = (indices[0], indices[-1]) if rising else (indices.min(), indices.max())
    if least < 0 or most >= length:
        raise PrivacyError("the sampler drew what is no list of indices of the data: one is negative or too large.")
    if not rising and len(np.unique(indices)) != len(indices):
        raise PrivacyError("the sampler drew an index twice in one step, which would count twice in the sum.")
    return indices.astype(np.intp)
