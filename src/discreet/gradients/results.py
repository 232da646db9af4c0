"""Each unit's gradient, as a form for each parameter: what norms, weighted sums and chunks of units are taken from."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from discreet.gradients.forms.base import PerExampleGrad, chunks, squared_norms, sum_dtype


@dataclass
class UnitGradients:
    """Each unit's gradient: a form for each parameter that took part, zero for the others.

    `parameters` have their shapes: of a complex one, real and imaginary parts. `unmanaged_leaves` are other tensors
    that would get a gradient: not parameters the engine was made for. `chunked` are the parameters whose kernel waits
    for chunks of units.
    """

    forms: dict[str, PerExampleGrad]
    units: int
    parameters: Mapping[str, Tensor]
    unmanaged_leaves: Sequence[Tensor] = ()
    chunked: Collection[str] = ()
    _norms: dict[str, Tensor] = field(default_factory=dict)  # those that were measured already
    _cancelling: dict[str, list[int]] = field(default_factory=dict)  # units whose terms nearly cancel
    pending: dict[str, Tensor] = field(default_factory=dict)  # the same as a device has them, before it was asked

    def norms(self) -> dict[str, Tensor]:
        """Squared norms per unit, for each parameter."""
        self._measure(self.forms)
        if self.pending:
            self.all_finite()
        norms: dict[str, Tensor] = {}
        for name, parameter in self.parameters.items():
            if name not in self._norms:
                self._norms[name] = parameter.new_zeros(self.units, dtype=sum_dtype(parameter.dtype))
            norms[name] = self._norms[name]
        return norms

    def all_finite(self, sound: Tensor | None = None) -> bool:
        """Whether every unit's squared norms are finite, and their sum (then no one's can be anything else), and every
        unit is `sound`: a device is waited for once."""
        self._measure(self.forms)
        squared = list(self._norms.values()) or [torch.zeros(1)]
        try:
            total = torch.stack(squared).sum()
        except RuntimeError:  # on several devices, or of several types
            total = torch.stack([norms.sum().to("cpu", torch.float64) for norms in squared]).sum()
        if sound is not None:
            total = torch.where(sound.all().to(total.device), total, math.nan)
        return self._settled(total) if self.pending else math.isfinite(total.item())

    def _settled(self, total: Tensor) -> bool:
        """Ask devices which units' terms nearly cancel, and whether a total is finite, with these units made, too."""
        pending, self.pending = self.pending, {}
        some = [near.any().to(total.device) for near in pending.values()]
        finite, *flags = torch.stack([total.isfinite(), *some]).tolist()
        for (name, near), flag in zip(pending.items(), flags, strict=True):
            if flag:
                self._cancelling[name] = near.nonzero().flatten().tolist()
                for unit in self._cancelling[name]:
                    self._norms[name][unit] = squared_norms(self.forms[name].each(unit, unit + 1))[0]
        return finite and (not any(flags) or self.all_finite())

    def measure(self) -> None:
        """Measure what waits for no chunk, so that what it was made of can go."""
        waiting = self._waiting() if self.chunked else ()
        self._measure([name for name in self.forms if name not in waiting] if waiting else self.forms)

    def _waiting(self) -> dict[str, PerExampleGrad]:
        """The forms that wait for chunks of units."""
        return {name: form for name, form in self.forms.items() if name in self.chunked and form.chunk_bytes}

    def in_chunks(self) -> "Chunks | None":
        """The same, in chunks of a few units each, if any parameter waits for them."""
        waiting = self._waiting() if self.chunked else {}
        if not waiting:
            return None
        self.measure()
        others = {name: form for name, form in self.forms.items() if name not in waiting}
        norms = {name: norms for name, norms in self._norms.items() if name not in waiting}
        rest = UnitGradients(others, self.units, self.parameters, (), (), norms, dict(self._cancelling), self.pending)
        return Chunks(waiting, rest, chunks(self.units, sum(form.chunk_bytes for form in waiting.values())))

    def _measure(self, names: Iterable[str]) -> None:
        for name in names:
            form = self.forms[name]
            if name in self._cancelling:
                continue
            squared = self._norms[name] if name in self._norms else form.norms()
            near, units = cancelling(form, squared) if form.adds_terms else None, []
            if near is not None and near.is_cpu:
                units = near.nonzero().flatten().tolist()
                for unit in units:
                    squared[unit] = squared_norms(form.each(unit, unit + 1))[0]
            elif near is not None:
                self.pending[name] = near
            self._norms[name], self._cancelling[name] = squared, units

    def add_weighted(self, weights: Mapping[str, Tensor], out: Mapping[str, Tensor]) -> None:
        """Add the sum over units of weight * gradient to `out`, parameter by parameter."""
        if len(self._cancelling) < len(self.forms) or self.pending:
            self.norms()
        for name, form in self.forms.items():
            factors, total = weights[name], out[name]
            if factors.dtype != total.dtype:
                factors = factors.to(total.dtype)
            cancelling = self._cancelling[name]
            if cancelling:
                factors = factors.clone()
                for unit in cancelling:  # added as they were measured, and not by their terms
                    total.add_(form.each(unit, unit + 1)[0].to(total.dtype) * factors[unit])
                    factors[unit] = 0.0
            form.add_weighted(factors, total)

    def add_one(self, name: str, factors: Tensor, out: Tensor) -> None:
        """The same for one parameter, to `out`."""
        if name in self.forms:
            self.norms()
            norms, cancelling = {name: self._norms[name]}, {name: self._cancelling[name]}
            one = UnitGradients({name: self.forms[name]}, self.units, self.parameters, (), (), norms, cancelling)
            one.add_weighted({name: factors}, {name: out})

    @property
    def cancels(self) -> bool:
        """Whether some unit's gradient is what is left of much longer terms."""
        self.norms()
        return any(self._cancelling.values())

    def each(self, start: int, stop: int) -> dict[str, Tensor]:
        """The gradients themselves of units start..stop."""
        return {name: form.each(start, stop) for name, form in self.forms.items()}

    def rows(self, start: int, stop: int) -> Tensor:
        """The gradients of units start..stop as rows, all parameters side by side in order."""
        dtype = torch.float32
        if any(p.dtype == torch.float64 for p in self.parameters.values()):
            dtype = torch.float64
        first = next(iter(self.parameters.values()))
        rows = first.new_empty(stop - start, sum(p.numel() for p in self.parameters.values()), dtype=dtype)
        pieces = rows.split([p.numel() for p in self.parameters.values()], 1)
        for name, piece in zip(self.parameters, pieces, strict=True):
            if name in self.forms:
                piece.copy_(self.forms[name].each(start, stop).reshape(stop - start, -1))
            else:
                piece.zero_()
        return rows

    def select(self, units: Tensor) -> "UnitGradients":
        """The same for some of the units."""
        forms = {name: form.select(units) for name, form in self.forms.items()}
        norms = {name: norms[units] for name, norms in self._norms.items() if name not in forms}
        return UnitGradients(forms, len(units), self.parameters, self.unmanaged_leaves, (), norms)


@dataclass(frozen=True)
class Chunks:
    """Gradients that wait for chunks of units, and the rest, which was measured.

    The gradients of one chunk's units are there all at once, for all parameters that wait: so they are made once,
    measured, weighted and added, and no more than a chunk's have to be stored.
    """

    waiting: Mapping[str, PerExampleGrad]
    rest: UnitGradients
    ranges: Sequence[tuple[int, int]]

    def __iter__(self) -> Iterator[UnitGradients]:
        """Chunk by chunk, the gradients that wait; the norms are all parameters'."""
        rest = self.rest
        all_norms = rest.norms()
        for start, stop in self.ranges:
            forms = {name: form.narrow(start, stop) for name, form in self.waiting.items()}
            norms = {name: norms[start:stop] for name, norms in all_norms.items() if name not in forms}
            yield UnitGradients(forms, stop - start, rest.parameters, (), (), norms)

    def totals(self) -> dict[str, Tensor]:
        """What was added up chunk by chunk, and is still to be added to the sum."""
        totals = {name: form.take_total() for name, form in self.waiting.items()}
        return {name: total for name, total in totals.items() if total is not None}


_LEFT = 1e-3  # of the terms' lengths: less than that is left of units that nearly cancel


def cancelling(form: PerExampleGrad, squared: Tensor) -> Tensor | None:
    """The units of which so little is left of their terms that rounding would show (or nan), where there may be any."""
    lengths = form.lengths()
    if lengths is None:
        return None
    return ~(squared.double() >= (_LEFT * lengths).square()) & lengths.isfinite()
