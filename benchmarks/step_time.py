"""Time and memory of one private step, against non-private SGD and Opacus, interleaved in one run.

    python benchmarks/step_time.py [--rounds N] [--steps N] [--threads N] [--json FILE] [--only NAME]

Each competitor takes whole training steps (forward, backward, optimizer) on the same random batch: SGD; discreet
(engine, clipping, secure Gaussian noise, in-memory ledger); Opacus with hooks and with ghost clipping. Rounds are
interleaved, so that other work on the machine hits all alike; the medians of the rounds are compared. Peak memory is
the growth of the resident set over a few steps, each competitor in a process of its own.
"""

import argparse
import gc
import json
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch
from models import SETTINGS, Setting
from torch.nn import functional as F

import discreet

warnings.filterwarnings("ignore")
Step = Callable[[], None]


def sgd(setting: Setting) -> Step:
    model, x, y, optimizer = _prepare(setting)

    def step() -> None:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def private(setting: Setting) -> Step:
    model, x, y, optimizer = _prepare(setting)
    plan = discreet.methods.dp_sgd(examples=setting.batch, batch_size=setting.batch, steps=10**6, noise=1.0, delta=1e-5)
    handle = discreet.attach(model, plan)
    batches = handle.batches((x, y))

    def step() -> None:
        inputs, labels = next(batches)
        handle.backward(F.cross_entropy(model(inputs), labels, reduction="none"))
        optimizer.step()
        optimizer.zero_grad()

    return step


def opacus(setting: Setting, mode: str) -> Step:
    from opacus import PrivacyEngine

    model, x, y, optimizer = _prepare(setting)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=setting.batch)
    criterion = torch.nn.CrossEntropyLoss()
    made = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, criterion=criterion, data_loader=loader, noise_multiplier=1.0,
        max_grad_norm=1.0, poisson_sampling=False, grad_sample_mode=mode,
    )  # fmt: skip
    model, optimizer = made[0], made[1]
    if mode == "ghost":
        criterion = made[2]

    def step() -> None:
        criterion(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


COMPETITORS: dict[str, Callable[[Setting], Step]] = {
    "SGD": sgd,
    "discreet": private,
    "Opacus hooks": lambda s: opacus(s, "hooks"),
    "Opacus ghost": lambda s: opacus(s, "ghost"),
}


def _prepare(setting: Setting):
    torch.manual_seed(0)
    model = setting.build()
    x, y = setting.inputs(setting.batch), torch.randint(10, (setting.batch,))
    return model, x, y, torch.optim.SGD(model.parameters(), lr=0.01)


def time_steps(setting: Setting, rounds: int, steps: int) -> dict[str, list[float]]:
    """Seconds per step of each competitor, round by round."""
    ready: dict[str, Step] = {}
    for name, make in COMPETITORS.items():
        try:
            step = make(setting)
            for _ in range(3):
                step()
            ready[name] = step
        except Exception as error:
            print(f"  {name} does not run on {setting.name}: {type(error).__name__}: {str(error)[:80]}", flush=True)
    times: dict[str, list[float]] = {name: [] for name in ready}
    for _ in range(rounds):
        for name, step in ready.items():
            gc.collect()
            start = time.perf_counter()
            for _ in range(steps):
                step()
            times[name].append((time.perf_counter() - start) / steps)
    return times


def peak_memory(setting: str, name: str, threads: int) -> float | None:
    """MiB by which the resident set of a fresh process grows over a few steps."""
    command = [sys.executable, __file__, "--measure", setting, name, "--threads", str(threads)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return float(result.stdout) if result.returncode == 0 else None


def measure(setting: str, name: str) -> None:
    chosen = next(s for s in SETTINGS if s.name == setting)
    step = COMPETITORS[name](chosen)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = _resident("VmRSS")
    for _ in range(4):
        step()
    print(_resident("VmHWM") - before)


def _resident(field: str) -> float:
    """A line of the kernel's account of this process, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.measure:
        measure(*options.measure)
        return
    about = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {options.threads} threads, CPU",
        "versions": {name: version(name) for name in ("torch", "opacus")} | {"discreet": discreet.__version__},
        "rounds": options.rounds,
        "steps a round": options.steps,
    }
    print(about, flush=True)
    print(f"\n{'model':32}{'batch':>6}{'competitor':>15}{'ms/step':>10}{'x SGD':>8}{'peak MiB':>10}", flush=True)
    rows = []
    for setting in SETTINGS:
        if options.only not in setting.name:
            continue
        times = time_steps(setting, options.rounds, options.steps)
        base = statistics.median(times["SGD"])
        for name, found in times.items():
            median = statistics.median(found)
            memory = None if options.no_memory else peak_memory(setting.name, name, options.threads)
            shown = "-" if memory is None else f"{memory:.0f}"
            print(
                f"{setting.name:32}{setting.batch:6}{name:>15}{median * 1e3:10.1f}{median / base:8.2f}{shown:>10}",
                flush=True,
            )
            rows.append(
                {"model": setting.name, "batch": setting.batch, "competitor": name, "seconds": median,
                 "ratio": median / base, "peak MiB": memory}
            )  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(about | {"results": rows}, indent=2))


if __name__ == "__main__":
    main()
