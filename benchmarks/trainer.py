"""What the trainer costs beside the bare private step: `discreet.fit` against a hand-written loop, in one run.

    python benchmarks/trainer.py [--rounds 7] [--steps 40] [--threads 2]

The MNIST CNN at batch size 256 on random images. Both loops draw by the plan's sampler and have a ledger on disk; fit
also looks after progress, stopping, chunks and checkpoints (every 60 s). Rounds are interleaved, medians compared.
Evaluation is what one asks for, and is left out.
"""

import argparse
import platform
import statistics
import tempfile
import time
from pathlib import Path

import torch
from models import mnist_cnn
from torch.nn import functional as F

import discreet

EXAMPLES, BATCH = 4_096, 256


def prepared(steps):
    torch.manual_seed(0)
    model = mnist_cnn()
    plan = discreet.methods.dp_sgd(examples=EXAMPLES, batch_size=BATCH, steps=steps, noise=1.0, delta=1e-5)
    return model, plan, torch.optim.SGD(model.parameters(), lr=0.1)


def bare(data, steps, folder):
    model, plan, optimizer = prepared(steps)
    private = discreet.attach(model, plan, folder / "ledger.jsonl")
    started = time.perf_counter()
    for x, y in private.batches(data):
        private.backward(F.cross_entropy(model(x), y, reduction="none"))
        optimizer.step()
    took = time.perf_counter() - started
    private.detach()
    return took


def fitted(data, steps, folder):
    model, plan, optimizer = prepared(steps)
    clock = {}
    discreet.fit(
        model,
        data,
        plan,
        optimizer=optimizer,
        ledger=folder / "ledger.jsonl",
        checkpoint=folder / "checkpoint",
        evaluate_every=1e6,
        on_begin=lambda done, total: clock.update(began=time.perf_counter()),
        on_step=lambda step: clock.update(ended=time.perf_counter()),
    )
    return clock["ended"] - clock["began"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    data = torch.randn(EXAMPLES, 1, 28, 28), torch.randint(10, (EXAMPLES,))
    times = {"bare loop": [], "fit": []}
    for turn in range(arguments.rounds):
        order = list(zip(times, (bare, fitted), strict=True))
        for name, run in order if turn % 2 else order[::-1]:
            with tempfile.TemporaryDirectory() as folder:
                times[name].append(1e3 * run(data, arguments.steps, Path(folder)) / arguments.steps)
    print(f"{platform.machine()}, {arguments.threads} threads, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}")
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, took in medians.items():
        print(f"{name}: {took:.1f} ms a step, {took / medians['bare loop']:.3f}x")


if __name__ == "__main__":
    main()
