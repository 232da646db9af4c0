"""`discreet.preflight`: the probes for a test of one's own, before any private data is touched."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from discreet.errors import PrivacyError
from discreet.gradients import Engine
from discreet.release.preflight.exactness import Sketch, check_sums
from discreet.release.preflight.isolation import Isolation
from discreet.release.preflight.model_state import Random
from discreet.release.preflight.replay import replay


def rows_of(batch: Any, count: int) -> list[Any] | None:
    """The rows of a batch whose tensors all have one row an example, each as a batch has them; else None."""
    leaves, spec = tree_flatten(batch)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if not tensors or any(t.dim() == 0 or len(t) != count for t in tensors):
        return None

    def row(i: int) -> Any:
        return tree_unflatten([leaf[i : i + 1] if isinstance(leaf, Tensor) else leaf for leaf in leaves], spec)

    return [row(i) for i in range(count)]


def joined(rows: list[Any]) -> Any:
    """A batch of such rows."""
    flat = [tree_flatten(row) for row in rows]
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    made = [torch.cat(column) if isinstance(column[0], Tensor) else column[0] for column in columns]
    return tree_unflatten(made, flat[0][1])


def preflight(model: nn.Module, loss: Callable[[nn.Module, Any], Tensor], example: Any) -> None:
    """Try to falsify a model and a loss before any private data is touched; silent if nothing is found.

    A warning says what could not be decided.

    Compares rows' gradients beside other rows and alone; replays model and loss
    together; probes isolation by reweighting; and compares the engine's gradients with autograd's. Fit for a test of
    your own.

    Args:
        model: the model to be trained.
        loss: called as loss(model, batch); returns one loss for each row of the batch.
        example: a batch of public or made-up rows, best a handful of different ones.
    """
    state = Random()
    twin = copy.deepcopy(model)
    losses = loss(twin, example)
    if not isinstance(losses, Tensor) or losses.dim() != 1:
        raise PrivacyError("the loss must return one value for each row of the batch, shape (rows,).")
    engine, sketch = Engine(twin), Sketch()
    plain = sketch.gradients(losses, engine)
    gradients = engine.gradients(losses, len(losses), probe=True)
    with torch.no_grad():
        check_sums(gradients, plain, sketch)
    state.restore()
    rows, undecided = rows_of(example, len(losses)), ""
    if rows is not None and len(rows) > 1:
        found = Isolation(model).test(lambda batch: loss(model, batch), rows, joined, first=True)
        state.restore()
        if found.tested:
            return
        undecided = found.undecided
    if not replay(model, loss, example, len(losses), state, strict=True):
        raise PrivacyError(
            "the example batch cannot be replayed: give at least two rows that differ, a number of rows that no other "
            "dimension has, and a model that can be copied and is deterministic for given random numbers."
        )
    if undecided:
        warnings.warn(f"whether examples mix is not decided: {undecided}.", stacklevel=2)
