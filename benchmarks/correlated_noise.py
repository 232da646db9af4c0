"""What correlated noise gains at equal epsilon, in error: computed, not trained. And what a step of it costs.

python benchmarks/correlated_noise.py            the table of docs/correlated.md, in about a minute
python benchmarks/correlated_noise.py --speed    a release with 16 bands beside one of plain Gaussian noise
python benchmarks/correlated_noise.py --step     a step of the MNIST CNN, with 16 bands and with Gaussian noise in turn
python benchmarks/correlated_noise.py --solve    solving strategies, and accounting for epochs of random allocation
"""

import argparse
import os
import statistics
import time

import discreet
from discreet.stages.planning import correlated, solve

SETTINGS = (  # name, examples, batch size, steps, delta, epsilons
    ("large batches: 37.5 epochs of 7,500", 50_000, 7_500, 250, 1e-5, (1.0, 3.0, 8.0)),
    ("10 epochs of 1,000", 50_000, 1_000, 500, 1e-5, (1.0, 3.0, 8.0)),
    ("5 epochs of 500", 50_000, 500, 500, 1e-5, (1.0, 3.0, 8.0)),
    ("10 epochs of 256", 60_000, 256, 2_350, 1e-5, (1.0, 3.0, 8.0)),
    ("one epoch of 200", 100_000, 200, 500, 1e-6, (3.0, 8.0)),
    ("a table: 20 epochs of 512", 32_561, 512, 1_270, 1e-5, (1.0,)),
)


def planned() -> None:
    """The error of each kind of noise beside DP-SGD's."""
    print("| setting | ε | DP-SGD's noise | best bands | its error / DP-SGD's | BLT in fixed order, the same |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, examples, size, steps, delta, epsilons in SETTINGS:
        for epsilon in epsilons:
            plan = solve(examples=examples, batch_size=size, steps=steps, delta=delta, epsilon=epsilon)
            sgd, bands, blt = correlated(plan, epsilon)
            noise = sgd.plan.mechanism.noise.scale or 0.0
            chosen = getattr(bands.plan.mechanism.noise, "bands", 1)
            print(
                f"| {name} | {epsilon:g} | {noise:.3f} | {chosen} | {bands.ratio:.3f} | {blt.ratio:.3f} |", flush=True
            )


def speed(parameters: int = 1_000_000, steps: int = 60) -> None:
    """Seconds a release, of noise alone: run it on a machine that does nothing else."""
    import torch

    from discreet.stages.noise.random import KeyTree

    tree, out = KeyTree(), torch.empty(parameters)
    banded = discreet.BandedGaussian(1.0, bands=16)
    plan = discreet.Plan(
        sampling=discreet.CyclicPoisson(examples=1_600, batch_size=10, groups=16),
        mechanism=discreet.Mechanism(discreet.Clip(1.0), banded),
        steps=steps,
        delta=1e-5,
    )
    for name, memory in (("Gaussian", None), ("16 bands", plan.mechanism.start_noise())):
        taken = []
        for step in range(steps):
            begun = time.perf_counter()
            plan.mechanism.noise.sample(out, 1.0, tree.stream(name, step))
            if memory is not None:
                memory.filter(out, "all", 0)
                memory.advance()
            taken.append(time.perf_counter() - begun)
        print(f"{name}: {1e3 * statistics.median(taken):.2f} ms for {parameters:,} parameters")


def step(steps: int = 60, warm_up: int = 20, size: int = 256) -> None:
    """Seconds of processor time of a step, of two runs in turn that draw the same batches, and the work in each."""
    import torch
    from torch.nn import functional as F

    from discreet.models import build

    torch.set_num_threads(1)
    x, y = torch.randn(16 * size, 1, 28, 28), torch.randint(10, (16 * size,))
    sampling = discreet.CyclicPoisson(examples=len(x), batch_size=size, groups=16)
    runs, taken = {}, {}
    for name, noise in (("Gaussian", discreet.Gaussian(1.0)), ("16 bands", discreet.BandedGaussian(1.0, bands=16))):
        model = build("cnn", (1, 28, 28), 10)
        mechanism = discreet.Mechanism(discreet.Clip(1.0), noise)
        plan = discreet.Plan(sampling=sampling, mechanism=mechanism, steps=warm_up + steps, delta=1e-5)
        private = discreet.attach(model, plan, seed=0)
        runs[name], taken[name] = (model, private, private.batches((x, y))), []
    for _ in range(warm_up + steps):
        for name, (model, private, batches) in runs.items():
            begun = time.process_time()
            inputs, labels = next(batches)
            private.backward(F.cross_entropy(model(inputs), labels, reduction="none"))
            taken[name].append(time.process_time() - begun)
    plain, banded = (statistics.median(taken[name][warm_up:]) for name in ("Gaussian", "16 bands"))
    each = [b / a for a, b in zip(taken["Gaussian"][warm_up:], taken["16 bands"][warm_up:], strict=True)]
    parameters = sum(p.numel() for p in build("cnn", (1, 28, 28), 10).parameters())
    print(f"Gaussian {1e3 * plain:.1f} ms, 16 bands {1e3 * banded:.1f} ms: {banded / plain:.3f} of medians,")
    load = " ".join(f"{v:.1f}" for v in os.getloadavg())
    print(f"{statistics.median(each):.3f} in the median pair of {steps}; load {load}")
    print(f"the filter: {15 * parameters:,} multiply-adds a step, {4 * 15 * parameters / 2**20:.2f} MiB of memory")


def solving() -> None:
    """Seconds on the clock, and of processor time, of what a plan waits for; each of them once, as nothing is kept."""
    from discreet.accounting import cost
    from discreet.accounting.events import Event
    from discreet.stages.noise.correlated import optimised_bands, optimised_blt
    from discreet.stages.noise.correlated.sensitivity import Pattern

    def epoch(multiplier: float, batches: int, count: int) -> object:
        return cost([Event(1 / batches, multiplier, count, scheme="allocation", adjacency="zero-out")], 1e-5)

    tasks = {
        "32 bands for 100,000 steps": lambda: optimised_bands(100_000, 32),
        "16 bands for 1,024 steps": lambda: optimised_bands(1_024, 16),
        "BLT of 3 buffers for 2,000 steps, 6 participations 333 apart": lambda: optimised_blt(
            2_000, 3, Pattern(333, 6), "max"
        ),
        "random allocation: 60 epochs of 234 batches, multiplier 1.1": lambda: epoch(1.1, 234, 60),
        "random allocation: 10 epochs of 100 batches, multiplier 0.8": lambda: epoch(0.8, 100, 10),
        "random allocation: 3 epochs of 5,000 batches, multiplier 0.6": lambda: epoch(0.6, 5_000, 3),
    }
    for name, task in tasks.items():
        clock, processor = time.perf_counter(), time.process_time()
        task()
        print(f"{name}: {time.perf_counter() - clock:.2f} s, {time.process_time() - processor:.2f} s of processor time")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", action="store_true", help="time a release instead")
    parser.add_argument("--step", action="store_true", help="time a whole step instead")
    parser.add_argument("--solve", action="store_true", help="time solvers and accountants instead")
    chosen = parser.parse_args()
    if chosen.solve:
        solving()
    else:
        speed() if chosen.speed else step() if chosen.step else planned()
