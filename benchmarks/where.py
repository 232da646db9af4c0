"""Where the time of a private step goes, beside a non-private one.

    python benchmarks/where.py [--only MODEL] [--threads N] [--steps N] [--keep] [--markdown] [--update]

The parts of a step are timed from inside, each without what it calls of the others: the forward pass and the loss; the
backward pass of ordinary ops (for SGD: with the weights' gradients); gradients made and measured, as the pass goes; the
bound and its checks; the weighted sums; noise; what is left (drawing, the ledger, the graph's walk); the optimizer.
Medians of CPU time, or, on several threads, of time on the clock. Machine, versions and command are printed with it.

The third line is a step in which the isolation of examples is probed, as it is in one of 128. The fourth is a floor for
any private step that takes gradients apart with the native calls there are: SGD's own time, the noise, and, for each
layer that meets an example more than once, the least of what its kernels cost, timed alone on this machine: gradients
made one by one, measured and added up in place of one product for all examples; or norms from Gram matrices beside it.
What it lacks is calls and checks, weights that are made of parameters, and what the caches do not hold when layers
follow each other. The allocator's settings are those of the other benchmarks. --update writes the table into
docs/speed.md.
"""

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import torch
from models import SETTINGS, Setting
from race import pages, tables
from race.competitors import plan, prepare
from race.machine import ALLOCATORS, about, environment, sentence
from torch import Tensor
from torch.nn import functional as F

import discreet
from discreet.gradients import engine, results
from discreet.gradients.forms import OuterProducts, PerExampleGrad
from discreet.gradients.forms.base import GRAM, Kernel
from discreet.gradients.forms.convolution import Convolution
from discreet.gradients.forms.reparametrized import Prepared
from discreet.release import private, sums
from discreet.release import private_sum as aggregate
from discreet.release.preflight import watch
from discreet.stages.noise.random import KeyTree

PARTS = ("forward", "backward", "gradients", "bound", "sums", "noise", "rest", "optimizer")


def now() -> float:
    """Seconds of CPU time; on several threads, of the clock."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


class Clock:
    """CPU time of parts that call each other, each without the others' share."""

    def __init__(self) -> None:
        self.spent = dict.fromkeys(PARTS, 0.0)
        self._open: list[str] = []
        self._since = now()

    def _charge(self) -> None:
        since, self._since = self._since, now()
        if self._open:
            self.spent[self._open[-1]] += self._since - since

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
    (results.UnitGradients, "_measure", "gradients"),
    (aggregate.PrivateSum, "add", "bound"),
    (sums.FloatSums, "add_weighted", "sums"),
    (sums.FloatSums, "noised", "noise"),
)


def ordinary(setting: Setting, clock: Clock) -> Callable[[], None]:
    model, x, y, optimizer = prepare(setting)

    def step() -> None:
        loss = clock.timed("forward", lambda: F.cross_entropy(model(x), y))()
        clock.timed("backward", loss.backward)()
        clock.timed("optimizer", lambda: (optimizer.step(), optimizer.zero_grad()))()

    return step


Losses = Callable[[], Tensor]


def guarded(
    setting: Setting, clock: Clock, memory: float
) -> tuple[Callable[[], None], "discreet.release.private.Private", Losses]:
    model, x, y, optimizer = prepare(setting, "discreet")
    handle = discreet.attach(model, plan(setting.batch), memory=memory)
    handle.collate(torch.utils.data.TensorDataset(x, y))
    draws = iter(handle.batch_sampler())

    def forward() -> Tensor:
        return F.cross_entropy(model(x), y, reduction="none")

    def step() -> None:
        clock.timed("rest", lambda: next(draws))()
        losses = clock.timed("forward", forward)()
        handle.backward(losses)
        clock.timed("optimizer", lambda: (optimizer.step(), optimizer.zero_grad()))()

    return step, handle, forward


def milliseconds(function: Callable[[], Any]) -> float:
    found = []
    for _ in range(5):
        since = now()
        function()
        found.append(now() - since)
    return 1e3 * statistics.median(found)


@torch.no_grad()
def floor(handle: "discreet.release.private.Private", losses: Tensor) -> tuple[float, float]:
    """Milliseconds of the noise, and of what one gradient an example costs more than one for all."""
    forms = handle._engine.gradients(losses, len(losses), measure=False).forms
    source, room = KeyTree().stream("floor", 0), torch.empty(sum(p.numel() for p in handle._engine.parameters.values()))
    return milliseconds(lambda: source.fill_normal(room, 1.0)), sum(extra(forms[name]) for name in handle.kernels)


def extra(form: PerExampleGrad) -> float:
    """The same for one parameter, by the best of its kernels."""
    form = form.form if isinstance(form, Prepared) else form
    if not isinstance(form, (OuterProducts, Convolution)):
        return 0.0
    weights, out = torch.ones(form.units), torch.zeros(form.shape)
    together = milliseconds(lambda: form.add_weighted(weights, out))
    few = torch.rand(16, 1 << 20)
    added = milliseconds(lambda: torch.mv(few.t(), weights.new_ones(16))) * form.units * out.numel() / few.numel()
    costs = []
    for way in {kernel.way for kernel in form.kernels()}:
        form.kernel = Kernel(way)
        measured = milliseconds(form.norms)
        costs.append(measured if way == GRAM.way else measured + added - together)
    return min(costs)


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
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--keep", action="store_true", help="keep gradients wherever that saves time (memory=math.inf)")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--update", action="store_true", help="write the table into docs/speed.md")
    options = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in ALLOCATORS["tuned"].items()):  # read when a process starts
        os.execve(sys.executable, [sys.executable, *sys.argv], environment(options.threads, "tuned"))
    torch.set_num_threads(options.threads)
    machine = sentence(about("where", sys.argv[1:]))
    print(machine, end="\n\n")
    clock = Clock()
    for owner, name, part in INSIDE:
        setattr(owner, name, clock.timed(part, getattr(owner, name)))
    head, rows = ["model, batch", "step", *PARTS, "ms", "x SGD"], []
    for setting in SETTINGS:
        if options.only in setting.title:
            found = rows_of(setting, clock, options.steps, math.inf if options.keep else engine.MEMORY)
            print(tables.plain(head, found), flush=True)
            rows += found
    if options.markdown:
        print(tables.markdown(head, rows))
    if options.update:
        pages.fill(
            "docs/speed.md",
            "where" if options.threads == 1 else "shared",
            f"{tables.markdown(head, rows)}\n\n{machine}",
        )


def rows_of(setting: Setting, clock: Clock, steps: int, memory: float) -> list[list[str]]:
    """The lines of a model: SGD, ours, ours in a step that is probed, and the floor."""
    private_step, handle, forward = guarded(setting, clock, memory)
    many = 50 * steps if setting.title == SETTINGS[0].title else steps
    found = {"SGD": measure(ordinary(setting, clock), clock, many), "discreet": measure(private_step, clock, many)}
    handle._preflight._coins = 0, np.ones(watch._STRETCH, bool)  # from here on every step is tested
    found["probed"] = measure(private_step, clock, steps)
    noise, more = floor(handle, forward())
    base = sum(found["SGD"].values())

    def line(kind: str, parts: dict[str, float], total: float) -> list[str]:
        cells = [f"{parts[part]:.2f}" if part in parts else "" for part in PARTS]
        return [setting.title, kind, *cells, f"{total:.2f}", f"{total / base:.2f}"]

    least = line("floor", {"gradients": more, "noise": noise}, base + noise + more)
    return [*(line(kind, parts, sum(parts.values())) for kind, parts in found.items()), least]


if __name__ == "__main__":
    main()
