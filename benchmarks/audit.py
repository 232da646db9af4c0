"""What audits measure on scikit-learn's digits: gradient canaries in DP-SGD beside what is proven, and membership.

One-run audits for several plans and seeds: 64-64-10 network, white-box, numbers of guesses from the plan alone. Then
attacks by membership on the same network without privacy and with it, with 16 shadow models each.

    python benchmarks/audit.py [--seeds 5] [--skip-membership]
"""

import argparse
import platform
import statistics
import time

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import discreet
from discreet.accounting import gaussian as gdp
from discreet.audit import membership
from discreet.audit.canaries import audit_run, directions, for_canaries, mislabelled

DELTA, MODELS = 1e-5, 16
PLANS = [  # epsilon, batch size (of 1797), steps, canaries
    (2, 449, 50, 4000),
    (4, 449, 50, 1000),
    (4, 449, 50, 2000),
    (4, 449, 50, 4000),
    (8, 449, 50, 4000),
    (4, 180, 150, 4000),
    (8, 180, 150, 4000),
    (4, 1797, 10, 4000),
    (8, 1797, 10, 4000),
]


def digits():
    found = load_digits()
    return torch.tensor(found.data / 16, dtype=torch.float32), torch.tensor(found.target)


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def one_runs(seeds):
    print("| proven ε | batch | steps | canaries | guesses in, out | ε at least, median (least to most) | share | "
          "if Gaussian, median | seconds |")  # fmt: skip
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    data = digits()
    for epsilon, batch, steps, count in PLANS:
        own = discreet.methods.dp_sgd(examples=1797, batch_size=batch, steps=steps, epsilon=epsilon, delta=DELTA)
        bounds, conditional, seconds = [], [], []
        for seed in range(seeds):
            model = network(seed)
            started = time.perf_counter()
            run = audit_run(model, data, for_canaries(own), directions(model, own, count), seed=seed)
            seconds.append(time.perf_counter() - started)
            bounds.append(run.result.epsilon_lower_bound)
            conditional.append(gdp.epsilon(max(run.mu_lower_bound(), 1e-3), DELTA))
            assert not run.result.disproves
        middle = statistics.median(bounds)
        print(
            f"| {epsilon} | {batch} | {steps} | {count} | {run.counts[0]}, {run.counts[1]} | {middle:.2f} "
            f"({min(bounds):.2f} to {max(bounds):.2f}) | {100 * middle / epsilon:.0f} % | "
            f"{statistics.median(conditional):.2f} | {statistics.median(seconds):.1f} |",
            flush=True,
        )


def scores(seeds):
    """The same plan by weaker attackers."""
    print("\n| attacker | ε at least, median (least to most) |\n| --- | --- |")
    data = digits()
    own = discreet.methods.dp_sgd(examples=1797, batch_size=449, steps=50, epsilon=4, delta=DELTA)
    for name, score in [
        ("knows all data, sees every gradient", "likelihood"),
        ("sees every gradient", "sum"),
        ("sees the first and the last model", "parameters"),
    ]:
        bounds = []
        for seed in range(seeds):
            model = network(seed)
            run = audit_run(model, data, for_canaries(own), directions(model, own, 4000), score=score, seed=seed)
            bounds.append(run.result.epsilon_lower_bound)
        print(f"| {name} | {statistics.median(bounds):.2f} ({min(bounds):.2f} to {max(bounds):.2f}) |", flush=True)
    bounds = []
    for seed in range(seeds):
        x, y = data
        canaries = mislabelled(x[::2], y[::2], 10, seed=seed)
        run = audit_run(network(seed), (x[1::2], y[1::2]), for_canaries(own), canaries, guesses=(45, 45), seed=seed)
        bounds.append(run.result.epsilon_lower_bound)
    name = "sees the first and the last model's loss on 899 mislabelled examples, 90 guesses"
    print(f"| {name} | {statistics.median(bounds):.2f} ({min(bounds):.2f} to {max(bounds):.2f}) |")


def trained(x, y, seed, epsilon):
    model = network(seed)
    if epsilon is None:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(200):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    else:
        plan = discreet.methods.dp_sgd(examples=len(x), batch_size=180, epochs=20, epsilon=epsilon, delta=DELTA)
        discreet.fit(model, (x, y), plan, preflight=False)
    return model


@torch.no_grad()
def seen(model, x):
    return model(x).double().numpy()


def memberships():
    x, y = digits()
    labels, half = y.numpy(), len(x) // 2
    members = np.random.default_rng(0).permutation(len(x)) < half  # the data are sorted by writer
    inside = membership.halves(len(x), MODELS, seed=1)
    print("\n| training | attack | AUC (95 %) | true positives at 0.1 % | at 1 % | allowed at 1 % |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, epsilon in [("no privacy", None), ("ε = 4", 4.0)]:
        tradeoff = None
        if epsilon is not None:
            plan = discreet.methods.dp_sgd(examples=half, batch_size=180, epochs=20, epsilon=epsilon, delta=DELTA)
            tradeoff = plan.guarantee().tradeoff()
        target = seen(trained(x[members], y[members], 0, epsilon), x)
        shadows = np.stack(
            [seen(trained(x[coins], y[coins], 1 + i, epsilon), x) for i, coins in enumerate(torch.tensor(inside))]
        )
        phi, others = membership.confidence(target, labels), membership.confidence(shadows, labels)
        logs, known = -np.logaddexp(0, -phi), -np.logaddexp(0, -others)
        attacks = {
            "loss": membership.by_loss(-logs),
            "LiRA": membership.lira(phi, others, inside),
            "RMIA": membership.rmia(logs, known, logs[~members], known[:, ~members]),
        }
        for attack, values in attacks.items():
            found = membership.judge(attack, values, members, tradeoff=tradeoff)
            points = [f"{100 * p.true_positives:.1f} % ({100 * p.low:.1f} to {100 * p.high:.1f})" for p in found.points]
            allowed = "" if found.points[1].allowed is None else f"{100 * found.points[1].allowed:.0f} %"
            print(
                f"| {name} | {attack} | {found.auc:.3f} ({found.low:.3f} to {found.high:.3f}) | "
                f"{points[0]} | {points[1]} | {allowed} |",
                flush=True,
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--skip-membership", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, one thread, torch {torch.__version__}; "
          f"δ = {DELTA:g}, confidence 0.95, {arguments.seeds} seeds\n")  # fmt: skip
    one_runs(arguments.seeds)
    scores(arguments.seeds)
    if not arguments.skip_membership:
        memberships()


if __name__ == "__main__":
    main()
