"""Ops that move rows by data: whose rows are whose is read of the indices that autograd saved, in every step."""

import pytest
import torch
from oracle import assert_units, square_loss, two_layers
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from discreet.gradients import Engine
from discreet.gradients import engine as engine_module

R = torch.randn
SIZES = ((3, 1, 2, 2), (2, 2, 2, 2), (1, 4, 1, 2), (2, 1, 1, 4), (3, 1, 2, 2))


def owners(sizes):
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))


def index(sizes):
    return owners(sizes)[:, None].expand(-1, 4)


def starts(sizes):
    return F.pad(torch.tensor(sizes).cumsum(0)[:-1], (1, 0))


def table(h, sizes):
    """Rows of each unit with as many places as the longest has."""
    places = torch.arange(len(h)) - starts(sizes)[owners(sizes)]
    return h.new_zeros(len(sizes), 4, h.shape[1]).index_put((owners(sizes), places), h)


def put_by_mask(h, sizes):
    there = torch.arange(4)[None] < torch.tensor(sizes)[:, None]
    out = h.new_zeros(len(sizes), 4, h.shape[1])
    out[there] = h
    return out.sum(1)


def picked_by_mask(h, sizes):
    there = torch.arange(4)[None] < torch.tensor(sizes)[:, None]
    return h.new_zeros(len(sizes), h.shape[1]).index_add(0, owners(sizes), table(h, sizes)[there].tanh())


def sorted_and_back(h, sizes):
    order = torch.randperm(len(h))
    return added(h[order].tanh()[order.argsort()], sizes)


def added(h, sizes):
    return h.new_zeros(len(sizes), h.shape[1]).index_add(0, owners(sizes), h)


def packed(h, sizes):
    data = pack_padded_sequence(table(h, sizes), torch.tensor(sizes), batch_first=True, enforce_sorted=False)
    at = torch.cat([torch.arange(int(n)) for n in data.batch_sizes])
    return h.new_zeros(len(sizes), h.shape[1]).index_add(0, data.sorted_indices[at], data.data)


def grouped(h, sizes):
    """Two groups of rows, one of which may be empty; each has its own scale."""
    group = torch.randint(2, (len(h),))
    parts = [h[group == g] * (g + 1) for g in range(2)]
    back = torch.cat([(group == g).nonzero().squeeze(1) for g in range(2)]).argsort()
    return added(torch.cat(parts)[back], sizes)


def alone(h, sizes):
    return torch.stack([piece.tanh().mean(0) for piece in h.split(sizes)])


def by_slices(h, sizes):
    return torch.cat([h[a : a + n].sum(0, keepdim=True) for a, n in zip(starts(sizes).tolist(), sizes, strict=True)])


def index_selected(h, sizes):
    order = torch.randperm(len(h))
    return h.new_zeros(len(sizes), 4).index_add(0, owners(sizes)[order], h.index_select(0, order).tanh())


def gathered(h, sizes):
    order = torch.randperm(len(h))
    return h.new_zeros(len(sizes), 4).index_add(0, owners(sizes)[order], h.gather(0, order[:, None].expand(-1, 4)))


def to_the_whole_and_back(h, sizes):
    return added(torch.cat([h, added(h, sizes).tanh()[owners(sizes)]], 1), sizes)


MOVES = {
    "index_add": added,
    "index_put": lambda h, s: table(h, s).sum(1),
    "put by a mask": put_by_mask,
    "picked by a mask": picked_by_mask,
    "index_select": index_selected,
    "scatter_add": lambda h, s: h.new_zeros(4, 4).scatter_add(0, index(s), h),
    "scatter_reduce": lambda h, s: h.new_full((4, 4), -9).scatter_reduce(
        0, owners(s)[:, None].expand(-1, 4), h, "amax"
    ),
    "gather": gathered,
    "segment_reduce": lambda h, s: torch.segment_reduce(h, "sum", lengths=torch.tensor(s)),
    "sorted and back": sorted_and_back,
    "packed sequences": packed,
    "groups": grouped,
    "split": alone,
    "slices": by_slices,
    "to the whole and back": to_the_whole_and_back,
    "repeated": lambda h, s: added(h.repeat_interleave(2, 0).view(-1, 2, 4).tanh().sum(1), s),
    "views": lambda h, s: added(h.view(-1, 2, 2).flatten(0, 1).tanh().view(len(h), -1), s),
    "columns": lambda h, s: h.t().new_zeros(4, 4).index_add(1, owners(s), h.t()).t(),
    "one of each": lambda h, s: h[torch.arange(len(h)), :][starts(s)].tanh(),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_rows_go_to_their_own_units_in_every_batch_with_one_analysis(move, monkeypatch):
    model, calls, analyse = two_layers(), [], engine_module.analyse
    monkeypatch.setattr(engine_module, "analyse", lambda *args, **more: calls.append(1) or analyse(*args, **more))
    engine = Engine(model)
    for sizes in SIZES:
        h = model.norm(model.inner(R(sum(sizes), 3).double()))
        assert_units(model, square_loss(model.outer(move(h, list(sizes))[:, :4])), engine)
    assert len(calls) == 1
