"""004, an envelope that is fitted to public gradients instead of a Gaussian's values: a stage of one's own.

The paper draws its preselected vectors from a Gaussian, as its figure 1 shows gradients that one can be fitted to; the
type, it says, does not matter for privacy. Gradients have far longer tails, so such an envelope cuts the large values
that matter. Here the envelope has the mean shape of a public data set's gradients.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F

from discreet import ConfigError, Encode
from discreet.accounting.events import Magnitudes
from discreet.models import build
from discreet.papers.held_out import gradients
from discreet.papers.train_case import Pair, pairs
from discreet.stages.sensitivity import Envelope, Layout

PUBLIC = {"mnist": "fashion-mnist"}  # whose gradients an envelope may be fitted to
_STEPS, _ROWS, _LEVELS = 200, 500, 48


@dataclass(frozen=True)
class FittedEncode(Encode):
    """Encode with an envelope of its own from public data, of l2 norm 1: ascending `heights`, each for so many of the
    `counts`.

    Guarantee: that of Encode, for this envelope.
    """

    heights: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()

    def start(self, layout: Layout) -> npt.NDArray[np.float32]:
        """The envelope, rounded down."""
        shape = self._shape(layout)
        exact = self.norm * np.repeat(np.array(shape.levels), shape.counts)[None, :]
        rounded = exact.astype(np.float32)
        return np.where(rounded > exact, np.nextafter(rounded, np.float32(0)), rounded)

    def contract(self, layout: Layout, state: npt.NDArray[np.float32] | None) -> Envelope:
        shape = self._shape(layout)
        scaled = Magnitudes(tuple(self.norm * x for x in shape.levels), shape.counts)
        return Envelope(layout.names, scaled, (), self.norm)

    def _shape(self, layout: Layout) -> Magnitudes:
        size = sum(layout.sizes)
        if sum(self.counts) != size:
            raise ConfigError(f"the envelope was not fitted to {size:,} parameters; fit it to this model's gradients.")
        return Magnitudes(tuple(self.heights), tuple(self.counts))


def shape_of(magnitudes: npt.NDArray[np.float64], levels: int = _LEVELS) -> Magnitudes:
    """Few ascending levels of sorted magnitudes, of l2 norm 1: each the root mean square of its stretch of ranks.

    Stretches are shorter towards the largest values.

    >>> shape = shape_of(np.array([0.0, 0.0, 3.0, 4.0]), 4)
    >>> shape.counts, round(shape.norm, 6)
    ((1, 1, 1, 1), 1.0)
    """
    size = len(magnitudes)
    ranks = np.unique(np.round(size * (1 - np.geomspace(1, 1 / size, levels + 1))).astype(np.int64))
    edges = np.unique(np.concatenate([ranks, [size]]))
    values = [np.sqrt(np.square(magnitudes[a:b]).mean()) for a, b in pairwise(edges)]
    counts = np.diff(edges)
    norm = float(np.sqrt((counts * np.square(values)).sum()))
    return Magnitudes(tuple(float(v) / norm * (1 - 1e-12) for v in values), tuple(int(c) for c in counts))


@lru_cache(maxsize=2)
def public_shape(data: str, network: str) -> Magnitudes:
    """The mean of sorted magnitudes, each of norm 1, of a public data set's gradients after some steps on it."""
    if data not in PUBLIC:
        raise ConfigError(f"no public data set is named whose gradients are like those of {data}.")
    train, _ = pairs(PUBLIC[data])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build(network, tuple(train[0].shape[1:]), 10)
        _train(model, train)
    total, rows = 0.0, 0
    for part in gradients(model, train, _ROWS):
        ordered = F.normalize(part).abs().sort(1).values.double()
        total, rows = total + ordered.sum(0).numpy(), rows + len(ordered)
    return shape_of(np.asarray(total / rows))


def _train(model: nn.Module, train: Pair) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.15)
    for step in range(_STEPS):
        rows = slice(256 * step % len(train[0]), 256 * step % len(train[0]) + 256)
        optimizer.zero_grad()
        F.cross_entropy(model(train[0][rows]), train[1][rows]).backward()
        optimizer.step()
