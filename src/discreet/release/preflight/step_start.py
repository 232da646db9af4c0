"""What a step starts from, so that what its forward pass has changed is seen, and can be tested as it was."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from discreet.release.preflight.model_state import Snapshot

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
        self._seed: int | None = None

    def note(self, roots: Mapping[str, Any], without: Sequence[Any], *, whole: bool) -> bool:
        """A step starts. False if torch's random numbers have got another seed since the last forward pass.

        Args:
            roots: the model and what is beside it.
            without: what is no part of them.
            whole: whether all that can be reached is kept, as forward passes are known to change some of it.
        """
        self._bits = _bits(self._trained)
        self._roots, self._before = (roots, without), Snapshot(roots, without) if whole else None
        return self._seed in (None, torch.initial_seed())

    def passed(self) -> set[str]:
        """A forward pass was made: the paths of the trained parameters to which it wrote."""
        self._seed = torch.initial_seed()
        if self._bits is None:  # no start was noted
            return set()
        before, now = torch.stack((self._bits, _bits(self._trained))).tolist()  # together: a device is waited for once
        return {f"model.{name}" for name, a, b in zip(self._trained, before, now, strict=True) if a != b}

    @contextmanager
    def again(self) -> Generator[None]:
        """Within, all is as it was when the step started, if that was kept; and so it stays after an error."""
        if self._before is None:
            yield
            return
        now = Snapshot(*self._roots)
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
