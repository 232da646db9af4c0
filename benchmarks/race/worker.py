"""The process of one competitor: it builds a step, warms up, and then runs steps and measures itself when told to.

    python -m race.worker        # from the folder benchmarks; it is started by race.track

It speaks in lines of JSON. First it is told what to call for the step, and for a small one:

    {"module": "race.competitors", "function": "step_of", "arguments": {...}, "small": {...}, "threads": 1,
     "cores": [1]}

It answers with its warm-up, or with why there is none. Each later line is a number of steps, answered by their times. A
step may return a number of examples; they are added up.
"""

import ctypes
import gc
import importlib
import json
import os
import resource
import sys
import time
import warnings
from pathlib import Path
from typing import Any

WARM_UP = 3  # steps whose memory is measured
SETTLED, SETTLING = 65, 4.0  # then it goes on to so many steps, or for so many seconds


def resident(field: str) -> float:
    """A line of the kernel's account of this process, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def peak_of(step, steps: int) -> float:
    """The most that was resident during these steps."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    for _ in range(steps):
        step()
    return resident("VmHWM")


def give_back() -> None:
    """Have the allocator return what is free, so that workers that wait hold no more than they need."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def measure(step, steps: int) -> dict[str, float]:
    """Seconds a step: on the clock, and of all threads of this process."""
    step()  # what the others have put out of the caches comes back, and the allocator gets its memory
    gc.collect()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    wall, cpu, examples = time.perf_counter(), time.process_time(), 0
    for _ in range(steps):
        examples += step() or 0
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    give_back()
    return {"steps": steps, "wall": wall / steps, "cpu": cpu / steps, "examples": examples, "faults": faults / steps}


def warm_up(step) -> dict[str, float]:
    """The growth of the resident set over a few steps, the first one apart, and how long a step takes about."""
    give_back()
    before = resident("VmRSS")
    first = peak_of(step, 1)
    give_back()
    started = time.perf_counter()
    later = peak_of(step, WARM_UP - 1)
    seconds = (time.perf_counter() - started) / (WARM_UP - 1)
    for _ in range(min(SETTLED - WARM_UP, int(SETTLING / max(seconds, 1e-9)))):
        step()
    give_back()
    peaks = {"first": first - before, "later": later - before, "peak": max(first, later) - before}
    return {"before": before, **peaks, "seconds": seconds}


def build(job: dict[str, Any]):
    import torch

    torch.set_num_threads(job["threads"])
    make = getattr(importlib.import_module(job["module"]), job["function"])
    if job["small"] is not None:
        make(**job["small"])()  # what any first step of a process needs: libraries, thread pools
    return make(**job["arguments"])


def why_not(error: Exception) -> dict[str, str]:
    kind = type(error).__name__
    words = " ".join(str(error).split())[:200]
    if kind in ("Missing", "Cannot"):
        return {"status": "missing" if kind == "Missing" else "cannot", "why": words}
    memory = ("can't allocate memory", "RESOURCE_EXHAUSTED", "Out of memory")
    if isinstance(error, MemoryError) or any(sign in words for sign in memory):
        return {"status": "out of memory", "why": words}
    return {"status": "fails", "why": f"{kind}: {words}"}


def main() -> None:
    warnings.filterwarnings("ignore")
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints is not an answer
    job = json.loads(sys.stdin.readline())
    os.sched_setaffinity(0, job["cores"])
    try:
        step = build(job)
        answer = {"status": "ready", **warm_up(step)}
    except Exception as error:
        print(json.dumps(why_not(error)), file=out)
        return
    print(json.dumps(answer), file=out)
    for line in sys.stdin:
        try:
            print(json.dumps({"status": "ran", **measure(step, json.loads(line))}), file=out)
        except Exception as error:
            print(json.dumps(why_not(error)), file=out)
            return


if __name__ == "__main__":
    main()
