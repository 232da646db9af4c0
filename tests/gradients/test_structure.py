"""What a structure and shapes fix: which rules apply, and that the graph is freed where they all do."""

import pytest
import torch
from oracle import assert_exact, one_by_one, square_loss
from torch import nn
from torch.nn import functional as F

import discreet
from discreet import ConfigError
from discreet.gradients import Engine, structure
from discreet.gradients.rules import registry

R = torch.randn
B = 5


class Scaled(nn.Module):
    """A scale and a shift that every row meets."""

    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(R(6)), nn.Parameter(R(6))

    def forward(self, x):
        return x * self.scale + self.shift


class Last(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


BETWEEN = {
    "bias-free": (nn.Linear(6, 6, bias=False), (6,)),
    "biased": (nn.Linear(6, 6), (6,)),
    "bias-free, several rows": (nn.Linear(6, 6, bias=False), (4, 6)),
    "several rows": (nn.Linear(6, 6), (4, 6)),
    "layer norm": (nn.LayerNorm(6), (6,)),
    "RMS norm": (nn.RMSNorm(6), (4, 6)),
    "scale and shift": (Scaled(), (4, 6)),
    "convolution": (nn.Conv1d(4, 4, 3, padding=1), (4, 6)),
    "bias-free convolution": (nn.Conv1d(4, 4, 3, padding=1, bias=False), (4, 6)),
    "group norm": (nn.GroupNorm(2, 4), (4, 6)),
    "recurrence": (Last(discreet.nn.LSTM(6, 6, batch_first=True)), (4, 6)),
}


def freed(losses, parameters):
    """Whether what the graph saved is gone."""
    try:
        torch.autograd.grad(losses.sum(), parameters)
    except RuntimeError as error:
        return "backward through the graph a second time" in str(error)
    return False


def network(layer, bias=False):
    return nn.Sequential(nn.Linear(6, 6, bias=bias), nn.Tanh(), layer, nn.Tanh(), nn.Linear(6, 6, bias=bias))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", BETWEEN)
def test_the_graph_is_freed_while_the_last_pass_goes_by(name, bias):
    """Without a bias as with one; or activations would live until the losses do not."""
    layer, shape = BETWEEN[name]
    model = network(layer, bias)
    engine = Engine(model)
    for _ in range(3):  # probed, and by what is known
        losses = square_loss(model(R(B, *shape)))
        engine.gradients(losses, B)
        assert freed(losses, list(model.parameters()))


def test_activations_of_a_bias_free_network_go_before_the_gradients_do():
    model = network(nn.Linear(6, 6, bias=False))
    engine = Engine(model)
    for _ in range(2):
        hidden = model[:2](R(B, 6))
        losses = square_loss(model[2:](hidden))
        saved = torch.multiprocessing.reductions.StorageWeakRef(hidden.grad_fn._saved_result.untyped_storage())
        del hidden
        assert not saved.expired()
        engine.gradients(losses, B, measure=False).select(torch.tensor([0]))
        assert saved.expired()  # as the losses still are


class Cubed(torch.autograd.Function):
    """Has no rule."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w**3

    @staticmethod
    def backward(ctx, gradient):
        x, w = ctx.saved_tensors
        return gradient * w**3, (3 * gradient * x * w**2).sum(0)


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(R(6))

    def forward(self, x):
        return Cubed.apply(x, self.w)


def test_the_graph_is_kept_where_an_op_has_no_rule():
    model = network(Own())
    losses = square_loss(model(R(B, 6)))
    Engine(model).gradients(losses, B)
    assert not freed(losses, list(model.parameters()))


@pytest.fixture
def own_rule(monkeypatch):
    """What declares a rule for this test alone."""
    monkeypatch.setattr(registry, "RULES", dict(registry.RULES))
    monkeypatch.setattr(structure, "RULES", registry.RULES)
    return registry.rule


def test_a_rule_that_may_decline_falls_back_and_is_exact(own_rule):
    declined = []

    @own_rule("CubedBackward", 1, saves=("saved_tensors",), may_decline=True)
    def cubed(ctx):
        declined.append(len(declined) % 2)
        x, w = ctx.saved["saved_tensors"]
        return None if declined[-1] else 3 * ctx.gradient * x * w**2

    assert_exact(network(Own()), R(B, 6))
    assert set(declined) == {0, 1}


def test_a_rule_that_declines_unannounced_is_refused(own_rule):
    own_rule("CubedBackward", 1)(lambda ctx: None)
    model = network(Own())
    with pytest.raises(ConfigError, match=r"rule for input 1 of CubedBackward returned None.*may_decline=True"):
        Engine(model).gradients(square_loss(model(R(B, 6))), B)


def test_a_rule_applies_where_its_condition_says(own_rule):
    units = []

    @own_rule("CubedBackward", 1, saves=("saved_tensors",), when=lambda at: at.units > 3)
    def cubed(ctx):
        units.append(ctx.units)
        x, w = ctx.saved["saved_tensors"]
        return 3 * ctx.gradient * x * w**2

    model = network(Own())
    engine = Engine(model)
    for count in (4, 3, 5, 3, 4):
        x = R(count, 6)
        expected = one_by_one(model, [x])
        found = engine.gradients(square_loss(model(x)), count).each(0, count)
        for name, each in found.items():
            torch.testing.assert_close(each, expected[name], rtol=1e-4, atol=1e-5)
    assert units == [4, 5, 4]


def test_none_of_the_rules_here_may_decline():
    """What one covers is known before the pass; so no graph is kept for an op that has a rule."""
    assert registry.RULES
    assert not [key for key, rule in registry.RULES.items() if rule.may_decline and key[0] != "CubedBackward"]


@pytest.mark.parametrize("bias", [False, True])
def test_units_along_the_columns_of_a_product(bias):
    """A weight with a column for each unit: no rule covers it, and its op's own backward runs after the pass."""

    class Columns(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.bias = nn.Parameter(R(3, B)), nn.Parameter(R(B))
            self.register_buffer("constant", R(7, 3))

        def forward(self):
            made = self.constant @ self.weight
            return torch.addmm(self.bias, self.constant, self.weight) if bias else made

    model = Columns()
    engine = Engine(model)
    for _ in range(3):
        losses = model().square().sum(0)
        expected = [torch.autograd.grad(loss, model.weight, retain_graph=True)[0] for loss in losses]
        found = engine.gradients(losses, B)
        torch.testing.assert_close(found.norms()["weight"], torch.stack(expected).square().sum((1, 2)))
        torch.testing.assert_close(found.each(0, B)["weight"], torch.stack(expected))


def test_a_parameter_with_a_row_for_each_unit():
    """Added without broadcasting: the rule for sums does not cover it, and the graph is kept."""

    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.rows = nn.Linear(3, 4, bias=False), nn.Parameter(R(B, 4))

        def forward(self, x):
            return torch.tanh(self.layer(x)) + self.rows

    model, x = Rows(), R(B, 3)
    engine = Engine(model)
    for _ in range(3):
        losses = square_loss(model(x))
        expected = [torch.autograd.grad(loss, list(model.parameters()), retain_graph=True) for loss in losses]
        each = engine.gradients(losses, B).each(0, B)
        for k, name in enumerate(dict(model.named_parameters())):
            torch.testing.assert_close(each[name], torch.stack([some[k] for some in expected]))


def test_shapes_are_looked_at_once_each(monkeypatch):
    planned, real = [], structure.fitting
    monkeypatch.setattr(structure, "fitting", lambda *args: planned.append(1) or real(*args))
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    engine = Engine(model)
    y = torch.randint(3, (B,))
    for count in (5, 5, 5, 4, 5, 4):
        engine.gradients(F.cross_entropy(model(R(count, 6)), y[:count], reduction="none"), count)
    assert len(planned) == 3  # once when it was analysed, and once for each shape after that


def test_a_part_that_begins_elsewhere_is_looked_at_anew():
    """A structure with other saved numbers: here the first units' rows are taken, and there the others'."""
    model = nn.Linear(3, 2)
    engine, x = Engine(model), R(8, 3)

    def losses(start):
        return square_loss(model(x))[start : start + 4]

    for start in (0, 4, 0, 4):
        exact = torch.stack([torch.autograd.grad(losses(start)[i], model.weight)[0] for i in range(4)])
        torch.testing.assert_close(engine.gradients(losses(start), 4).each(0, 4)["weight"], exact)
