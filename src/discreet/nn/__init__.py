"""Pieces of networks: activations with bounded values and slopes, and a cure for exploding gradients.

None of them gives privacy by itself; a bounded network does so by its certificate, and any network by a bound.
"""

from discreet.nn.activations import BELU, Bounded, BoundedTanh, TemperedSigmoid, belu, bounds_of
from discreet.nn.recurrent import FilteredRNN, GradientFilter, filter_gradient

__all__ = [
    "BELU",
    "Bounded",
    "BoundedTanh",
    "FilteredRNN",
    "GradientFilter",
    "TemperedSigmoid",
    "belu",
    "bounds_of",
    "filter_gradient",
]
