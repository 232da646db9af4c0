"""Several runs, each in a folder of its own: one after another, or in processes beside each other."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.synchronize import Event as Flag
from pathlib import Path
from typing import Any

from discreet.runs.config import from_dict
from discreet.runs.outcome import Outcome
from discreet.runs.progress import Watch

_LOOK = 0.5  # seconds between two looks at whether to stop


@dataclass(frozen=True)
class Job:
    """A run: its folder, and what is run there, as plain values."""

    folder: Path
    config: dict[str, Any]


def carried_out(jobs: Sequence[Job], workers: int, watch: Watch) -> Iterator[tuple[Job, bool]]:
    """Each job as it ends, and whether its run has finished; one that was begun before is continued.

    Where the watch stops, those that are running are stopped cleanly, and no other is begun.

    Args:
        jobs: what is run.
        workers: how many at a time; with one, all are run in this process.
        watch: is asked whether to stop.
    """
    if workers == 1 or len(jobs) < 2:
        for job in jobs:
            if watch.stop():
                return
            yield job, _run(job, watch.stop)
        return
    context = multiprocessing.get_context("spawn")
    flag = context.Event()
    threads = max(1, (multiprocessing.cpu_count() or 1) // workers)
    with ProcessPoolExecutor(workers, context, _settle, (flag, threads)) as pool:
        yield from _ended({pool.submit(_in_process, job): job for job in jobs}, flag, watch.stop)


def _ended(waiting: dict["Future[bool]", Job], flag: Flag, stop: Callable[[], bool]) -> Iterator[tuple[Job, bool]]:
    """Jobs as their processes end them."""
    try:
        while waiting:
            if stop():
                flag.set()
            done, _ = wait(waiting, timeout=_LOOK, return_when=FIRST_COMPLETED)
            for future in done:
                yield waiting.pop(future), future.result()
    finally:
        flag.set()
        for future in waiting:
            future.cancel()


def _run(job: Job, stop: Callable[[], bool]) -> bool:
    """Begin or continue a run; whether it has finished."""
    from discreet.runs.run import resume, train

    told = Watch(stop=stop)
    begun = (job.folder / "config.toml").is_file()
    outcome: Outcome = resume(job.folder, told) if begun else train(from_dict(job.config), job.folder, told)
    return outcome.finished


_stop: list[Flag] = []  # in a worker: set when it is to stop
_orphaned = threading.Event()  # in a worker: its parent has died
_busy = threading.Lock()  # in a worker: a run is being made


def _settle(flag: Flag, threads: int) -> None:
    """A worker's beginning: signals are its parent's, who says when to stop."""
    import torch

    _stop[:] = [flag]
    torch.set_num_threads(threads)
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(ValueError):
            signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_outlive_no_parent, daemon=True).start()


def _outlive_no_parent() -> None:
    """Where the parent was killed, end the present run cleanly, and then this process."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    _orphaned.set()
    with _busy:
        os._exit(1)


def _in_process(job: Job) -> bool:
    with _busy:
        return False if _is_to_stop() else _run(job, _is_to_stop)


def _is_to_stop() -> bool:
    return _stop[0].is_set() or _orphaned.is_set()


def finished(folders: Iterable[Path]) -> list[Path]:
    """Those runs that have finished."""
    return [folder for folder in folders if (folder / "end.json").is_file()]
