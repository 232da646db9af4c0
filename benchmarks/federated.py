"""A round of federated training: all users in one vectorised pass against one after the other; and a whole run.

python benchmarks/federated.py [--rounds 9]

Prints the median time of one round's updates of 100 users with 10 records each, engines interleaved in one run, and the
time of 50 rounds of 100 out of 1,000 users.
"""

import argparse
import platform
import statistics
import time

import torch

from discreet import methods
from discreet.federated import Local, Users, fit
from discreet.federated.engines import Loop, Vectorised
from discreet.models.networks import build
from discreet.training.evaluation import loss_for

USERS, RECORDS = 100, 10
CASES = [
    ("MLP 64-32-10", "mlp", (1, 8, 8), Local(batch_size=None)),
    ("MLP 64-32-10", "mlp", (1, 8, 8), Local(batch_size=5, epochs=5)),
    ("CNN on 8 x 8", "cnn", (1, 8, 8), Local(batch_size=5, epochs=5)),
    ("MLP 784-32-10", "mlp", (1, 28, 28), Local(batch_size=None)),
    ("MLP 784-32-10", "mlp", (1, 28, 28), Local(batch_size=5, epochs=5)),
    ("MNIST CNN", "cnn", (1, 28, 28), Local(batch_size=5, epochs=5)),
]


def made_up(shape, users):
    x, y = torch.randn(users * RECORDS, *shape), torch.randint(10, (users * RECORDS,))
    return Users.dealt(x, y, users)


def compare(kind, shape, local, rounds):
    """Median seconds of the loop and of the vectorised engine, and the largest difference of their updates."""
    model, users = build(kind, shape, 10), made_up(shape, USERS)
    data, loss = list(users), loss_for((users.x, users.y))
    engines = {"loop": Loop(model, local, loss), "vectorised": Vectorised(model, local, loss)}
    times, found = {name: [] for name in engines}, {}
    for _ in range(rounds):
        for name, engine in engines.items():
            start = time.perf_counter()
            found[name] = engine.updates(data, range(USERS), 0)
            times[name].append(time.perf_counter() - start)
    far = max(float((found["loop"][n] - found["vectorised"][n]).abs().max()) for n in found["loop"])
    return statistics.median(times["loop"]), statistics.median(times["vectorised"]), far


def whole_run():
    """Seconds of 50 rounds of 100 out of 1,000 users, ledger and all."""
    users = made_up((1, 28, 28), 1_000)
    plan = methods.dp_fedavg(users=1_000, users_per_round=100, rounds=50, noise=1.0)
    model = build("mlp", (1, 28, 28), 10)
    start = time.perf_counter()
    fit(model, users, plan, local=Local(epochs=1, batch_size=10))
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="how often each engine is timed")
    arguments = parser.parse_args()
    print(f"{platform.machine()}, {torch.get_num_threads()} CPU threads, torch {torch.__version__}\n")
    print("| model, local steps | loop | vectorised | faster | largest difference |")
    print("| --- | --- | --- | --- | --- |")
    for name, kind, shape, local in CASES:
        loop, vectorised, far = compare(kind, shape, local, arguments.rounds)
        times = f"{1e3 * loop:.0f} ms | {1e3 * vectorised:.1f} ms | {loop / vectorised:.1f}x"
        print(f"| {name}, {local.steps(RECORDS)} | {times} | {far:.1e} |")
    print(f"\n50 rounds of 100 out of 1,000 users, MLP 784-32-10: {whole_run():.1f} s")


if __name__ == "__main__":
    main()
