"""Whether a member is sound, by brute force: autograd, one loss at a time, with and without one row.

Two sides train on neighbouring data: the same rows in every batch, but one that the second side never has. Weights are
the same on both sides at every step (the first side's), and so is all randomness, row by row. What the library promises
is that the sums of clipped gradients then differ by at most the bound C.
"""

import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.data import default_collate

from zoo.cases import Case, Member

ROWS, STEPS = 7, 12
VICTIMS = (0, 1, 5)  # two that are far from the others, one that is not


@dataclass(frozen=True)
class Truth:
    """What two sides showed: the largest movement of the sum in units of C, and at which step; buffers that
    differed after some step; how far one backward pass of all losses is from one of each, relative to it."""

    movement: float
    step: int
    leaks: tuple[str, ...]
    interplay: float

    @property
    def mixes(self) -> bool:
        return self.movement > 1 + 1e-3 or bool(self.leaks) or self.interplay > 0.03

    def sound(self, *, double: bool) -> bool:
        """In short formats a sum is rounded in other ways than its parts."""
        movement, interplay = (1e-5, 1e-9) if double else (1e-4, 0.02)
        return self.movement <= 1 + movement and not self.leaks and self.interplay <= interplay


def find(member: Member, *, seed: int = 0, steps: int = STEPS, victims: tuple[int, ...] = VICTIMS) -> Truth:
    """The worst that was seen for some rows; one that mixes needs to be seen to do so for one, and is left then."""
    found = []
    for victim in victims:
        found.append(compare(member, victim, seed=seed, steps=steps, until_seen=not member.sound))
        if not member.sound and found[-1].mixes:
            return found[-1]
    worst = max(found, key=lambda t: t.movement)
    leaks = tuple(sorted({name for t in found for name in t.leaks}))
    return Truth(worst.movement, worst.step, leaks, max(t.interplay for t in found))


def compare(member: Member, victim: int, *, seed: int = 0, steps: int = STEPS, until_seen: bool = False) -> Truth:
    """Train with and without one row; `until_seen` ends where the two sides have shown that rows are mixed."""
    one, other = (_Side(member, seed) for _ in range(2))
    noise = torch.Generator().manual_seed(seed)
    bounds: Tensor | None = None
    truth = Truth(0.0, 0, (), 0.0)
    for step in range(steps):
        rest = (torch.randperm(one.length - 1, generator=noise)[: ROWS - 1] + victim + 1) % one.length
        there = step % 3 != 2  # in two steps of three; in the third, only what was kept can tell
        if there:
            place = step % ROWS
            rows = [*rest[:place].tolist(), victim, *rest[place:].tolist()]
        else:
            rows = rest.tolist()
        each, gap = one.gradients(rows, step)
        without, _ = other.gradients(rest.tolist(), step)
        if bounds is None:  # below all norms, in their middle, and above them
            sizes = each.norm(dim=1)
            bounds = torch.stack([sizes.min() / 2, sizes.median(), 2 * sizes.max()]).clamp(
                min=max(1e-6, 1e-3 * float(sizes.max()))
            )
        moved = torch.stack([(_clipped(each, c) - _clipped(without, c)).norm() / c for c in bounds])
        if not bool(moved.isfinite().all()):
            raise FloatingPointError(f"{member.name}: gradients that are not finite at step {step}")
        if float(moved.max()) > truth.movement:
            truth = replace(truth, movement=float(moved.max()), step=step)
        leaks = tuple(sorted({*truth.leaks, *_leaks(one, other)}))
        truth = replace(truth, leaks=leaks, interplay=max(truth.interplay, gap))
        if until_seen and truth.mixes:
            break
        one.update(_clipped(each, bounds[1]) / bounds[1] / ROWS, noise)
        other.follow(one)
    return truth


def _clipped(each: Tensor, bound: Tensor) -> Tensor:
    return (each * (bound / each.norm(dim=1, keepdim=True).clamp(min=1e-300)).clamp(max=1)).sum(0)


class _Side:
    """One side: a fresh case, which has never seen the other's rows."""

    def __init__(self, member: Member, seed: int) -> None:
        torch.manual_seed(seed)
        self.case: Case = member.make(**member.often)
        if self.case.double:
            self.case.model.double()
        self.parameters = [p for p in self.case.model.parameters() if p.requires_grad]
        data = self.case.data
        self.length = len(data[0]) if isinstance(data, tuple) else len(data)

    def batch(self, rows: list[int]) -> Any:
        data, collate = self.case.data, self.case.collate_fn
        if isinstance(data, tuple) and collate is None:
            found: Any = tuple(t[rows] for t in data)
        else:
            some = [tuple(t[i] for t in data) for i in rows] if isinstance(data, tuple) else [data[i] for i in rows]
            found = (collate or default_collate)(some)
        if not self.case.double:
            return found
        return tree_map(lambda t: t.double() if isinstance(t, Tensor) and t.is_floating_point() else t, found)

    def gradients(self, rows: list[int], step: int) -> tuple[Tensor, float]:
        """Each row's gradient from a forward pass on all of them; and what one backward pass of all adds to their sum,
        relative to it."""
        random.seed(step)
        np.random.seed(step)
        torch.manual_seed(step)
        with RowByRow(rows, step):
            batch = self.batch(rows)
            if self.case.look is not None:
                self.case.look(batch)
            losses = self.case.losses(self.case.model, batch)
        if losses.shape != (len(rows),):
            raise AssertionError(f"losses of shape {tuple(losses.shape)} for {len(rows)} rows")
        each = torch.stack([self._flat(loss) for loss in losses])
        together = self._flat(losses.sum())
        size = each.norm(dim=1).sum().clamp(min=1e-300)
        return each, float((together - each.sum(0)).norm() / size)

    def _flat(self, loss: Tensor) -> Tensor:
        if not loss.requires_grad:
            return torch.cat([torch.zeros(p.numel(), dtype=torch.float64) for p in self.parameters])
        found = torch.autograd.grad(loss, self.parameters, retain_graph=True, allow_unused=True)
        pairs = zip(self.parameters, found, strict=True)
        return torch.cat([torch.zeros_like(p).flatten() if g is None else g.flatten() for p, g in pairs]).double()

    @torch.no_grad()
    def update(self, direction: Tensor, noise: torch.Generator) -> None:
        parts = direction.split([p.numel() for p in self.parameters])
        for p, part in zip(self.parameters, parts, strict=True):
            p -= (0.1 * part + 0.02 * torch.randn(part.shape, generator=noise)).view_as(p).to(p.dtype)
        self._stepped()

    @torch.no_grad()
    def follow(self, leader: "_Side") -> None:
        for p, q in zip(self.parameters, leader.parameters, strict=True):
            p.copy_(q)
        self._stepped()

    def _stepped(self) -> None:
        if self.case.after_step is not None:
            self.case.after_step(self.case.model)


def _leaks(one: _Side, other: _Side) -> list[str]:
    """What a checkpoint holds that is not trained, and differs."""
    trained = {name for name, p in one.case.model.named_parameters() if p.requires_grad}
    mine, theirs = one.case.model.state_dict(), other.case.model.state_dict()
    names = [name for name in sorted({*mine, *theirs} - trained) if isinstance(mine.get(name), Tensor)]
    return [
        name
        for name in names
        if name not in theirs
        or mine[name].shape != theirs[name].shape
        or not torch.allclose(mine[name].double(), theirs[name].double(), rtol=1e-5, atol=1e-7, equal_nan=True)
    ]


class RowByRow(TorchDispatchMode):
    """Random ops give each row numbers of its own, whoever else is in the batch; what has no rows gets the batch's."""

    def __init__(self, keys: list[int], step: int) -> None:
        super().__init__()
        self._keys, self._step, self._calls = keys, step, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        self._calls += 1
        self._seed(0)
        saved = args[0].detach().clone() if isinstance(args[0], Tensor) and func._schema.is_mutable else None
        whole = func(*args, **kwargs)
        rows = len(self._keys)
        found = None if "randperm" in func.name() else _place(whole, rows)
        if found is None:
            return whole
        dimension, width = found
        parts = []
        for i, key in enumerate(self._keys):
            self._seed(key + 1)
            mine = tree_map(lambda v, i=i: _part(v, whole, dimension, i * width, width), list(args), is_leaf=_is_size)
            if saved is not None:
                mine[0] = saved.narrow(dimension, i * width, width).clone()
            parts.append(func(*mine, **kwargs))
        return whole.copy_(torch.cat(parts, dimension))

    def _seed(self, key: int) -> None:
        torch.manual_seed(1_000_003 * self._step + 1_009 * self._calls + 7 * key)


def _place(value: Any, rows: int) -> tuple[int, int] | None:
    """Along which dimension rows lie in a tensor, and how many places each has."""
    if not isinstance(value, Tensor):
        return None
    for dimension, size in enumerate(value.shape):
        if size == rows:
            return dimension, 1
    if value.dim() and value.shape[0] and value.shape[0] % rows == 0:
        return 0, value.shape[0] // rows
    return None


def _is_size(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(v, int) for v in value)


def _part(value: Any, whole: Tensor, dimension: int, start: int, width: int) -> Any:
    """One row's part of an argument: of a tensor with rows where the result has them, or of the result's size."""
    if isinstance(value, Tensor) and value.dim() > dimension and value.shape[dimension] == whole.shape[dimension]:
        return value.narrow(dimension, start, width)
    if _is_size(value) and tuple(value) == tuple(whole.shape):
        return [width if d == dimension else size for d, size in enumerate(value)]
    return value
