"""A training process for test_crashes.py to kill: says each release aloud, keeps checkpoints, resumes by itself."""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import discreet

STEPS = 40


def plan():
    made = discreet.methods.dp_sgd(examples=60, batch_size=20, steps=STEPS, noise=1.5, delta=1e-5)
    return discreet.calibrate(made, epsilon=made.guarantee().epsilon * 1.0001, solve_for="steps")


def main(folder):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = torch.randn(60, 5), torch.randint(3, (60,))
    model = nn.Linear(5, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    private = discreet.attach(model, plan(), ledger=folder / "ledger.jsonl")
    checkpoint = folder / "checkpoint.safetensors"
    if checkpoint.exists():
        found = discreet.load_checkpoint(checkpoint, model=model, private=private, optimizer=optimizer)
        print(f"resumed {found.lost}", flush=True)
    else:
        print("started 0", flush=True)
    for x, y in private.batches(data):
        private.backward(F.cross_entropy(model(x), y, reduction="none"))
        print(f"released {private.released}", flush=True)
        optimizer.step()
        if private.released % 3 == 0:
            discreet.save_checkpoint(checkpoint, model=model, private=private, optimizer=optimizer)
    print(f"done {private.guarantee().epsilon!r}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
