"""What a noise says of itself: a law with one number, its scale, that hides by how much a coordinate was shifted."""

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from discreet._check import check_positive
from discreet.accounting.numerics import invert
from discreet.errors import PrivacyError

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.stages.noise.random import SecureStream


Reals = npt.NDArray[np.floating[Any]]

_CHUNK = 1 << 18  # values drawn at a time


class NoiseDistribution(ABC):
    """Independent noise on every coordinate of the bounded sum, of size `scale` in units of the sensitivity.

    A family is symmetric and unimodal about 0 (T2 of docs/theory.md rests on it). Its functions are those of the
    standard form, scale 1, on numpy arrays. A noise of one's own is a frozen dataclass derived from this one.
    `scale` None is to be solved by `calibrate`; 0 adds nothing, and proves nothing.
    """

    @property
    def gaussian(self) -> bool:
        """Whether shifts of several coordinates are as good as one shift of their l2 norm."""
        return False

    @property
    @abstractmethod
    def scale(self) -> float | None:
        """In units of the sensitivity; None where it is to be solved."""

    def __post_init__(self) -> None:
        if self.scale is not None:
            check_positive(f"{type(self).__name__}'s scale", self.scale, zero=True)

    # --- what privacy needs --------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def fisher(self) -> float:
        """The Fisher information of the location."""

    @abstractmethod
    def log_density(self, x: Reals) -> Reals:
        """log z(x)."""

    @abstractmethod
    def upper(self, x: Reals) -> Reals:
        """The mass above x, with full relative accuracy for large x."""

    def cdf(self, x: Reals) -> Reals:
        """The mass up to x."""
        return self.upper(-x)

    @abstractmethod
    def score(self, x: Reals) -> Reals:
        """-z'(x) / z(x): how strongly a value x speaks for a shift to the right."""

    @abstractmethod
    def loss(self, x: Reals, shift: float) -> Reals:
        """log z(x - shift) / z(x), without cancellation for small shifts."""

    def largest_loss(self, shift: float) -> float:
        """The supremum of the loss; infinite where the tails are light."""
        return math.inf

    @property
    def largest_score(self) -> float:
        """The supremum of the score; infinite where the tails are light."""
        return math.inf

    @property
    @abstractmethod
    def far(self) -> float:
        """Beyond this there is less mass than any figure here can show."""

    def profile(self) -> tuple[Reals, Reals]:
        """Masses u, increasing to 1/2, and for each the most that a set of mass u gains by an infinitesimal shift.

        The best set is where the score is largest. Here: a right tail, as the score never falls (log-concave laws).
        """
        x = np.concatenate((np.geomspace(max(self.far, 80.0), 40, 4000)[:-1], np.linspace(40, 0, 200_000)))
        if np.any(np.diff(self.score(x)) > 1e-12):
            raise PrivacyError(f"the score of {type(self).__name__} falls somewhere; it needs its own profile.")
        mass = self.upper(x)
        keep = mass > 1e-280
        return mass[keep], np.exp(self.log_density(x[keep]))

    # --- what people want to know --------------------------------------------------------------------------------

    @property
    @abstractmethod
    def variance(self) -> float:
        """E x^2; infinite for heavy tails."""

    @property
    @abstractmethod
    def mean_size(self) -> float:
        """E |x|; infinite for heavy tails."""

    # --- sampling ------------------------------------------------------------------------------------------------

    @abstractmethod
    def draw(self, count: int, source: "SecureStream") -> Reals:
        """`count` values of the standard form, in float64."""

    def sample(self, out: "Tensor", scale: float, source: "SecureStream") -> None:
        """Fill a flat tensor with independent values of this law, times `scale`, from a secure stream."""
        import torch

        for start in range(0, len(out), _CHUNK):
            part = out[start : start + _CHUNK]
            part.copy_(torch.from_numpy(scale * self.draw(len(part), source)))

    # --- what follows --------------------------------------------------------------------------------------------

    @property
    def solved(self) -> bool:
        """Whether the amount of noise is known."""
        return self.scale is not None or self.absolute is not None

    @property
    def absolute(self) -> float | None:
        """The scale on the sum itself, where it was given so."""
        return None

    def scaled(self, scale: float) -> Self:
        """The same law at another scale, in units of the sensitivity."""
        settings: dict[str, Any] = {"scale": scale}
        return replace(self, **settings)  # ty: ignore[invalid-argument-type] # subclasses are dataclasses

    @property
    def law(self) -> Self:
        """The law alone, of scale 1."""
        return self.scaled(1.0)

    def masses_above(self, losses: Reals, shift: float) -> tuple[Reals, Reals]:
        """The masses of {loss > l} for each l, of the shifted law and of the law itself."""
        at = self.where(losses, shift)
        most = self.largest_loss(shift)
        shifted, plain = self.upper(at - shift), self.upper(at)
        above, below = losses >= most, losses < -most
        return (
            np.where(above, 0.0, np.where(below, 1.0, shifted)),
            np.where(above, 0.0, np.where(below, 1.0, plain)),
        )

    def where(self, losses: Reals, shift: float) -> Reals:
        """The point at which the loss of a log-concave law passes each value."""
        away = np.geomspace(1e-4, self.far, 1000)
        table = np.concatenate((-away[::-1], np.linspace(0, shift, 200), shift + away))
        return invert(lambda x: self.loss(x, shift), losses, table)
