"""How many Python calls a steady step of a two-layer network takes, and how often it changes file.

    python benchmarks/step_calls.py [--list] [--ledger] [--functions]

Counts calls of functions in src/discreet between one batch and the next: drawing, losses, `private.backward`; of 15
steps the median. `--list` prints them in order, indented by depth. `--ledger` writes the ledger to disk, as runs do.
"""

import argparse
import sys
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import discreet

HOME = str(Path(discreet.__file__).parent)
WARM_UP = 300  # steps before, so that what is done once is done: for the first steps, and for each size of a batch
STEPS = 15  # that are traced: now and then one is probed, or the first of its size, and the median is neither


def trace(ledger=None, functions=False):
    """The calls of STEPS steps: for each (file, function, depth), in order."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2))
    inputs, labels = torch.randn(6400, 20), torch.randint(2, (6400,))
    plan = discreet.methods.dp_sgd(examples=6400, batch_size=64, steps=WARM_UP + STEPS + 1, noise=1.0, delta=1e-5)
    private = discreet.attach(model, plan, ledger=ledger, seed=0)
    calls, depth = [], 0

    def profile(frame, event, _):
        nonlocal depth
        code = frame.f_code
        if not code.co_filename.startswith(HOME):
            return
        if event == "call":
            calls.append((code.co_filename[len(HOME) + 1 :], code.co_qualname, depth))
            depth += 1
        elif event == "return":
            depth -= 1

    def loss_fn(batch):
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    batches = private.batches((inputs, labels))
    for step, batch in enumerate(batches):
        if step == WARM_UP:
            sys.setprofile(profile)
        if functions:
            private.backward(loss_fn, batch)
        else:
            private.backward(F.cross_entropy(model(batch[0]), batch[1], reduction="none"))
        if step == WARM_UP + STEPS:
            sys.setprofile(None)
            break
    begins = [i for i, call in enumerate(calls) if call[1] == "Private.backward"]  # to the next batch handed out
    return [calls[start:stop] for start, stop in pairwise(begins)]


def changes(calls):
    """How often the file changes from one call to the next."""
    return sum(a[0] != b[0] for a, b in pairwise(calls))


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--list", action="store_true", help="print every call")
    arguments.add_argument("--ledger", action="store_true", help="write the ledger to disk")
    arguments.add_argument("--functions", action="store_true", help="private.backward(loss_fn, batch)")
    asked = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        steps = trace(f"{folder}/ledger.jsonl" if asked.ledger else None, asked.functions)
    one = sorted(steps, key=len)[len(steps) // 2]
    if asked.list:
        for file, name, depth in one:
            print(f"{file:40s} {'  ' * depth}{name}")
    print(f"{len(one)} calls, {changes(one)} changes of file, {len({file for file, _, _ in one})} files")
    for file, count in Counter(file for file, _, _ in one).most_common():
        print(f"  {count:4d} {file}")


if __name__ == "__main__":
    main()
