"""Models and losses that mix examples are refused; those that do not are not."""

import math
from functools import partial

import pytest
import torch
from oracle import square_loss
from torch import nn
from torch.nn import functional as F

from discreet import PrivacyError
from discreet.gradients import Engine, engine
from discreet.gradients.graph import now
from discreet.gradients.layout import Matching, Rows, random_labels
from discreet.gradients.locate import analyse

B = 6
R = torch.randn


def mlp(*middle):
    return nn.Sequential(nn.Linear(3, 4), *middle, nn.Linear(4, 3))


class Middle(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def contrastive(output):
    z = F.normalize(output, dim=1)
    return F.cross_entropy(z @ z.t(), torch.arange(len(z)), reduction="none")


def against_fixed_keys(output):
    """The first layer's output used as if it were a weight: every loss sees every example."""
    keys = torch.linspace(-1, 1, len(output) * 3).view(len(output), 3)
    return F.cross_entropy(keys @ output.t(), torch.arange(len(output)), reduction="none")


MIXING = {
    "fixed keys against trained queries": (nn.Linear(3, 3), against_fixed_keys),
    "batch norm": (mlp(nn.BatchNorm1d(4)), square_loss),
    "batch norm without affine": (mlp(nn.BatchNorm1d(4, affine=False)), square_loss),
    "mean-centring": (mlp(Middle(lambda h: h - h.mean(0))), square_loss),
    "hand-made batch statistics": (mlp(Middle(lambda h: (h - h.mean(0)) / (h.std(0) + 1))), square_loss),
    "maximum over the batch": (mlp(Middle(lambda h: h / h.abs().amax(0))), square_loss),
    "attention over the batch": (mlp(Middle(lambda h: torch.softmax(h @ h.t(), 1) @ h)), square_loss),
    "cumulative sum over the batch": (mlp(Middle(lambda h: h.cumsum(0))), square_loss),
    "softmax over the batch": (mlp(Middle(lambda h: torch.softmax(h, 0))), square_loss),
    "contrastive loss": (mlp(nn.Tanh()), contrastive),
    "loss over the mean loss": (mlp(nn.Tanh()), lambda o: square_loss(o) / square_loss(o).mean()),
    "mean loss, expanded": (mlp(nn.Tanh()), lambda o: square_loss(o).mean().expand(len(o))),
    "sequence-first confusion": (mlp(nn.Tanh()), lambda o: (o.t() @ o).square().sum(1).repeat(2)),
}


@pytest.mark.parametrize("units", [2, 3, 4, B, 100])
@pytest.mark.parametrize("name", MIXING)
def test_mixing_is_refused(name, units):
    """Also where a batch has the shape of a weight.

    Weights and rows are fixed, labels are not: of two units, by chance no value may reach both losses.
    """
    model, loss = MIXING[name]
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    if name == "sequence-first confusion":
        units = B
    with pytest.raises(PrivacyError, match="mixes examples"):
        Engine(model).gradients(loss(model(R(units, 3))), units)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mixing_is_refused_in_short_floats(dtype):
    model = mlp(Middle(lambda h: h - h.mean(0))).to(dtype)
    with pytest.raises(PrivacyError, match="mixes examples"):
        Engine(model).gradients(square_loss(model(R(B, 3).to(dtype))), B)


@pytest.mark.parametrize("units", [2, 8, 9, 64, 500, 4000])
def test_no_two_units_have_the_same_labels(units):
    rounds = random_labels(units, torch.float32)
    assert len({tuple(r[i].item() for r in rounds) for i in range(units)}) == units
    assert len(rounds) == (3 if units <= 512 else 4)
    assert all(abs(v) <= 1 for r in rounds for v in r.tolist())  # nothing overflows that did not before
    assert all(math.frexp(abs(v))[0] == 0.5 for r in rounds for v in r.tolist())


@pytest.mark.parametrize("units", [2, 3, 5, 7, 8, 9, 64])
def test_the_mean_of_all_labels_is_no_units_label(units):
    """A mean loss in every row changes by that mean: of three labels in one round, it was one of them in 1 of 38."""
    for _ in range(2000):
        rounds = torch.stack(random_labels(units, torch.float32), 1).double()
        assert not (rounds == rounds.mean(0)).all(1).any()


def test_what_underflows_in_a_probe_and_turns_a_rounding_is_no_mixing():
    """A product that lies in the middle between two floats is rounded by a term so small that labels make it vanish."""
    model = nn.Sequential(nn.Linear(3, 16), nn.Linear(16, 2, bias=False))
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[-1.0], [1.5]]).expand(2, 16))
    gradient = torch.tensor([1e-41, 1 + 2.0**-23])  # of the outputs; (1 + 2^-23) 1.5 is such a middle

    def losses(x):
        return model(x) @ gradient

    made = Engine(model)
    for _ in range(5):  # labels are random: each round has some that make it vanish
        assert made.gradients(losses(R(32, 3)), 32, probe=True).norms()["0.weight"].isfinite().all()


class ByTheLongest(torch.autograd.Function):
    """Its backward is no derivative: each row is scaled by how long the longest of all is, whatever their signs."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, *gradients):
        lengths = gradients[0].norm(dim=1, keepdim=True)
        return gradients[0] * (lengths / lengths.max())


def test_mixing_is_refused_at_the_second_look(monkeypatch):
    monkeypatch.setattr(engine, "analyse", partial(analyse, again=True))
    for mixing in (lambda h: h - h.mean(0), lambda h: h - h.amax(0), lambda h: h.roll(1, 0) + h, ByTheLongest.apply):
        model = mlp(Middle(mixing))
        with pytest.raises(PrivacyError, match="mixes examples"):
            Engine(model).gradients(square_loss(model(R(B, 3).float())), B)


@pytest.mark.parametrize("scale", [1.0, 1e30, 1e36])
def test_a_mixing_loss_near_the_end_of_the_range_is_refused(scale):
    """Reweighting must not overflow: what is infinite says nothing, and would let a mixing loss pass."""
    model = nn.Linear(3, 4)

    def losses(x):
        outputs = model(x)
        mixed = (outputs[:, 0].sum() * outputs[0, 0]).expand(len(x))
        return scale * (mixed - mixed.detach())

    for _ in range(5):
        with pytest.raises(PrivacyError, match="mixes examples"):
            Engine(model).gradients(losses(R(B, 3).float()), B)


def test_the_probe_leaves_torchs_generator_alone():
    model = mlp(nn.Tanh())
    losses = square_loss(model(R(B, 3)))
    before = torch.get_rng_state()
    Engine(model).gradients(losses, B)
    assert torch.equal(before, torch.get_rng_state())


def test_an_embedding_bag_that_counts_over_the_batch_is_refused():
    table = nn.Parameter(R(9, 3))
    model = nn.ParameterList([table])
    bags = F.embedding_bag(torch.randint(9, (B, 4)), table, scale_grad_by_freq=True)
    with pytest.raises(PrivacyError, match="scale_grad_by_freq"):
        Engine(model).gradients(square_loss(bags), B)


def test_the_error_names_the_parameters_nearest_to_the_losses_and_the_remedy():
    model = nn.Sequential(nn.Linear(3, 4), Middle(lambda h: h - h.mean(0)), nn.Linear(4, 3))
    with pytest.raises(PrivacyError, match=r"'0\.(weight|bias)'.*GroupNorm"):
        Engine(model).gradients(square_loss(model(R(B, 3))), B)


def test_a_batch_norm_with_only_its_own_parameters_free_is_refused():
    model = nn.Sequential(nn.Linear(3, 4).requires_grad_(False), nn.BatchNorm1d(4))
    with pytest.raises(PrivacyError, match="batch normalisation"):
        Engine(model).gradients(square_loss(model(R(B, 3))), B)


def test_the_batch_norm_that_exported_programs_have_is_refused():
    model = nn.BatchNorm1d(4)
    x, state = R(B, 4), (torch.zeros(4), torch.ones(4))
    made = torch.ops.aten._batch_norm_with_update(x, model.weight, model.bias, *state, 0.1, 1e-5)[0]
    with pytest.raises(PrivacyError, match="batch normalisation"):
        Engine(model).gradients(square_loss(made), B)


def known(model):
    """An engine that has seen the model's structure before."""
    engine = Engine(model)
    for _ in range(3):
        engine.gradients(square_loss(model(R(B, 3))), B)
    assert engine._structures
    return engine


def test_a_batch_norm_that_begins_to_use_the_batch_is_refused_though_its_graph_is_the_same():
    model = mlp(nn.BatchNorm1d(4).eval())
    engine = known(model)
    model.train()
    with pytest.raises(PrivacyError, match=r"batch normalisation \('1\.weight' and '1\.bias'\)"):
        engine.gradients(square_loss(model(R(B, 3))), B)


def test_a_module_that_is_swapped_for_one_that_mixes_is_refused_at_once():
    model = mlp(nn.Tanh())
    engine = known(model)
    model[1] = Middle(lambda h: h - h.mean(0))
    with pytest.raises(PrivacyError, match="mixes examples"):
        engine.gradients(square_loss(model(R(B, 3))), B)


def test_what_was_computed_before_the_batch_is_refused_though_its_graph_is_the_same():
    model = mlp(nn.Tanh())
    engine = known(model)
    before = model(R(B, 3))
    since = now()
    engine.gradients(square_loss(model(R(B, 3))), B, since=since)
    with pytest.raises(PrivacyError, match="before this batch was drawn"):
        engine.gradients(square_loss(before), B, since=since)


def test_a_parameter_that_is_replaced_is_a_stranger_though_its_graph_has_the_same_ops():
    model = mlp(nn.Tanh())
    engine = known(model)
    model[2].bias = nn.Parameter(R(3))
    found = engine.gradients(square_loss(model(R(B, 3))), B)
    assert [id(tensor) for tensor in found.unmanaged_leaves] == [id(model[2].bias)]
    assert "2.bias" not in found.forms


@pytest.mark.parametrize("repeat", range(5))
@pytest.mark.parametrize(
    "model",
    [
        mlp(nn.Dropout(0.5)),
        mlp(nn.GroupNorm(2, 4), nn.SiLU()),
        mlp(nn.LayerNorm(4), nn.GELU()),
        mlp(nn.Softmax(1)),
        mlp(nn.ReLU(), nn.Dropout(0.9)),
    ],
    ids=str,
)
def test_no_false_alarm(model, repeat):
    torch.manual_seed(repeat)
    Engine(model).gradients(square_loss(model(R(64, 3) * 10.0 ** (repeat - 2))), 64)


def test_no_false_alarm_on_a_transformer_with_dropout_and_padding_masks():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)
    x, mask = R(B, 5, 8), torch.zeros(B, 5, dtype=torch.bool)
    mask[1, 3:] = mask[4, 2:] = True
    Engine(layer).gradients(square_loss(layer(x, src_key_padding_mask=mask)), B)


def test_an_example_that_is_not_finite_raises_no_alarm():
    model, x = mlp(nn.Tanh()), R(B, 3)
    for bad in (float("nan"), float("inf")):
        x[2] = bad
        Engine(model).gradients(square_loss(model(x)), B)


def test_a_batch_without_evidence_is_probed_again():
    """A batch on which everything is nan teaches nothing, so that mixing is still found on the next."""
    model = mlp(Middle(lambda h: h - h.mean(0)))
    engine = Engine(model)
    engine.gradients(square_loss(model(torch.full((B, 3), float("nan")))), B)
    with pytest.raises(PrivacyError, match="mixes examples"):
        engine.gradients(square_loss(model(R(B, 3))), B)


def test_mixing_that_begins_later_is_found_when_it_is_probed_again():
    mixing = []
    model = mlp(Middle(lambda h: h - (h.mean(0) if mixing else h[:, :1])))
    engine = Engine(model)
    engine.gradients(square_loss(model(R(B, 3))), B)
    mixing.append(True)
    with pytest.raises(PrivacyError, match="mixes examples"):
        engine.gradients(square_loss(model(R(B, 3))), B, probe=True)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_where_units_stand_is_found_beside_rows_that_are_not_finite(value):
    """As many steps as examples, time first: every step has rows that are not finite, and tells nothing of itself."""
    plain = torch.randn(6, 6, 3)
    plain[:, 2], plain[:, 4, 0] = value, value
    for labels in random_labels(6, torch.float32):
        matching = Matching(plain, 6)
        matching.compare(plain * labels[:, None], labels)
        assert matching.found() is None  # units whose losses are finite would have such values
        for found in (
            matching.found(spoiled=torch.isin(torch.arange(6), torch.tensor([2, 4]))),
            matching.found(Rows(1)),
        ):
            assert found is not None
            assert found.rows == Rows(1)


def test_a_row_that_becomes_infinite_by_others_labels_is_no_row_of_its_own():
    plain = torch.randn(6, 3)
    plain[3, 1] = 0.0
    labels = random_labels(6, torch.float32)[0]
    scaled = plain * labels[:, None]
    scaled[3, 1] = torch.nan
    matching = Matching(plain, 6)
    matching.compare(scaled, labels)
    assert matching.found() is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_smallest_change_of_one_value_is_seen(dtype):
    plain = torch.randn(6, 4, 50).to(dtype)
    labels = random_labels(6, dtype)[0]
    scaled = plain * labels[:, None, None]
    matching = Matching(plain, 6)
    matching.compare(scaled, labels)
    assert matching.found() is not None
    scaled[5, 2, 7] = torch.nextafter(scaled[5, 2, 7], torch.tensor(torch.inf, dtype=dtype))
    matching.compare(scaled, labels)
    assert matching.found() is None
