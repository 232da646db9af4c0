"""discreet.nn.convert: which layers are replaced, what they keep, and what is left alone."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import discreet
from discreet import ConfigError
from discreet.nn import convert

B, T, D, H = 5, 6, 3, 4
KINDS = ("LSTM", "GRU", "RNN")


class Own(nn.LSTM):
    """A subclass that may compute anything."""


class Nest(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, D)
        self.inner = nn.ModuleDict({"a": nn.LSTM(D, H, 2, dropout=0.5, bidirectional=True), "b": nn.GRU(2 * H, H)})
        self.same = self.inner["b"]
        self.plain = nn.RNN(H, H, nonlinearity="relu", bias=False, batch_first=True)
        self.plain.weight_hh_l0.requires_grad_(False)
        self.plain.weight_ih_l0 = self.plain.weight_hh_l0
        self.inner["b"].eval()

    def forward(self, x):
        return self.plain(self.same(self.inner["a"](self.words(x))[0])[0])[0]


def test_convert_replaces_layers_and_keeps_all_else():
    model = Nest().double()
    before = copy.deepcopy(model)
    made = convert(model)
    kinds = {name: type(module) for name, module in made.named_modules()}
    assert kinds["inner.a"] is discreet.nn.LSTM
    assert kinds["inner.b"] is discreet.nn.GRU
    assert kinds["plain"] is discreet.nn.RNN
    assert made.same is made.inner["b"]
    assert made.plain.weight_ih_l0 is made.plain.weight_hh_l0
    assert [n for n, p in made.named_parameters() if not p.requires_grad] == ["plain.weight_ih_l0"]
    assert made.inner["a"].training
    assert not made.inner["b"].training
    assert made.plain.nonlinearity == "relu"
    assert list(made.state_dict()) == list(model.state_dict())
    for name, module in model.named_modules():
        assert type(module) is type(dict(before.named_modules())[name])
    x = torch.randint(9, (T, B))
    torch.testing.assert_close(made.eval()(x), model.eval()(x))
    with torch.no_grad():
        made.words.weight.zero_()
    assert model.words.weight.any()
    model.load_state_dict(made.state_dict())
    made.load_state_dict(before.state_dict())


def test_convert_of_a_layer_itself():
    for kind in KINDS:
        theirs = getattr(nn, kind)(D, H, dtype=torch.float64)
        made = convert(theirs)
        assert type(made) is getattr(discreet.nn, kind)
        assert made.weight_ih_l0.dtype == torch.float64
        assert type(convert(made)) is type(made)
    linear = nn.Linear(2, 2)
    assert type(convert(linear)) is nn.Linear
    assert convert(linear) is not linear


def test_convert_names_what_it_leaves_alone():
    hooked = nn.GRU(D, H)
    hooked.register_forward_hook(lambda *_: None)
    model = nn.ModuleDict(
        {
            "own": Own(D, H),
            "projected": nn.LSTM(D, H, proj_size=2),
            "normed": parametrizations.weight_norm(nn.GRU(D, H), "weight_hh_l0"),
            "hooked": hooked,
            "taken": nn.GRU(D, H),
        }
    )
    with pytest.warns(UserWarning, match="convert left alone") as caught:
        made = convert(model)
    message = str(caught[0].message)
    for shown in ("Own 'own': a subclass", "LSTM 'projected': it has proj_size", "'normed': it has", "GRU 'hooked'"):
        assert shown in message
    assert "taken" not in message
    assert isinstance(made["own"], Own)
    assert type(made["taken"]) is discreet.nn.GRU


@pytest.mark.parametrize(("channels", "groups"), [(64, 32), (48, 16), (24, 8), (12, 4), (6, 2), (7, 1)])
def test_convert_puts_group_norm_for_batch_norm_if_told(channels, groups):
    model = nn.Sequential(nn.Conv2d(1, channels, 3), nn.BatchNorm2d(channels, eps=1e-3).double().eval())
    nn.init.normal_(model[1].weight)
    assert isinstance(convert(model)[1], nn.BatchNorm2d)
    norm = convert(model, batch_norm="group")[1]
    assert isinstance(norm, nn.GroupNorm)
    assert (norm.num_groups, norm.num_channels, norm.eps, norm.training) == (groups, channels, 1e-3, False)
    assert torch.equal(norm.weight, model[1].weight)
    assert torch.equal(norm.bias, model[1].bias)
    assert norm(torch.randn(2, channels, 3, 3).double()).shape == (2, channels, 3, 3)


def test_convert_of_batch_norms_of_other_kinds():
    model = nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.InstanceNorm1d(4))
    made = convert(model, batch_norm="group")
    assert isinstance(made[0], nn.GroupNorm)
    assert made[0].weight is None
    assert isinstance(made[1], nn.InstanceNorm1d)
    with pytest.raises(ConfigError, match="batch_norm is 'layer'"):
        convert(model, batch_norm="layer")
    discreet.attach(nn.Sequential(convert(nn.Sequential(nn.BatchNorm1d(4)), batch_norm="group")), _plan()).detach()


def _plan():
    return discreet.methods.dp_sgd(examples=20, batch_size=10, steps=3, noise=0.5, delta=1e-5)
