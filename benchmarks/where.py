"""Where the time of a private step goes, beside a non-private one, on one thread.

    python benchmarks/where.py [--only MODEL] [--steps N] [--keep]

The parts of a step are timed from inside, each without what it calls of the others: the forward pass and the loss; the
backward pass of ordinary ops (for SGD: with the weights' gradients); gradients made and measured, as the pass goes; the
bound and its checks; the weighted sums; noise; what is left (drawing, the ledger, the graph's walk); the optimizer. CPU
time, medians. The machine, versions and command are printed with it.
"""

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from models import SETTINGS, Setting
from race.competitors import plan, prepare
from race.machine import about, sentence
from torch.nn import functional as F

import discreet
from discreet import aggregate, private, sums
from discreet.gradients import engine

PARTS = ("forward", "backward", "gradients", "bound", "sums", "noise", "rest", "optimizer")


class Clock:
    """CPU time of parts that call each other, each without the others' share."""

    def __init__(self) -> None:
        self.spent = dict.fromkeys(PARTS, 0.0)
        self._open: list[str] = []
        self._since = time.process_time()

    def _charge(self) -> None:
        now = time.process_time()
        if self._open:
            self.spent[self._open[-1]] += now - self._since
        self._since = now

    def begin(self, part: str) -> None:
        self._charge()
        self._open.append(part)

    def end(self) -> None:
        self._charge()
        self._open.pop()

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            self.begin(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.end()

        return run


INSIDE = (
    (private.Private, "backward", "rest"),
    (engine.Pass, "backward", "backward"),
    (engine.Pass, "_visit", "gradients"),
    (aggregate.Aggregate, "add", "bound"),
    (sums.FloatSums, "add_weighted", "sums"),
    (sums.FloatSums, "release", "noise"),
)


def ordinary(setting: Setting, clock: Clock) -> Callable[[], None]:
    model, x, y, optimizer = prepare(setting)

    def step() -> None:
        loss = clock.timed("forward", lambda: F.cross_entropy(model(x), y))()
        clock.timed("backward", loss.backward)()
        clock.timed("optimizer", lambda: (optimizer.step(), optimizer.zero_grad()))()

    return step


def guarded(setting: Setting, clock: Clock, memory: float) -> Callable[[], None]:
    model, x, y, optimizer = prepare(setting, "discreet")
    handle = discreet.attach(model, plan(setting.batch), memory=memory)
    handle.collate(torch.utils.data.TensorDataset(x, y))
    draws = iter(handle.batch_sampler())

    def step() -> None:
        clock.timed("rest", lambda: next(draws))()
        losses = clock.timed("forward", lambda: F.cross_entropy(model(x), y, reduction="none"))()
        handle.backward(losses)
        clock.timed("optimizer", lambda: (optimizer.step(), optimizer.zero_grad()))()

    return step


def measure(step: Callable[[], None], clock: Clock, steps: int) -> dict[str, float]:
    """Milliseconds of each part: medians over steps, after those in which isolation is probed most often."""
    for _ in range(5):
        step()
    found: dict[str, list[float]] = {part: [] for part in PARTS}
    for _ in range(steps):
        clock.spent = dict.fromkeys(PARTS, 0.0)
        step()
        for part, seconds in clock.spent.items():
            found[part].append(seconds * 1e3)
    return {part: statistics.median(values) for part, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a part of a model's name")
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--keep", action="store_true", help="keep gradients wherever that saves time (memory=math.inf)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(sentence(about("where", sys.argv[1:])))
    print(f"\n{'model, batch':34}{'step':10}" + "".join(f"{part:>11}" for part in PARTS) + f"{'ms':>10}")
    clock = Clock()
    for owner, name, part in INSIDE:
        setattr(owner, name, clock.timed(part, getattr(owner, name)))
    for setting in SETTINGS:
        if options.only not in setting.title:
            continue
        memory = math.inf if options.keep else engine.MEMORY
        for kind, step in (("SGD", ordinary(setting, clock)), ("discreet", guarded(setting, clock, memory))):
            steps = options.steps if setting.title != SETTINGS[0].title else 50 * options.steps
            found = measure(step, clock, steps)
            cells = "".join(f"{found[part]:11.2f}" for part in PARTS)
            print(f"{setting.title:34}{kind:10}{cells}{sum(found.values()):10.2f}", flush=True)


if __name__ == "__main__":
    main()
