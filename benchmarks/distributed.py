"""What several processes gain: examples a second with 1 and with 2 processes of one thread each, over gloo.

    python benchmarks/distributed.py [--processes 1 2] [--rounds 7] [--seconds 2] [--json FILE] [--quick]
    python benchmarks/distributed.py --from FILE [--markdown] [--update]

The same plan, batch size, data and seed for all numbers of processes; whole steps: draw, load, forward, private
gradient, agreement, ledger on disk, noise, sum over ranks, optimizer. Rounds are interleaved, and each process is held
to a core of its own. Beside the examples a second stands what part of a step rank 0 was not computing, but waiting for
others or for the disk.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from race import machine, pages, tables

TITLES = ["MNIST CNN, 256", "MNIST CNN, 2048", "transformer 4x256, 128 tokens, 32"]
ROWS = 8  # times the batch size are drawn from
HEAD = ["", "processes", "examples a second", "most", "x the first", "not computing, %"]
WARM_UP = 3


def setting_of(title: str):
    from models import SETTINGS

    return next(setting for setting in SETTINGS if setting.title == title)


def live(rank: int, count: int, title: str, quick: bool, folder: str, pipe) -> None:
    """One process: builds, warms up, and runs as many steps as it is told, until it is told 0."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1 - rank % len(cores)]})
    import torch
    import torch.distributed as dist
    from torch.nn import functional as F

    import discreet

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if count > 1:
        dist.init_process_group("gloo", f"file://{folder}/store", timedelta(minutes=5), count, rank)
    torch.manual_seed(0)
    setting = setting_of(title)
    model, batch = setting.build(), 8 if quick else setting.batch
    rows = setting.inputs(ROWS * batch), torch.randint(10, (ROWS * batch,))
    plan = discreet.methods.dp_sgd(examples=len(rows[0]), batch_size=batch, steps=10**6, noise=1.0, delta=1e-6)
    private = discreet.attach(model, plan, f"{folder}/ledger.jsonl", seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = private.batches(rows)

    def steps(number: int) -> dict[str, float]:
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(number):
            x, y = next(batches)
            private.backward(F.cross_entropy(model(x), y, reduction="none"))
            optimizer.step()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return {"wall": wall / number, "cpu": cpu / number, "rate": batch * number / wall}

    pipe.send(steps(WARM_UP))
    while number := pipe.recv():
        pipe.send(steps(number))


class Processes:
    """Processes that train together, and wait while others are measured."""

    def __init__(self, count: int, title: str, quick: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        self._pipes, self._processes = [], []
        for rank in range(count):
            mine, theirs = context.Pipe()
            arguments = (rank, count, title, quick, self._folder.name, theirs)
            self._processes.append(context.Process(target=live, args=arguments, daemon=True))
            self._pipes.append(mine)
        for process in self._processes:
            process.start()
        self._heard()  # the first steps are not for measuring
        self.seconds = self.run(WARM_UP)["wall"]

    def _heard(self) -> dict[str, float]:
        first, *_ = [pipe.recv() for pipe in self._pipes]
        return first

    def run(self, steps: int) -> dict[str, float]:
        for pipe in self._pipes:
            pipe.send(steps)
        return self._heard()

    def end(self) -> None:
        for pipe in self._pipes:
            pipe.send(0)
        for process in self._processes:
            process.join()
        self._folder.cleanup()


def measure(title: str, counts: list[int], rounds: int, seconds: float, quick: bool) -> list[dict[str, Any]]:
    """Each number of processes in turns."""
    runs = {count: Processes(count, title, quick) for count in counts}
    found: dict[int, list[dict[str, float]]] = {count: [] for count in counts}
    for turn in range(rounds):
        for count in counts if turn % 2 == 0 else reversed(counts):
            run = runs[count]
            found[count].append(run.run(max(1, round(seconds / run.seconds))))
    for run in runs.values():
        run.end()
    return [{"model": title, "processes": count, "rounds": found[count]} for count in counts]


def shown(found: dict[str, Any], form) -> str:
    lines = []
    first: dict[str, float] = {}
    for row in found["results"]:
        rates = [r["rate"] for r in row["rounds"]]
        middle = statistics.median(rates)
        idle = statistics.median(100 * (1 - r["cpu"] / r["wall"]) for r in row["rounds"])
        first.setdefault(row["model"], middle)
        ratio = middle / first[row["model"]]
        lines.append(
            [row["model"], str(row["processes"]), f"{middle:,.0f}", f"{max(rates):,.0f}", f"{ratio:.2f}", f"{idle:.0f}"]
        )
    return f"{machine.sentence(found['about'])} One thread a process.\n\n{form(HEAD, lines)}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", choices=TITLES, nargs="+", default=TITLES)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a round")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="one model, batches of 8, one short round: does it run?")
    parser.add_argument("--from", dest="source", type=Path, help="print what was measured before")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--update", action="store_true", help="write the table into docs/distributed.md")
    chosen = parser.parse_args(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    found = run(chosen, words) if chosen.source is None else json.loads(chosen.source.read_text())
    print(shown(found, tables.markdown if chosen.markdown else tables.plain))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(found))
    if chosen.update:
        pages.fill("docs/distributed.md", "distributed", shown(found, tables.markdown))


def run(chosen: argparse.Namespace, words: list[str]) -> dict[str, Any]:
    rounds, seconds = (1, 0.01) if chosen.quick else (chosen.rounds, chosen.seconds)
    about = machine.about("distributed", words, rounds=rounds, allocator={})
    found: dict[str, Any] = {"about": about, "results": []}
    for title in chosen.only[:1] if chosen.quick else chosen.only:
        found["results"] += measure(title, chosen.processes, rounds, seconds, chosen.quick)
    return found


if __name__ == "__main__":
    main()
