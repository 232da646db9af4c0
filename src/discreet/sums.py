"""The bounded sums of a logical batch, to which noise is added last."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Protocol

import torch
from torch import Tensor

from discreet.contracts import GRID, Contract
from discreet.errors import PrivacyError
from discreet.gradients.engine import UnitGradients
from discreet.gradients.uses import parts
from discreet.mechanism import Noise
from discreet.noise.discrete import discrete_gaussian
from discreet.noise.source import Source

Columns = Mapping[str, tuple[int, int]]


class Sums(Protocol):
    """What has been added up of a batch: units' gradients by weights, or contributions as rows."""

    def clear(self) -> None: ...
    def add_weighted(self, gradients: UnitGradients, weights: Mapping[str, Tensor]) -> None: ...
    def add_rows(self, rows: Tensor, columns: Columns) -> None: ...
    def release(
        self,
        noise: Noise,
        scales: Mapping[str, float],
        source: Source | None,
        factor: float = 1.0,
        total: "Total | None" = None,
    ) -> dict[str, Tensor]: ...


Total = Callable[[Tensor], Tensor]  # the sum over all ranks


class FloatSums:
    """Sums in floating point: one flat buffer a dtype and device, and each tensor's view of it.

    `like` has a tensor of the same shape, dtype and device for everything that is summed.
    """

    def __init__(self, like: Mapping[str, Tensor]) -> None:
        self._sizes = {name: t.numel() for name, t in like.items()}
        self._groups: dict[tuple[torch.device, torch.dtype], list[str]] = {}
        for name, t in like.items():
            dtype = torch.float64 if t.dtype == torch.float64 else torch.float32
            self._groups.setdefault((t.device, dtype), []).append(name)
        self._places: dict[
            str, tuple[Sequence[int], Sequence[int], int]
        ] = {}  # in the flat buffer: shape, strides, start
        self._views: dict[str, Tensor] = {}
        self._flats: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        for (device, dtype), names in self._groups.items():
            starts = [0, *accumulate(self._sizes[n] for n in names)]
            for name, start in zip(names, starts, strict=False):
                contiguous = torch.empty(like[name].shape, device="meta").stride()
                self._places[name] = tuple(like[name].shape), contiguous, start
            flat = torch.zeros(starts[-1], dtype=dtype, device=device)
            self._flats[device, dtype] = flat
            self._views.update(self._split(flat, names))
        self._used = False

    def _split(self, flat: Tensor, names: list[str]) -> dict[str, Tensor]:
        return {n: flat.as_strided(*self._places[n]) for n in names}

    def clear(self) -> None:
        if self._used:
            self._used = False
            for flat in self._flats.values():
                flat.zero_()

    def add_weighted(self, gradients: UnitGradients, weights: Mapping[str, Tensor]) -> None:
        """Add the sum over units of weight * gradient."""
        self._used = True
        gradients.add_weighted(weights, self._views)

    def add_rows(self, rows: Tensor, columns: Columns) -> None:
        """Add contributions, one a row; `columns` are those of each tensor."""
        self.add({name: rows[:, start:stop].sum(0) for name, (start, stop) in columns.items()})

    def add(self, totals: Mapping[str, Tensor]) -> None:
        """Add what was summed already."""
        self._used = True
        for name, total in totals.items():
            view = self._views[name]
            view.add_(total.reshape(view.shape))

    def release(
        self,
        noise: Noise,
        scales: Mapping[str, float],
        source: Source | None,
        factor: float = 1.0,
        total: Total | None = None,
    ) -> dict[str, Tensor]:
        """(Sum + noise) * factor for each tensor, and the sums are cleared.

        The noise is drawn on the CPU, whatever the device. Without a `source` another rank draws it, and `total` adds
        up what all ranks have.
        """
        found: dict[str, Tensor] = {}
        for key, names in self._groups.items():
            flat = self._flats[key]
            noisy = flat.clone() if source is None else self._drawn(key, noise, scales, source).add_(flat)
            noisy = noisy if total is None else total(noisy)
            found.update(self._split(noisy if factor == 1 else noisy.mul_(factor), names))
        self.clear()
        return found

    def _drawn(
        self, key: tuple[torch.device, torch.dtype], noise: Noise, scales: Mapping[str, float], source: Source
    ) -> Tensor:
        device, dtype = key
        drawn = torch.full(self._flats[key].shape, torch.nan, dtype=dtype)
        for start, stop, scale in self._stretches(self._groups[key], scales):
            noise.sample(drawn[start:stop], scale, source)
        if math.isnan(torch.dot(drawn, drawn).item()):  # so if there is a nan, and only then: no square is below 0
            raise PrivacyError(f"{noise!r} did not fill what it was to fill with noise; nothing was released.")
        return drawn.to(device)

    def _stretches(self, names: list[str], scales: Mapping[str, float]) -> Iterator[tuple[int, int, float]]:
        """Stretches of the flat buffer with one scale each."""
        start = 0
        for scale, same in groupby(names, key=scales.__getitem__):
            end = start + sum(self._sizes[n] for n in same)
            yield start, end, scale
            start = end


class WholeSums:
    """Sums as whole numbers of a grid's steps, one grid a block: what is added and released is exact."""

    def __init__(self, like: Mapping[str, Tensor], contract: Contract) -> None:
        self._like, self.blocks = like, contract.blocks
        self._sums: dict[str, Tensor] = {}

    def clear(self) -> None:
        self._sums.clear()

    def add_weighted(self, gradients: UnitGradients, weights: Mapping[str, Tensor]) -> None:
        """Round each unit's contribution to the grid and add it, a few units at a time."""
        size = 8 * sum(self._like[n].numel() for n in gradients.uses)
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

    def release(
        self,
        noise: Noise,
        scales: Mapping[str, float],
        source: Source | None,
        factor: float = 1.0,
        total: Total | None = None,
    ) -> dict[str, Tensor]:
        """(Sum + discrete Gaussian noise) * factor for each tensor, in float64, and the sums are cleared.

        Without a `source` another rank draws the noise, and `total` adds up what all ranks have.
        """
        steps = {name: block.norm * GRID for block in self.blocks for name in block.members}
        noisy: dict[str, Tensor] = {}
        for name, step in steps.items():
            size = self._like[name].numel()
            if source is None:
                noisy[name] = torch.zeros(size, dtype=torch.int64)
            else:
                noisy[name] = torch.from_numpy(discrete_gaussian(size, scales[name] / step, source))
            if name in self._sums:
                noisy[name] += self._sums[name].cpu()
        if total is not None:
            sizes = [len(t) for t in noisy.values()]
            noisy = dict(zip(noisy, total(torch.cat(list(noisy.values()))).split(sizes), strict=True))
        self.clear()
        return {
            name: (t.double() * steps[name]).mul_(factor).view(self._like[name].shape).to(self._like[name].device)
            for name, t in noisy.items()
        }
