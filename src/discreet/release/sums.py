"""The bounded sums of a logical batch, to which noise is added last, and the weights by which units are added."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Protocol

import torch
from torch import Tensor

from discreet.distributed.ranks import Ranks
from discreet.errors import ConfigError, PrivacyError
from discreet.gradients import UnitGradients
from discreet.gradients.forms import parts, sum_dtype
from discreet.stages.mechanism import Noise, NoiseMemory
from discreet.stages.noise.chacha import draws_there
from discreet.stages.noise.discrete import discrete_gaussian
from discreet.stages.noise.gaussian import Normal
from discreet.stages.noise.random import SecureStream
from discreet.stages.sensitivity import GRID, Contract, asked

Columns = Mapping[str, tuple[int, int]]


class Sums(Protocol):
    """What has been added up of a batch: units' gradients by weights, or contributions as rows."""

    def clear(self) -> None: ...
    def add_weighted(self, gradients: UnitGradients, weights: Mapping[str, Tensor]) -> None: ...
    def add_rows(self, rows: Tensor, columns: Columns) -> None: ...
    def noised(self, drawing: "Drawing") -> dict[str, Tensor]: ...


Total = Callable[[Tensor], Tensor]  # the sum over all ranks, in place


@dataclass(frozen=True)
class Drawing:
    """What noise is added to a sum, and what the noisy sum is multiplied by.

    Args:
        noise: its law.
        scales: how large it is on each tensor.
        source: of the random bits; without it another rank draws the noise.
        factor: what the noisy sum is multiplied by.
        total: adds up what all ranks have.
        memory: what the noise keeps from step to step, if anything.
    """

    noise: Noise
    scales: Mapping[str, float]
    source: SecureStream | None
    factor: float = 1.0
    total: Total | None = None
    memory: NoiseMemory | None = None


PIECE = 1 << 20  # values that are noised at a time on the CPU: in the cache
_PIECE_ELSEWHERE = 1 << 24


class FloatSums:
    """Sums in floating point: one flat buffer a dtype and device, and each tensor's view of it.

    `like` has a tensor of the same shape, dtype and device for everything that is summed. The buffers are there from
    the first addition to the release, which hands them out: a backward pass has the memory for itself.
    """

    def __init__(self, like: Mapping[str, Tensor]) -> None:
        self._sizes = {name: t.numel() for name, t in like.items()}
        self._groups: dict[tuple[torch.device, torch.dtype], list[str]] = {}
        for name, t in like.items():
            dtype = torch.float64 if t.dtype == torch.float64 else torch.float32
            self._groups.setdefault((t.device, dtype), []).append(name)
        self._totals = {key: sum(self._sizes[n] for n in names) for key, names in self._groups.items()}
        self._places: dict[
            str, tuple[Sequence[int], Sequence[int], int]
        ] = {}  # in the flat buffer: shape, strides, start
        for names in self._groups.values():
            starts = accumulate((self._sizes[n] for n in names), initial=0)
            for name, start in zip(names, starts, strict=False):
                contiguous = torch.empty(like[name].shape, device="meta").stride()
                self._places[name] = tuple(like[name].shape), contiguous, start
        largest = min(PIECE, sum(self._sizes.values()))
        self._room = {dtype: torch.empty(largest, dtype=dtype, device="cpu") for _, dtype in self._groups}
        # the scales of the last release, and the parts of each buffer that have one scale
        self._scales: Mapping[str, float] = {}
        self._runs: dict[tuple[torch.device, torch.dtype], list[tuple[int, int, float]]] = {}
        self._views: dict[str, Tensor] = {}
        self._flats: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def _open(self) -> dict[str, Tensor]:
        """Each tensor's view; zero, if nothing was added before."""
        if not self._views:
            for (device, dtype), names in self._groups.items():
                flat = torch.zeros(self._totals[device, dtype], dtype=dtype, device=device)
                self._flats[device, dtype] = flat
                for name in names:
                    self._views[name] = flat.as_strided(*self._places[name])
        return self._views

    @property
    def empty(self) -> bool:
        """Whether nothing has been added."""
        return not self._views

    def clear(self) -> None:
        self._views, self._flats = {}, {}

    def add_weighted(self, gradients: UnitGradients, weights: Mapping[str, Tensor]) -> None:
        """Add the sum over units of weight * gradient."""
        gradients.add_weighted(weights, self._open())

    def add_rows(self, rows: Tensor, columns: Columns) -> None:
        """Add contributions, one a row; `columns` are those of each tensor."""
        self.add({name: rows[:, start:stop].sum(0) for name, (start, stop) in columns.items()})

    def add(self, totals: Mapping[str, Tensor]) -> None:
        """Add what was summed already."""
        views = self._open()
        for name, total in totals.items():
            view = views[name]
            view.add_(total.reshape(view.shape))

    def noised(self, drawing: Drawing) -> dict[str, Tensor]:
        """(Sum + noise) * factor for each tensor, and the sums are cleared.

        The noise is drawn piece by piece: independent normal noise where the sums are, any other on the CPU.
        """
        views, flats, scales, total = self._open(), self._flats, drawing.scales, drawing.total
        self.clear()
        if self._scales is not scales:
            self._scales = scales
            self._runs = {key: list(self._scale_runs(names, scales)) for key, names in self._groups.items()}
        for key, flat in flats.items():
            if drawing.source is not None:
                self._add_noise(key, flat, drawing, drawing.source)
            (flat if total is None else total(flat)).mul_(drawing.factor)
        return views

    def _add_noise(
        self, key: tuple[torch.device, torch.dtype], flat: Tensor, drawing: Drawing, source: SecureStream
    ) -> None:
        noise, memory = drawing.noise, drawing.memory
        size = PIECE if flat.is_cpu else _PIECE_ELSEWHERE
        # independent normal noise of the library's own fills what it is given, and is made where it is added
        direct = memory is None and type(noise).sample is Normal.sample and (flat.is_cpu or draws_there(flat.device))
        for start, stop, scale in self._runs[key]:
            for first in range(start, stop, size):
                count = min(size, stop - first)
                room = self._room[flat.dtype] if flat.is_cpu or not direct else flat.new_empty(count)
                if count != room.numel():
                    room = room[:count] if count < room.numel() else room.new_empty(count)
                if direct:
                    drawn = source.fill_normal(room, scale)
                elif memory is None:
                    drawn = self._drawn(noise, room, scale, source).to(flat.device)
                else:
                    drawn = self._drawn(noise, room, 1.0, source)
                    memory.filter(drawn, (id(self), *key), first)
                    drawn = drawn.mul_(scale).to(flat.device)
                piece = flat if count == flat.numel() else flat[first : first + count]
                piece.add_(drawn)

    @staticmethod
    def _drawn(noise: Noise, drawn: Tensor, scale: float, source: SecureStream) -> Tensor:
        noise.sample(drawn.fill_(torch.nan), scale, source)
        if math.isnan(torch.dot(drawn, drawn).item()):  # so if there is a nan, and only then: no square is below 0
            raise PrivacyError(f"{noise!r} did not fill what it was to fill with noise; nothing was released.")
        return drawn

    def _scale_runs(self, names: list[str], scales: Mapping[str, float]) -> Iterator[tuple[int, int, float]]:
        """Parts of the flat buffer with one scale each."""
        start = 0
        for scale, same in groupby(names, key=scales.__getitem__):
            end = start + sum(self._sizes[n] for n in same)
            yield start, end, scale
            start = end


class ShardedSums:
    """Sums of which every rank has its own part, as FSDP2 shards parameters: by rows, as many to each rank, the last
    ones fewer. All ranks add together, one parameter at a time: a rank has the whole of one parameter's sum, of its own
    units, and then its part of all ranks' sum.

    `like` are the whole parameters, of which only the shapes are read; `shards` this rank's parts of them. `answers`,
    which every rank has, are to what the bound asks.
    """

    def __init__(
        self, like: Mapping[str, Tensor], shards: Mapping[str, Tensor], answers: Mapping[str, Tensor], ranks: Ranks
    ) -> None:
        self._like, self._shards, self._ranks = like, shards, ranks
        self._parts = FloatSums(shards)
        self._answers = FloatSums(answers)

    def clear(self) -> None:
        self._parts.clear()
        self._answers.clear()

    def add_weighted(self, gradients: UnitGradients, weights: Mapping[str, Tensor]) -> None:
        """Add the sum over all ranks' units of weight * gradient; to be called by all ranks alike."""
        self._add(gradients, weights)

    def add_nothing(self) -> None:
        """Take part without a unit."""
        self._add(None, {})

    def _add(self, gradients: UnitGradients | None, weights: Mapping[str, Tensor]) -> None:
        self._ranks.exchange("adding up")
        for name, whole in self._like.items():
            shard, rows = self._shards[name], -(-len(whole) // self._ranks.size)
            mine = shard.new_zeros(self._ranks.size * rows, *whole.shape[1:], dtype=sum_dtype(whole.dtype))
            if gradients is not None:
                gradients.add_one(name, weights[name], mine[: len(whole)])
            self._parts.add({name: self._ranks.scatter(mine)[: len(shard)]})

    def add(self, totals: Mapping[str, Tensor]) -> None:
        """Add this rank's units' answers."""
        self._answers.add(totals)

    def add_rows(self, rows: Tensor, columns: Columns) -> None:
        """Contributions as rows take whole sums."""
        raise PrivacyError("a bound on elements needs whole sums, and these are sharded. Nothing was released.")

    def noised(self, drawing: Drawing) -> dict[str, Tensor]:
        """(Sum + noise) * factor, of this rank's parts, and of all answers; each rank draws its own parts' noise."""
        shards = self._parts.noised(replace(drawing, total=None))
        first = drawing.source if self._ranks.first else None
        return shards | self._answers.noised(replace(drawing, source=first))


class WholeSums:
    """Sums as whole numbers of a grid's steps, one grid a block: what is added and released is exact."""

    def __init__(self, like: Mapping[str, Tensor], contract: Contract) -> None:
        self._like, self.blocks = like, contract.blocks
        self._sums: dict[str, Tensor] = {}

    def clear(self) -> None:
        self._sums.clear()

    def add_weighted(self, gradients: UnitGradients, weights: Mapping[str, Tensor]) -> None:
        """Round each unit's contribution to the grid and add it, a few units at a time."""
        size = 8 * sum(self._like[n].numel() for n in gradients.forms)
        for start, stop in parts(gradients.units, size):
            each = gradients.each(start, stop)
            rows = {n: g.reshape(stop - start, -1).double() for n, g in each.items()}
            self._add({n: g * weights[n][start:stop, None].double() for n, g in rows.items()})

    def add_rows(self, rows: Tensor, columns: Columns) -> None:
        """Round contributions, one a row, to the grid and add them; `columns` are those of each tensor."""
        self._add({name: rows[:, start:stop].double() for name, (start, stop) in columns.items()})

    def _add(self, contributions: Mapping[str, Tensor]) -> None:
        for block in self.blocks:
            step = block.norm * GRID
            whole_numbers = {n: (contributions[n] / step).round() for n in block.members if n in contributions}
            if not whole_numbers:
                continue
            # in whole numbers, below 2^53 and so exact: no contribution is longer than the contract says
            length = torch.stack([k.square().sum(1).cpu() for k in whole_numbers.values()]).sum(0)
            fits = length <= ((1 + GRID * math.sqrt(block.size) / 2) / GRID) ** 2
            for n, k in whole_numbers.items():
                total = torch.where(fits.to(k.device)[:, None], k, 0.0).to(torch.int64).sum(0)
                known = self._sums.setdefault(n, torch.zeros_like(total))
                known += total

    def noised(self, drawing: Drawing) -> dict[str, Tensor]:
        """(Sum + discrete Gaussian noise) * factor for each tensor, in float64, and the sums are cleared.

        Noise that has a `memory` is not made of whole numbers.
        """
        source, total = drawing.source, drawing.total
        if drawing.memory is not None:
            raise PrivacyError(f"{drawing.noise!r} cannot be drawn exactly, in whole numbers. Nothing was released.")
        steps = {name: block.norm * GRID for block in self.blocks for name in block.members}
        noisy: dict[str, Tensor] = {}
        for name, step in steps.items():
            size = self._like[name].numel()
            if source is None:
                noisy[name] = torch.zeros(size, dtype=torch.int64)
            else:
                noisy[name] = torch.from_numpy(discrete_gaussian(size, drawing.scales[name] / step, source))
            if name in self._sums:
                noisy[name] += self._sums[name].cpu()
        if total is not None:
            sizes = [len(t) for t in noisy.values()]
            noisy = dict(zip(noisy, total(torch.cat(list(noisy.values()))).split(sizes), strict=True))
        self.clear()
        return {
            name: (t.double() * steps[name])
            .mul_(drawing.factor)
            .view(self._like[name].shape)
            .to(self._like[name].device)
            for name, t in noisy.items()
        }


def float_sums(
    parameters: Mapping[str, Tensor], contract: Contract, shards: Mapping[str, Tensor] | None, ranks: Ranks
) -> tuple[Sums, list[str]]:
    """Where bounded sums are kept: of the gradients, and of what the bound asks beside them, with the names of that."""
    first = next(iter(parameters.values()))
    more: dict[str, Tensor] = {}
    for block in asked(contract):
        size, rest = divmod(block.size, len(block.members))
        if rest:
            raise ConfigError(f"a question of size {block.size} has {len(block.members)} members of unequal size.")
        more.update({name: first.new_zeros(size) for name in block.members})
    if shards is not None:
        return ShardedSums(parameters, shards, more, ranks), list(more)
    return FloatSums({name: t.detach() for name, t in (dict(parameters) | more).items()}), list(more)


# --- weights: what each unit's gradient is multiplied by, and the lengths that this is decided by ---------------------


def total(norms: Mapping[str, Tensor]) -> Tensor:
    """Each unit's squared norm over all parameters."""
    each = list(norms.values())
    try:
        return torch.stack(each).sum(0)
    except RuntimeError:  # on several devices, or of several types
        return torch.stack([n.to(each[0].device, torch.float64) for n in each]).sum(0)


def each_once(weights: Mapping[str, Tensor], change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """Weights changed, those that several parameters share only once."""
    changed: dict[int, Tensor] = {}
    each: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if id(weight) not in changed:
            changed[id(weight)] = change(weight)
        each[name] = changed[id(weight)]
    return each


def without_nan(weights: Tensor) -> Tensor:
    """Weights with 0 in place of what is not finite."""
    return weights.nan_to_num(0.0, 0.0, 0.0)


def joined(weights: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The weights of some units and those of others, one after the other; what parameters share, they share still."""
    found: dict[tuple[int, ...], Tensor] = {}
    names: dict[str, Tensor] = {}
    for name in weights[0]:
        pieces = [some[name] for some in weights]
        key = tuple(map(id, pieces))
        if key not in found:
            found[key] = torch.cat(pieces)
        names[name] = found[key]
    return names
