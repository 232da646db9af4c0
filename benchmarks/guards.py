"""What counting and guarding cost: a private step with a ledger on disk against one without, in one run.

The MNIST CNN at batch size 256, as in speed.py; rounds are interleaved, medians are compared. Preflight runs once a
run, on the first batch, and is timed on its own.

    python benchmarks/guards.py [--rounds 200] [--steps 1]
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


def private_run(folder, guarded, steps):
    torch.manual_seed(0)
    model = mnist_cnn()
    plan = discreet.methods.dp_sgd(examples=EXAMPLES, batch_size=BATCH, steps=steps, noise=1.0, delta=1e-5)
    ledger = folder / f"{time.time_ns()}.jsonl" if guarded else None
    private = discreet.attach(model, plan, ledger, preflight=guarded)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, private, optimizer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--steps", type=int, default=1)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    data = torch.randn(EXAMPLES, 1, 28, 28), torch.randint(10, (EXAMPLES,))
    total = arguments.rounds * arguments.steps + 2
    with tempfile.TemporaryDirectory() as name:
        runs = {guarded: private_run(Path(name), guarded, total) for guarded in (False, True)}
        batches = {guarded: private.batches(data) for guarded, (_, private, _) in runs.items()}

        def step(guarded):
            model, private, optimizer = runs[guarded]
            x, y = next(batches[guarded])
            started = time.perf_counter()
            private.backward(F.cross_entropy(model(x), y, reduction="none"))
            optimizer.step()
            return time.perf_counter() - started, len(x)

        first = {guarded: step(guarded)[0] for guarded in runs}
        times = {guarded: [] for guarded in runs}
        for turn in range(arguments.rounds):
            for guarded in (True, False) if turn % 2 else (False, True):
                for _ in range(arguments.steps):
                    took, rows = step(guarded)
                    times[guarded].append(took / rows * BATCH)  # draws differ in size
    without, with_guards = (statistics.median(times[guarded]) for guarded in (False, True))
    threads = torch.get_num_threads()
    print(f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {threads} threads, torch {torch.__version__}")
    print(f"step without ledger file and preflight: {1e3 * without:.1f} ms")
    print(f"step with them: {1e3 * with_guards:.1f} ms, {with_guards / without:.3f}x")
    print(f"first step without preflight: {1e3 * first[False]:.0f} ms, with it: {1e3 * first[True]:.0f} ms")


if __name__ == "__main__":
    main()
