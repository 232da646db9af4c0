"""Figures 1 and 2 of paper 003, run again in shape: who memorises and who does not, with our accounting.

python benchmarks/memorisation.py --out docs/figures [--only noise | users]

Figure 1a and, with CIFAR-10 at hand (DISCREET_DATA), 1b and 1c: the small AlexNet with the paper's per-layer clipping
(C = 2), noise 0.7225 a tensor, batch 128 and momentum, on fewer examples and epochs than the paper's 50,000 and 60.
Figure 2: 1,000 users with 10 records each, an MLP under DP-FedAvg. Writes the pictures, and prints the tables.
"""

import argparse
import math
import os
import platform
import time
from functools import partial
from pathlib import Path

import torch

from discreet import Gaussian, Mechanism, PerLayerClip, Plan, Poisson, methods
from discreet.audit.sanity import Setting, generalisation, memorisation, patterns
from discreet.audit.sanity.patterns import UserSetting
from discreet.data import load
from discreet.federated import Local
from discreet.models.networks import build
from discreet.release.batching import as_tensors
from discreet.report import plots
from discreet.report.pictures import save_picture

NOISE, TENSORS, DELTA = 0.7225, 10, 50_000**-1.1


def alexnet():
    return build("alexnet", (3, 32, 32), 10)


def of_paper(examples, epochs, noise=NOISE):
    """The paper's mechanism: each tensor clipped to 2, with noise of this multiplier each."""
    mechanism = Mechanism(PerLayerClip(2.0), Gaussian(noise / math.sqrt(TENSORS)), "each")
    return Plan(sampling=Poisson(examples=examples, batch_size=128), mechanism=mechanism, epochs=epochs, delta=DELTA)


def momentum(rate):
    return lambda model: torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=3e-4)


def figure_1(out, examples, epochs, runs):
    full = of_paper(50_000, 60).fit_to(alexnet()).guarantee()
    print(f"The paper's own setting (50,000 examples, 60 epochs): said to be 20; proven {full.epsilon:.1f}.\n")
    # without privacy by Adam: SGD with momentum memorises nothing in so few steps
    setting = Setting(alexnet, of_paper(examples, epochs), (3, 32, 32), 10, momentum(0.002), adam)
    start = time.perf_counter()
    found = memorisation(setting, runs=runs)
    gap = None
    if os.environ.get("DISCREET_DATA"):
        data = load("cifar10", limit=examples)
        gap = generalisation(setting, as_tensors(data.train), as_tensors(data.test), name="CIFAR-10 (JPEG copy)")
    save_picture(out / "memorisation.png", plots.memorisation(found, gap))
    seconds = time.perf_counter() - start
    print(
        f"Small AlexNet, {examples:,} examples, {epochs} epochs, {runs} runs, {seconds:.0f} s: ε = {found.epsilon:.1f}."
    )
    print("| check | private | without privacy | chance | allowed | verdict |\n| --- | --- | --- | --- | --- | --- |")
    v = found.verdict
    print(f"| random labels on noise | {v.mean:.1%} | {v.plain[0]:.1%} | 10.0% | {v.ceiling:.1%} | {v.word} |")
    if gap is not None:
        held = f"{gap.private[-1][1]:.1%} | {gap.plain[-1][1]:.1%}"
        print(f"| {gap.data}, held-out accuracy | {held} | 10.0% | | |")
        print(f"| {gap.data}, training less held-out | {gap.gap:.1%} | {gap.plain_gap:.1%} | | | {gap.verdict.word} |")
    print()


def figure_2(out, runs, rounds, noise):
    plan = methods.dp_fedavg(users=1_000, users_per_round=50, rounds=rounds, noise=noise, norm=0.5)
    setting = UserSetting(
        partial(build, "mlp", (1, 28, 28), 10, hidden=(64,)),
        plan,
        local=Local(learning_rate=0.05, epochs=5, batch_size=None),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=2.0),
    )
    start = time.perf_counter()
    found = patterns(setting, centralised=(10,), distributed=(10, 1000), runs=runs)
    save_picture(out / "patterns.png", plots.patterns(found))
    seconds = time.perf_counter() - start
    print(
        f"1,000 users, 50 a round, {rounds:,} rounds, noise {noise:g}: ε = {found.epsilon:.2f}, δ = {found.delta:.2g}; "
        f"{runs} runs each, {seconds:.0f} s. Verdict: {found.verdict.word}; allowed {found.verdict.ceiling:.1%}."
    )
    print("| records with the pattern | private | without privacy |\n| --- | --- | --- |")
    for point in (p for p in found.points if p.private):
        plain = next(p for p in found.of(point.where, private=False) if p.patterns == point.patterns)
        print(f"| {point.where} {point.patterns:,} | {point.mean:.1%} | {plain.mean:.1%} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/figures"), help="where the pictures go")
    parser.add_argument("--only", choices=["noise", "users"], help="one figure alone")
    parser.add_argument("--examples", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--noise", type=float, default=1.0, help="of the users' plan")
    parser.add_argument("--runs", type=int, default=2)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    print(f"{platform.machine()}, {torch.get_num_threads()} CPU threads, torch {torch.__version__}\n")
    if arguments.only != "users":
        figure_1(arguments.out, arguments.examples, arguments.epochs, arguments.runs)
    if arguments.only != "noise":
        figure_2(arguments.out, arguments.runs, arguments.rounds, arguments.noise)


if __name__ == "__main__":
    main()
