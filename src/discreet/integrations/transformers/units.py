"""Sequences by whom they belong to, and their batches."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from discreet._check import check_int
from discreet.errors import ConfigError
from discreet.release.batching import Collate as _Any
from discreet.release.batching import length_of


class Units(Dataset[Any]):
    """Sequences grouped by whom they belong to: one item for each owner, its first `most` sequences.

    `owners` has the owner of each sequence (a user, a document). How many sequences an owner has is private: `most` is
    declared without looking.
    """

    def __init__(self, sequences: Any, owners: Sequence[Hashable], most: int) -> None:
        if len(owners) != length_of(sequences):
            raise ConfigError(f"there are {len(owners)} owners for {length_of(sequences)} sequences; one for each.")
        self.most = check_int("the most sequences of a unit", most, least=1)
        self._sequences = sequences
        self._places: dict[Hashable, list[int]] = {}
        names: Any = owners.tolist() if isinstance(owners, (Tensor, np.ndarray)) else owners
        for place, owner in enumerate(names):
            if isinstance(owner, Tensor) or owner != owner:  # two of them are never the same key
                raise ConfigError(
                    f"the owner of sequence {place} is {owner!r}, of which no two are equal, so that its sequences "
                    "would be taken for several owners'; give names or whole numbers."
                )
            self._places.setdefault(owner, []).append(place)
        self._owners = list(self._places)

    def __len__(self) -> int:
        return len(self._owners)

    def __getitem__(self, index: int) -> list[Any]:
        return [self._sequences[place] for place in self._places[self._owners[index]][: self.most]]


class Collate:
    """Collates units: the model's inputs, and for units of several rows which of them are real.

    A unit with fewer than `rows` gets copies of its own first one, so that every unit has as many.
    """

    def __init__(self, collate: _Any, rows: int | None) -> None:
        self._collate, self.rows = collate, rows

    def __call__(self, units: list[Any]) -> tuple[Any, Tensor | None]:
        if self.rows is None:
            return self._collate(units), None
        rows = [[*unit, *[unit[0]] * (self.rows - len(unit))] for unit in units]
        real = [i < len(unit) for unit in units for i in range(self.rows)]
        return self._collate([row for unit in rows for row in unit]), torch.tensor(real)
