"""Gradient encoding (Nasr, Shokri and Houmansadr 2020): sorted magnitudes are held below a public envelope."""

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from discreet._check import check_int, check_positive
from discreet.accounting.events import Claimed, Event, Magnitudes
from discreet.errors import ConfigError
from discreet.stages.bounds.envelope import covering, half_normal, sampled
from discreet.stages.bounds.tanh import OfSize, check_size
from discreet.stages.sensitivity import Contract, Envelope, Layout

if TYPE_CHECKING:
    from torch import Tensor

Encoder = Literal["clamp", "nearest"]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Encode(OfSize):
    """Each unit's gradient is held inside a public envelope psi: its t-th smallest magnitude is at most psi[t].

    `encoder` "clamp" cuts the magnitudes that are larger; "nearest" replaces all of them by the envelope's, so that
    only the signs and the order of the gradient stay. One envelope of few `levels` is as good as many, and makes
    accounting exact. With `envelopes` > 1 so many are drawn from a public `seed`, as the paper has it, and each
    gradient takes the one most similar to it, sorted magnitudes compared. `norm` is an envelope's l2 norm.

    Guarantee: some permutation of what one unit changes in the sum is at most the envelope (of several: the largest of
    them, coordinate by coordinate), and at most `norm` in l2. `size` is the number of parameters, where it is known
    before the model is.
    """

    norm: float = 1.0
    encoder: Encoder = "clamp"
    levels: int = 48
    envelopes: int = 1
    seed: int = 0
    size: int | None = None
    needs: ClassVar[str] = "elements"

    def __post_init__(self) -> None:
        check_positive("Encode's norm", self.norm)
        if self.encoder not in get_args(Encoder):
            raise ConfigError(
                f"Encode's encoder is {self.encoder!r}; it must be one of {', '.join(get_args(Encoder))}."
            )
        check_int("Encode's levels", self.levels, least=1)
        check_int("Encode's number of envelopes", self.envelopes, least=1, most=1000)
        check_int("Encode's seed", self.seed, least=0)
        if self.size is not None:
            check_int("Encode's size", self.size, least=1)

    def start(self, layout: Layout) -> Floats:
        """The envelopes, ascending, one a row."""
        return _rows(sum(layout.sizes), self.norm, self.levels, self.envelopes, self.seed)

    def apply(self, rows: "Tensor", state: Floats) -> "Tensor":
        if rows.device.type == "cpu" and rows.element_size() == 4:
            for row in rows.numpy():
                self._encode(row, state)
            return rows
        size, order = rows.abs().sort(1)
        envelopes = rows.new_tensor(state)
        chosen = envelopes[(size @ envelopes.T).argmax(1)] if len(state) > 1 else envelopes.expand_as(rows)
        limit = rows.new_empty(rows.shape).scatter_(1, order, chosen)
        return rows.sign() * limit if self.encoder == "nearest" else rows.clamp(-limit, limit)

    def _encode(self, row: Floats, envelopes: Floats) -> None:
        """One gradient, in place. Sorting magnitude and index packed in one whole number is the fastest argsort."""
        packed = np.abs(row).view(np.uint32).astype(np.uint64)
        packed <<= np.uint64(32)
        packed |= np.arange(len(row), dtype=np.uint64)
        packed.sort()
        halves = packed.view(np.uint32).reshape(-1, 2)
        low, high = (0, 1) if np.little_endian else (1, 0)
        order, envelope = halves[:, low], envelopes[0]
        if len(envelopes) > 1:
            with np.errstate(over="ignore", invalid="ignore"):  # a warning would tell of the data
                envelope = envelopes[(envelopes @ halves[:, high].copy().view(np.float32)).argmax()]
        limit = np.empty_like(row)
        limit[order] = envelope
        if self.encoder == "nearest":
            np.multiply(np.sign(row), limit, out=row)
        else:
            np.clip(row, -limit, limit, out=row)

    def contract(self, layout: Layout, state: Floats | None) -> Envelope:
        size = sum(layout.sizes)
        check_size(self.size, layout, "Encode")
        return Envelope(
            layout.names, _magnitudes(size, self.norm, self.levels, self.envelopes, self.seed), (), self.norm
        )

    def claims(self, event: Event, contract: Contract, scales: tuple[float, ...]) -> tuple[Claimed, ...]:
        """The paper's accounting, by Rényi divergences of the noise shifted by the envelope."""
        reason = (
            "with every batch a Poisson sample, one example a microbatch, and envelopes that are public; that all "
            "contributions inside the envelope are covered, not only the envelope itself, is T2"
        )
        source = "Nasr, Shokri and Houmansadr 2020: Rényi divergence of the encoded sum"
        return (Claimed(source, (event,), "holds if", reason),)


@lru_cache(maxsize=4)
def _rows(size: int, norm: float, levels: int, count: int, seed: int) -> Floats:
    if count == 1:
        one = half_normal(size, levels)
        exact = norm * np.repeat(one.levels, one.counts)[None, :]
    else:
        exact = norm * sampled(size, count, seed)
    rounded = exact.astype(np.float32)
    rounded = np.where(rounded > exact, np.nextafter(rounded, np.float32(0)), rounded)  # never above the contract
    rounded.flags.writeable = False
    return rounded


@lru_cache(maxsize=4)
def _magnitudes(size: int, norm: float, levels: int, count: int, seed: int) -> Magnitudes:
    magnitudes = half_normal(size, levels) if count == 1 else covering(sampled(size, count, seed), 512)
    return Magnitudes(tuple(norm * x for x in magnitudes.levels), magnitudes.counts)
