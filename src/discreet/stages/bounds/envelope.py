"""Envelopes: how large the sorted magnitudes of a bounded gradient may be, coordinate by coordinate; public."""

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from discreet._check import check_int
from discreet.accounting.events import Magnitudes


def half_normal(size: int, levels: int = 48) -> Magnitudes:
    """The magnitudes of a normal vector of `size` coordinates, in few distinct levels, with l2 norm 1.

    Paper 004 draws such vectors at random; they are nearly all the same, and few levels make accounting exact.

    >>> half_normal(4, 2).counts
    (2, 2)
    """
    edges = _edges(size, levels)
    counts = np.diff(edges)
    values = ndtri(0.5 + 0.25 * (edges[:-1] + edges[1:]) / size)
    values /= np.sqrt((counts * values**2).sum())
    return Magnitudes(tuple(float(v) for v in values), tuple(int(c) for c in counts))


def sampled(size: int, count: int, seed: int) -> npt.NDArray[np.float64]:
    """`count` vectors of `size` magnitudes of normal values, ascending, each of l2 norm 1: public, made from a seed.

    The same in every version of numpy: a bit generator's stream is fixed, and the rest is done here.
    """
    bits = np.random.PCG64(check_int("an envelope's seed", seed, least=0)).random_raw((count, size))
    magnitudes = np.sort(ndtri(0.5 + 0.5 * ((bits >> np.uint64(11)) + 0.5) * 2.0**-53), axis=1)
    return magnitudes / np.linalg.norm(magnitudes, axis=1, keepdims=True)


def covering(envelopes: npt.NDArray[np.float64], levels: int) -> Magnitudes:
    """Few levels that are nowhere below any of the (ascending) envelopes."""
    highest = envelopes.max(0)
    edges = _edges(len(highest), levels)
    return Magnitudes(tuple(float(highest[e - 1]) for e in edges[1:]), tuple(int(c) for c in np.diff(edges)))


def _edges(size: int, levels: int) -> npt.NDArray[np.int64]:
    check_int("an envelope's size", size, least=1)
    check_int("an envelope's number of levels", levels, least=1)
    return np.linspace(0, size, min(levels, size) + 1).round().astype(np.int64)
