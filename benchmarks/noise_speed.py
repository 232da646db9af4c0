"""Secure Gaussian noise against torch's own generator, interleaved in one run.

    python benchmarks/noise_speed.py [--rounds N] [--threads N ...] [--largest N] [--json FILE]

For each size, dtype and number of threads: torch's `normal_`, and `fill_normal` on a fresh stream of a `KeyTree`, as a
release calls it (the stream's key is derived and its cipher made each time). Medians of the rounds are compared. The
last lines split the time of one chunk into key stream and arithmetic.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from discreet.stages.noise.random import CHUNK, KeyTree, Scratch

SIZES = (25_450, 800_000, 2_750_000, 100_000_000)  # a small MLP, ..., a large transformer
PACKAGES = ("discreet", "torch", "numpy", "cryptography")


def medians(calls: list[Callable[[], Any]], rounds: int) -> list[float]:
    """Seconds of each call, in turns."""
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(rounds + 1):
        for call, found in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            if turn:  # the first round warms up
                found.append(time.perf_counter() - start)
    return [statistics.median(found) for found in times]


def compare(size: int, dtype: torch.dtype, threads: int, rounds: int) -> dict[str, Any]:
    """One row of the table."""
    torch.set_num_threads(threads)
    out, root, numbers = torch.empty(size, dtype=dtype), KeyTree(), count()
    calls: list[Callable[[], Any]] = [
        lambda: out.normal_(0, 1.3),
        lambda: root.stream("noise", next(numbers)).fill_normal(out, 1.3),
    ]
    torch_s, discreet_s = medians(calls, rounds)
    row = {"size": size, "dtype": str(dtype).removeprefix("torch."), "threads": threads, "rounds": rounds}
    return row | {"torch_us": torch_s * 1e6, "discreet_us": discreet_s * 1e6, "ratio": discreet_s / torch_s}


def parts(dtype: torch.dtype, rounds: int) -> dict[str, Any]:
    """Nanoseconds a value of one chunk: key stream and arithmetic."""
    torch.set_num_threads(1)
    source, room, out = KeyTree().stream("noise", 0), Scratch(), torch.empty(CHUNK, dtype=dtype).numpy()
    room.cut(CHUNK // 2, out.dtype)
    random: np.ndarray = room.octets
    stream, arithmetic = medians([lambda: source.octets(6 * CHUNK, random), lambda: room.fill(out, -2.0)], rounds)
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "stream_ns": stream / CHUNK * 1e9,
        "arithmetic_ns": arithmetic / CHUNK * 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=0, help="rounds of each row; 0: about half a second's worth")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="leave larger sizes out")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    processor = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    about = {
        "machine": f"{processor}, {torch.backends.cpu.get_cpu_capability()}, {platform.platform()}",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
    }
    print(f"{about['machine']}; {about['date']}; {about['versions']}")
    print("      values    dtype threads    torch us discreet us  ratio ns a value")
    rows = []
    for threads in arguments.threads:
        for dtype in (torch.float32, torch.float64):
            for size in (s for s in SIZES if s <= arguments.largest):
                rounds = arguments.rounds or min(500, max(3, 50_000_000 // size))
                row = compare(size, dtype, threads, rounds)
                rows.append(row)
                ours, theirs = row["discreet_us"], row["torch_us"]
                figures = f"{theirs:>11,.0f} {ours:>11,.0f} {row['ratio']:>6.2f} {1e3 * ours / size:>10.2f}"
                print(f"{size:>12,} {row['dtype']:>8} {threads:>7} {figures}", flush=True)
    split = [parts(dtype, arguments.rounds or 200) for dtype in (torch.float32, torch.float64)]
    for found in split:
        print(
            f"one chunk of {CHUNK:,} {found['dtype']} values: key stream {found['stream_ns']:.2f} ns a value, "
            f"arithmetic {found['arithmetic_ns']:.2f}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({**about, "rows": rows, "parts": split}, indent=1) + "\n")


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


if __name__ == "__main__":
    main()
