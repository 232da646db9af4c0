"""Unmodified models: each row's gradient against autograd, one row at a time, under padding masks and with adapters."""

import pytest
import torch
from discreet.losses import unit_losses
from oracle import trainable
from tiny_transformers import ADAPTED, FAMILIES, LENGTH, NO_DROPOUT, batch, gpt2, lora, losses_of, t5

from discreet import PrivacyError
from discreet.gradients import Engine

EXACT = 1e-11  # of the row's whole gradient, in float64


def rows_of(inputs, labels, rows):
    return {name: value[rows] for name, value in inputs.items()}, labels[rows]


def in_double(model, inputs):
    return model.double(), {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}


def one_by_one(model, losses):
    """Autograd's gradient of each loss, for each parameter."""
    parameters = trainable(model)
    found = {name: [] for name in parameters}
    for one in losses:
        gradients = torch.autograd.grad(one, list(parameters.values()), allow_unused=True, retain_graph=True)
        for (name, p), g in zip(parameters.items(), gradients, strict=True):
            found[name].append(torch.zeros_like(p) if g is None else g)
    return {name: torch.stack(each) for name, each in found.items()}


def assert_same(gradients, expected, tolerance=EXACT):
    """Norms, weighted sums and gradients, measured against each unit's whole gradient: some parts of it are zero."""
    units = gradients.units
    size = sum(e.flatten(1).square().sum(1) for e in expected.values()).sqrt()
    assert size.min() > 0
    assert gradients.forms.keys() <= expected.keys() == gradients.norms().keys()
    weights = torch.linspace(0.1, 1, units, dtype=size.dtype)
    sums = {name: torch.zeros_like(e[0]) for name, e in expected.items()}
    gradients.add_weighted(dict.fromkeys(expected, weights), sums)
    each = gradients.each(0, units)
    for name, truth in expected.items():
        found = each.get(name, torch.zeros_like(truth))
        assert ((found - truth).flatten(1).norm(dim=1) / size).max() < tolerance, name
        lengths = gradients.norms()[name].sqrt()
        assert ((lengths - truth.flatten(1).norm(dim=1)).abs() / size).max() < tolerance, name
        total = torch.einsum("u,u...->...", weights, truth)
        assert (sums[name] - total).norm() / size.sum() < tolerance, name


def check(model, inputs, labels, reduction="mean"):
    """Twice, as the second time what was found is remembered."""
    rows = len(labels)
    alone = [losses_of(model, *rows_of(inputs, labels, slice(i, i + 1)), reduction)[0] for i in range(rows)]
    expected = one_by_one(model, alone)
    engine = Engine(model)
    for _ in range(2):
        assert_same(engine.gradients(losses_of(model, inputs, labels, reduction), rows), expected)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("adapters", [False, True], ids=["whole", "LoRA"])
@pytest.mark.parametrize("family", FAMILIES)
def test_each_row_has_the_gradient_that_it_has_alone(family, adapters, attention):
    model = FAMILIES[family](attn_implementation=attention).eval()
    inputs, labels = batch(family)
    check(*in_double(lora(model, family) if adapters else model, inputs), labels)


@pytest.mark.parametrize("family", FAMILIES)
def test_as_many_rows_as_tokens(family):
    """Sizes that agree by chance tell nothing about where the rows are."""
    check(*in_double(FAMILIES[family]().eval(), (found := batch(family, rows=LENGTH))[0]), found[1], "sum")


@pytest.mark.parametrize("family", FAMILIES)
def test_with_dropout(family):
    """In training mode, against autograd on the same forward pass, one loss at a time."""
    model = lora(FAMILIES[family](), family, lora_dropout=0.3).train()
    for base in ("encoder", "layers"):  # and some of the base itself
        for name, parameter in model.named_parameters():
            if f"{base}.0." in name or f"{base}.layer.0." in name:
                parameter.requires_grad_(parameter.is_floating_point())
    inputs, labels = batch(family)
    model, inputs = in_double(model, inputs)
    losses = losses_of(model, inputs, labels)
    expected = one_by_one(model, losses)
    assert_same(Engine(model).gradients(losses, len(labels)), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_at_their_start(family):
    """The second matrix is zero, and so is the gradient of the first."""
    check(*in_double(lora(FAMILIES[family]().eval(), family, started=False), (found := batch(family))[0]), found[1])


@pytest.mark.parametrize("adapters", [False, True], ids=["whole", "LoRA"])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_checkpointing(family, adapters):
    """Recomputed values (the library's own switch) give the same gradients, with the same dropout."""
    model = FAMILIES[family]()
    model = lora(model, family, lora_dropout=0.2).train() if adapters else model.train()
    inputs, labels = batch(family)
    model, inputs = in_double(model, inputs)
    torch.manual_seed(1)
    expected = one_by_one(model, losses_of(model, inputs, labels))
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()
    engine = Engine(model)
    for _ in range(2):
        torch.manual_seed(1)
        assert_same(engine.gradients(losses_of(model, inputs, labels), len(labels)), expected)


@pytest.mark.parametrize(
    "options",
    [
        {"use_dora": True},
        {"use_rslora": True},
        {"target_modules": ["embed_tokens", "q_proj", "lm_head"]},
        {"modules_to_save": ["lm_head"]},
        {"layers_to_transform": [1], "layers_pattern": "layers"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_kinds_of_adapters(options):
    inputs, labels = batch("Llama")
    check(*in_double(lora(FAMILIES["Llama"]().eval(), "Llama", **options), inputs), labels)


def test_reentrant_checkpointing_is_refused_by_name():
    model = gpt2().train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    model.enable_input_require_grads()
    inputs, labels = batch("GPT-2")
    with pytest.raises(PrivacyError, match="re-entrant checkpointing"):
        Engine(model).gradients(losses_of(model, inputs, labels), len(labels))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_frozen_base_costs_nothing(family):
    """Only the adapters' gradients are taken apart, at as many ops as there are adapters."""
    model = lora(FAMILIES[family]().eval(), family)
    names = set(trainable(model))
    assert names == {name for name, _ in model.named_parameters() if "lora_" in name}
    inputs, labels = batch(family)
    engine = Engine(model)
    for _ in range(2):
        gradients = engine.gradients(losses_of(model, inputs, labels), len(labels))
    assert set(gradients.forms) == names
    (structure,) = engine._structures.values()
    assert sorted(
        name for point in structure.analysis.split_points for below in point.below.values() for name in below
    ) == sorted(names)
    held = {t.data_ptr() for form in gradients.forms.values() for t in form.held() if t.numel()}
    assert held.isdisjoint(p.data_ptr() for p in model.parameters())


@pytest.mark.parametrize("family", ["GPT-2", "Llama", "BERT", "T5"])
def test_units_of_several_sequences(family):
    """Rows fold like time: a unit's gradient is that of its sequences' mean."""
    inputs, labels = batch(family, rows=6)
    model, inputs = in_double(FAMILIES[family]().eval(), inputs)

    def losses(rows):
        return unit_losses(losses_of(model, *rows_of(inputs, labels, rows)), 2)

    expected = one_by_one(model, [losses(slice(2 * i, 2 * i + 2))[0] for i in range(3)])
    assert_same(Engine(model).gradients(losses(slice(None)), 3), expected)


@pytest.mark.parametrize("family", ["GPT-2", "Llama", "BERT", "T5"])
def test_leaving_out_any_row_moves_the_sum_by_at_most_the_bound(family):
    """Also where the longest row is left out, so that the others are padded less."""
    inputs, labels = batch(family, rows=7)
    model, inputs = in_double(lora(FAMILIES[family]().eval(), family), inputs)

    def clipped(rows):
        some, theirs = rows_of(inputs, labels, rows)
        longest = int(some["attention_mask"].sum(1).max())
        if family in ("GPT-2", "Llama"):
            theirs = theirs[:, :longest]
        some = {k: v if k.startswith("decoder") else v[:, :longest] for k, v in some.items()}
        gradients = Engine(model).gradients(losses_of(model, some, theirs), len(rows))
        factors = (0.1 / sum(gradients.norms().values()).sqrt()).clamp(max=1.0)
        sums = {name: torch.zeros_like(p) for name, p in trainable(model).items()}
        gradients.add_weighted(dict.fromkeys(sums, factors), sums)
        return torch.cat([s.flatten() for s in sums.values()])

    everybody = torch.tensor([0, 1, 2, 3, 5, 6])  # row 4 is as long as row 0
    whole = clipped(everybody)
    for row in everybody:
        assert (whole - clipped(everybody[everybody != row])).norm() <= 0.1 * (1 + 1e-9)


def test_tied_weights_count_once():
    assert "lm_head.weight" not in trainable(gpt2())
    assert "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight" in trainable(t5())


@pytest.mark.parametrize("family", FAMILIES)
def test_what_was_found_is_remembered(family):
    """One look for each structure, not one for each batch: else every step would cost three."""
    model = FAMILIES[family](**(NO_DROPOUT if family in ("BERT", "ViT") else {})).eval()
    engine, seen = Engine(model), []
    for _ in range(3):
        inputs, labels = batch(family)
        engine.gradients(losses_of(model, inputs, labels), len(labels))
        seen.append(tuple(map(id, engine._structures.values())))
    assert len(seen[0]) == 1
    assert len(set(seen)) == 1


def test_every_family_says_where_its_adapters_go():
    assert ADAPTED.keys() <= FAMILIES.keys()
