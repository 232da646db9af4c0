"""Rows that belong to units by data: tokens side by side, graphs, experts; and backward passes that are not linear."""

from itertools import pairwise

import pytest
import torch
from oracle import Net, assert_equal, assert_units, each_loss, square_loss, two_layers
from torch import nn
from torch.nn import functional as F

from discreet import PrivacyError
from discreet.gradients import Engine
from discreet.gradients.layout import Matching, Members, Memberships, Rows, random_labels, subsets

R = torch.randn
WIDTH = 3


def per_token(model, tokens):
    return square_loss(model.outer(model.norm(model.inner(tokens)).tanh()))


def pooled(values, owner, units):
    return torch.zeros(units, dtype=values.dtype).index_add(0, owner, values)


OWNERS = {
    "as many rows as units": [1, 2, 0, 3],
    "a multiple of the units": [0, 0, 0, 1, 2, 3, 3, 3],
    "no multiple": [0, 0, 1, 2, 2, 2, 3],
    "in no order": [3, 0, 2, 0, 1, 2, 3, 3, 0],
    "a unit without rows": [0, 0, 1, 1, 2, 2, 2, 2],
}


@pytest.mark.parametrize("owner", OWNERS.values(), ids=OWNERS)
def test_tokens_side_by_side_are_exact_whoever_they_belong_to(owner):
    model, owner = two_layers(), torch.tensor(owner)
    assert_units(model, pooled(per_token(model, R(len(owner), WIDTH).double()), owner, 4))


def test_every_step_is_exact_also_where_rows_and_units_divide_by_chance():
    """One engine, many batches: the number of tokens is a multiple of the number of units in some and not in others."""
    model, generator = two_layers(), torch.Generator().manual_seed(0)
    engine, divides = Engine(model), set()
    for _ in range(25):
        units = int(torch.randint(2, 6, (), generator=generator))
        lengths = torch.randint(1, 5, (units,), generator=generator)
        owner = torch.arange(units).repeat_interleave(lengths)
        divides.add(len(owner) % units == 0)
        assert_units(model, pooled(per_token(model, R(len(owner), WIDTH).double()), owner, units), engine)
    assert divides == {True, False}


@pytest.mark.parametrize("units", [4, 40])
def test_messages_on_a_batch_of_graphs_are_exact(units):
    model = Net(message=nn.Linear(WIDTH, WIDTH), update=nn.Linear(2 * WIDTH, WIDTH), head=nn.Linear(WIDTH, 2)).double()
    nodes = torch.arange(units).repeat_interleave(torch.arange(units) % 3 + 2)
    h, edges = R(len(nodes), WIDTH).double(), torch.nonzero(nodes[:, None] == nodes[None]).t()
    for _ in range(2):
        sent = model.message(h)[edges[0]].tanh()
        received = torch.zeros_like(h).index_add(0, edges[1], sent)
        h = model.update(torch.cat([h, received], 1)).tanh()
    graphs = torch.zeros(units, WIDTH).double().index_add(0, nodes, h)
    assert_units(model, square_loss(model.head(graphs)))


def test_experts_by_index_are_exact_also_one_without_rows():
    model = Net(
        gate=nn.Linear(WIDTH, 4),
        experts=nn.ModuleList([nn.Linear(WIDTH, 2) for _ in range(4)]),
        table=nn.Embedding(9, WIDTH),
    ).double()
    x = model.table(torch.randint(9, (5, 6))).flatten(0, 1)
    weights = model.gate(x).softmax(1)
    chosen = torch.randint(3, (len(x),))
    out = torch.zeros(len(x), 2).double()
    for number, expert in enumerate(model.experts):
        rows = (chosen == number).nonzero().squeeze(1)
        out = out.index_add(0, rows, expert(x[rows]) * weights[rows, number, None])
    assert_units(model, square_loss(out.view(5, 6, 2)))


def test_losses_in_another_order_are_each_units_own():
    model = two_layers()
    assert_units(model, per_token(model, R(6, WIDTH).double()).roll(1))


def test_single_values_are_told_apart_where_no_dimension_does():
    """Rows and columns of one table: a value is whose it is by both."""
    model = Net(table=nn.Linear(WIDTH, 4, bias=False)).double()
    owner = torch.randint(5, (6, 4))
    values = model.table(R(6, WIDTH).double())
    assert_units(model, torch.zeros(5).double().index_put((owner,), values.square(), accumulate=True))


@pytest.mark.parametrize("mixes", [lambda h: h - h.mean(0), lambda h: torch.softmax(h @ h.t(), 1) @ h])
def test_what_mixes_tokens_of_several_units_is_refused(mixes):
    model, owner = two_layers(), torch.tensor(OWNERS["a multiple of the units"])
    losses = pooled(square_loss(model.outer(mixes(model.inner(R(8, WIDTH).double())))), owner, 4)
    with pytest.raises(PrivacyError, match="mixes examples"):
        Engine(model).gradients(losses, 4)


@pytest.mark.parametrize("mixes", [lambda h: h - h.mean(0), lambda h: h / h.std(0), lambda h: h * h.amax(0)])
@pytest.mark.parametrize("nodes", [7, 9, 10, 12])
def test_what_mixes_rows_side_by_side_is_refused_whatever_their_number(mixes, nodes):
    """Also where it is no multiple of the units, so that no dimension could hold as many rows for each."""
    model, owner = two_layers(), torch.arange(nodes) * 4 // nodes
    x = R(nodes, WIDTH).double()
    losses = square_loss(model.outer(pooled_rows(mixes(model.inner(x)), owner, 4)))
    with pytest.raises(PrivacyError, match="mixes examples"):
        Engine(model).gradients(losses, 4, ragged=lambda: True)


def pooled_rows(values, owner, units):
    return torch.zeros(units, values.shape[1], dtype=values.dtype).index_add(0, owner, values)


def test_a_preparation_by_small_constants_is_one_also_beside_rows_side_by_side():
    model, owner = two_layers(), torch.tensor(OWNERS["no multiple"])
    turned = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]).double()
    hidden = F.linear(R(7, WIDTH).double(), model.inner.weight @ turned, model.inner.bias)
    losses = square_loss(model.outer(pooled_rows(hidden.tanh(), owner, 4)))
    expected = each_loss(model, losses)
    assert_equal(Engine(model).gradients(losses, 4, ragged=lambda: True), expected, 1e-9)


# --- what one batch taught holds for the next only if rows are dealt the same way ----------------------------------


def by_split(model, sizes):
    parts = per_token(model, R(sum(sizes), WIDTH).double()).split(sizes)
    return torch.stack([part.sum() for part in parts])


def by_slices(model, sizes):
    found, starts = per_token(model, R(sum(sizes), WIDTH).double()), torch.tensor([0, *sizes]).cumsum(0).tolist()
    return torch.stack([found[a:b].sum() for a, b in pairwise(starts)])


def by_matrix(model, sizes):
    owner = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return F.one_hot(owner, len(sizes)).double().t() @ per_token(model, R(len(owner), WIDTH).double())


def by_matrix_of_features(model, sizes):
    owner = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    hidden = model.norm(model.inner(R(len(owner), WIDTH).double()))
    return square_loss(model.outer(F.one_hot(owner, len(sizes)).double().t() @ hidden))


def by_sparse_matrix(model, sizes):
    owner = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    matrix = F.one_hot(owner, len(sizes)).double().t().to_sparse()
    return square_loss(model.outer(torch.sparse.mm(matrix, model.inner(R(len(owner), WIDTH).double()))))


def by_mask(model, sizes):
    owner = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    mask = F.one_hot(owner, len(sizes)).double().t()[:, :, None]
    return square_loss(model.outer((mask * model.inner(R(len(owner), WIDTH).double())[None]).sum(1)))


def by_shift(model, sizes):
    hidden = model.inner(R(4, WIDTH).double())
    return square_loss(model.outer(hidden.roll(sizes[0] - 2, 0)))


@pytest.mark.parametrize(
    "deal", [by_split, by_slices, by_matrix, by_matrix_of_features, by_sparse_matrix, by_mask, by_shift]
)
@pytest.mark.parametrize("first", [(2, 2, 2, 2), (3, 1, 2, 2)])
def test_rows_that_are_dealt_otherwise_than_before_go_to_their_own_units(deal, first):
    model = two_layers()
    engine = Engine(model)
    for sizes in (first, (1, 3, 2, 2), (2, 2, 2, 2), (4, 1, 1, 2), (1, 3, 2, 2)):
        assert_units(model, deal(model, list(sizes)), engine)


def test_slices_of_features_and_of_parameters_are_learned_once(monkeypatch):
    """Cutting a sequence's end off, or a table of positions, moves no row: other lengths are no new structure."""
    from discreet.gradients import engine as module

    model = Net(inner=nn.Linear(WIDTH, 4), outer=nn.Linear(4, 2)).double()
    model.places = nn.Parameter(R(9, 4).double())
    made, calls, analyse = Engine(model), [], module.analyse
    monkeypatch.setattr(module, "analyse", lambda *args, **more: calls.append(1) or analyse(*args, **more))
    for units, length in ((3, 4), (5, 7), (4, 4), (6, 5)):
        hidden = model.inner(R(units, length, WIDTH).double()) + model.places[:length]
        assert_units(model, square_loss(model.outer(hidden)[:, 1:-1]), made)
    assert len(calls) == 1


def test_two_views_side_by_side_are_learned_once(monkeypatch):
    from discreet.gradients import engine as module

    model = two_layers()
    made, calls, analyse = Engine(model), [], module.analyse
    monkeypatch.setattr(module, "analyse", lambda *args, **more: calls.append(1) or analyse(*args, **more))
    for units in (4, 7, 3):
        both = model.outer(model.inner(R(2 * units, WIDTH).double()))
        assert_units(model, (both[:units] * both[units:]).sum(1), made)
        one, other = model.outer(model.inner(R(2 * units, WIDTH).double())).chunk(2)
        assert_units(model, (one * other).sum(1), made)
    assert len(calls) == 2


# --- backward passes of one's own ----------------------------------------------------------------------------------


class Own(torch.autograd.Function):
    """The identity, with a function of the gradient for its backward pass."""

    @staticmethod
    def forward(ctx, x, function):
        ctx.function = function
        return x.clone()

    @staticmethod
    def backward(ctx, *gradients):
        return ctx.function(gradients[0]), None


ROW_BY_ROW = {
    "cut off": lambda g: g.clamp(-0.1, 0.1),
    "signs": torch.sign,
    "sizes": torch.abs,
    "of one length": lambda g: g / (g.norm(dim=1, keepdim=True) + 0.1),
    "rounded": lambda g: (8 * g).round() / 8,
}


@pytest.mark.parametrize("function", ROW_BY_ROW.values(), ids=ROW_BY_ROW)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_backward_pass_that_is_not_linear_is_exact_if_it_goes_row_by_row(function, dtype):
    model = two_layers().to(dtype)
    x = R(6, WIDTH).to(dtype)
    losses = square_loss(model.outer(Own.apply(model.inner(x), function)))
    assert_units(model, losses, tolerance=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda g: g / g.norm(),
        lambda g: g * (g.norm() > 1e-3) * g.norm(),
        lambda g: g - g.mean(0),
        lambda g: g / g.abs().max(),
        lambda g: g.sign() * g.abs().mean(0),
    ],
)
def test_a_backward_pass_over_the_batch_is_refused(function):
    model = two_layers()
    losses = square_loss(model.outer(Own.apply(model.inner(R(6, WIDTH).double()), function)))
    with pytest.raises(PrivacyError, match="mixes examples"):
        Engine(model).gradients(losses, 6)


def one_value(g):
    """Cuts off one value of many."""
    g = g.contiguous().clone()
    g.reshape(-1)[5] = g.reshape(-1)[5].clamp(-0.01, 0.01)
    return g


def short(g):
    """Products in a shorter format, as TF32 is."""
    return g.bfloat16().to(g.dtype)


@pytest.mark.parametrize(
    "function", [lambda g: g.clamp(-0.01, 0.01), torch.sign, lambda g: g**3, lambda g: g.round(), one_value, short]
)
def test_weights_whose_gradients_are_changed_are_pulled_one_by_one(function):
    """Quantised weights: a sum of bounded gradients that is cut off as one would not be the sum of what was bounded."""
    model = Net(inner=nn.Linear(WIDTH, 4)).double()
    losses = square_loss(F.linear(R(6, WIDTH).double(), Own.apply(model.inner.weight, function), model.inner.bias))
    assert_units(model, losses)


# --- what is found -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("units", [1, 2, 3, 33, 500])
def test_of_any_two_units_each_is_once_left_out_while_the_other_stays(units):
    rounds = torch.stack(subsets(units, torch.float32))
    assert set(rounds.unique().tolist()) <= {0.0, 1.0}
    alone = (rounds[:, :, None] * (1 - rounds[:, None])).sum(0)  # how often one stays and the other goes
    assert bool((alone + torch.eye(units) > 0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("units", [2, 9, 64, 300])
@pytest.mark.parametrize(
    "made",
    [torch.sign, torch.abs, lambda a: a**2, lambda a: a**3, lambda a: a * a.abs(), lambda a: a.sign() * a.abs().sqrt()],
    ids=["sign", "size", "square", "cube", "signed square", "signed root"],
)
def test_what_is_made_of_a_units_factor_is_never_another_units(made, units, dtype):
    """Or a backward pass that is not linear would give one unit's rows to another."""
    for _ in range(20):
        labels = torch.stack(random_labels(units, dtype)).double()
        taken = (made(labels)[:, :, None] == labels[:, None]).all(0)
        assert not bool((taken & ~torch.eye(units, dtype=torch.bool)).any())
        assert len(labels.unique(dim=1).T) == units


@pytest.mark.parametrize("rounds", [random_labels, subsets])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_owners_are_found_along_any_dimension(rounds, dim):
    units, owner = 40, torch.randint(40, (77,))
    plain = R(77, 3, 5).movedim(0, dim)
    plain.select(dim, 4).zero_()
    found = Memberships(plain, units)
    for labels in rounds(units, torch.float32):
        found.compare(plain * labels[owner].view([-1 if d == dim else 1 for d in range(3)]), labels)
    match = found.found()
    assert match is not None
    assert isinstance(match.rows, Members)
    assert match.rows.dim == dim
    expected = owner.clone()
    expected[4] = -1
    assert torch.equal(match.rows.owner, expected)


def test_beside_values_that_are_not_finite_nothing_is_found():
    """They may be what two units come to, one of which would be left out with the other."""
    plain, labels = R(6, 3), random_labels(6, torch.float32)[0]
    plain[2, 1] = torch.nan
    found = Memberships(plain, 6)
    found.compare(plain * labels[:, None], labels)
    assert found.found() is None


def test_a_value_that_was_zero_and_changes_is_nobodys():
    plain = R(6, 3)
    plain[2, 1] = 0.0
    labels = random_labels(6, torch.float32)[0]
    scaled = plain * labels[:, None]
    scaled[2, 1] = 1.0
    found = Memberships(plain, 6)
    found.compare(scaled, labels)
    assert found.found() is None


def test_a_row_that_changes_by_nobodys_label_is_mixed():
    plain, labels = R(6, 3), random_labels(6, torch.float32)[0]
    scaled = plain * labels[:, None]
    scaled[3] = plain[3] * 3
    found = Memberships(plain, 6)
    found.compare(scaled, labels)
    assert found.found() is None


def test_units_split_and_kept_by_members_are_those_of_positions():
    owner, tensor = torch.tensor([2, 0, 0, -1, 2]), R(5, 3)
    members = Members(0, owner)
    split = members.split(tensor, 4)
    assert torch.equal(split[0], tensor[[1, 2]])
    assert torch.equal(split[2], tensor[[0, 4]])
    assert not split[1].any()
    assert not split[3].any()
    assert torch.equal(sum(members.keep(tensor, u, 4) for u in range(4)), tensor * (owner >= 0)[:, None])


def test_positions_come_before_members():
    plain = R(12, 3)
    labels = random_labels(6, torch.float32)[0]
    found = Matching(plain, 6)
    found.compare(plain * labels.repeat_interleave(2)[:, None], labels)
    match = found.found()
    assert match is not None
    assert match.rows == Rows(0)


SHAPES = {
    "unsqueezed": lambda h, gate: h * gate.unsqueeze(1),
    "viewed": lambda h, gate: (h.view(-1, 1, 3) * gate[:, None, None]).reshape(-1, 3),
    "turned": lambda h, gate: (h.t().reshape(3, -1) * gate).t(),
    "folded": lambda h, gate: h.flatten().view(-1, 3) * gate[:, None],
}


@pytest.mark.parametrize("shaped", SHAPES.values(), ids=SHAPES)
def test_an_expert_without_rows_is_none_of_anybodys_whatever_shape_it_has(shaped):
    model = Net(gate=nn.Linear(WIDTH, 1), experts=nn.ModuleList(nn.Linear(WIDTH, 3) for _ in range(3))).double()

    def losses(x, chosen):
        found, gate = torch.zeros(len(x), 3, dtype=x.dtype), model.gate(x).sigmoid().squeeze(1)
        for k, expert in enumerate(model.experts):
            mine = (chosen == k).nonzero().squeeze(1)
            found = found.index_add(0, mine, shaped(expert(x[mine]), gate[mine]))
        return square_loss(found)

    assert_units(model, losses(R(4, WIDTH).double(), torch.tensor([0, 2, 2, 0])))
    assert_units(model, losses(R(4, WIDTH).double(), torch.tensor([1, 1, 1, 1])))
