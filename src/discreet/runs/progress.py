"""How a run goes, told on a terminal by a bar and elsewhere by plain lines; and signals that stop it cleanly."""

import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from discreet.accounting.guarantee import round_up
from discreet.runs.run import Watch
from discreet.training.options import Record

_LINES_EVERY = 10.0  # seconds, where there is no terminal


@contextmanager
def watching(console: Console) -> Generator[tuple[Watch, Callable[[], int]]]:
    """A watch for a run, and a function that says which signal stopped it (0: none)."""
    with _signals() as stopped:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
            yield (_Bar(bar, stopped) if console.is_terminal else _Lines(console, stopped)).watch(), stopped


@contextmanager
def _signals() -> Generator[Callable[[], int]]:
    """Ctrl-C and SIGTERM are remembered, and the run asks after each release; a second one ends it at once."""
    caught: list[int] = []

    def catch(number: int, frame: Any) -> None:
        caught.append(number)
        if len(caught) > 1:
            raise SystemExit(128 + caught[0])

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            before[number] = signal.signal(number, catch)
        except ValueError:  # not in the main thread: signals go where they went
            continue
    try:
        yield lambda: caught[0] if caught else 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Bar:
    def __init__(self, bar: Progress, stopped: Callable[[], int]) -> None:
        self._bar, self._stopped = bar, stopped
        self._task = bar.add_task("starting", total=None, note="")

    def watch(self) -> Watch:
        return Watch(
            stage=lambda words: self._bar.update(self._task, description=words),
            begin=lambda done, steps: self._bar.update(self._task, completed=done, total=steps),
            step=lambda step: self._bar.update(self._task, completed=step),
            record=lambda record: self._bar.update(self._task, note=in_words(record)),
            stop=lambda: bool(self._stopped()),
            download=self._download,
            count=self._count,
        )

    def _download(self, done: int, total: int) -> None:
        if self._stopped():  # nothing has begun that would have to be saved
            raise SystemExit(128 + self._stopped())
        self._bar.update(self._task, completed=done, total=total or None)

    def _count(self, words: str, done: int, total: int) -> None:
        self._bar.update(self._task, description=words)
        self._download(done, total)


class _Lines:
    """Lines for a log; none before the first release, so that what is wrong with the input is one line alone."""

    def __init__(self, console: Console, stopped: Callable[[], int]) -> None:
        self._console, self._stopped = console, stopped
        self._steps, self._said = 0, time.monotonic()

    def watch(self) -> Watch:
        return Watch(
            begin=self._begin,
            step=self._step,
            record=lambda record: self._say(f"step {record['step']:,} of {self._steps:,}: {in_words(record)}"),
            stop=lambda: bool(self._stopped()),
            count=self._count,
        )

    def _count(self, words: str, done: int, total: int) -> None:
        if self._stopped():  # nothing has begun that would have to be saved
            raise SystemExit(128 + self._stopped())
        if time.monotonic() - self._said > _LINES_EVERY:
            self._say(f"{words}: {done:,} of {total:,}")

    def _begin(self, done: int, steps: int) -> None:
        self._steps = steps
        if done:
            self._say(f"continuing after step {done:,} of {steps:,}")

    def _step(self, step: int) -> None:
        if time.monotonic() - self._said > _LINES_EVERY:
            self._say(f"step {step:,} of {self._steps:,}")

    def _say(self, words: str) -> None:
        self._said = time.monotonic()
        self._console.print(words, soft_wrap=True, highlight=False)


def in_words(record: Record) -> str:
    """The main figures of a record."""
    left = record.get("epsilon_left")
    parts = [f"ε {round_up(float(record['epsilon']))}" + (f", {left:.3g} left" if left is not None else "")]
    if record.get("accuracy") is not None:
        parts.insert(0, f"accuracy {record['accuracy']:.1%}")
    speeds = {name.removesuffix("_per_second"): value for name, value in record.items() if name.endswith("_per_second")}
    return ", ".join([*parts, *(f"{value:,.0f} {unit}/s" for unit, value in speeds.items())])
