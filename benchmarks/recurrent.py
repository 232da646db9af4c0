"""Time of one private step of a recurrent classifier, as it is and converted, against SGD with torch's layers.

    python benchmarks/recurrent.py [--rounds N] [--threads N] [--only LSTM] [--unconverted]

1,000 words of width 128, one layer of 128 units, 64 steps, the last output to 10 classes, batches of 64. Steps are
interleaved, so that other work on the machine hits all alike. Wall time counts all of it; CPU time leaves other
processes out.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime

import torch
from race.competitors import private_on
from torch import Tensor, nn
from torch.nn import functional as F

import discreet

WIDTH, LENGTH, BATCH = 128, 64, 64
Step = Callable[[], None]


class Classifier(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(1000, WIDTH), nn.Linear(WIDTH, 10)
        self.layer = getattr(nn, kind)(WIDTH, WIDTH, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(self.words(tokens))[0][:, -1])


def made(kind: str, *, converted: bool) -> tuple[nn.Module, torch.optim.Optimizer, Tensor, Tensor]:
    torch.manual_seed(0)
    model = Classifier(kind)
    model = discreet.nn.convert(model) if converted else model
    x, y = torch.randint(1000, (BATCH, LENGTH)), torch.randint(10, (BATCH,))
    return model, torch.optim.SGD(model.parameters(), lr=0.01), x, y


def sgd(kind: str, *, converted: bool) -> Step:
    model, optimizer, x, y = made(kind, converted=converted)

    def step() -> None:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def private(kind: str, *, converted: bool) -> Step:
    model, optimizer, x, y = made(kind, converted=converted)
    plan = discreet.methods.dp_sgd(examples=BATCH, batch_size=BATCH, steps=10**6, noise=1.0, delta=1e-5)
    handle = discreet.attach(model, plan)
    return private_on(model, optimizer, handle, handle.batches((x, y)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", default="")
    parser.add_argument("--unconverted", action="store_true", help="also a private step of torch's own layers")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    date = datetime.now(UTC).date().isoformat()
    print(f"{date}, {platform.machine()}, {options.threads} threads, torch {torch.__version__}", flush=True)
    print(f"{'layer':6}{'step':>22}{'wall ms':>10}{'x SGD':>8}{'CPU ms':>10}{'x SGD':>8}", flush=True)
    for kind in ("LSTM", "GRU", "RNN"):
        if options.only not in kind:
            continue
        steps = {"SGD": sgd(kind, converted=False), "SGD, converted": sgd(kind, converted=True)}
        steps["private, converted"] = private(kind, converted=True)
        if options.unconverted:
            steps["private, as it is"] = private(kind, converted=False)
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
        for i in range(options.rounds + 3):
            for name, step in steps.items():
                wall, cpu = time.perf_counter(), time.process_time()
                step()
                if i >= 3:
                    times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
        medians = {
            name: [statistics.median(t) * 1e3 for t in zip(*found, strict=True)] for name, found in times.items()
        }
        for name, (wall, cpu) in medians.items():
            ratios = wall / medians["SGD"][0], cpu / medians["SGD"][1]
            print(f"{kind:6}{name:>22}{wall:10.1f}{ratios[0]:8.2f}{cpu:10.1f}{ratios[1]:8.2f}", flush=True)


if __name__ == "__main__":
    main()
