"""Where units stand is remembered only where the ops above tell it: what data deals out is found anew in each step."""

import pytest
import torch
from oracle import Net, assert_units, two_layers
from torch import nn
from torch.nn import functional as F

from discreet.gradients import Engine
from discreet.gradients import engine as engine_module
from discreet.gradients.axes import readings, rows_at
from discreet.gradients.graph import walk
from discreet.gradients.layout import Members, Rows
from discreet.gradients.ops import Step, _viewed
from discreet.gradients.refusals import Inseparable

R = torch.randn


def lengths(sizes):
    return torch.tensor(sizes)


def owners(sizes):
    return torch.arange(len(sizes)).repeat_interleave(lengths(sizes))


def members(sizes):
    return owners(sizes)[None] == torch.arange(len(sizes))[:, None]


class SegmentSum(torch.autograd.Function):
    """A function of one's own that deals rows out."""

    @staticmethod
    def forward(ctx, h, owner, units):
        ctx.save_for_backward(owner)
        return h.new_zeros(units, h.shape[1]).index_add_(0, owner, h)

    @staticmethod
    def backward(ctx, *gradients):
        return gradients[0][ctx.saved_tensors[0]], None, None


def copied(h, sizes):
    out, start = h.new_zeros(len(sizes), max(sizes), h.shape[1]), 0
    for unit, size in enumerate(sizes):
        out[unit, :size] = h[start : start + size]
        start += size
    return out.sum(1)


def attended(h, sizes):
    mask, query = members(sizes)[None, None], h.new_ones(1, 1, len(sizes), h.shape[1])
    return F.scaled_dot_product_attention(query, h[None, None], h[None, None], attn_mask=mask)[0, 0]


def by_heads(h, sizes):
    heads = h.reshape(len(h), 4, 1).permute(1, 0, 2)
    return torch.bmm(members(sizes).double()[None].expand(4, -1, -1), heads).permute(1, 0, 2).reshape(len(sizes), 4)


def additive(h, sizes):
    scores = h.sum(1)[None] + torch.where(members(sizes), 0.0, -1e9)
    return scores.softmax(1) @ h


DEALING = {
    "segment_reduce": lambda h, s: torch.segment_reduce(h, "sum", lengths=lengths(s)),
    "index_add": lambda h, s: h.new_zeros(len(s), h.shape[1]).index_add(0, owners(s), h),
    "scatter_add": lambda h, s: h.new_zeros(len(s), 4).scatter_add(0, owners(s)[:, None].expand(-1, 4), h),
    "embedding_bag": lambda h, s: F.embedding_bag(
        torch.arange(len(h)), h, F.pad(lengths(s).cumsum(0)[:-1], (1, 0)), mode="sum"
    ),
    "a function of one's own": lambda h, s: SegmentSum.apply(h, owners(s), len(s)),
    "a mask on an expanded table": lambda h, s: (h[None].expand(len(s), -1, -1) * members(s)[..., None]).sum(1),
    "a filled table": lambda h, s: h[None].expand(len(s), -1, -1).masked_fill(~members(s)[..., None], -1e9).amax(1),
    "where": lambda h, s: torch.where(members(s)[..., None], h[None].expand(len(s), -1, -1), 0.0).sum(1),
    "attention with a mask": attended,
    "products by heads": by_heads,
    "an additive mask": additive,
    "rows written one by one": copied,
    "split": lambda h, s: torch.stack([part.sum(0) for part in h.split(s)]),
    "a product from the right": lambda h, s: (h.t() @ members(s).double().t()).t(),
    "einsum": lambda h, s: torch.einsum("un,nd->ud", members(s).double(), h),
}


@pytest.mark.parametrize("deal", DEALING.values(), ids=DEALING)
def test_what_one_batch_showed_is_not_believed_of_the_next_where_data_deals_rows_out(deal):
    model, scale = two_layers(), torch.tensor([1, 4, 0.1, 0.5])
    made = Engine(model)
    for sizes in ([2, 2, 2, 2], [2, 2, 2, 2], [1, 4, 2, 1], [3, 1, 1, 3], [2, 2, 2, 2]):
        rows = R(8, 3).double() * scale[owners(sizes), None]
        pooled = deal(model.inner(rows), sizes)
        assert_units(model, model.outer(pooled.tanh()).square().sum(1), made)


ORDERS = {
    "look-up": lambda h, order: F.embedding(order.argsort(), h),
    "indices": lambda h, order: h[order.argsort()],
    "selected and stacked": lambda h, order: torch.stack([h[i] for i in order.argsort().tolist()]),
    "unbound and stacked": lambda h, order: torch.stack([h.unbind(0)[i] for i in order.argsort().tolist()]),
    "slices side by side": lambda h, order: torch.cat([h[i : i + 1] for i in order.argsort().tolist()]),
    "gathered": lambda h, order: h.gather(0, order.argsort()[:, None].expand(-1, 4)),
    "permutation matrix": lambda h, order: F.one_hot(order.argsort(), 4).double() @ h,
    "padded and folded": lambda h, order: F.pad(h.roll(-int(order[0]), 0), (0, 0, int(order[0]), 4 - int(order[0])))
    .view(2, 4, 4).sum(0),
}  # fmt: skip


@pytest.mark.parametrize("moved", ORDERS.values(), ids=ORDERS)
def test_rows_in_another_order_go_to_their_own_units(moved):
    model = two_layers()
    made = Engine(model)
    for order in ([0, 1, 2, 3], [0, 1, 2, 3], [2, 0, 3, 1], [1, 2, 3, 0]):
        rows = R(4, 3).double() * torch.tensor([1, 4, 0.1, 0.5])[:, None]
        assert_units(model, model.outer(moved(model.inner(rows), torch.tensor(order)).tanh()).square().sum(1), made)


def test_time_first_rows_that_a_mask_picks_may_be_read_in_two_ways():
    """While the picked rows lie on a diagonal, blocks and every fourth row fit alike: neither is remembered."""
    model = two_layers()
    made = Engine(model)
    for last in ([0, 1, 2, 3], [0, 1, 2, 3], [2, 3, 3, 1]):
        hidden = model.inner(R(4, 4, 3).double() * torch.tensor([1, 4, 0.1, 0.5])[:, None])
        mask = (torch.arange(4)[:, None] == torch.tensor(last)[None])[..., None].double()
        assert_units(model, model.outer((hidden * mask).sum(0).tanh()).square().sum(1), made)


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_small_gradients_in_float16_fit_no_reading_by_chance(scale):
    model = Net(inner=nn.Linear(16, 32), outer=nn.Linear(32, 4))
    x = R(32, 8, 16) * torch.logspace(-1, 1, 8)[:, None]
    with torch.autocast("cpu", torch.float16):
        out = model.outer(model.inner(x).tanh())
    losses = out.float().square().mean((0, 2)) * scale
    assert_units(model, losses, tolerance=0.02)


@pytest.mark.parametrize("rows_of_it", [9, 10])
def test_one_example_that_is_not_finite_takes_no_other_with_it(rows_of_it):
    """Its rows lie between the others', and would be read as theirs, or spoil the sums that are made of all."""
    model = two_layers()
    order = torch.tensor([v for i in range(8) for v in (i, 8)] + [8] * (rows_of_it - 8))
    rows = R(len(order), 3).double()
    rows[order == 8] = torch.nan
    losses = model.outer(torch.zeros(9, 4).double().index_add(0, order, model.inner(rows)).tanh()).square().sum(1)
    with pytest.raises(Inseparable):
        Engine(model).gradients(losses, 9)


# --- what is remembered ----------------------------------------------------------------------------------------------


def small_cnn():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3), nn.SiLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(4, 3),
    )  # fmt: skip


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.inner, self.head = kind(3, 5, **options), nn.Linear(5, 3)
        self.first = options.get("batch_first", False)

    def forward(self, x):
        out = self.inner(x if self.first else x.transpose(0, 1))[0]
        return self.head(out[:, -1] if self.first else out[-1])


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(9, 8), nn.Parameter(R(12, 8))
        self.layer, self.head = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.layer(self.words(x) + self.places[: x.shape[1]])[:, 0])


REMEMBERED = {
    "mlp": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)), lambda n: R(n, 3)),
    "cnn": (small_cnn, lambda n: R(n, 1, 8, 8)),
    "instance norm": (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4), nn.Flatten(), nn.Linear(144, 3)),
                      lambda n: R(n, 1, 8, 8)),
    "transformer": (Transformer, lambda n: torch.randint(9, (n, 6))),
    "lstm": (lambda: Recurrent(nn.LSTM, batch_first=True), lambda n: R(n, 6, 3)),
    "lstm, time first": (lambda: Recurrent(nn.LSTM), lambda n: R(n, 6, 3)),
    "gru": (lambda: Recurrent(nn.GRU, batch_first=True), lambda n: R(n, 6, 3)),
    "weight norm": (lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), nn.Linear(4, 3)),
                    lambda n: R(n, 3)),
}  # fmt: skip
LOSSES = {
    "cross-entropy": lambda out, y: F.cross_entropy(out, y, reduction="none"),
    "picked by labels": lambda out, y: -out.log_softmax(1).gather(1, y[:, None]).squeeze(1),
    "indexed by labels": lambda out, y: -out.log_softmax(1)[torch.arange(len(y)), y],
    "squared": lambda out, y: F.mse_loss(out, F.one_hot(y, 3).float(), reduction="none").mean(1),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("name", REMEMBERED)
def test_usual_networks_are_analysed_once(name, loss, monkeypatch):
    make, inputs = REMEMBERED[name]
    model, calls, analyse = make(), [], engine_module.analyse
    monkeypatch.setattr(engine_module, "analyse", lambda *args, **more: calls.append(1) or analyse(*args, **more))
    made = Engine(model)
    for units in (5, 8, 5, 6, 3):
        made.gradients(loss(model(inputs(units)), torch.randint(3, (units,))), units)
    assert len(calls) == 1


# --- places --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "made", "given", "expected"),
    [
        ((0, 1), (5, 4, 3), (20, 3), (0, 4)),
        ((0, 4), (20, 3), (5, 4, 3), (0, 1)),
        ((1, 1), (4, 5, 3), (20, 3), (0, 1)),  # every fifth row
        ((0, 1), (20, 3), (4, 5, 3), (1, 1)),
        ((0, 1), (5, 12), (5, 3, 2, 2), (0, 1)),
        ((0, 1), (5,), (5, 1, 1), (0, 1)),
        ((2, 1), (2, 3, 5), (6, 5), (1, 1)),
        ((1, 2), (3, 10), (30,), (0, 2)),
        ((0, 3), (15,), (5, 3), (0, 1)),
    ],
)
def test_units_in_another_shape(place, made, given, expected):
    found = _viewed(Step({}, 0, 0, place, made, given, 5))
    assert found == expected
    owner = torch.arange(made[place[0]]).div(place[1], rounding_mode="floor") % 5
    whole = owner.view([-1 if d == place[0] else 1 for d in range(len(made))]).expand(made).reshape(given)
    again = torch.arange(given[expected[0]]).div(expected[1], rounding_mode="floor") % 5
    assert torch.equal(whole, again.view([-1 if d == expected[0] else 1 for d in range(len(given))]).expand(given))


def place_below(losses, model, shape):
    """Where units stand in the output of the first op above a layer that has this shape."""
    graph = walk(losses, {id(p): name for name, p in model.named_parameters()}, 0)
    return {
        graph.name(n): rows for (n, _), rows in readings(graph, len(losses)).items() if graph.shape((n, 0)) == shape
    }


def test_distances_of_tables_that_are_spread_over_others_tell_nothing():
    model = nn.Linear(3, 2).double()
    tables = model(R(4, 5, 3).double())  # [4, 5, 2], met by [4, 4, 6, 2]
    losses = torch.cdist(R(4, 4, 6, 2).double(), tables).square().sum((1, 2, 3))
    assert set(place_below(losses, model, (4, 5, 2)).values()) == {None}


def test_complex_numbers_have_their_parts_at_the_end():
    model = nn.Linear(3, 4).double()
    hidden = torch.view_as_complex(model(R(4, 3).double()).view(4, 2, 2))
    parts = torch.view_as_real(hidden * hidden)
    assert set(place_below(parts.square().sum((1, 2)), model, (4, 2, 2)).values()) == {Rows(0)}
    assert set(place_below(parts.square().sum((1, 2)), model, (4, 2)).values()) == {Rows(0)}
    turned = torch.view_as_real(torch.view_as_complex(model(R(5, 3).double()).view(5, 2, 2)).t())
    assert set(place_below(turned.square().sum((0, 2)), model, (2, 5)).values()) == {Rows(1)}


def test_indices_of_several_dimensions_before_the_units_leave_them_in_place():
    model = nn.Linear(3, 4).double()
    hidden = model(R(5, 3).double()).t()
    losses = hidden[torch.tensor([[0, 1], [2, 3]])].square().sum((0, 1))
    assert_units(model, losses)
    assert place_below(model(R(5, 3).double()).t()[torch.tensor([[0, 1], [2, 3]])].sum((0, 1)), model, (4, 5)) == {
        "TBackward0": Rows(1)
    }


def test_rows_of_places():
    assert rows_at((0, 4), (20, 3), 5) == Rows(0)
    assert rows_at((1, 1), (3, 20), 5) == Rows(1, interleaved=True)
    found = rows_at((0, 2), (20, 3), 5)
    assert isinstance(found, Members)
    assert found.owner.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4] * 2


def test_an_op_that_is_not_known_tells_nothing_of_what_is_below():
    model = two_layers()
    hidden = model.inner(R(4, 3).double())
    losses = model.outer(SegmentSum.apply(hidden, torch.arange(4), 4)).square().sum(1)
    graph = walk(losses, {id(p): name for name, p in model.named_parameters()}, 0)
    found = {graph.name(n): rows for (n, _), rows in readings(graph, 4).items() if graph.shape((n, 0)) == (4, 4)}
    assert found["SegmentSumBackward"] == Rows(0)
    assert found["AddmmBackward0"] is None
