"""Matrices of which each row meets one: experts, heads; and tables of which each row picks some."""

import pytest
import torch
from oracle import Net, assert_units, square_loss
from torch import nn
from torch.nn import functional as F

from discreet.gradients import Engine
from discreet.gradients import engine as engine_module
from discreet.gradients.forms.segments import GroupedProducts

R = torch.randn


@pytest.mark.parametrize("chosen", [[2, 0, 4], list(range(5))])
@pytest.mark.parametrize("rows", [0, 1, 40])
def test_segments_of_any_length_are_exact(rows, chosen):
    """Units and groups without rows, and rows that are nobody's."""
    owner, group = torch.randint(-1, 5, (rows,)), torch.randint(-1, 3, (rows,))
    owner[owner == 3], group[group == 1] = 4, 0
    left, right = R(rows, 4).double(), R(rows, 6).double()
    expected = torch.zeros(5, 3, 4, 6).double()
    for r in range(rows):
        if owner[r] >= 0 and group[r] >= 0:
            expected[owner[r], group[r]] += left[r][:, None] * right[r][None]
    form = GroupedProducts(left, right, owner, group, 5, torch.Size((3, 4, 6)))
    out, weights = torch.ones(3, 4, 6).double(), R(5).double()
    form.add_weighted(weights, out)
    assert torch.allclose(out, 1 + torch.einsum("u,u...->...", weights, expected))
    assert torch.allclose(form.norms(), expected.flatten(1).square().sum(1))
    assert torch.allclose(form.each(1, 4), expected[1:4])
    assert bool((form.lengths() >= expected.flatten(1).norm(dim=1) - 1e-12).all())
    some = torch.tensor(chosen)
    assert torch.allclose(form.select(some).norms(), expected[some].flatten(1).square().sum(1))


class Experts(nn.Module):
    """Tokens sorted by expert, as transformers has them: grouped products, a bias that is looked up, and back."""

    def __init__(self):
        super().__init__()
        self.inner, self.gate = nn.Linear(3, 4), nn.Linear(4, 5)
        self.up, self.down = nn.Parameter(R(5, 8, 4)), nn.Parameter(R(5, 8, 4))
        self.bias = nn.Parameter(R(5, 8))

    def forward(self, x):
        hidden = self.inner(x).flatten(0, 1)
        weights, chosen = self.gate(hidden)[:, :4].softmax(1).topk(2)  # the fifth gets no token
        expert, order = chosen.flatten().sort()
        ends = torch.histc(expert.float(), 5, 0, 4).cumsum(0, dtype=torch.int32)
        made = F.grouped_mm(hidden[order // 2], self.up.transpose(1, 2), offs=ends) + self.bias[expert]
        made = F.grouped_mm(made.tanh(), self.down, offs=ends) * weights.flatten()[order, None]
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
        return x + made[back].view(len(hidden), 2, 4).sum(1).view(*x.shape[:2], 4)[..., :3]


def test_experts_by_grouped_products_are_exact_and_analysed_once(monkeypatch):
    calls, analyse = [], engine_module.analyse
    monkeypatch.setattr(engine_module, "analyse", lambda *args, **more: calls.append(1) or analyse(*args, **more))
    monkeypatch.setattr(engine_module, "OneByOne", None)  # no fallback
    model = Experts()
    engine = Engine(model)
    for units, length in ((4, 6), (4, 6), (3, 8), (5, 1)):
        losses = square_loss(model(R(units, length, 3)))
        assert_units(model, losses, engine, tolerance=2e-5)
    assert len(calls) == 1


TABLES = {
    "rows": (lambda p, x, at: p[at] * x[..., None, None], (7, 2, 3)),
    "rows from the end": (lambda p, x, at: p[at - 7] * x[..., None], (7, 3)),
    "values": (lambda p, x, at: p[at] * x, (7,)),
    "two dimensions": (lambda p, x, at: p[at, at % 3] * x, (7, 3)),
    "index_select": (lambda p, x, at: p.index_select(0, at.flatten()).view(*at.shape, -1) * x[..., None], (7, 3)),
    "one of each": (lambda p, x, at: p[at[:, 0]] * x, (7, 4)),
}


@pytest.mark.parametrize(("pick", "shape"), TABLES.values(), ids=TABLES)
def test_parameters_that_are_indexed_by_data_are_exact_without_a_fallback(pick, shape, monkeypatch):
    monkeypatch.setattr(engine_module, "OneByOne", None)
    model = Net(inner=nn.Linear(3, 4)).double()
    model.table = nn.Parameter(R(shape).double())
    engine = Engine(model)
    for units in (5, 3, 5):
        at = torch.randint(7, (units, 4))
        assert_units(model, square_loss(pick(model.table, model.inner(R(units, 3).double()), at)), engine)


@pytest.mark.parametrize(("mode", "weighted"), [("sum", False), ("sum", True), ("mean", False), ("max", False)])
def test_bags_of_words_are_exact(mode, weighted, monkeypatch):
    """With offsets, in which bags are of any length, also empty."""
    if mode != "max":
        monkeypatch.setattr(engine_module, "OneByOne", None)
    model = Net(words=nn.EmbeddingBag(7, 3, mode=mode), score=nn.Embedding(7, 1), outer=nn.Linear(3, 2)).double()
    engine = Engine(model)
    for sizes in ((3, 0, 2, 1), (2, 2, 2, 2), (1, 4, 2, 3)):
        counts = torch.tensor(sizes)
        words = torch.randint(7, (int(counts.sum()),))
        weights = model.score(words).squeeze(1) if weighted else None
        bags = model.words(words, counts.cumsum(0) - counts, per_sample_weights=weights)
        assert_units(model, square_loss(model.outer(bags).tanh()), engine)


@pytest.mark.parametrize("equation", ["bthd,hdf->bthf", "bhtd,hdf->bhtf", "bthd,hfd->bfht"])
def test_a_matrix_for_each_head_is_exact_without_a_fallback(equation, monkeypatch):
    monkeypatch.setattr(engine_module, "OneByOne", None)
    model = Net(inner=nn.Linear(3, 8)).double()
    model.heads = nn.Parameter(R(2, 4, 4).double())
    engine = Engine(model)
    for units in (5, 3):
        hidden = model.inner(R(units, 6, 3).double()).view(units, 6, 2, 4)
        hidden = hidden.transpose(1, 2) if equation.startswith("bh") else hidden
        assert_units(model, square_loss(torch.einsum(equation, hidden, model.heads).tanh()), engine)
