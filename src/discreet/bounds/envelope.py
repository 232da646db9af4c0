"""Envelopes: how large the sorted magnitudes of a bounded gradient may be, coordinate by coordinate; public."""

import numpy as np
from scipy.special import ndtri

from discreet.contracts import Magnitudes
from discreet.errors import whole


def half_normal(size: int, levels: int = 48) -> Magnitudes:
    """The magnitudes of a normal vector of `size` coordinates, in few distinct levels, with l2 norm 1.

    Paper 004 draws such vectors at random; they are nearly all the same, and few levels make accounting exact.

    >>> half_normal(4, 2).counts
    (2, 2)
    """
    whole("an envelope's size", size, least=1)
    whole("an envelope's number of levels", levels, least=1)
    edges = np.linspace(0, size, min(levels, size) + 1).round().astype(int)
    counts = np.diff(edges)
    values = ndtri(0.5 + 0.25 * (edges[:-1] + edges[1:]) / size)
    values /= np.sqrt((counts * values**2).sum())
    return Magnitudes(tuple(float(v) for v in values), tuple(int(c) for c in counts))
