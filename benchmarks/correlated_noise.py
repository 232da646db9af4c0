"""What correlated noise gains at equal epsilon, in error: computed, not trained. And what a step of it costs.

python benchmarks/correlated_noise.py            the table of docs/correlated.md, in about a minute
python benchmarks/correlated_noise.py --speed    a release with 16 bands beside one of plain Gaussian noise
"""

import argparse
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", action="store_true", help="time a release instead")
    speed() if parser.parse_args().speed else planned()
