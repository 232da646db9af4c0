"""Steps of LoRA on a Llama-like model: only the adapters are trained, on random sequences."""

import math
from typing import Any

import torch
from discreet.losses import sequence_losses
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import discreet
from race.competitors import CLIP, NOISE, RATE, Step, needed, plan

COMPETITORS = ("SGD", "discreet", "discreet keep", "Opacus hooks", "Opacus ghost")


def llama(width: int, depth: int, words: int, length: int, rank: int) -> nn.Module:
    """The library's own model and adapters on all its products, not changed; weights are random."""
    transformers, peft = needed("transformers"), needed("peft")
    config = transformers.LlamaConfig(
        vocab_size=words, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=depth,
        num_attention_heads=width // 32, num_key_value_heads=width // 64, max_position_embeddings=length,
        use_cache=False,
    )  # fmt: skip
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    adapters = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets)
    return peft.get_peft_model(transformers.LlamaForCausalLM(config), adapters)


def sizes(model: nn.Module) -> tuple[int, int]:
    """All parameters, and those that are trained."""
    return sum(p.numel() for p in model.parameters()), sum(p.numel() for p in model.parameters() if p.requires_grad)


def step_of(competitor: str, size: dict[str, Any], batch: int) -> Step:
    """What a worker calls."""
    torch.manual_seed(0)
    model = llama(**size).train()
    ids = torch.randint(size["words"], (batch, size["length"]))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE)
    if competitor.startswith("Opacus"):
        return opacus(model, ids, optimizer, competitor.removeprefix("Opacus "))
    if competitor == "SGD":

        def plain() -> None:
            sequence_losses(model(input_ids=ids).logits, ids, shift=True).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return plain
    handle = discreet.attach(model, plan(batch), **({"memory": math.inf} if competitor == "discreet keep" else {}))
    batches = handle.batches(ids)

    def step() -> None:
        rows = next(batches)
        handle.backward(sequence_losses(model(input_ids=rows).logits, rows, shift=True))
        optimizer.step()
        optimizer.zero_grad()

    return step


def opacus(model: nn.Module, ids: torch.Tensor, optimizer: torch.optim.Optimizer, mode: str) -> Step:
    engine = needed("opacus").PrivacyEngine()
    criterion: Any = nn.CrossEntropyLoss(reduction="mean")
    made = engine.make_private(
        module=model, optimizer=optimizer, criterion=criterion, noise_multiplier=NOISE, max_grad_norm=CLIP,
        data_loader=DataLoader(TensorDataset(ids), batch_size=len(ids)), poisson_sampling=False, grad_sample_mode=mode,
    )  # fmt: skip
    model, optimizer = made[0], made[1]
    targets, shape = ids[:, 1:].flatten(), (len(ids), ids.shape[1] - 1)

    def step() -> None:
        logits = model(input_ids=ids).logits[:, :-1].flatten(0, 1)
        loss = made[2](logits, targets, shape=shape) if mode == "ghost" else criterion(logits, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
