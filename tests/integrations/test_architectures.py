"""Tiny configurations of the architectures of transformers: a few, and in `make soak` all that can be made."""

import warnings

import pytest
import tiny_architectures
import torch
from by_hand.brute_force import difference, gradient
from soak import some

import discreet
from discreet import PrivacyError
from discreet.gradients import Engine

FEW = ["deepseek_v3", "gpt_oss", "mixtral", "olmoe", "wav2vec2"]


@pytest.mark.parametrize("name", some(FEW, list(tiny_architectures.architectures())))
def test_gradients_are_those_of_autograd_for_each_loss_alone(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a model of theirs says of itself
        case = tiny_architectures.case_of(name)
        try:
            model, rows, collate, loss = case.build()
            losses = loss(model, collate(rows))
        except Exception as error:
            pytest.skip(reason=f"a tiny one cannot be made by the names of its fields: {error}")
        engine = Engine(model)
        for _ in range(2):
            each = torch.stack([gradient(model, one, retain=True) for one in losses])
            assert difference(engine.gradients(losses, len(rows)), each, engine.layout) < 1e-5
            losses = loss(model, collate(rows))


def test_a_routers_auxiliary_loss_is_refused_with_the_switch_that_turns_it_off():
    model = tiny_architectures.model_of("mixtral", output_router_logits=True, router_aux_loss_coef=0.1)
    rows = tiny_architectures.rows_of("mixtral", model)
    batch = torch.utils.data.default_collate(rows)
    out = model(**batch)
    assert float(out.aux_loss.detach()) > 0
    losses = out.logits.square().mean((1, 2)) + out.aux_loss
    with pytest.raises(PrivacyError, match="output_router_logits=False"):
        Engine(model).gradients(losses, len(rows))


@pytest.mark.parametrize("switched", [{"expert_capacity": 64}, {"moe_eval_capacity_token_fraction": 1.0}, {}])
def test_a_routers_capacity_over_the_batch_is_refused_with_the_switch_that_turns_it_off(switched):
    """No gradient shows which tokens were dropped; the tiny configuration has it turned off."""
    model = tiny_architectures.model_of("nllb-moe", **switched)
    plan = discreet.methods.dp_sgd(examples=8, batch_size=4, steps=2, noise=1.0, delta=1e-3)
    if not switched:
        discreet.attach(model, plan).detach()
        return
    with pytest.raises(PrivacyError, match=r"expert_capacity=1000000000, moe_eval_capacity_token_fraction=0\.0"):
        discreet.attach(model, plan)


@pytest.mark.parametrize("name", ["flint", "nllb-moe", "switch_transformers"])
def test_tiny_mixtures_have_experts(name):
    assert any("Experts" in type(module).__name__ for module in tiny_architectures.model_of(name).modules())
