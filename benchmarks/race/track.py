"""The track: starts one worker a competitor, lets one run at a time, in turns, and ends what takes too much memory."""

import json
import math
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from race import machine

POLL = 0.02  # seconds between looks at a worker's memory
SPARE = machine.GIB  # the machine is left this much, whatever the cap
Result = dict[str, Any]


@dataclass(frozen=True)
class Rules:
    """What is the same for all: threads, rounds, about how long a round takes, the allocator, the cap of memory."""

    threads: int = 1
    rounds: int = 9
    seconds: float = 0.5
    allocator: str = "tuned"
    cap: float = 8.0  # GiB resident in one process
    patience: float = 300.0  # seconds to warm up in; who has used as much in rounds takes no more of them


@dataclass(frozen=True)
class Job:
    """What a worker is to build: a function that returns a step, its arguments, and those of a small first step."""

    module: str
    function: str
    arguments: Mapping[str, Any]
    small: Mapping[str, Any] | None = None
    steps: int | None = None  # in a round; None: as many as fit into its seconds


class Worker:
    """A process that answers one line at a time, and is killed when it holds more memory than the rules allow."""

    def __init__(self, job: Job, rules: Rules) -> None:
        self._rules = rules
        self._process = subprocess.Popen(
            [sys.executable, "-m", "race.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # errors are answers; the rest is chatter of libraries
            text=True,
            env=machine.environment(rules.threads, rules.allocator),
        )
        told = {"module": job.module, "function": job.function, "arguments": job.arguments, "small": job.small}
        self._first = told | {"threads": rules.threads, "cores": sorted(machine.cores(rules.threads))}

    def begin(self) -> Result:
        """What it finds out about itself while it warms up."""
        return self._ask(self._first, self._rules.patience)

    def run(self, steps: int) -> Result:
        return self._ask(steps)

    def _ask(self, message: Any, patience: float = math.inf) -> Result:
        deadline = time.monotonic() + patience
        pipes = self._process.stdin, self._process.stdout
        assert pipes[0] is not None
        assert pipes[1] is not None
        try:
            print(json.dumps(message), file=pipes[0], flush=True)
        except BrokenPipeError:
            return self._died()
        with selectors.DefaultSelector() as selector:
            selector.register(pipes[1], selectors.EVENT_READ)
            while not selector.select(POLL):
                reason = self._too_large()
                if reason:
                    self.end()
                    return {"status": "out of memory", "why": reason}
                if time.monotonic() > deadline:
                    self.end()
                    return {"status": "too slow", "why": f"not warm after {patience:g} s"}
        line = pipes[1].readline()
        return json.loads(line) if line else self._died()

    def _too_large(self) -> str:
        """Why it may not go on, if it may not."""
        try:
            pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        except (FileNotFoundError, ProcessLookupError):
            return ""
        if pages * os.sysconf("SC_PAGE_SIZE") > self._rules.cap * machine.GIB:
            return f"cap {self._rules.cap:g} GiB"
        return "less than 1 GiB left on the machine" if machine.memory()["available"] < SPARE else ""

    def _died(self) -> Result:
        code = self._process.wait()
        if code == -signal.SIGKILL:
            return {"status": "out of memory", "why": "killed by the system"}
        return {"status": "fails", "why": f"its process ended with exit code {code}"}

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout):
            if file is not None:
                file.close()


def race(jobs: Mapping[str, Job], rules: Rules, progress: Callable[[str], None] = lambda _: None) -> dict[str, Result]:
    """Warm up each competitor, then let them run in turns; what each has found, or why it has not."""
    workers: dict[str, Worker] = {}
    results: dict[str, Result] = {}
    steps: dict[str, int] = {}
    try:
        for name, job in jobs.items():
            progress(f"{name} warms up")
            workers[name] = Worker(job, rules)
            results[name] = workers[name].begin()
            if results[name]["status"] != "ready":
                workers.pop(name).end()
                continue
            steps[name] = job.steps or max(1, round(rules.seconds / results[name]["seconds"]))
            results[name] |= {"wall": [], "cpu": [], "faults": [], "examples": [], "steps": steps[name]}
        for turn in range(rules.rounds):
            names = list(workers)
            for name in names if turn % 2 == 0 else reversed(names):
                if steps[name] * sum(results[name]["wall"]) > rules.patience:
                    continue
                progress(f"{name}, round {turn + 1} of {rules.rounds}")
                answer = workers[name].run(steps[name])
                if answer["status"] == "ran":
                    for key in ("wall", "cpu", "faults", "examples"):
                        results[name][key].append(answer[key])
                else:
                    results[name] = answer
                    workers.pop(name).end()
    finally:
        for worker in workers.values():
            worker.end()
    for result in results.values():
        if result["status"] == "ready":
            result["status"] = "ran"
    return results
