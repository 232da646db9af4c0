"""A small GPT-2 learns how people write from public text, and then from private notes, through LoRA, with privacy.

    python examples/lora.py [--epsilon 3] [--delta 1e-5] [--notes 4000] [--batch-size 400] [--steps 30] [--out FOLDER]

Both texts are generated. The base is trained on public sentences, without privacy; then only adapters are trained on
the notes, by Hugging Face's Trainer made private. In the notes a few words are far more common than in public text.
The loss on other notes shows what was learned; nothing is told about those trained on.
"""

import argparse
import math
import random
import tempfile

import torch
from discreet.transformers import PrivateTrainer
from peft import LoraConfig, get_peft_model
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

import discreet

WHO = ["nurse", "baker", "pilot", "judge", "tailor", "farmer"]
DOES = ["washes", "bakes", "flies", "weighs", "sews", "plants"]
WHAT = ["hands", "bread", "planes", "proofs", "coats", "seeds"]
WHEN = ["early", "late", "daily", "rarely"]
WORDS = ["<pad>", ".", "the", "and", *WHO, *DOES, *WHAT, *WHEN]
IDS = {word: i for i, word in enumerate(WORDS)}


def sentence(generator: random.Random, habits: bool) -> list[str]:
    """Somebody does something, sometime: anything, or by habit mostly the same."""
    said = ["the"]
    for words in (WHO, DOES, WHAT, WHEN):
        weights = [4.0**-i if habits else 1.0 for i in range(len(words))]
        said += generator.choices(words, weights)
    return said


def corpus(seed: int, rows: int, *, habits: bool) -> list[dict[str, list[int]]]:
    """Rows of one or two sentences, as a tokenizer would give them."""
    generator = random.Random(seed)
    found = []
    for _ in range(rows):
        words = sentence(generator, habits)
        if generator.random() < 0.5:
            words += ["and", *sentence(generator, habits)]
        ids = [IDS[word] for word in [*words, "."]]
        found.append({"input_ids": ids, "attention_mask": [1] * len(ids), "labels": ids})
    return found


def collate(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Pad to the longest row: the mask hides the padding from the model, the label -100 from the loss."""
    longest = max(len(row["input_ids"]) for row in rows)
    padding = {"input_ids": 0, "attention_mask": 0, "labels": -100}
    return {
        name: torch.tensor([row[name] + [value] * (longest - len(row[name])) for row in rows])
        for name, value in padding.items()
    }


def base_model(steps: int) -> GPT2LMHeadModel:
    """A model that has read public text, without privacy."""
    config = GPT2Config(
        vocab_size=len(WORDS), n_positions=16, n_embd=64, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=1,
        pad_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    public = collate(corpus(1, 1000, habits=False))
    for _ in range(steps):
        chosen = torch.randint(1000, (64,))
        logits = model(public["input_ids"][chosen], attention_mask=public["attention_mask"][chosen]).logits
        F.cross_entropy(logits[:, :-1].flatten(0, 1), public["labels"][chosen, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--notes", type=int, default=4000)
    parser.add_argument("--batch-size", type=int, default=400)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--public-steps", type=int, default=150)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument(
        "--out", help="where checkpoints and the ledger go; a folder that is deleted, unless it is said"
    )
    chosen = parser.parse_args()
    torch.manual_seed(0)
    adapters = LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)
    model = get_peft_model(base_model(chosen.public_steps), adapters)
    plan = discreet.calibrate(
        discreet.Plan(
            sampling=discreet.Poisson(examples=chosen.notes, batch_size=chosen.batch_size, unit="note"),
            mechanism=discreet.Mechanism(discreet.Clip(1.0), discreet.Gaussian()),
            steps=chosen.steps,
            delta=chosen.delta,
        ),
        chosen.epsilon,
    )
    with tempfile.TemporaryDirectory() as scratch:
        arguments = TrainingArguments(
            chosen.out or scratch, per_device_train_batch_size=128, learning_rate=chosen.learning_rate,
            lr_scheduler_type="constant", logging_steps=10, save_strategy="no", report_to=[], disable_tqdm=True,
            eval_strategy="steps", eval_steps=10, per_device_eval_batch_size=500,
            dataloader_pin_memory=torch.cuda.is_available(),
        )  # fmt: skip
        trainer = PrivateTrainer(
            model, arguments, plan, train_dataset=corpus(2, chosen.notes, habits=True), data_collator=collate,
            eval_dataset=corpus(3, 500, habits=True),
        )  # fmt: skip
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        after = trainer.evaluate()["eval_loss"]
        trained, proven = model.get_nb_trainable_parameters()[0], trainer.private.guarantee()
        print("| | words to choose from, on average |\n| --- | --- |")
        print(f"| public text only | {math.exp(before):.2f} |")
        print(
            f"| and notes, {trained:,} parameters of adapters, epsilon {proven.epsilon:.4g} | {math.exp(after):.2f} |"
        )
        print(f"\n{proven}")
        trainer.private.detach()


if __name__ == "__main__":
    main()
