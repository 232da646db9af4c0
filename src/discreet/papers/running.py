"""All cases of an experiment: several at a time, each in a process of one thread; what is measured is kept at once.

    RESULTS/000/figure-2/quick.jsonl     a line for each case and seed that has finished
    RESULTS/000/figure-2/quick.cases/    folders of those that have not

A case that has a line is not run again; one that was killed goes on from its checkpoint.
"""

import hashlib
import json
import math
import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from discreet import ConfigError
from discreet.data import load
from discreet.papers import experiment as find
from discreet.papers.experiment import Case, Experiment, Place, Result, Results, Size

Tell = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Task:
    """A case with a seed, as another process is told of it."""

    paper: str
    experiment: str
    case: Case
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        """The case in words."""
        return ", ".join([*(f"{k} {v}" for k, v in self.case.items()), f"seed {self.seed}"])


def run(
    paper: str,
    experiment: Experiment,
    results: Path,
    *,
    size: Size = "usual",
    seeds: int | None = None,
    workers: int | None = None,
    tell: Tell = lambda name, done, total: None,
) -> Results:
    """Run what has not been run yet, and return everything; `tell` is called with a case's name and how far it is."""
    count, workers = experiment.seeds[size] if seeds is None else seeds, workers or os.cpu_count() or 1
    for name, value in (("seeds", count), ("workers", workers)):
        if value < 1:
            raise ConfigError(f"{name} is {value!r}; it must be a whole number >= 1.")
    folder = results / paper / experiment.name
    folder.mkdir(parents=True, exist_ok=True)
    file, cases = folder / f"{size}.jsonl", [dict(case) for case in experiment.cases(size)]
    finished = {_key(r.case, r.seed) for r in read(file)}
    places = folder / f"{size}.cases"
    tasks = [
        Task(paper, experiment.name, case, seed, places / _key(case, seed))
        for seed in range(count)
        for case in cases
        if _key(case, seed) not in finished
    ]
    if tasks:
        for name in experiment.needs:  # so that it is found, downloaded or decoded once, before all begin
            load(name)
    tell("", len(finished), len(finished) + len(tasks))

    def keep(task: Task, result: Result) -> None:
        values = {"case": task.case, "seed": task.seed, "measured": result.measured, "seconds": result.seconds}
        values["at"] = time.strftime("%Y-%m-%d")
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(_writable(values)) + "\n")
            out.flush()
            os.fsync(out.fileno())
        shutil.rmtree(task.folder, ignore_errors=True)
        done.append(task.name)
        tell("", len(finished) + len(done), len(finished) + len(tasks))

    done: list[str] = []
    if file.is_file() and not file.read_bytes().endswith(b"\n"):
        with file.open("a", encoding="utf-8") as out:
            out.write("\n")  # a crash cut the last line off; the next begins its own
    (_here if workers == 1 else _elsewhere)(tasks, workers, keep, tell)
    shutil.rmtree(places, ignore_errors=True)
    wanted = {_key(case, seed) for case in cases for seed in range(count)}
    return Results(r for r in read(file) if _key(r.case, r.seed) in wanted)


def read(file: Path) -> Results:
    """What has been measured; a last line that a crash cut off is not there."""
    if not file.is_file():
        return Results()
    results = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            values = json.loads(line)
        except ValueError:
            continue
        result = Result(values["case"], values["seed"], _readable(values["measured"]), values["seconds"])
        results[_key(result.case, result.seed)] = result
    return Results(results.values())


def _here(tasks: Sequence[Task], workers: int, keep: Callable[[Task, Result], None], tell: Tell) -> None:
    for task in tasks:
        keep(task, _carry_out(task, lambda done, total, task=task: tell(task.name, done, total)))


def _elsewhere(tasks: Sequence[Task], workers: int, keep: Callable[[Task, Result], None], tell: Tell) -> None:
    """In processes of their own; the first that fails ends the others, and what had finished is kept."""
    if not tasks:
        return
    context = multiprocessing.get_context("spawn")
    unsent_lines: Any = context.Queue()

    def listen() -> None:
        for name, done, total in iter(unsent_lines.get, None):
            tell(name, done, total)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    pool = ProcessPoolExecutor(min(workers, len(tasks)), context, _begin, (unsent_lines,))
    try:
        waiting = {pool.submit(_in_worker, task): task for task in tasks}
        for future in as_completed(waiting):
            keep(waiting[future], future.result())
    finally:
        pool.shutdown(cancel_futures=True)
        unsent_lines.put(None)
        listener.join()


_news: Any = None


def _begin(unsent_lines: Any) -> None:
    import torch

    global _news
    _news = unsent_lines
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker whose parent was killed would go on with its case, for nobody."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _in_worker(task: Task) -> Result:
    last = 0.0

    def tell(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > 0.2 or done == total:
            last = time.monotonic()
            _news.put((task.name, done, total))

    return _carry_out(task, tell)


def _carry_out(task: Task, tell: Callable[[int, int], None]) -> Result:
    task.folder.mkdir(parents=True, exist_ok=True)
    began = time.process_time()
    measured = find(task.paper, task.experiment).run(task.case, Place(task.folder, task.seed, tell))
    return Result(task.case, task.seed, measured, time.process_time() - began)


def _key(case: Case, seed: int) -> str:
    text = json.dumps([sorted(case.items()), seed])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _writable(value: Any) -> Any:
    """The same without numbers that JSON does not have."""
    if isinstance(value, dict):
        return {k: _writable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_writable(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _readable(measured: dict[str, Any]) -> dict[str, Any]:
    return {k: float(v) if v in ("inf", "-inf", "nan") else v for k, v in measured.items()}
