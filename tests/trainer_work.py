"""What the ranks of test_trainer_on_ranks.py do: train a tiny model with the Trainer's adapter."""

import os

import torch
import transformers
from discreet.transformers import PrivateTrainer
from ranks import Group
from tiny_transformers import WORDS, gpt2
from transformers import TrainingArguments

from discreet import Clip, Gaussian, Mechanism, Plan, Poisson

ROWS = 8


def rows():
    generator = torch.Generator().manual_seed(5)
    words = [torch.randint(3, WORDS, (3 + i % 4,), generator=generator).tolist() for i in range(ROWS)]
    return [{"input_ids": ids, "attention_mask": [1] * len(ids), "labels": ids} for ids in words]


def pad(some):
    longest = max(len(row["input_ids"]) for row in some)
    filled = {"input_ids": 0, "attention_mask": 0, "labels": -100}
    return {k: torch.tensor([row[k] + [v] * (longest - len(row[k])) for row in some]) for k, v in filled.items()}


def train(rank, say, folder, count, resume):
    """All rows in every step and next to no noise: the number of processes shows in nothing that is released."""
    if count > 1:  # what torchrun says; the group is there already
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    model = gpt2(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    mechanism = Mechanism(Clip(0.1), Gaussian(1e-7))
    plan = Plan(sampling=Poisson(examples=ROWS, batch_size=ROWS), mechanism=mechanism, steps=2, delta=1e-3)
    args = TrainingArguments(
        str(folder), report_to=[], disable_tqdm=True, use_cpu=True, per_device_train_batch_size=3, learning_rate=0.5,
        optim="sgd", save_strategy="steps", save_steps=1, logging_strategy="no", lr_scheduler_type="constant",
    )  # fmt: skip
    trainer = PrivateTrainer(model, args, plan, train_dataset=rows(), data_collator=pad)
    trainer.train(resume_from_checkpoint=resume)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return weights.tolist(), trainer.private.released, [c.text for c in trainer.private.guarantee().conditions]


def trained(folder, count, resume=None):
    """What each of so many ranks ended with."""
    with Group(count, train, folder, folder / "out", count, resume) as group:
        return [group.hear_out(rank)[1] for rank in range(count)]
