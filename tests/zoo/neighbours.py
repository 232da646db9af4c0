"""Neighbouring runs through the library: the same rows, weights and random numbers, with and without one row.

What is compared is what the library releases; the noise is the same on both sides, and so it is gone in the difference.
"""

import random
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from discreet import Clip, Gaussian, Mechanism, Plan, Poisson, attach
from zoo.cases import Member
from zoo.oracle import ROWS, RowByRow

STEPS = 5
VICTIMS = (0, 1, 5)  # two that are far from the others, one that is not
BOUNDS = (1e-2, 1.0)  # below most norms, and above many


@dataclass(frozen=True)
class Scripted(Poisson):
    """Draws what it is told to."""

    script: tuple[tuple[int, ...], ...] = ()

    def draw(self, length: int, step: int, *rest: Any) -> np.ndarray[Any, Any]:
        return np.asarray(self.script[step], dtype=np.int64)


class _Side:
    def __init__(self, member: Member, script: list[list[int]], bound: float, *, double: bool, probes: bool) -> None:
        torch.manual_seed(0)
        self.case = member.make()
        self.model: nn.Module = self.case.model.double() if double else self.case.model
        self.data, self.collate = _cast(self.case.data, self.case.collate_fn, double=double)
        length = len(self.data[0]) if isinstance(self.data, tuple) else len(self.data)
        self.script, self.probes = script, probes
        sampling = Scripted(examples=length, batch_size=ROWS, script=tuple(map(tuple, script)))
        mechanism = Mechanism(Clip(bound), Gaussian(1e-3))
        plan = Plan(sampling=sampling, mechanism=mechanism, steps=len(script), delta=1e-5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.private = attach(self.model, plan, seed=1, preflight=probes)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.batches = self.private.batches(self.data, collate_fn=self.collate)

    def release(self, step: int) -> Tensor:
        """One step: the released sum."""
        random.seed(step)
        np.random.seed(step)
        torch.manual_seed(step)
        batch = next(self.batches)
        if self.case.look is not None:
            self.case.look(batch)

        def loss_fn(batch: Any) -> Tensor:  # probes use batches of other rows
            with nullcontext() if self.probes else RowByRow(self.script[step], step):
                return self.case.losses(self.model, batch)

        self.private.backward(loss_fn, batch)
        return torch.cat([p.grad.flatten().double() for p in self.parameters if p.grad is not None]) * ROWS

    @torch.no_grad()
    def follow(self, weights: list[Tensor]) -> None:
        for p, w in zip(self.parameters, weights, strict=True):
            p.copy_(w)
        if self.case.after_step is not None:
            self.case.after_step(self.model)


def movement(member: Member, victim: int, bound: float, *, double: bool, probes: bool, steps: int = STEPS) -> float:
    """How far one row moves the released sum at most, in units of the bound."""
    generator = torch.Generator().manual_seed(victim)
    torch.manual_seed(0)
    data = member.make().data
    length = len(data[0]) if isinstance(data, tuple) else len(data)
    without, script = [], []
    for step in range(steps):
        rest = ((torch.randperm(length - 1, generator=generator)[: ROWS - 1] + victim + 1) % length).tolist()
        without.append(rest)
        script.append([*rest[: step % ROWS], victim, *rest[step % ROWS :]] if step % 3 != 2 else rest)
    worst = 0.0
    one, other = (_Side(member, s, bound, double=double, probes=probes) for s in (script, without))
    for step in range(steps):
        moved = one.release(step) - other.release(step)
        worst = max(worst, float(moved.norm()) / bound)
        weights = [
            p.detach() - 0.1 * p.grad.to(p.dtype) / bound if p.grad is not None else p.detach().clone()
            for p in one.parameters
        ]
        one.follow(weights)
        other.follow(weights)
    one.private.detach()
    other.private.detach()
    return worst


def _cast(data: Any, collate: Any, *, double: bool) -> tuple[Any, Any]:
    """The data in float64, where that is asked for."""
    if not double:
        return data, collate
    if isinstance(data, tuple) and all(isinstance(t, Tensor) for t in data):
        return tuple(_double(t) for t in data), collate
    make = collate or torch.utils.data.default_collate
    return data, lambda rows: torch.utils._pytree.tree_map(_double, make(rows))


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
