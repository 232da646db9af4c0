"""Features that are learned privately before the training: principal directions of the data (Abadi et al. 2016)."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.linalg import eigh
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from discreet._check import check_int, check_positive
from discreet.accounting.events import Adjacency, Event
from discreet.errors import ConfigError
from discreet.ledger import Ledger
from discreet.stages.noise.random import KeyTree, SecureStream
from discreet.stages.sensitivity import GRID

_ROWS = 512  # read at a time: so many products of whole numbers up to 1 / GRID stay below 2^53, so they add up exactly
_STRIP = 128  # columns multiplied at a time with those that follow: the lower triangle is not computed
_MOST_ROWS = 1 << 22  # that the whole numbers can sum


@dataclass(frozen=True)
class PrivatePCA:
    """The directions in which rows of unit length spread most, from a covariance with noise on it.

    Each row is flattened and divided by its l2 norm, and A is the sum of x x^T. Independent Gaussian noise of standard
    deviation `noise` is put on its diagonal, and of noise / sqrt(2) on the entries above it, which those below mirror;
    the eigenvectors of the `components` largest eigenvalues are the directions. Nothing is centred: the mean would be
    another query.

    Guarantee: one row moves A by at most 1 in Frobenius norm, which is the l2 norm of the diagonal and of sqrt(2) times
    the entries above it; so this is one Gaussian query of multiplier `noise`. The sum is one of whole numbers and has
    no rounding error, however it is cut into chunks. One row is one unit: whoever has several rows is not protected by
    this figure, unless a ledger declares how many (`Ledger(unit=, rows=)`, `cost().per(unit, rows)`).

    | row                     | contribution to A                                 |
    | ----------------------- | ------------------------------------------------- |
    | finite, not all zero    | u u^T, of its unit vector u rounded towards zero  |
    | all zero                | 0                                                 |
    | with a nan or an inf    | 0                                                 |

    `normalise` says whether the projection also divides each row by its norm before it projects. By default it does
    not: Abadi et al. learn the directions from unit rows and then project the inputs as they are.

    >>> from discreet.accounting import cost
    >>> round(cost([PrivatePCA(components=60, noise=4.0).cost()], 1e-5).epsilon, 3)
    0.926
    """

    components: int
    noise: float
    normalise: bool = False

    def __post_init__(self) -> None:
        check_int("PrivatePCA's components", self.components, least=1)
        check_positive("PrivatePCA's noise", self.noise)

    def cost(self, adjacency: Adjacency = "zero-out") -> Event:
        """The one release that `fit` makes, to be accounted together with the training, under its adjacency.

        Args:
            adjacency: the relation by which the training is analysed.
        """
        # A row that is added, removed or zeroed moves A by ||x x^T|| = ||x||^2 <= 1. One that is replaced moves it by
        # ||x x^T - y y^T||^2 = ||x||^4 + ||y||^4 - 2 (x.y)^2 <= 2, attained by orthogonal rows. Accounting takes a
        # replacement to move a sum by twice what a removal does, so here it is told of more noise: 2 / sqrt(2) times.
        told = 2 / math.sqrt(2) if adjacency == "replace" else 1.0
        return Event(rate=1.0, multiplier=told * self.noise, steps=1, adjacency=adjacency)

    def fit(
        self,
        x: Any,
        ledger: str | Path | Ledger,
        *,
        adjacency: Adjacency = "zero-out",
        seed: int | None = None,
    ) -> "Projection":
        """The projection onto the private directions of `x`: counted in the ledger, then computed.

        Guarantee: the cost is on disk before a row is read, and a cap that it does not fit under raises
        BudgetExhausted. A failure after that over-counts.

        Args:
            x: a tensor or array of rows of any shape, a tuple of tensors or a data set of examples, of which the first
                part is taken.
            ledger: where it is counted; it may be the file that the run itself is to use.
            adjacency: that of the run's plan.
            seed: makes the noise reproducible; whoever knows it can take the noise off again, so that nothing is
                private.

        Returns:
            A module that projects rows onto the directions.
        """
        data = _rows_of(x)
        if isinstance(data, (Tensor, np.ndarray)):
            self._check_width(math.prod(data.shape[1:]))
        if isinstance(ledger, (str, Path)):
            ledger = Ledger(ledger)
        if not isinstance(ledger, Ledger):
            raise ConfigError(f"{ledger!r} is no ledger to count the directions in; give a path or a Ledger.")
        broken = "" if seed is None else "the noise on the principal directions came from a fixed seed"
        what = f"{self.components} principal directions, noise {self.noise:g}"
        ledger.query(what, self.cost(adjacency), broken=broken)
        width, chunks = _read(data)
        self._check_width(width)
        total = _sum_of_products(width, chunks)
        noisy = with_noise(total, self.noise, KeyTree(seed).stream("principal directions", 0))
        return Projection(_leading(noisy, self.components), normalise=self.normalise)

    def _check_width(self, width: int) -> None:
        if self.components > width:
            raise ConfigError(
                f"PrivatePCA's components are {self.components}, but a row has {width} values and so no more "
                f"directions; ask for at most {width}."
            )


class Projection(nn.Module):
    """Each row's coordinates along fixed directions: a first layer with nothing to train, free after the release.

    `directions` is a buffer [values of a row, components]. Inputs [N, ...] of any number type are flattened; with
    `normalise` each row is divided by its l2 norm first (rows of zeros, or not finite, become zeros). No row's output
    depends on another row.
    """

    directions: Tensor

    def __init__(self, directions: Tensor, *, normalise: bool = False) -> None:
        super().__init__()
        if directions.ndim != 2 or not directions.is_floating_point():
            raise ConfigError(
                f"a projection's directions are {directions.dtype} of shape {tuple(directions.shape)}; it takes real "
                "ones of shape (values of a row, components)."
            )
        self.normalise = normalise
        self.register_buffer("directions", directions.detach().to(torch.get_default_dtype(), copy=True))

    def forward(self, x: Tensor) -> Tensor:
        width = self.directions.shape[0]
        if x.ndim < 2 or math.prod(x.shape[1:]) != width:
            raise ConfigError(
                f"a batch with rows of shape {tuple(x.shape[1:])} has no rows of the {width} values that are projected."
            )
        rows = x.flatten(1).to(self.directions.dtype)
        return (unit(rows) if self.normalise else rows) @ self.directions

    def extra_repr(self) -> str:
        width, components = self.directions.shape
        return f"{width}, {components}, normalise={self.normalise}"


def unit(rows: Tensor) -> Tensor:
    """Each row divided by its l2 norm; zeros for a row of zeros or with a value that is not finite."""
    largest = rows.abs().amax(1, keepdim=True)
    sound = largest.isfinite() & (largest > 0)
    # first by the largest value, so that no square overflows or vanishes
    scaled = torch.where(sound, rows / torch.where(sound, largest, 1.0), 0.0)
    return scaled / torch.linalg.vector_norm(scaled, dim=1, keepdim=True).clamp(min=1.0)


def _sum_of_products(width: int, chunks: Iterable[Tensor]) -> Tensor:
    """The sum of u u^T over all rows, u a row's unit vector with every coordinate rounded towards zero to the grid.

    Guarantee: one row moves the sum by at most 1 in Frobenius norm. The coordinates are whole numbers of the grid's
    steps, whose products are summed exactly, in any order; and so is the squared norm, which is checked: a row that
    is longer than 1 for any reason contributes zero.
    """
    total, seen = torch.zeros(width, width, dtype=torch.int64), 0
    for rows in chunks:
        seen += len(rows)
        if seen > _MOST_ROWS:
            raise ConfigError(f"the data has more than {_MOST_ROWS:,} rows, too many to sum exactly; give fewer.")
        steps = (unit(rows) / GRID).trunc_()
        fits = steps.square().sum(1, keepdim=True) <= GRID**-2
        steps = torch.where(fits, steps, 0.0)
        for left in range(0, width, _STRIP):
            strip = steps[:, left : left + _STRIP]
            total[left : left + _STRIP, left:] += (strip.T @ steps[:, left:]).to(torch.int64)
    upper = total.triu().double() * GRID**2
    return upper + upper.triu(1).T


def with_noise(total: Tensor, noise: float, source: SecureStream) -> Tensor:
    """The symmetric matrix with independent noise on its upper triangle and diagonal, mirrored below.

    With the entries off the diagonal multiplied by sqrt(2), the triangle's l2 norm is the matrix's Frobenius norm. So
    noise of one size on those is noise of that size divided by sqrt(2) on the entries themselves.
    """
    rows, columns = torch.triu_indices(*total.shape)
    drawn = torch.zeros_like(total)
    drawn[rows, columns] = source.fill_normal(torch.empty(len(rows), dtype=total.dtype), noise)
    above = drawn.triu(1) / math.sqrt(2)
    return total + above + above.T + drawn.diagonal().diag()


def _leading(matrix: Tensor, count: int) -> Tensor:
    """The eigenvectors of the largest eigenvalues, largest first, as columns; each one's largest coordinate is > 0."""
    width = len(matrix)
    _, vectors = eigh(matrix.numpy(), subset_by_index=(width - count, width - 1))
    leading = torch.from_numpy(vectors).flip(1)
    largest = leading.gather(0, leading.abs().argmax(0, keepdim=True))
    return leading * largest.sign()


# --- reading ---------------------------------------------------------------------------------------------------------


def _rows_of(data: Any) -> Any:
    """What the rows are read from, or a ConfigError; nothing is read."""
    if type(data) is TensorDataset:
        data = data.tensors
    if isinstance(data, tuple) and data and isinstance(data[0], Tensor):
        data = data[0]
    by_number = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if isinstance(data, (DataLoader, IterableDataset, str, dict)) or not by_number:
        raise ConfigError(
            f"{type(data).__name__} has no rows by number; give a tensor, an array, or the data set a loader reads."
        )
    if isinstance(data, (Tensor, np.ndarray)) and data.ndim == 0:
        raise ConfigError("a single number has no rows; give a tensor or an array of shape [N, ...].")
    return data


def _read(data: Any) -> tuple[int, Iterator[Tensor]]:
    """How many values a row has, and the rows, a few at a time, flat, in float64."""
    if isinstance(data, (Tensor, np.ndarray)):
        width = math.prod(data.shape[1:])
        parts = (_tensor(data[start : start + _ROWS]) for start in range(0, len(data), _ROWS))
        return width, (part.reshape(len(part), width) for part in parts)
    if len(data) == 0:
        raise ConfigError("the data has no rows, so it is not known how many values a row has.")
    width = _row(data, 0).numel()
    return width, _stacked(data, width)


def _stacked(data: Any, width: int) -> Iterator[Tensor]:
    for start in range(0, len(data), _ROWS):
        rows = [_row(data, number) for number in range(start, min(start + _ROWS, len(data)))]
        for number, row in enumerate(rows, start):
            if row.numel() != width:
                raise ConfigError(
                    f"row {number} has {row.numel()} values, the first has {width}; give rows of one size."
                )
        yield torch.stack(rows)


def _row(data: Any, number: int) -> Tensor:
    example = data[number]
    return _tensor(example[0] if isinstance(example, tuple) else example).flatten()


def _tensor(values: Any) -> Tensor:
    if not isinstance(values, Tensor):
        try:
            values = torch.from_numpy(np.array(values))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"a row cannot be read as numbers: {error}") from error
    if values.is_complex():
        raise ConfigError(f"a row holds {values.dtype}; only real numbers have principal directions here.")
    return values.detach().to("cpu", torch.float64)
