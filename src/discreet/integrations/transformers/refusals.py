"""What a private Trainer refuses: arguments that would break the guarantee, and padding that mixes examples."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import TrainingArguments

from discreet.errors import ConfigError, PrivacyError
from discreet.stages.plan import Plan

_CHUNKS = "the batch size is the plan's; per_device_train_batch_size says how many rows are taken at a time"
_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "gradient_accumulation_steps": ((1,), _CHUNKS),
    "auto_find_batch_size": ((False,), _CHUNKS),
    "fp16": ((False,), "scaled losses would be bounded as they are scaled; use bf16=True or full precision"),
    "fp16_full_eval": ((False,), "it would turn the attached parameters into another format"),
    "bf16_full_eval": ((False,), "it would turn the attached parameters into another format"),
    "torch_compile": ((False,), "uses of parameters cannot be seen inside a compiled model"),
    "use_liger_kernel": ((False,), "its kernels hide uses of parameters"),
    "neftune_noise_alpha": ((None,), "its noise goes by the length of the whole batch, so that examples mix"),
    "label_smoothing_factor": ((0, 0.0), "give losses= with what is to be smoothed, one loss a row"),
    "train_sampling_strategy": (("random",), "batches are drawn by the plan's sampler"),
    "include_num_input_tokens_seen": (("no", False), "how many tokens were drawn is private"),
    "skip_memory_metrics": ((True,), "how much memory a batch took tells its size, which is private"),
    "deepspeed": ((None, ""), "it would take backward passes and updates into its own hands"),
    "fsdp": ((None, "", [], False), "attach a sharded model in a loop of your own (docs/distributed.md)"),
    "n_gpu": ((0, 1), "only one device is supported; show it alone to the process, with CUDA_VISIBLE_DEVICES"),
}


def check_arguments(args: TrainingArguments, plan: Plan, trainer: Mapping[str, Any]) -> None:
    """Refuse what would break the guarantee, or what would be asked for and not done."""
    if not isinstance(plan, Plan):
        raise ConfigError(f"{plan!r} is not a Plan; make one with discreet.Plan or discreet.methods.")
    for name, (allowed, why) in _REFUSED.items():
        value = getattr(args, name, allowed[0])
        if value not in allowed:
            raise ConfigError(f"{name} is {value!r}, which cannot be private here: {why}.")
    optimizer = str(getattr(args.optim, "value", args.optim))
    if "lomo" in optimizer or "layerwise" in optimizer:
        raise ConfigError(f"optim {optimizer!r} steps inside the backward pass, before any noise; use another.")
    if args.max_steps > 0 and args.max_steps != plan.steps:
        raise ConfigError(f"max_steps is {args.max_steps}, the plan has {plan.steps:,} steps; leave max_steps out.")
    for name, remedy in (("compute_loss_func", "give losses="), ("model_init", "give the model itself")):
        if trainer.get(name) is not None:
            raise ConfigError(f"{name} is not used by PrivateTrainer; {remedy}.")


def check_unit(plan: Plan, *, grouped: bool) -> None:
    """Refuse a unit of privacy that is not what the data has a row for."""
    unit = plan.sampling.contract().unit
    if grouped and unit in ("example", "sequence"):
        raise ConfigError(
            f"the data is grouped by owner, but the plan protects each {unit}; say what an owner is: "
            "Poisson(..., unit='user')."
        )
    if not grouped and unit == "user":
        raise ConfigError(
            "the plan protects each user, but the data has one sequence a row; group it: Units(data, owners, most=...)."
        )


_LOOKED_AT = 32  # units among which a short and a long one are looked for


def check_padding(trainer: Any) -> None:
    """Raise if a row's loss depends on how far the others in its batch make it be padded.

    Then one example would change what all others contribute. Nothing can be told where all rows looked at are of one
    length, or where the collator draws at random.
    """
    data: Any = trainer.train_dataset
    collate = trainer.get_train_dataloader().collate
    places = sorted({round(i * (len(data) - 1) / _LOOKED_AT) for i in range(_LOOKED_AT + 1)})
    short, long = _shortest_and_longest([data[i] for i in places], collate)
    if short is None or not _same(collate([short]), collate([short])):
        return
    model: Any = trainer.model_wrapped
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            alone = trainer.unit_losses(model, collate([short])).double()
            beside = trainer.unit_losses(model, collate([short, long])).double()
    finally:
        for module, training in modes:
            module.training = training
    if (alone.shape, beside.shape) != ((1,), (2,)):  # which is refused, in so many words, when it is to be bounded
        return
    if not torch.isclose(alone[0], beside[0], rtol=2e-2 if trainer.args.bf16 else 1e-4, atol=1e-5):
        raise PrivacyError(
            "a row's loss is another one beside a longer row than alone: padding changes it, so examples mix. Pad on "
            "the right, with an attention_mask and labels -100; or pad all to one length."
        )


def _shortest_and_longest(units: Sequence[Any], collate: Callable[[list[Any]], Any]) -> tuple[Any, Any]:
    """Two units whose batches have different shapes; None where there are none."""
    sizes = [sum(t.numel() for t in _tensors(collate([unit]))) for unit in units]
    if min(sizes) == max(sizes):
        return None, None
    return units[sizes.index(min(sizes))], units[sizes.index(max(sizes))]


def _same(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(_tensors(one), _tensors(other), strict=True))


def _tensors(batch: tuple[Any, Tensor | None]) -> list[Tensor]:
    return [value for value in dict(batch[0]).values() if isinstance(value, Tensor)]
