"""Adapters of peft beside LoRA: each row's gradient against autograd, one row at a time."""

import pytest
import torch
from by_hand.brute_force import difference, gradient
from peft import IA3Config, LoraConfig, PrefixTuningConfig, PromptEncoderConfig, PromptTuningConfig, get_peft_model
from tiny_transformers import gpt2, losses_of, tokens

from discreet.gradients import Engine

NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
KINDS = {
    "IA3": IA3Config(
        task_type="CAUSAL_LM", target_modules=["c_attn", "mlp.c_proj"], feedforward_modules=["mlp.c_proj"],
        fan_in_fan_out=True,
    ),
    "prefix": PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    "prefix through a layer": PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3, prefix_projection=True),
    "prompt": PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    "prompt through a layer": PromptEncoderConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=3, encoder_hidden_size=8, encoder_dropout=0.0
    ),
    "DoRA": LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["c_attn"], fan_in_fan_out=True, use_dora=True),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_each_row_has_the_gradient_that_it_has_alone(kind):
    model = get_peft_model(gpt2(**NO_DROPOUT), KINDS[kind])
    for parameter in model.parameters():
        if parameter.requires_grad and not parameter.detach().any():
            torch.nn.init.normal_(parameter, std=0.3)
    inputs, labels = tokens(4)
    virtual = 3 if kind.startswith("prompt") else 0  # tokens that stand before the rows' own
    labels = torch.cat([torch.full((4, virtual), -100), labels], 1)
    engine = Engine(model)
    for _ in range(2):
        losses = losses_of(model, inputs, labels)
        each = torch.stack([gradient(model, one, retain=True) for one in losses])
        assert difference(engine.gradients(losses, 4), each, engine.layout) < 1e-5
    for row in range(4):
        alone = losses_of(model, {k: v[row : row + 1] for k, v in inputs.items()}, labels[row : row + 1])
        assert (gradient(model, alone[0]) - each[row]).norm() < 1e-5 * each[row].norm()
