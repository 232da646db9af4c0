"""Recurrent layers as torch.nn has them, made so that each example's gradient costs little more than the batch's."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from discreet._check import check_int
from discreet.errors import ConfigError
from discreet.nn.rnn import Cell, GRUCell, LSTMCell, Path, PlainCell, Weights, recur

_KINDS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class Recurrent(nn.Module):
    """What LSTM, GRU and RNN have in common: torch's arguments, parameters, inputs and outputs.

    Every walk through time is one op in the graph, and every parameter is used once for all time steps. Gradients can
    be taken once (no double backward). Under autocast it computes in the dtype of its parameters.
    """

    _gates: int
    cell: Cell  # the recurrence

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        kind = type(self).__name__
        self.input_size = check_int(f"{kind}'s input_size", input_size, least=1)
        self.hidden_size = check_int(f"{kind}'s hidden_size", hidden_size, least=1)
        self.num_layers = check_int(f"{kind}'s num_layers", num_layers, least=1)
        if not isinstance(dropout, (int, float)) or isinstance(dropout, bool) or not 0 <= dropout <= 1:
            raise ConfigError(f"{kind}'s dropout is {dropout!r}; it must be a number from 0 to 1.")
        self.bias, self.batch_first, self.bidirectional = bias, batch_first, bidirectional
        self.dropout, self.proj_size = float(dropout), 0
        for layer in range(num_layers):
            for suffix in self._suffixes(layer):
                size = input_size if layer == 0 else hidden_size * self.directions
                rows = self._gates * hidden_size
                shapes = ((rows, size), (rows, hidden_size), (rows,), (rows,))
                for name, shape in zip(self._names(suffix), shapes, strict=False):
                    self.register_parameter(name, nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))
        self.reset_parameters()

    @property
    def directions(self) -> int:
        """2 if the sequences are also read backwards."""
        return 2 if self.bidirectional else 1

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}{'_reverse' * reverse}" for reverse in range(self.directions)]

    def _names(self, suffix: str) -> list[str]:
        return [kind + suffix for kind in (_KINDS if self.bias else _KINDS[:2])]

    def reset_parameters(self) -> None:
        """Draw the parameters as torch does, in the same order."""
        width = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -width, width)

    @property
    def all_weights(self) -> list[list[nn.Parameter]]:
        """The parameters of each layer and direction."""
        suffixes = (suffix for layer in range(self.num_layers) for suffix in self._suffixes(layer))
        return [[getattr(self, name) for name in self._names(suffix)] for suffix in suffixes]

    def flatten_parameters(self) -> None:
        """Nothing: torch's layers have it for the sake of cuDNN."""

    def _run(self, x: Any, given: Sequence[Tensor] | None) -> tuple[Any, tuple[Tensor, ...]]:
        """Outputs in the form of the inputs, and the last states, [layers * directions, batch, hidden] each."""
        if isinstance(x, PackedSequence):
            if x.data.dim() != 2 or x.data.shape[1] != self.input_size:
                raise ConfigError(
                    f"{type(self).__name__} got a PackedSequence of rows of size {x.data.shape[-1]}; its input_size "
                    f"is {self.input_size}."
                )
            padded, paths = _unpacked(x, self.directions)
        else:
            padded = self._time_first(x)
            active = (padded.shape[1],) * len(padded)
            paths = [Path(active), Path(active, reverse=True)][: self.directions]
        dtype = getattr(self, self._names("_l0")[0]).dtype
        alone = isinstance(x, Tensor) and x.dim() == 2
        first = self._first(given, padded, dtype, alone=alone)
        with torch.autocast(padded.device.type, enabled=False):
            outputs, last = self._layers(padded.to(dtype), first, paths)
        if isinstance(x, PackedSequence):
            return _packed(outputs, x), last
        if alone:
            return outputs[:, 0], tuple(state[:, 0] for state in last)
        return (outputs.transpose(0, 1) if self.batch_first else outputs), last

    def _layers(
        self, sequence: Tensor, first: Sequence[Tensor], paths: Sequence[Path]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        ends: list[tuple[Tensor, ...]] = []
        for layer in range(self.num_layers):
            if layer and self.dropout and self.training:
                sequence = F.dropout(sequence, self.dropout)
            directions = []
            for suffix, path in zip(self._suffixes(layer), paths, strict=True):
                weights = Weights(*(getattr(self, name) for name in self._names(suffix)))
                outputs, last = recur(self.cell, sequence, [states[len(ends)] for states in first], weights, path)
                directions.append(outputs)
                ends.append(last)
            sequence = torch.cat(directions, 2) if len(directions) > 1 else directions[0]
        return sequence, tuple(torch.stack(states) for states in zip(*ends, strict=True))

    def _time_first(self, x: Tensor) -> Tensor:
        """The inputs as [steps, batch, input_size]."""
        if not isinstance(x, Tensor) or x.dim() not in (2, 3) or 0 in x.shape or x.shape[-1] != self.input_size:
            given = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            wanted = "(batch, length, input_size)" if self.batch_first else "(length, batch, input_size)"
            raise ConfigError(
                f"{type(self).__name__} got {given}; it takes a PackedSequence or a tensor of shape {wanted} or "
                f"(length, input_size), with input_size {self.input_size} and nothing empty."
            )
        return x[:, None] if x.dim() == 2 else x.transpose(0, 1) if self.batch_first else x

    def _first(
        self, given: Sequence[Tensor] | None, x: Tensor, dtype: torch.dtype, *, alone: bool
    ) -> list[Tensor]:  # fmt: skip
        """The first states, zero where none are given."""
        shape = (self.num_layers * self.directions, x.shape[1], self.hidden_size)
        if given is None:
            return [x.new_zeros(shape, dtype=dtype)] * self.cell.states
        states = [s[:, None] if alone and s.dim() == 2 else s for s in given]
        if len(states) != self.cell.states or any(s.shape != shape for s in states):
            wanted = (shape[0], shape[2]) if alone else shape
            raise ConfigError(
                f"{type(self).__name__}'s first states have shapes {[tuple(s.shape) for s in given]}; it takes "
                f"{self.cell.states} of shape {wanted}."
            )
        return [s.to(dtype) for s in states]

    def extra_repr(self) -> str:
        shown = [f"{self.input_size}, {self.hidden_size}"]
        shown += [f"num_layers={self.num_layers}"] if self.num_layers != 1 else []
        shown += ["bias=False"] if not self.bias else []
        shown += ["batch_first=True"] if self.batch_first else []
        shown += [f"dropout={self.dropout:g}"] if self.dropout else []
        shown += ["bidirectional=True"] if self.bidirectional else []
        return ", ".join(shown)


def _unpacked(packed: PackedSequence, directions: int) -> tuple[Tensor, list[Path]]:
    """The padded sequences [steps, batch, size], in the order they were given in, and how to walk them."""
    active = tuple(packed.batch_sizes.tolist())
    padded, _ = torch._VF._pad_packed_sequence(packed.data, packed.batch_sizes, False, 0.0, len(active))
    if packed.unsorted_indices is not None:
        padded = padded.index_select(1, packed.unsorted_indices)
    order, back = packed.sorted_indices, packed.unsorted_indices
    return padded, [Path(active, reverse, order, back) for reverse in (False, True)[:directions]]


def _packed(outputs: Tensor, like: PackedSequence) -> PackedSequence:
    """Padded outputs, packed as the inputs were."""
    if like.sorted_indices is not None:
        outputs = outputs.index_select(1, like.sorted_indices)
    lengths = (like.batch_sizes[:, None] > torch.arange(outputs.shape[1])).sum(0)
    data, _ = torch._VF._pack_padded_sequence(outputs, lengths, False)
    return PackedSequence(data, like.batch_sizes, like.sorted_indices, like.unsorted_indices)


class LSTM(Recurrent):
    """torch.nn.LSTM, with each example's gradient in one product over time; without `proj_size`."""

    _gates = 4
    cell = LSTMCell()

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if proj_size:
            raise ConfigError(
                f"LSTM's proj_size is {proj_size!r}; projections are not there: use 0, or leave torch.nn.LSTM as it is."
            )
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype
        )  # fmt: skip

    def forward(self, input: Any, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Any, tuple[Tensor, Tensor]]:
        """Outputs of every step, and the last hidden and cell states of every layer and direction."""
        outputs, (hidden, cell) = self._run(input, hx)
        return outputs, (hidden, cell)


class GRU(Recurrent):
    """torch.nn.GRU, with each example's gradient in one product over time."""

    _gates = 3
    cell = GRUCell()

    def forward(self, input: Any, hx: Tensor | None = None) -> tuple[Any, Tensor]:
        """Outputs of every step, and the last hidden state of every layer and direction."""
        outputs, (hidden,) = self._run(input, None if hx is None else (hx,))
        return outputs, hidden


class RNN(Recurrent):
    """torch.nn.RNN, with each example's gradient in one product over time."""

    _gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: Literal["tanh", "relu"] = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ConfigError(f"RNN's nonlinearity is {nonlinearity!r}; it must be 'tanh' or 'relu'.")
        self.nonlinearity, self.cell = nonlinearity, PlainCell(nonlinearity)
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype
        )  # fmt: skip

    def forward(self, input: Any, hx: Tensor | None = None) -> tuple[Any, Tensor]:
        """Outputs of every step, and the last hidden state of every layer and direction."""
        outputs, (hidden,) = self._run(input, None if hx is None else (hx,))
        return outputs, hidden

    def extra_repr(self) -> str:
        shown = super().extra_repr()
        return shown if self.nonlinearity == "tanh" else f"{shown}, nonlinearity={self.nonlinearity}"
