"""What bounds on elements cost: steps with Tanh and Encode against steps with Clip, in one run, and their memory.

    python benchmarks/elements.py [--rounds 15] [--threads 2] [--json FILE]

Time: the MNIST CNN at batch size 256, whole steps (forward, backward, bound, secure noise, optimizer), one of each in
turn, medians compared. A certificate (BoundedNetwork) has no per-example gradients at all: it is timed on an MLP,
against Clip and plain SGD. Memory: the growth of the resident set over a few steps, each in a process of its own, at
growing batch sizes taken in chunks of 256; and Encode on a network of a million parameters.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from models import mnist_cnn
from torch import nn
from torch.nn import functional as F

import discreet
from discreet import AdaptiveClip, BoundedNetwork, Clip, Encode, Gaussian, Mechanism, Plan, Poisson, RadialTanh, Tanh
from discreet.nn import BELU

BOUNDS = {
    "Clip": lambda: Clip(1.0),
    "RadialTanh": lambda: RadialTanh(1.0),
    "AdaptiveClip": lambda: AdaptiveClip(1.0),
    "Tanh": lambda: Tanh(1.0, 1.0),
    "Tanh, clipped": lambda: Tanh(1.0, 1.0, clip=1.0),
    "Encode": lambda: Encode(1.0),
}
Step = Callable[[], None]


def million() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 1200), nn.Tanh(), nn.Linear(1200, 50), nn.Tanh(), nn.Linear(50, 10))


def bounded() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 1000), BELU(), nn.Linear(1000, 10))


MODELS = {"cnn": (mnist_cnn, (1, 28, 28)), "million": (million, (784,)), "bounded": (bounded, (784,))}


def private_step(model_name: str, bound, batch: int, at_most: int | None = None) -> Step:
    """Whole private steps on random data; everybody takes part, so that all steps have the same size."""
    torch.manual_seed(0)
    build, shape = MODELS[model_name]
    model = build()
    data = torch.randn(batch, *shape), torch.randint(10, (batch,))
    sampling = Poisson(rate=1.0, batch_size=batch)
    plan = Plan(sampling=sampling, mechanism=Mechanism(bound, Gaussian(1.0)), steps=10**6, delta=1e-5)
    private = discreet.attach(model, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = private.batches(data, at_most=at_most)

    def step() -> None:
        while True:
            x, y = next(batches)
            if private.backward(F.cross_entropy(model(x), y, reduction="none")):
                optimizer.step()
                return

    return step


def sgd_step(model_name: str, batch: int) -> Step:
    torch.manual_seed(0)
    build, shape = MODELS[model_name]
    model = build()
    x, y = torch.randn(batch, *shape), torch.randint(10, (batch,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def times(steps: dict[str, Step], rounds: int) -> dict[str, float]:
    """Median milliseconds a step, one of each in turn."""
    for step in steps.values():
        step()
        step()
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            found[name].append(1e3 * (time.perf_counter() - started))
    return {name: statistics.median(values) for name, values in found.items()}


def memory(model: str, bound: str, batch: int, threads: int) -> float:
    command = [sys.executable, __file__, "--measure", model, bound, str(batch), "--threads", str(threads)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def resident(field: str) -> float:
    with open("/proc/self/status") as status:
        return next(float(line.split()[1]) / 1024 for line in status if line.startswith(field))


def measure(model: str, bound: str, batch: int) -> None:
    private_step(model, Clip(1.0), 8)()  # what any first step needs: libraries, thread pools
    before = resident("VmRSS")
    step = private_step(model, BOUNDS[bound](), batch, at_most=256)
    for _ in range(2):
        step()
    data = batch * 4 * torch.Size(MODELS[model][1]).numel() / 2**20
    print(resident("VmHWM") - before - data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.measure:
        measure(arguments.measure[0], arguments.measure[1], int(arguments.measure[2]))
        return
    print(f"{platform.processor() or platform.machine()}, {arguments.threads} threads, torch {torch.__version__}")
    print(f"{time.strftime('%Y-%m-%d')}, medians of {arguments.rounds} steps\n")
    found = times({name: private_step("cnn", make(), 256) for name, make in BOUNDS.items()}, arguments.rounds)
    print("| bound, MNIST CNN at 256 | ms a step | x of Clip |\n| --- | --- | --- |")
    for name, took in found.items():
        print(f"| {name} | {took:.1f} | {took / found['Clip']:.2f} |")
    certified = BoundedNetwork(input_norm=1.0, weight_norm=1.0, projection="frobenius")
    mlps = {
        "SGD": sgd_step("bounded", 256),
        "Clip": private_step("bounded", Clip(1.0), 256),
        "BoundedNetwork": private_step("bounded", certified, 256),
    }
    others = times(mlps, arguments.rounds)
    print("\n| MLP 784-1000-10 at 256 | ms a step | x of SGD |\n| --- | --- | --- |")
    for name, took in others.items():
        print(f"| {name} | {took:.1f} | {took / others['SGD']:.2f} |")
    sizes = [256, 1024, 4096]
    print("\n| MiB beside the data, chunks of 256 |", " | ".join(f"batch {n}" for n in sizes), "|")
    print("| --- |" + " --- |" * len(sizes))
    peaks = {}
    for name in ("Clip", "Tanh", "Encode"):
        peaks[name] = [memory("cnn", name, n, arguments.threads) for n in sizes]
        print(f"| {name} |", " | ".join(f"{m:.0f}" for m in peaks[name]), "|")
    large = times({name: private_step("million", BOUNDS[name](), 256) for name in ("Clip", "Encode")}, 3)
    peak = {name: memory("million", name, 256, arguments.threads) for name in large}
    count = sum(p.numel() for p in million().parameters())
    print(f"\n| {count:,} parameters at 256 | s a step | MiB |\n| --- | --- | --- |")
    for name, took in large.items():
        print(f"| {name} | {took / 1e3:.2f} | {peak[name]:.0f} |")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"cnn": found, "mlp": others, "peaks": peaks, "million": large}, file, indent=2)


if __name__ == "__main__":
    main()
