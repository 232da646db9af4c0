"""What a step starts from, so that what its forward pass has changed is seen, and can be tested as it was."""

from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from discreet.release.preflight.model_state import Snapshot
from discreet.release.preflight.reachable import reachable

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class StepStart:
    """The trained parameters, the seed of torch's random numbers and, if it is asked for, all that can be reached.

    Args:
        model: whose forward passes these are.
    """

    def __init__(self, model: nn.Module) -> None:
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._bits: Tensor | None = None
        self._before: Snapshot | None = None
        self._roots: tuple[Mapping[str, Any], Sequence[Any]] = {}, ()
        self._changing: Collection[str] = ()
        self._seed: int | None = None

    def note(self, roots: Mapping[str, Any], without: Sequence[Any], *, changing: Collection[str]) -> bool:
        """A step starts. False if torch's random numbers have got another seed since the last forward pass.

        Args:
            roots: the model and what is beside it.
            without: what is no part of them.
            changing: the paths that forward passes are known to change. If there are any, all that can be reached is
                kept, but for large tensors that are none of them.
        """
        self._bits = _bits(self._trained)
        self._roots, self._changing = (roots, without), changing
        self._before = Snapshot(roots, without, changing) if changing else None
        return self._seed in (None, torch.initial_seed())

    def passed(self) -> set[str]:
        """A forward pass was made: the paths of the trained parameters to which it wrote."""
        self._seed = torch.initial_seed()
        # a device is waited for once; nothing was noted where nobody was drawn yet
        differ = [] if self._bits is None else (self._bits != _bits(self._trained)).tolist()
        if not any(differ):
            return set()
        each = zip(self._trained.items(), differ, strict=True)
        written = {id(p): f"model.{name}" for (name, p), differs in each if differs}
        found: dict[int, str] = {}
        for path, value in reachable(*self._roots):  # a list may lead to one sooner than its name
            if id(value) in written:
                found[id(value)] = path
                if len(found) == len(written):
                    break
        return {found.get(which, name) for which, name in written.items()}

    @contextmanager
    def again(self) -> Generator[None]:
        """Within, all is as it was when the step started, if that was kept; and so it stays after an error."""
        if self._before is None:
            yield
            return
        now = Snapshot(*self._roots, self._changing)
        self._before.restore()
        yield
        now.restore()


def _bits(parameters: Mapping[str, Tensor]) -> Tensor:
    """For each the sum of its bits as whole numbers: another one where anything was written, also past autograd.

    They are taken 64 at a time where they fit, which is many times faster than to widen each number.
    """
    sums = []
    for parameter in parameters.values():
        value = parameter.detach()
        value = torch.view_as_real(value) if value.is_complex() else value
        size = value.element_size()
        if value.is_contiguous() and not value.numel() * size % 8 and not value.storage_offset() * size % 8:
            sums.append(value.view(-1).view(torch.int64).sum())
        else:
            sums.append(value.view(_WORDS[size]).sum(dtype=torch.int64))
    devices = {s.device for s in sums}
    return torch.stack(sums if len(devices) == 1 else [s.cpu() for s in sums])


__all__ = ["StepStart"]
