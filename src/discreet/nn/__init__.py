"""Pieces of networks: bounded activations, recurrent layers that are fast with privacy, a cure for exploding gradients.

activations.py   BELU, tempered sigmoids, tanh; what is known of others' bounds
layers.py        LSTM, GRU and RNN as torch has them
rnn/             what those layers do at each step, and their rule
recurrent.py     the tanh filter on gradients that flow back through time
convert.py       a model with these layers in place of torch's

None of them gives privacy by itself; a bounded network does so by its certificate, and any network by a bound.
"""

from discreet.nn.activations import BELU, Bounded, BoundedTanh, TemperedSigmoid, belu, bounds_of
from discreet.nn.convert import convert
from discreet.nn.layers import GRU, LSTM, RNN
from discreet.nn.recurrent import FilteredRNN, GradientFilter, filter_gradient

__all__ = [
    "BELU",
    "GRU",
    "LSTM",
    "RNN",
    "Bounded",
    "BoundedTanh",
    "FilteredRNN",
    "GradientFilter",
    "TemperedSigmoid",
    "belu",
    "bounds_of",
    "convert",
    "filter_gradient",
]
