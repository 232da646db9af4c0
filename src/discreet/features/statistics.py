"""A private mean and private second moments of features, and what they are for: rows that are centred and whitened."""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from discreet._check import check_int, check_positive
from discreet.accounting.events import Adjacency, Event
from discreet.errors import ConfigError
from discreet.features.pca import unit, with_noise
from discreet.ledger import Ledger
from discreet.stages.noise.random import KeyTree, SecureStream
from discreet.stages.sensitivity import GRID

_ROWS = 128  # read at a time: so many sums of products of whole numbers up to 1 / GRID are exact in float64
_STRIP = 256  # channels multiplied at a time with those that follow
_MOST_ROWS = 1 << 22  # that whole numbers can sum
_LEAST = 1e-3  # of the mean eigenvalue: directions with less are not amplified any further


@dataclass(frozen=True)
class Whitening:
    """How rows of features [places, channels] are centred and whitened, and how private what that takes is.

    Three sums are asked of the data, each with Gaussian noise: of rows of unit length (`mean_noise`), and, of these
    less the mean and made unit again, of x^T x over the channels (`channel_noise`) and of x x^T over the places
    (`place_noise`), noise off the diagonal as in PrivatePCA. They are divided by `size`, a public figure for the number
    of rows. A row is then centred, made unit, multiplied by the channels' moments to the power -`channel_power` and by
    the places' to -`place_power`, with eigenvalues no less than the noise's, and given the length `length`.

    Guarantee: each sum moves by at most 1 in l2 norm where one row is added, removed or left out, rounding included, as
    sums are of whole numbers. So all three together are one Gaussian query of the multiplier
    (1 / mean_noise^2 + 1 / channel_noise^2 + 1 / place_noise^2)^(-1/2). A row with a nan or an inf contributes nothing.
    One row is one unit.

    >>> round(Whitening().multiplier, 3)
    3.482
    """

    mean_noise: float = 20.0
    channel_noise: float = 5.0
    place_noise: float = 5.0
    channel_power: float = 0.4
    place_power: float = 0.1
    length: float = 1.0

    def __post_init__(self) -> None:
        for name in ("mean_noise", "channel_noise", "place_noise", "length"):
            check_positive(f"Whitening's {name}", getattr(self, name))
        for name in ("channel_power", "place_power"):
            if not check_positive(f"Whitening's {name}", getattr(self, name), zero=True) <= 1:
                raise ConfigError(f"Whitening's {name} is {getattr(self, name)!r}; it must be from 0 to 1.")

    @property
    def multiplier(self) -> float:
        """The noise of all three sums together."""
        return math.hypot(1 / self.mean_noise, 1 / self.channel_noise, 1 / self.place_noise) ** -1

    def cost(self, adjacency: Adjacency = "zero-out") -> Event:
        """What `fit` costs, to be accounted together with the training, under its adjacency.

        Accounting takes a replaced row to move a sum by twice what a removed one does, which is true here too.

        Args:
            adjacency: the relation by which the training is analysed.
        """
        return Event(rate=1.0, multiplier=self.multiplier, steps=1, adjacency=adjacency)

    def fit(
        self,
        rows: Any,
        ledger: str | Path | Ledger,
        *,
        size: int,
        adjacency: Adjacency = "zero-out",
        seed: int | None = None,
        key: bytes | None = None,
    ) -> "Whitened":
        """The whitening of `rows` [N, places, channels]: counted in the ledger, then computed.

        Guarantee: the cost is on disk before a row is read, and a cap that it does not fit under raises
        BudgetExhausted. A failure after that over-counts.

        Args:
            rows: features, [N, places, channels].
            ledger: where it is counted.
            size: about how many rows there are, said without counting them where that is secret.
            adjacency: that of the run's plan.
            seed: makes the noise reproducible; whoever knows it can take the noise off again, so that nothing is
                private.
            key: 32 secret bytes that the noise is drawn from. With the same rows they give the same answer again, which
                is counted once, and they must never be used with others.

        Returns:
            What centres and whitens such rows.
        """
        check_int("the size", size, least=1)
        if getattr(rows, "ndim", 0) != 3 or 0 in rows.shape[1:]:
            raise ConfigError("rows to be whitened are a tensor of shape [rows, places, channels].")
        if isinstance(ledger, (str, Path)):
            ledger = Ledger(ledger)
        broken = "" if seed is None else "the noise on the features' mean and moments came from a fixed seed"
        noises = f"noise {self.mean_noise:g}, {self.channel_noise:g}, {self.place_noise:g}"
        answer = "" if key is None else hashlib.blake2b(b"answer", key=key, digest_size=8).hexdigest()
        what = f"a mean and second moments of features, {noises}"
        ledger.query(what, self.cost(adjacency), broken=broken, answer=answer)
        root, (_, places, channels) = KeyTree(seed, key), rows.shape
        total = _sum(rows)
        total += _noise(total, self.mean_noise, root.stream("mean", 0))
        mean = total / size
        by_channel, by_place = _moments(rows, mean)
        by_channel = with_noise(by_channel, self.channel_noise, root.stream("channels", 0)) * (channels / size)
        by_place = with_noise(by_place, self.place_noise, root.stream("places", 0)) * (places / size)
        return Whitened(
            mean.float(),
            _power(by_channel, self.channel_power, self.channel_noise * channels / size).float(),
            _power(by_place, self.place_power, self.place_noise * places / size).float(),
            self.length,
        )


@dataclass(frozen=True)
class Whitened:
    """What whitening does to a row, free after the release: no row's result depends on another row."""

    mean: Tensor  # [places * channels]
    by_channel: Tensor  # [channels, channels]
    by_place: Tensor  # [places, places]
    length: float = 1.0

    def __call__(self, rows: Tensor) -> Tensor:
        """Rows [N, places, channels] of any real type as float32 [N, places * channels], all of one length."""
        shape = len(self.by_place), len(self.by_channel)
        if rows.ndim != 3 or tuple(rows.shape[1:]) != shape:
            raise ConfigError(f"rows of shape {tuple(rows.shape[1:])} are not those that were whitened, of {shape}.")
        centred = unit(unit(rows.flatten(1).float()) - self.mean)
        by_channel = (centred.view(-1, shape[1]) @ self.by_channel).view(-1, *shape)
        return unit((self.by_place @ by_channel).flatten(1)) * self.length


# --- sums that one row moves by at most 1 ----------------------------------------------------------------------------


def _sum(rows: Any) -> Tensor:
    """The sum of rows of unit length, flat."""
    total = torch.zeros(math.prod(rows.shape[1:]), dtype=torch.int64)
    for steps in _steps(rows, None):
        total += steps.sum(0).to(torch.int64)
    return total.double() * GRID


def _moments(rows: Any, mean: Tensor) -> tuple[Tensor, Tensor]:
    """The sums of x^T x over channels and of x x^T over places, of rows less the mean and then of unit length."""
    _, places, channels = rows.shape
    by_channel = torch.zeros(channels, channels, dtype=torch.int64)
    by_place = torch.zeros(places, places, dtype=torch.int64)
    for steps in _steps(rows, mean):
        flat = steps.view(-1, channels)
        for left in range(0, channels, _STRIP):
            strip = flat[:, left : left + _STRIP]
            by_channel[left : left + _STRIP, left:] += (strip.T @ flat[:, left:]).to(torch.int64)
        shaped = steps.view(-1, places, channels)
        by_place += (shaped @ shaped.transpose(1, 2)).sum(0).to(torch.int64)
    upper = by_channel.triu()
    return (upper + upper.triu(1).T).double() * GRID**2, by_place.double() * GRID**2


def _steps(rows: Any, mean: Tensor | None) -> Iterator[Tensor]:
    """Rows made unit, less the mean if there is one and made unit again, rounded towards zero to steps of the grid.

    A row that is longer than 1 for any reason, or not finite, is all zero. Products of two such rows are whole numbers
    below 2^40, so that sums over a few hundred rows are exact in float64, in any order.
    """
    if len(rows) > _MOST_ROWS:
        raise ConfigError(f"the data has more than {_MOST_ROWS:,} rows, too many to sum exactly; give fewer.")
    for start in range(0, len(rows), _ROWS):
        read = torch.as_tensor(rows[start : start + _ROWS]).flatten(1).double()
        found = unit(read)
        if mean is not None:
            sound = read.isfinite().all(1, keepdim=True)
            found = torch.where(sound, unit(found - mean), 0.0)
        steps = (found / GRID).trunc_()
        fits = steps.square().sum(1, keepdim=True) <= GRID**-2
        yield torch.where(fits, steps, 0.0)


def _noise(like: Tensor, scale: float, source: SecureStream) -> Tensor:
    return source.fill_normal(torch.empty(like.numel(), dtype=like.dtype), scale).view_as(like)


def _power(moments: Tensor, power: float, noise: float) -> Tensor:
    """A symmetric matrix to a negative power, its eigenvalues no less than the largest that noise alone would have."""
    values, vectors = torch.linalg.eigh(moments)
    least = _LEAST + math.sqrt(2 * len(moments)) * noise
    return (vectors * values.clamp(min=least) ** -power) @ vectors.T
