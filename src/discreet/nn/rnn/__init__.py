"""Recurrences whose parameters are used once, over all time steps: what the engine sees is one product a weight.

path.py       the steps of a walk, also of rows of unequal length
cells.py      LSTM, GRU and the plain cell, each walked forward and back by hand
functions.py  what stands for a recurrence in the graph
rule.py       each unit's gradient of its weights
products.py   products of many rows, by the faster of two libraries
"""

from discreet.nn.rnn import rule
from discreet.nn.rnn.cells import Cell, GRUCell, LSTMCell, PlainCell
from discreet.nn.rnn.functions import recur
from discreet.nn.rnn.path import Path, Weights

__all__ = ["Cell", "GRUCell", "LSTMCell", "Path", "PlainCell", "Weights", "recur", "rule"]
