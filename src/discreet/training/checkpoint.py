"""A run's state in one file: safetensors with JSON in its header. No pickle, and never half written."""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from discreet._documents import parse_json
from discreet.distributed.ranks import is_sharded
from discreet.errors import ConfigError
from discreet.ledger import storage
from discreet.release.session import Session

FORMAT = "discreet-checkpoint/1"


class Stateful(Protocol):
    """An optimizer, a schedule: whatever has torch's two methods."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: Any) -> Any: ...


@dataclass(frozen=True)
class Restored:
    """What a checkpoint gave back: `extra` as it was saved, and how many released steps it does not know of.

    Those are lost, not repeated: the run ends so many steps of learning earlier, within its epsilon.
    """

    extra: Any
    lost: int


def save_checkpoint(
    path: str | Path,
    *,
    model: nn.Module,
    private: Session,
    optimizer: Stateful | None = None,
    schedule: Stateful | None = None,
    extra: Any = None,
) -> None:
    """Write model, optimizer, schedule and the private state to one file, which replaces the last one in one move.

    Where several processes train together, rank 0 writes it, and the
    others have nothing to do.

    Args:
        path: of the file, which is replaced.
        model: whose weights are saved.
        private: what `attach` returned.
        optimizer: whose state is saved, if one is given.
        schedule: whose state is saved, if one is given.
        extra: anything of plain values and tensors.
    """
    if any(is_sharded(p) for p in model.parameters()):
        raise ConfigError(
            "the model is sharded over ranks, and one file holds whole models; save it with "
            "torch.distributed.checkpoint, and private.state_dict() beside it."
        )
    if not private.writes:
        return
    parts = {
        "model": dict(model.state_dict()),
        "optimizer": None if optimizer is None else optimizer.state_dict(),
        "schedule": None if schedule is None else schedule.state_dict(),
        "private": private.state_dict(),
        "extra": extra,
    }
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(_flatten(parts, tensors), allow_nan=True)
    target = Path(path)
    try:
        storage.make_folder(target.parent)
        storage.replace(target, lambda scratch: save_file(tensors, scratch, metadata={"format": FORMAT, "tree": tree}))
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"the checkpoint cannot be written to {path}: {error}") from error


def load_checkpoint(
    path: str | Path,
    *,
    model: nn.Module,
    private: Session,
    optimizer: Stateful | None = None,
    schedule: Stateful | None = None,
) -> Restored:
    """Put a checkpoint's state back; nothing in it is run, and nothing is changed if it does not fit.

    What the ledger counts beyond the checkpoint stays spent (a crash came after it was saved).

    Args:
        path: of the file.
        model: into which weights are loaded.
        private: what `attach` returned; it goes on from the checkpoint.
        optimizer: whose state is put back, if it was saved.
        schedule: whose state is put back, if it was saved.
    """
    parts = _read(Path(path))
    own = model.state_dict()
    saved = parts["model"]
    if not isinstance(saved, dict) or set(saved) != set(own):
        raise ConfigError(f"{path} holds another model: its parameters have other names.")
    for name, tensor in saved.items():
        if not isinstance(tensor, Tensor) or (tensor.shape, tensor.dtype) != (own[name].shape, own[name].dtype):
            raise ConfigError(f"{path} holds another model: {name!r} has another shape or type.")
    for name, stateful in (("optimizer", optimizer), ("schedule", schedule)):
        if (stateful is None) != (parts[name] is None):
            raise ConfigError(
                f"{path} {'has no' if parts[name] is None else 'has an'} {name}; load it as it was saved."
            )
    state = parts["private"]
    if not isinstance(state, dict):
        raise ConfigError(f"{path} holds no private state.")
    private.check_state_dict(state)
    pairs = [
        (stateful, parts[name]) for name, stateful in (("optimizer", optimizer), ("schedule", schedule)) if stateful
    ]
    before = [copy.deepcopy(stateful.state_dict()) for stateful, _ in pairs]
    try:
        for stateful, saved_state in pairs:
            stateful.load_state_dict(saved_state)
    except Exception as error:
        for (stateful, _), old in zip(pairs, before, strict=True):
            stateful.load_state_dict(old)
        raise ConfigError(f"{path} does not fit the optimizer or schedule: {error}") from error
    model.load_state_dict(saved)
    private.load_state_dict(state)
    return Restored(parts["extra"], private.released - int(state["released"]))


def _read(path: Path) -> dict[str, Any]:
    try:
        if not storage.is_file(path):
            raise ConfigError(f"{path} is no checkpoint: there is no such file.")
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise ConfigError(f"{path} is no checkpoint that this version reads ({FORMAT}).")
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
        parts = _unflatten(parse_json(metadata["tree"]), tensors)
    except (
        OSError,
        SafetensorError,
        ValueError,
        KeyError,
        TypeError,
        RecursionError,
        MemoryError,
        RuntimeError,
    ) as error:
        if isinstance(error, ConfigError) and str(error).startswith(str(path)):
            raise
        raise ConfigError(f"{path} cannot be read as a checkpoint: {error}") from error
    if not isinstance(parts, dict) or set(parts) != {"model", "optimizer", "schedule", "private", "extra"}:
        raise ConfigError(f"{path} cannot be read as a checkpoint: parts of it are missing.")
    return parts


def _flatten(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Plain JSON, tensors put aside under numbers."""
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().clone().contiguous()
        return {"tensor": name}
    if isinstance(value, Mapping):
        return {"table": [[_flatten(k, tensors), _flatten(v, tensors)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_flatten(v, tensors) for v in value]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ConfigError(f"a checkpoint holds plain values and tensors, not {type(value).__name__}.")


def _unflatten(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        if isinstance(value, list):
            raise ValueError("a list where none can be")
        return value
    ((kind, inner),) = value.items()
    if kind == "tensor":
        return tensors[inner]
    if kind == "table":
        return {_unflatten(k, tensors): _unflatten(v, tensors) for k, v in inner}
    if kind in ("list", "tuple"):
        items = [_unflatten(v, tensors) for v in inner]
        return items if kind == "list" else tuple(items)
    raise ValueError(f"{kind!r} is not known")


__all__ = ["Restored", "load_checkpoint", "save_checkpoint"]
