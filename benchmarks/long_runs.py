"""Long runs and many runs: what a step costs after a million, how fast a ledger is verified and gone on with.

Times are of the CPU, but for that of a synced step.

python benchmarks/long_runs.py [--steps 1000000] [--runs 1000] [--pages 50]
"""

import argparse
import os
import platform
import resource
import statistics
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import torch

from discreet import Clip, Gaussian, Ledger, Mechanism, Plan, Poisson, verify
from discreet.ledger import RunLedger, read
from discreet.report import write
from discreet.runs.config import from_dict
from discreet.runs.run import train
from discreet.stages.sensitivity import Layout

LAYOUT = Layout(("weight", "bias"), ((10, 784), (10,)))


def plan(steps, noise=1.0):
    sampling = Poisson(examples=60_000, batch_size=256)
    return Plan(sampling=sampling, mechanism=Mechanism(Clip(1.0), Gaussian(noise)), steps=steps, delta=1e-5)


@contextmanager
def without_waiting():
    """Have syncs return at once: to get far soon. What a synced step takes is measured apart."""
    sync, os.fsync = os.fsync, lambda descriptor: None
    try:
        yield
    finally:
        os.fsync = sync


def memory():
    """Resident memory now, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def timed(work, clock=time.process_time):
    """Seconds of CPU time, or by another clock, and what was found."""
    start = clock()
    found = work()
    return clock() - start, found


def long(folder, steps):
    path, made = folder / "ledger.jsonl", plan(steps)
    account = RunLedger(Ledger(path), made, LAYOUT)
    places, done, rows = sorted({10**k for k in range(3, 8) if 10**k <= steps} | {steps}), 0, []
    for place in places:
        with without_waiting():
            seconds, _ = timed(lambda n=place - done - 30: [account.spend() for _ in range(n)])
        synced = statistics.median(timed(account.spend, time.perf_counter)[0] for _ in range(30))
        rows.append((place, seconds / (place - done - 30), synced, path.stat().st_size / place, memory()))
        done = place
    account.close()
    print("| releases | a step's line, without the sync | with it | bytes a step | memory |")
    print("| --- | --- | --- | --- | --- |")
    for place, bare, synced, size, used in rows:
        print(f"| {place:,} | {bare * 1e6:.0f} µs | {synced * 1e3:.2f} ms | {size:.0f} | {used:.0f} MiB |")
    before = memory()
    seconds, _ = timed(lambda: read(path))
    print(f"\nread and checked: {steps / seconds:,.0f} lines a second, {memory() - before:+.0f} MiB")
    seconds, found = timed(lambda: verify(path))
    print(f"verified, with its guarantee: {seconds:.1f} s, {found.lines / seconds:,.0f} lines a second")
    seconds, again = timed(lambda: RunLedger(Ledger(path), made, LAYOUT))
    assert again.released == steps
    again.close()
    print(f"opened to go on: {seconds:.1f} s\n")


def many(folder, runs):
    ledger = Ledger(folder / "all.jsonl", dataset="all", epsilon=1000.0, delta=1e-5)
    each = []
    with without_waiting():
        for number in range(runs):
            made = plan(20, noise=4.0 + number % 10)

            def one(made=made):
                account = RunLedger(ledger, made, LAYOUT)
                for _ in range(3):
                    account.spend()
                account.close()

            each.append(timed(one)[0])
    print(f"{runs:,} runs of ten plans in one data set's ledger: the first ten took {statistics.mean(each[:10]):.3f} s")
    print(f"each, to begin and make three steps, the last ten {statistics.mean(each[-10:]):.3f} s")
    seconds, found = timed(lambda: verify(ledger.path))
    assert len(found.runs) == runs
    print(f"all of them verified, with a guarantee each and the total: {seconds:.1f} s\n")


def page(folder, pages):
    settings = {
        "model": {"name": "linear"},
        "budget": {"noise": 3.0, "steps": 20, "batch_size": 128},
        "run": {"checkpoint_every": 100.0},
    }
    made = from_dict(settings)
    for number in range(pages):
        train(made, folder / f"run {number}")
    places = [folder / f"run {number}" for number in range(pages)]
    seconds, written = timed(lambda: write(places, folder / "page"))
    print(f"a page of {pages} runs: {seconds:.1f} s, {written.stat().st_size / 2**20:.1f} MiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10**6)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--pages", type=int, default=50)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, one thread\n")
    with tempfile.TemporaryDirectory() as place:
        if given.steps:
            long(Path(place), given.steps)
        if given.runs:
            many(Path(place), given.runs)
        if given.pages:
            page(Path(place), given.pages)


if __name__ == "__main__":
    main()
