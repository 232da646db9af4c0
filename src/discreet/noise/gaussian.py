"""Gaussian noise, the law of DP-SGD."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from discreet.errors import ConfigError, positive

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.noise.source import Source


@dataclass(frozen=True)
class Gaussian:
    """Independent normal noise on every coordinate of the bounded sum.

    `Gaussian(multiplier)` is relative to what one unit may change: the effective multiplier of T6 of docs/theory.md,
    whatever the blocks. `Gaussian(std=s)` is an absolute standard deviation on the sum. `Gaussian()` is
    to be solved by `calibrate`. `Gaussian(0)` adds nothing, and proves nothing.
    """

    multiplier: float | None = None
    std: float | None = None

    def __post_init__(self) -> None:
        if self.multiplier is not None and self.std is not None:
            raise ConfigError(
                f"Gaussian(multiplier={self.multiplier!r}, std={self.std!r}) says the noise twice; give one of them."
            )
        if self.multiplier is not None:
            positive("Gaussian's multiplier", self.multiplier, zero=True)
        if self.std is not None:
            positive("Gaussian's std", self.std, zero=True)

    @property
    def solved(self) -> bool:
        """Whether the amount of noise is known."""
        return self.multiplier is not None or self.std is not None

    def sample(self, out: "Tensor", scale: float, source: "Source") -> None:
        """Fill a flat tensor with normal values of standard deviation `scale` from a secure stream."""
        source.fill_normal(out, scale)
