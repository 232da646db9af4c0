"""How anything goes, told on a terminal by bars and elsewhere by plain lines; and signals that stop a run cleanly."""

import json
import signal
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from discreet.runs.terminal import Patient, Terminal

_LINES_EVERY = 10.0  # seconds, where there is no terminal


@dataclass
class Watch:
    """Is told how a run goes, and may stop it."""

    stage: Callable[[str], None] = lambda words: None
    say: Callable[[str], None] = lambda words: None
    begin: Callable[[int, int], None] = lambda done, steps: None
    step: Callable[[int], None] = lambda step: None
    record: Callable[[Mapping[str, Any]], None] = lambda record: None
    stop: Callable[[], bool] = lambda: False
    download: Callable[[int, int], None] | None = None
    count: Callable[[str, int, int], None] = lambda words, done, total: None


class Display:
    """Bars with names on a terminal; elsewhere plain lines, of what is said and no more."""

    def __init__(self, console: Console, bars: Progress) -> None:
        self._console, self._bars = console, bars
        self._tasks: dict[str, TaskID] = {}
        self._said = time.monotonic()

    @property
    def terminal(self) -> bool:
        """Whether there are bars."""
        return self._console.is_terminal

    @property
    def since(self) -> float:
        """Seconds since the last line."""
        return time.monotonic() - self._said

    def say(self, words: str) -> None:
        """A line, where there is no terminal."""
        if not self.terminal:
            self._said = time.monotonic()
            self._console.print(words, soft_wrap=True, highlight=False)

    def always(self, words: str) -> None:
        """A line, on a terminal too: above the bars."""
        if words:
            self._console.print(words, soft_wrap=True, highlight=False, markup=False)

    def bar(self, name: str, *, words: str | None = None, **fields: Any) -> None:
        """Update the bar of this name: its `words`, a `note`, and rich's own completed, total, visible."""
        if not self.terminal:
            return
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(words or name, total=None, note="")
        self._bars.update(self._tasks[name], description=words, **fields)

    def only(self, name: str, done: int, total: int | None = None) -> None:
        """Update the bar of this name, and take all others away; a line when it is done."""
        for other in self._tasks.keys() - {name}:
            self._bars.remove_task(self._tasks.pop(other))
        self.bar(name, completed=done, total=total)
        if done == total:
            self.say(f"{name}: {total:,} steps")

    def follow(self, items: Iterable[Any], name: str) -> Iterator[Any]:
        """The items, counted as they come."""
        for number, item in enumerate(items, 1):
            self.only(name, number)
            yield item


@contextmanager
def display(console: Console | None = None, *, lasting: bool = False) -> Generator[Display]:
    """A display on the error stream, or on a console; a `lasting` one leaves its last bars on the terminal."""
    console = Terminal(stderr=True) if console is None else console
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=not lasting) as bars:
        yield Display(console, bars)


# --- a run -----------------------------------------------------------------------------------------------------------


@contextmanager
def watching(console: Console) -> Generator[tuple[Watch, Callable[[], int]]]:
    """A watch for a run, and a function that says which signal stopped it (0: none)."""
    with _signals() as stopped, display(console, lasting=True) as shown:
        yield _Told(shown, stopped).watch(), stopped


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


@contextmanager
def watching_in_json(*, quiet: bool = False) -> Generator[tuple[Watch, Callable[[], int]]]:
    """The same, told on the error stream as a JSON object a line: `event`, `at`, and what the event has to say."""

    stream = Patient()

    def tell(event: str, **said: Any) -> None:
        if not quiet:
            at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            stream.write(f"{json.dumps({'event': event, 'at': at, **said})}\n")
            stream.flush()

    with _signals() as stopped:
        yield (
            Watch(
                stage=lambda words: tell("stage", stage=words),
                say=lambda words: tell("notice", notice=words) if words else None,
                begin=lambda done, steps: tell("begin", step=done, steps=steps),
                record=lambda record: tell("record", **record),
                stop=lambda: bool(stopped()),
            ),
            stopped,
        )


class _Told:
    """A run on a display: one bar, or lines for a log.

    There are no lines before the first release, so that what is wrong with the input is one line alone.
    """

    def __init__(self, shown: Display, stopped: Callable[[], int]) -> None:
        self._shown, self._stopped, self._steps = shown, stopped, 0
        shown.bar("run", words="starting")

    def watch(self) -> Watch:
        return Watch(
            stage=lambda words: self._shown.bar("run", words=words),
            say=self._shown.always,
            begin=self._begin,
            step=self._step,
            record=self._record,
            stop=lambda: bool(self._stopped()),
            download=self._download if self._shown.terminal else None,
            count=self._count,
        )

    def _begin(self, done: int, steps: int) -> None:
        self._steps = steps
        self._shown.bar("run", completed=done, total=steps)
        if done:
            self._shown.say(f"continuing after step {done:,} of {steps:,}")

    def _step(self, step: int) -> None:
        self._shown.bar("run", completed=step)
        if self._shown.since > _LINES_EVERY:
            self._shown.say(f"step {step:,} of {self._steps:,}")

    def _record(self, record: Mapping[str, Any]) -> None:
        self._shown.bar("run", note=in_words(record))
        self._shown.say(f"step {record['step']:,} of {self._steps:,}: {in_words(record)}")

    def _download(self, done: int, total: int) -> None:
        if self._stopped():  # nothing has begun that would have to be saved
            raise SystemExit(128 + self._stopped())
        self._shown.bar("run", completed=done, total=total or None)

    def _count(self, words: str, done: int, total: int) -> None:
        self._shown.bar("run", words=words)
        self._download(done, total)
        if self._shown.since > _LINES_EVERY:
            self._shown.say(f"{words}: {done:,} of {total:,}")


def in_words(record: Mapping[str, Any]) -> str:
    """The main figures of a record."""
    from discreet.accounting.guarantee import round_up  # which takes longer to import than a command line to parse

    left = record.get("epsilon_left")
    parts = [f"ε {round_up(float(record['epsilon']))}" + (f", {left:.3g} left" if left is not None else "")]
    if record.get("accuracy") is not None:
        parts.insert(0, f"accuracy {record['accuracy']:.1%}")
    speeds = {name.removesuffix("_per_second"): value for name, value in record.items() if name.endswith("_per_second")}
    return ", ".join([*parts, *(f"{value:,.0f} {unit}/s" for unit, value in speeds.items())])
