"""Processes that train together over torch.distributed: one draw, one sum, one noise, one ledger.

Beside the sums, all that ranks tell each other goes through one call, `Ranks.exchange`: all of them take part, and each
says where it is. So a rank that is elsewhere, that was given something else, that refuses or that is gone is noticed by
the others at their next exchange, and none of them goes on; and sums only ever follow an exchange in which all agreed.

What stays on which rank: examples, their gradients and a rank's own sum. What all know: the draw (from a secret key
that rank 0 makes) and what was released. Only rank 0 has the ledger's file.
"""

import atexit
import hashlib
import json
import math
import os
import pickle
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed.distributed_c10d as dist
from torch import Tensor, nn

from discreet._check import check_positive
from discreet.errors import BudgetExhausted, ConfigError, PrivacyError
from discreet.release.batching import Draw

Group = dist.ProcessGroup | Literal[False] | None

_FRAME = 2048  # bytes that each rank says at once; what is longer takes a second round
_KINDS = {kind.__name__: kind for kind in (BudgetExhausted, ConfigError)}
_PRIVATE = {"number of examples", "state's attendance"}  # what an error does not show: it may be secret
_REMEDIES = {
    "weights": "build the model from the same torch.manual_seed on every rank, or call "
    "discreet.distributed.same_weights(model) before attaching",
    "parameters": "change them on all ranks alike, by the released gradients alone",
    "code": "start every rank from the same files and the same installed versions",
    "seed": "give every rank the same seed, or none",
    **dict.fromkeys(
        ("state's releases", "state's bound", "state's attendance"), "load the same checkpoint on every rank"
    ),
}


class Disagreement(PrivacyError):
    """Ranks that train together differ, or one of them stopped or is gone. Nothing was released that is not counted."""


class Ranks:
    """The processes that train together, seen from one of them; `None` for a process on its own.

    With `noise_shares` every rank adds Gaussian noise of its own with an equal share of the variance, so that none
    knows all of it; otherwise rank 0 draws the noise, or each rank that of its own shard.
    """

    def __init__(self, group: dist.ProcessGroup | None, *, noise_shares: bool = False, chosen: bool = False) -> None:
        self._group, self._control = group, None
        self.rank, self.size = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
        self.alone, self.first = self.size == 1, self.rank == 0  # the first is the rank that writes
        self.noise_shares = noise_shares and self.size > 1
        self._chosen = chosen  # whether the caller said that there are no others
        self._lost = ""
        self._known: BaseException | None = None  # the last error that all ranks know of
        if group is not None and self.size > 1:
            self._control = _beside(group)

    def check(self) -> None:
        """Raise if others have appeared since this was made."""
        if self._group is None and not self._chosen and dist.is_initialized() and dist.get_world_size() > 1:
            raise PrivacyError(
                "a process group appeared after attach, so each of its ranks would spend a budget of its own; call "
                "init_process_group first and then attach, or attach with group=False if this process is to be alone."
            )

    # --- talking -------------------------------------------------------------------------------------------------

    def exchange(self, place: str, said: Any = None) -> list[Any]:
        """What every rank says, in order, if all of them are at the same place and none has failed."""
        return [said] if self.alone else self._exchange(place, None, said)

    def report(self, error: BaseException) -> None:
        """Say that this rank goes no further, unless the others know: they raise where they are.

        Only to be called where the others are bound to come to an exchange.
        """
        if self.alone or self._lost or self._knows(error):
            return
        with suppress(PrivacyError, ConfigError):
            self._exchange("", (type(error).__name__, str(error)), None)
        self._known = error

    def _knows(self, error: BaseException | None) -> bool:
        """Whether the other ranks know of an error, or of what it came from."""
        while error is not None:
            if error is self._known:
                return True
            error = error.__cause__ or error.__context__
        return False

    def _exchange(self, place: str, failure: tuple[str, str] | None, said: Any) -> list[Any]:
        found = [pickle.loads(frame) for frame in self._gather(pickle.dumps((place, failure, said)))]
        for rank, (_, failed, _) in enumerate(found):
            if failed is not None and rank != self.rank:
                kind, words = failed
                raise self._all_know(_KINDS.get(kind, Disagreement)(f"rank {rank} stopped, and so all do: {words}"))
        places = [there for there, failed, _ in found if failed is None]
        if failure is None and len(set(places)) > 1:
            raise self.all_raise(f"ranks are not at the same place, so nothing was released: {_by_rank(places)}.")
        return [theirs for _, _, theirs in found]

    def all_raise(self, words: str) -> Exception:
        """The error that every rank raises where all of them have found the same."""
        return self._all_know(Disagreement(words))

    def _all_know(self, error: Exception) -> Exception:
        self._known = error
        return error

    def _gather(self, frame: bytes) -> list[bytes]:
        """Every rank's bytes."""
        if self._lost:
            raise Disagreement(self._lost)
        with self.watched("nothing of this step was released"):
            room = _FRAME - 8
            heads = self._gather_equal(len(frame).to_bytes(8, "little") + frame[:room].ljust(room, b"\0"))
            lengths = [int.from_bytes(head[:8], "little") for head in heads]
            rests, longest = [b""] * self.size, max(lengths) - room
            if longest > 0:
                rests = self._gather_equal(frame[room:].ljust(longest, b"\0"))
            return [(h[8:] + r)[:length] for h, r, length in zip(heads, rests, lengths, strict=True)]

    def _gather_equal(self, frame: bytes) -> list[bytes]:
        mine = torch.frombuffer(bytearray(frame), dtype=torch.uint8)
        found = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(found, mine, group=self._control)
        return [t.numpy().tobytes() for t in found]

    @contextmanager
    def watched(self, so: str) -> Generator[None]:
        """Make one clear error of whatever torch says when a rank is gone."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            self._lost = (
                f"rank {self.rank} of {self.size} lost the others: one of them died, or took longer than the process "
                f"group's timeout; {so}. Start all ranks again, as many as you like: what the ledger counts is spent "
                "and is not repeated."
            )
            raise Disagreement(self._lost) from error

    def agree(self, place: str, facts: Mapping[str, Any], said: Any = None) -> list[Any]:
        """Raise unless all ranks have the same facts; what else every rank says."""
        found = self.exchange(place, (dict(facts), said))
        for name in facts:
            values = [theirs.get(name) for theirs, _ in found]
            if any(value != values[0] for value in values):
                remedy = _REMEDIES.get(name, "give every rank the same")
                shown = "" if name in _PRIVATE else f" ({_by_rank(values)})"
                words = f"ranks differ in their {name}{shown}, so they would not train one model with one budget"
                raise self.all_raise(f"{words}; {remedy}. Nothing was released.")
        return [theirs for _, theirs in found]

    def lead(self, place: str, action: Callable[[], Any], tell: Callable[[Any], Any] = lambda result: result) -> Any:
        """Have rank 0 do something: its own result there, what it tells of it elsewhere. If it fails, all raise."""
        if self.alone:
            return action()
        if not self.first:
            return pickle.loads(self.exchange(place)[0])
        with self.reported():
            result = action()
            told = pickle.dumps(tell(result))
        self.exchange(place, told)
        return result

    def reported(self) -> AbstractContextManager[None]:
        """What fails in here on one rank fails on all."""
        return nullcontext() if self.alone else self._reported()

    @contextmanager
    def _reported(self) -> Generator[None]:
        try:
            yield
        except Exception as error:
            self.report(error)
            raise

    def leave(self) -> None:
        """Take no further part: this rank failed where the others wait for its sum, and must not send another one."""
        if self.alone or self._lost:
            return
        self._lost = (
            f"rank {self.rank} of {self.size} failed while a step was released, and left the others; the step is "
            "counted. Start all ranks again."
        )

    # --- working together ----------------------------------------------------------------------------------------

    @property
    def noise_part(self) -> float:
        """What part of the noise's standard deviation this rank draws: squares add up to 1 over the ranks."""
        if self.noise_shares:
            return 1 / math.sqrt(self.size)
        return 1.0 if self.first else 0.0

    def total(self, tensor: Tensor) -> Tensor:
        """The sum of all ranks' tensors, in place."""
        if not self.alone:
            with self.watched("the step is counted, and this rank has nothing of it"):
                dist.all_reduce(tensor, group=self._group_for(tensor))
        return tensor

    def scatter(self, tensor: Tensor) -> Tensor:
        """This rank's part of the sum of all ranks' tensors, which fall into as many equal parts as there are ranks."""
        if self.alone:
            return tensor
        part = tensor.new_empty(len(tensor) // self.size, *tensor.shape[1:])
        with self.watched("nothing of this step was released"):
            _reduce_scatter(part, tensor, group=self._group_for(tensor))
        return part

    def broadcast(self, tensor: Tensor) -> None:
        """Have rank 0's values everywhere, in place."""
        if not self.alone:
            with self.watched("nothing was released"):
                dist.broadcast(tensor, group_src=0, group=self._group_for(tensor))

    def _group_for(self, tensor: Tensor) -> "dist.ProcessGroup | None":
        assert self._group is not None
        served = any(device.type == tensor.device.type for device in self._group._device_types)
        return self._group if served else self._control


ALONE = Ranks(None)

_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # its older name


@cache
def _beside(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """A group of the same processes for what they say to each other, on any device and apart from the loop's own.

    A part of all processes that can do that itself does: torch numbers groups by how many a process has, which differs.
    """
    whole = group is dist.group.WORLD
    if not whole and torch.device("cpu") in group._device_types:
        return group
    timeout = group._get_backend(group._device_types[0]).options._timeout
    members = None if whole else dist.get_process_group_ranks(group)
    found = dist.new_group(members, timeout, backend="gloo", use_local_synchronization=not whole)
    assert isinstance(found, dist.ProcessGroup)
    return found


def find(group: Group = None, *, noise_shares: bool = False) -> Ranks:
    """The processes this one trains with: those of a group, of the default one (None), or nobody (False).

    Under torchrun the default group is begun, if the script has not done so.
    """
    if group is False:
        return Ranks(None, chosen=True)
    group = _default_group() if group is None else group
    if group is not None and not isinstance(group, dist.ProcessGroup):
        raise ConfigError(f"group is {group!r}; give a ProcessGroup this process belongs to, None or False.")
    return Ranks(group, noise_shares=noise_shares)


def _default_group() -> dist.ProcessGroup | None:
    launched = dist.is_torchelastic_launched() and int(os.environ["WORLD_SIZE"]) > 1
    if launched and not dist.is_initialized():
        dist.init_process_group(timeout=_patience())
        sys.excepthook = partial(said_in_a_line, sys.excepthook)
        atexit.register(dist.destroy_process_group)  # or gloo's threads now and then abort a process that ends
    return dist.group.WORLD if dist.is_initialized() else None


def _patience() -> timedelta | None:
    """How long ranks wait for each other: torch's usual time, or DISCREET_RANK_TIMEOUT seconds."""
    seconds = os.environ.get("DISCREET_RANK_TIMEOUT", "")
    if not seconds:
        return None
    try:
        return timedelta(seconds=check_positive("DISCREET_RANK_TIMEOUT", float(seconds)))
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"DISCREET_RANK_TIMEOUT is {seconds[:60]!r}; it must be seconds, as 600.") from error


def said_in_a_line(before: Callable[..., Any], kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """What a script under torchrun ends with: its rank and one line for an error of this library, with its exit code.

    Anything else goes to the hook that was there before. DISCREET_TRACEBACK=1 shows the traceback of both.
    """
    if not isinstance(error, (ConfigError, PrivacyError)) or bool(os.environ.get("DISCREET_TRACEBACK")):
        before(kind, error, trace)
        return
    sys.stderr.write(f"rank {os.environ.get('RANK', '?')}: {' '.join(str(error).split())}\n")
    sys.stderr.flush()
    raise SystemExit(error.exit_code)


def refuse(what: str) -> None:
    """Refuse what only works in a process on its own, where there are others."""
    group = _default_group()
    if group is not None and group.size() > 1:
        raise ConfigError(f"{what} works in one process, and there is a group of {group.size()}; start one.")


def same_weights(model: nn.Module, group: Group = None) -> None:
    """Give every rank rank 0's parameters and buffers, as a start.

    Args:
        model: its parameters and buffers are written to.
        group: the processes; all of them unless it is given, and this one alone for False.
    """
    ranks = find(group)
    for tensor in (*model.parameters(), *model.buffers()):
        if is_sharded(tensor):
            raise ConfigError("the model is sharded; give its ranks the same weights before fully_shard.")
        ranks.broadcast(tensor.detach())


class Shares:
    """How a draw from all data is split over ranks: evenly; or, given each rank's number of examples, by who has whom.

    Every example that was drawn is in exactly one share.
    """

    def __init__(self, rank: int, size: int, *lengths: int) -> None:
        self._rank, self.size = rank, size
        self.length = sum(lengths)
        self._starts = np.cumsum([0, *lengths]) if len(lengths) == size > 1 else None

    def split(self, indices: Draw, slots: Draw | None = None) -> tuple[Draw | slice, int]:
        """Which places of a draw are this rank's, and how many the rank has that has most.

        Units that share a slot stay together.
        """
        if self.size == 1:
            return slice(None), len(indices)
        if self._starts is not None:
            owners = np.searchsorted(self._starts, indices, side="right") - 1
        else:
            owners = (np.arange(len(indices)) if slots is None else slots) % self.size
        counts = np.bincount(owners, minlength=self.size)
        return (owners == self._rank).nonzero()[0], int(counts.max())

    def rows(self, indices: Draw) -> Draw:
        """Where this rank has the examples of its share."""
        return indices if self._starts is None else indices - self._starts[self._rank]


# --- what ranks must have in common ----------------------------------------------------------------------------------


def facts(model: nn.Module, plan: Any, **more: Any) -> dict[str, Any]:
    """What must be the same on all ranks before they begin."""
    tensors = [(n, t) for n, t in (*model.named_parameters(), *model.named_buffers()) if not is_sharded(t)]
    weights = hashlib.sha256()
    for name, tensor in tensors:
        weights.update(name.encode())
        weights.update(_octets(tensor.cpu()).numpy().data)
    shapes = [(n, tuple(p.shape), str(p.dtype), p.requires_grad) for n, p in model.named_parameters()]
    return {
        "code": _code() + _digest(_source(type(model).__module__)),
        "plan": _digest(json.dumps(plan.to_dict(), sort_keys=True).encode()),
        "model": _digest(repr(shapes).encode()),
        "weights": weights.hexdigest()[:12],
        **more,
    }


def fingerprint(parameters: Mapping[str, Tensor]) -> int:
    """A sum over the bits of parameters, which is soon made: ranks whose parameters differ have different ones."""
    sums: list[Tensor] = []
    for tensor in parameters.values():
        if not is_sharded(tensor):
            octets = _octets(tensor)
            whole = len(octets) // 8 * 8
            sums.append(octets[:whole].view(torch.int64).sum() + octets[whole:].sum())
    first = sums[0].device if sums else None
    totals = torch.stack([total.to(first) for total in sums]).tolist() if sums else []
    return hash(tuple(totals))


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is spread over ranks (a DTensor)."""
    return hasattr(tensor, "full_tensor")


def _octets(tensor: Tensor) -> Tensor:
    """A tensor's bytes, from a place where whole numbers can begin."""
    flat = tensor.detach().reshape(-1)
    return (flat.clone() if flat.data_ptr() % 8 else flat).view(torch.uint8)


def _digest(octets: bytes) -> str:
    return hashlib.sha256(octets).hexdigest()[:12]


@cache
def _code() -> str:
    """The version of what runs: this library's files, the packages below it, and the script."""
    found = [sys.version, *(version(name) for name in ("torch", "numpy"))]
    found += [_digest(path.read_bytes()) for path in sorted(Path(__file__).parents[1].rglob("*.py"))]
    return _digest(repr(found).encode() + _source("__main__"))


def _source(module: str) -> bytes:
    """The text of a module's file, if it has one."""
    path = getattr(sys.modules.get(module), "__file__", None)
    with suppress(OSError):
        return b"" if path is None else Path(path).read_bytes()
    return b""


def _by_rank(values: list[Any]) -> str:
    return ", ".join(f"rank {rank}: {value}" for rank, value in enumerate(values))
