"""Gradients of several matrices, one for each group of rows (experts, heads): sums of outer products."""

from collections.abc import Sequence

import torch
from torch import Tensor

from discreet.gradients.forms.base import PerExampleGrad, row_lengths
from discreet.gradients.forms.outer import OuterProducts


class GroupedProducts(PerExampleGrad):
    """left [rows, a], right [rows, b], gradient [groups, a, b]: row r counts for unit owner[r] and matrix group[r].

    An owner or group below zero is nobody's. The matrices of a unit are apart, so its norm is that of all its segments:
    the rows of one unit in one group. Segments of about the same length are measured together, as the gradients of so
    many units would be. The weighted sum is one product for each group.
    """

    adds_terms = True

    def __init__(
        self, left: Tensor, right: Tensor, owner: Tensor, group: Tensor, units: int, shape: torch.Size
    ) -> None:
        counts = (owner >= 0) & (group >= 0)
        order = (group * units + owner)[counts].argsort(stable=True)  # group by group, in each unit by unit
        at = counts.nonzero().squeeze(1)[order]
        self._left, self._right, self._owner, self._group = left[at], right[at], owner[at], group[at]
        self.units, self.shape = units, shape
        keys, lengths = torch.unique_consecutive(self._group * units + self._owner, return_counts=True)
        self._of, self._in, self._lengths = keys % units, keys // units, lengths
        self._starts = lengths.cumsum(0) - lengths

    def held(self) -> Sequence[Tensor]:
        return self._left, self._right

    def _segments(self, chosen: Tensor) -> OuterProducts:
        """Some segments as gradients of so many units; rows are filled up with zeros."""
        lengths, starts = self._lengths[chosen], self._starts[chosen]
        within = torch.arange(int(lengths.max()), device=lengths.device)
        there = within < lengths[:, None]
        at = torch.where(there, starts[:, None] + within, 0)
        left = self._left[at].mul_(there[..., None])
        return OuterProducts(left, self._right[at].mul_(there[..., None]))

    def norms(self) -> Tensor:
        squared = self._left.new_zeros(self.units)
        sizes = (self._lengths - 1).to(torch.float64).clamp(min=0.5).log2().ceil()  # as powers of two
        for size in sizes.unique():
            chosen = (sizes == size).nonzero().squeeze(1)
            squared.index_add_(0, self._of[chosen], self._segments(chosen).norms())
        return squared

    def lengths(self) -> Tensor:
        terms = (row_lengths(self._left[None]) * row_lengths(self._right[None]))[0]
        return terms.new_zeros(self.units).index_add_(0, self._owner, terms)

    def add_weighted(self, weights: Tensor, out: Tensor) -> None:
        factors = weights[self._owner].unsqueeze(1)
        narrow = self._left.shape[1] <= self._right.shape[1]
        left = self._left * factors if narrow else self._left
        right = self._right if narrow else self._right * factors
        groups, counts = torch.unique_consecutive(self._group, return_counts=True)
        start = 0
        for group, count in zip(groups.tolist(), counts.tolist(), strict=True):
            out[group].addmm_(left[start : start + count].t(), right[start : start + count])
            start += count

    def each(self, start: int, stop: int) -> Tensor:
        gradients = self._left.new_zeros(stop - start, *self.shape)
        chosen = ((self._of >= start) & (self._of < stop)).nonzero().squeeze(1)
        for segment in chosen.tolist():
            rows = slice(int(self._starts[segment]), int(self._starts[segment] + self._lengths[segment]))
            gradients[self._of[segment] - start, self._in[segment]] = self._left[rows].t() @ self._right[rows]
        return gradients

    def select(self, units: Tensor) -> PerExampleGrad:
        place = torch.full((self.units + 1,), -1, device=self._owner.device)
        place[units] = torch.arange(len(units), device=place.device)
        return GroupedProducts(self._left, self._right, place[self._owner], self._group, len(units), self.shape)
