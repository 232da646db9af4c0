"""Averaged moduli of wavelets, and of wavelets of these: features that small deformations hardly move (Mallat 2012)."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from discreet._check import check_int, check_positive
from discreet.errors import ConfigError

_NARROW, _OCTAVE = 0.8, 3 / 4 * math.pi  # the width and the frequency of the finest wavelet
_AROUND = 2  # copies of a filter on each side that its tails are summed over


@dataclass(frozen=True)
class Scattering:
    """The scattering transform of order two with Morlet wavelets of `scales` octaves and `angles` directions.

    An image's channels each make 1 + J L + L^2 J (J - 1) / 2 of them, J = scales and L = angles, averaged over windows
    of 2^J pixels. The filters are those of kymatio, which cuts off what is folded here where they become
    coarser: features differ by a few thousandths. Each is taken to the power `power`: at 0.5 weak ones count for
    more. Nothing is learned: an image's features are a function of it alone.
    """

    scales: int = 2
    angles: int = 8
    power: float = 1.0

    def __post_init__(self) -> None:
        check_int("Scattering's scales", self.scales, least=1, most=6)
        check_int("Scattering's angles", self.angles, least=1, most=64)
        if not check_positive("Scattering's power", self.power) <= 1:
            raise ConfigError(f"Scattering's power is {self.power!r}; it must be above 0, and at most 1.")

    def shape(self, image: tuple[int, ...]) -> tuple[int, int]:
        """How many places and channels the features of an image of this shape (channels, height, width) have."""
        window = 2**self.scales
        if len(image) != 3 or min(image[1:]) <= window:
            raise ConfigError(
                f"scattering takes images of more than {window} x {window} pixels; an example's shape is {image}."
            )
        one = 1 + self.scales * self.angles + self.angles**2 * self.scales * (self.scales - 1) // 2
        return math.prod(side // window for side in image[1:]), image[0] * one

    def encoder(self, image: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
        """A function from images [N, *image] to features [N, places, channels]."""
        places, channels = self.shape(image)
        window, most = 2**self.scales, self.scales
        sides = [((side + window) // window + 1) * window for side in image[1:]]
        edges = [(padded - side) // 2 for padded, side in zip(sides, image[1:], strict=True)]
        (above, left), (below, right) = edges, [p - s - e for p, s, e in zip(sides, image[1:], edges, strict=True)]
        wavelets = [self._wavelets(sides, scale) for scale in range(most)]
        averages = [
            [_average(p, most, scale, s // window) for p, s in zip(sides, image[1:], strict=True)]
            for scale in range(most)
        ]

        def averaged(maps: Tensor, scale: int) -> Tensor:
            down, across = averages[scale]
            return down @ (maps @ across.T)

        def encode(images: Tensor) -> Tensor:
            padded = F.pad(images.flatten(0, 1)[:, None], (left, right, above, below), mode="reflect")
            start = torch.fft.fft2(padded)
            maps = [averaged(padded, 0)]
            for first in range(most):
                once = _modulus(start, wavelets[first], 2**first)
                maps.append(averaged(once, first))
                again = torch.fft.fft2(once)[:, :, None] if first + 1 < most else once
                for second in range(first + 1, most):
                    filters = _folded(wavelets[second], 2**first)
                    twice = _modulus(again, filters, 2 ** (second - first)).flatten(1, 2)
                    maps.append(averaged(twice, second))
            rows = torch.cat(maps, 1).reshape(len(images), channels, places).transpose(1, 2)
            return rows if self.power == 1 else rows.clamp(min=0) ** self.power

        return encode

    def _wavelets(self, sides: list[int], scale: int) -> Tensor:
        """The transforms of the wavelets of one scale, in all directions."""
        wavelets = []
        for number in range(self.angles):
            turn = (int(self.angles - self.angles / 2 - 1) - number) * math.pi / self.angles
            shape = _NARROW * 2**scale, turn
            wave = _gabor(sides, *shape, _OCTAVE / 2**scale, 4 / self.angles)
            bump = _gabor(sides, *shape, 0.0, 4 / self.angles)
            wave = wave - wave.sum() / bump.sum() * bump  # so that a constant image has none of it
            wavelets.append(_transformed(wave))
        return torch.stack(wavelets)


def _gabor(sides: list[int], width: float, turn: float, frequency: float, slant: float) -> Tensor:
    """A wave under a Gaussian, on a torus."""
    cosine, sine = math.cos(turn), math.sin(turn)
    total = torch.zeros(sides, dtype=torch.complex128)
    for down in range(-_AROUND, _AROUND + 1):
        for across in range(-_AROUND, _AROUND + 1):
            y = (torch.arange(sides[0]) + down * sides[0]).double()[:, None]
            x = (torch.arange(sides[1]) + across * sides[1]).double()
            along, beside = y * cosine + x * sine, x * cosine - y * sine
            size = (along.square() + (slant * beside).square()) / (2 * width**2)
            total += torch.exp(torch.complex(-size, frequency * along))
    return total * slant / (2 * math.pi * width**2)


def _average(side: int, scales: int, scale: int, windows: int) -> Tensor:
    """Weights [windows, values] of the Gaussian window, in one direction, where values are 2^scale pixels apart."""
    width, step = _NARROW * 2 ** (scales - 1), 2**scale
    far = torch.arange(0, side, step).double() - 2**scales * torch.arange(1, 1 + windows).double()[:, None]
    copies = side * torch.arange(-_AROUND, _AROUND + 1).double()
    weights = torch.exp(-(far[..., None] + copies).square() / (2 * width**2)).sum(-1)
    return (weights * step / (math.sqrt(2 * math.pi) * width)).float()


def _transformed(wave: Tensor) -> Tensor:
    return torch.fft.fft2(wave).real.float()


def _folded(transformed: Tensor, by: int) -> Tensor:
    """The transform of the same filter on a grid that is coarser by a factor."""
    return _coarser(transformed, by) * by**2 if by > 1 else transformed


def _coarser(transformed: Tensor, by: int) -> Tensor:
    """The transform of every `by`-th value: frequencies that cannot be told apart any more are averaged."""
    height, width = transformed.shape[-2:]
    return transformed.unflatten(-1, (by, width // by)).unflatten(-3, (by, height // by)).mean((-4, -2))


def _modulus(transformed: Tensor, filters: Tensor, by: int) -> Tensor:
    """The modulus of what filters leave of an image, at every `by`-th pixel: frequencies are multiplied and folded."""
    height, width = (side // by for side in transformed.shape[-2:])
    total = transformed[..., :height, :width] * filters[..., :height, :width]
    for part in range(1, by**2):
        top, left = part // by * height, part % by * width
        corner = (..., slice(top, top + height), slice(left, left + width))
        total += transformed[corner] * filters[corner]
    return torch.fft.ifft2(total).abs() / by**2
