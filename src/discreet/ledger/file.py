"""A ledger's file: what it is for, and how it is read and appended to by one process at a time."""

import glob
import secrets
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any

from discreet import _storage as storage
from discreet._check import check_int, check_positive
from discreet.accounting import cost
from discreet.accounting.events import ROW, Event, check_unit, in_words, units_of
from discreet.accounting.guarantee import Guarantee, event_to_dict, guarantee
from discreet.errors import BudgetExhausted, ConfigError, PrivacyError
from discreet.ledger.chain import FORMAT, chained, cut_off
from discreet.ledger.state import LedgerState, Run

_WITHHELD = b""  # in place of a key that a pickle does not hold
_PATIENCE = 60.0  # seconds that others may have a data set's ledger
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True)
class Identity:
    """Which run it is: a random name that every line of it has, and the names of all who took it up from this folder.

    `attempts` are those that are on disk in the run's folder, the last one this process's own. A ledger whose last
    writer is none of them was continued from elsewhere: the folder is a copy. An empty `run` is one of an earlier
    version, which is told from others by its plan alone.
    """

    run: str
    attempts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in (self.run, *self.attempts):
            if not isinstance(name, str) or len(name) > 64 or set(name) - _HEX:
                raise ConfigError(f"{name!r} names no run; it is what private.run or discreet.verify says.")

    def taken_up(self) -> "Identity":
        """The same run, with a new name for whoever takes it up now."""
        return replace(self, attempts=(*self.attempts, secrets.token_hex(4)))


def new_run() -> str:
    """A random name for a run."""
    return secrets.token_hex(8)


@dataclass(frozen=True)
class Ledger:
    """A file that counts what is spent.

    With `dataset`, `epsilon` and `delta` it belongs to a data set and caps the total over all runs, queries and
    processes that name it, each run counting with its whole declared horizon (where it ends may depend on what was
    seen). Without, it holds one run. `key` signs every line, and is not pickled. `reserve` writes one line for so many
    releases: faster on a slow disk, and a crash then over-counts by as many. `stages` are noises of your own that its
    runs have, by class.

    `unit` is whom all of it protects ("user"); None leaves it to the runs. What is asked beside them (PrivatePCA,
    private_ranges, PrivateScore) protects rows; `rows` is the most that one unit has in any of it, and then it is
    counted for a whole unit, with so much less noise. Without, it is refused where runs protect anything but rows.
    Where no unit is named and runs protect different ones, each unit's own are capped, and nothing is proven of all.

    `run` says which run counts here, by the name that `private.run` gives and every line has: it is continued if the
    file holds it, and begun if not. Without, a file of one run continues that run, and in a data set's file a new one
    begins.
    """

    path: str | Path
    dataset: str | None = None
    epsilon: float | None = None
    delta: float | None = None
    key: bytes | None = field(default=None, repr=False)
    reserve: int = 1
    stages: tuple[type[Any], ...] = ()
    unit: str | None = None
    rows: int | None = None
    run: str | Identity | None = None

    def __post_init__(self) -> None:
        if isinstance(self.run, str) and not self.run:
            raise ConfigError("a ledger's run is ''; name one, or leave it out.")
        if self.run is not None and not isinstance(self.run, Identity):
            Identity(self.run)
        if self.unit is not None:
            check_unit("a ledger's unit", self.unit)
        if self.rows is not None:
            check_int("a ledger's rows", self.rows, least=1)
            if self.unit in (None, ROW):
                raise ConfigError(
                    f"a ledger's rows is {self.rows}, the most that one unit has, and its unit is {self.unit!r}; say "
                    "whose rows they are, as unit='user'."
                )
        check_int("a ledger's reserve", self.reserve, least=1, most=10**6)
        if self.key is not None and (not isinstance(self.key, bytes) or len(self.key) < 16):
            raise ConfigError("a ledger's key must be at least 16 secret bytes.")
        if self.dataset is None:
            if self.epsilon is not None or self.delta is not None:
                raise ConfigError("a ledger's epsilon and delta cap a data set; name it with dataset=.")
            return
        if self.epsilon is None or self.delta is None:
            raise ConfigError(f"the ledger of data set {self.dataset!r} needs the epsilon and delta it caps.")
        check_positive("a ledger's epsilon", self.epsilon)
        if not 0 < check_positive("a ledger's delta", self.delta) < 1:
            raise ConfigError(f"a ledger's delta is {self.delta!r}; it must be below 1.")

    @property
    def identity(self) -> Identity | None:
        """Which run counts here, if that is said."""
        return Identity(self.run) if isinstance(self.run, str) else self.run

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: all but the key, so that a saved estimator or run does not give it away.

        A process that is just being started gets it, over a pipe.
        """
        state = {f.name: getattr(self, f.name) for f in fields(self)}
        if self.key is None or get_spawning_popen() is not None:
            return state
        return {**state, "key": _WITHHELD}

    def __copy__(self) -> "Ledger":
        return self  # nothing of it can change, and within a process there is nobody to keep the key from

    def __deepcopy__(self, memo: Any) -> "Ledger":
        return self

    def query(self, what: str, event: Event, *, broken: str = "", answer: str = "") -> None:
        """Count something that is asked of the data beside training, before it is asked.

        What protects each row is counted for the ledger's unit, by its `rows`. `broken` says why it is not private
        after all (its noise came from a known seed); guarantees then say so. `answer` names secret noise: the same
        noise on the same data is the same answer, however often a crash makes it necessary, and is counted once.
        """
        converted: dict[str, Any] = {}
        if self.rows is not None and self.unit is not None and event.unit == ROW:
            event, converted = event.per(self.unit, self.rows), {"rows": self.rows}
        book = LedgerFile(self)
        with book.locked():
            if answer and answer in book.content.answers:
                return
            if book.content.closed:
                raise PrivacyError(
                    f"{what}: {book.path} is closed, as its run has ended, and what it proves would change. Count what "
                    "is asked later in a data set's ledger. Nothing was asked."
                )
            for unit in (self.unit or event.unit, *units_of(book.content.horizon())):
                if unit != event.unit:
                    raise PrivacyError(
                        f"{what}: this protects each {in_words(event.unit)}, and {book.path} counts what protects each "
                        f"{in_words(unit)}. {remedy(event.unit, unit)} Nothing was asked."
                    )
            book.check_cap(event)
            line = {"kind": "query", "what": what, "phase": event_to_dict(event), **converted}
            if self.identity is not None and self.identity.run:
                line["run"] = self.identity.run
            book.append(line | ({"broken": broken} if broken else {}) | ({"answer": answer} if answer else {}))

    def guarantee(self) -> Guarantee:
        """What is proven of everything in this file together, every run with its declared horizon.

        It is for the unit that all of it protects. Where runs protect different ones nothing is proven of everything:
        epsilon is infinite, a broken condition says what each unit has, and `apart()` gives each one's own guarantee.
        """
        book = LedgerFile(self)
        with book.locked():
            pass
        if self.delta is None:
            raise ConfigError("the ledger names no data set, so it has no delta of its own; read a run's guarantee.")
        return guarantee(book.content.horizon(), self.delta, unit=self.unit, conditions=book.content.conditions)


def named(ledger: str | Path | Ledger | None, run: str | None) -> str | Path | Ledger | None:
    """A ledger for one run of it, by its name."""
    if run is None:
        return ledger
    if ledger is None:
        raise ConfigError(f"run is {run!r}, and there is no ledger that could hold it; give ledger=.")
    return replace(ledger, run=run) if isinstance(ledger, Ledger) else Ledger(ledger, run=run)


def remedy(asked: str, unit: str) -> str:
    """What can be done where something protects another unit than the runs."""
    if asked == ROW:
        return (
            f"A {unit} may have several rows: declare how many at most, Ledger(..., unit={unit!r}, rows=...), and it "
            f"is counted for each {unit}; or ask it of other data, counted elsewhere."
        )
    return "The two do not add up; ask for what protects the same, or of other data, counted elsewhere."


def read(path: Path, key: bytes | None = None, stages: Sequence[type[Any]] = ()) -> tuple[LedgerState, bytes]:
    """Everything in a file, and what follows its last line's end: empty unless a write was cut off.

    A line that is not as it was written is a PrivacyError that names it, and a file that cannot be read a ConfigError.
    """
    content = LedgerState(stages=tuple(stages))
    try:
        torn = _read_lines(content, path, 0, key)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return content, torn


def _read_lines(
    content: LedgerState, path: Path, start: int, key: bytes | None, tell: Callable[[bytes], None] | None = None
) -> bytes:
    """Add up the lines from a place in a file on; what follows the last one's end."""
    rest = b""
    for piece in storage.pieces(path, start):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            _take(content, path, line, key)
            if tell is not None:
                tell(line)
    return rest


def _take(content: LedgerState, path: Path, line: bytes, key: bytes | None) -> None:
    try:
        content.take(line, key)
    except (PrivacyError, ConfigError) as error:
        raise PrivacyError(f"{path} is damaged at line {content.lines + 1}: {error}.") from error


def has_hash(path: Path, wanted: str) -> bool:
    """Whether a file that was read holds a line with this hash."""
    return storage.contains(path, f'"hash": "{wanted}"'.encode())


def counted_as_torn(content: LedgerState, path: Path, torn: bytes) -> list[str]:
    """For which runs a line that was cut off counts; a PrivacyError if it was not cut off by a crash.

    What it would have counted did not happen, but counts. If it does not say whose it was, each run that is not over
    counts one.
    """
    try:
        if content.closed:
            raise PrivacyError("something follows the line that closes the ledger")
        told = cut_off(torn, content.head)
    except PrivacyError as error:
        raise PrivacyError(f"{path} is damaged at line {content.lines + 1}: {error}.") from error
    if told.get("kind", "release") != "release":
        return []
    left = [name for name, run in content.runs.items() if run.released < run.steps and run.end is None]
    return [name for name in left if name == told.get("run", name)]


def totals(events: Sequence[Event], delta: float) -> dict[str, float]:
    """Epsilon for each unit, of those releases that protect it."""
    return {unit: cost([p for p in events if p.unit == unit], delta).epsilon for unit in units_of(events)}


# --- writing ---------------------------------------------------------------------------------------------------------


class LedgerFile:
    """A ledger's file, opened: reads what others added, and appends."""

    def __init__(self, ledger: Ledger | None, stages: Sequence[type[Any]] = ()) -> None:
        self.ledger = ledger
        self.path = None if ledger is None else Path(ledger.path)
        self.content = LedgerState(stages=(*stages, *(() if ledger is None else ledger.stages)))
        self._withheld = ledger is not None and ledger.key == _WITHHELD
        self._key = None if ledger is None or self._withheld else ledger.key
        self._read = 0  # bytes of the file that are in `content`
        self.unsent_lines: list[bytes] | None = (
            None  # lines that others are still to be told of, where there are others
        )
        self._lock: storage.Lock | None = None
        if self.path is not None:
            try:
                storage.make_folder(self.path.parent)
                self.path = self.path.parent.resolve() / self.path.name  # one file has one lock, by whatever way
                storage.is_file(self.path)
                self._lock = storage.Lock(f"{self.path}.lock")
            except OSError as error:
                raise PrivacyError(f"{self.path} cannot be used as a ledger: {error}") from error

    @property
    def shared(self) -> bool:
        """Whether several runs count here."""
        return self.ledger is not None and self.ledger.dataset is not None

    def acquire(self) -> None:
        """Hold the file, so that nobody else counts in it at the same time."""
        if self._lock is None:
            return
        try:  # a file of one run is held for as long as it is attached
            self._lock.acquire(_PATIENCE if self.shared else 0.0)
        except storage.InUse as error:
            raise PrivacyError(
                f"{self.path} is in use by another run; wait for it, or detach it, or use another file."
            ) from error
        except OSError as error:
            raise PrivacyError(f"{self.path} cannot be locked: {error}") from error

    def release(self) -> None:
        """Let others have the file."""
        if self._lock is not None:
            self._lock.release()

    @contextmanager
    def locked(self) -> Generator[None]:
        """Hold the file for a moment, with what others have added read."""
        self.acquire()
        try:
            self.catch_up()
            yield
        finally:
            self.release()

    def owner(self, run: str) -> storage.Lock:
        """The lock of whoever makes releases of one run of a shared file."""
        return storage.Lock(f"{self.path}.{run}.lock")

    def sweep(self) -> None:
        """Take away what killed processes left beside a shared file: the locks of their runs."""
        if self.path is None or not self.shared:
            return
        for place in self.path.parent.glob(f"{glob.escape(self.path.name)}.*.lock"):
            run = place.name[len(self.path.name) + 1 : -len(".lock")]
            if run and not set(run) - _HEX:
                self._alive(run)

    def catch_up(self) -> None:
        """Read what was appended since the last time; write the data set's line where the file is new."""
        if self.path is not None:
            try:
                self._catch_up(self.path)
            except OSError as error:
                raise PrivacyError(f"{self.path} cannot be read: {error}") from error
        self._check_dataset()

    def _catch_up(self, path: Path) -> None:
        if not storage.is_file(path):
            if self._read:
                raise PrivacyError(f"{path} is gone, and with it what was counted; put it back. Nothing was released.")
            return

        def tell(line: bytes) -> None:
            self._read += len(line) + 1
            self._tell(line)

        torn = _read_lines(self.content, path, self._read, self._key, tell)
        if torn:
            self._recover(path, torn)

    def _check_dataset(self) -> None:
        if self.ledger is None:
            return
        named = {k: getattr(self.ledger, k) for k in ("dataset", "epsilon", "delta")}
        if not self.content.lines:
            if self.ledger.dataset is not None:
                self.append({"kind": "dataset", **named})
        elif (self.content.dataset or dict.fromkeys(named)) != named:
            raise PrivacyError(
                f"{self.path} caps {self.content.dataset or 'one run'}, not {named}; name the data set and its cap as "
                "they were named first, or use another file."
            )

    def _recover(self, path: Path, torn: bytes) -> None:
        """A line was being written when a process died: what it would have counted did not happen, but counts.

        The first line comes before any release, so that a file without a whole one is begun anew.
        """
        runs = counted_as_torn(self.content, path, torn)
        storage.truncate(path, self._read)
        for name in runs:
            if not self._alive(name):
                run = self.content.runs[name]
                due = run.released == 0 or run.released - run.last >= run.in_a_pass
                self.append(release_line(name, run, run.stretch(run.released)[1], 1, int(due), recovered=True))

    def _alive(self, run: str) -> bool:
        """Whether a living process has a run of a shared file: then the line that was cut off was not its own."""
        if not self.shared:
            return False
        lock = self.owner(run)
        try:
            lock.acquire()
        except storage.InUse:
            return True
        except OSError as error:
            raise PrivacyError(f"run {run} in {self.path} cannot be locked: {error}") from error
        lock.release(remove=True)
        return False

    def check_cap(self, *more: Event) -> None:
        """Raise unless these fit under the data set's cap, beside everything that was declared for the same unit."""
        if self.ledger is None or self.ledger.dataset is None:
            return
        assert self.ledger.epsilon is not None
        assert self.ledger.delta is not None
        for unit, total in totals([*self.content.horizon(), *more], self.ledger.delta).items():
            if total > self.ledger.epsilon:
                raise BudgetExhausted(
                    f"data set {self.ledger.dataset!r} may spend epsilon {self.ledger.epsilon:g} at delta "
                    f"{self.ledger.delta:g} in all; with this it would be {total:.4g} for each {unit}. Nothing was "
                    "released."
                )

    def append(self, content: Mapping[str, Any]) -> None:
        """Write one line and have it on disk before returning; a line that could not be written is taken back."""
        if self._withheld:
            raise PrivacyError(
                f"the ledger {self.path} is signed, and its key was left out when it was pickled, so nothing can be "
                "counted in it; give Ledger(..., key=) anew. Nothing was released."
            )
        release = content["kind"] == "release"
        if release and self.path is None and self.unsent_lines is None:  # there is no line that somebody could read
            self.content.count_release(content)
            return
        first = {} if self.content.lines else {"format": FORMAT}
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line, digest = chained({**first, "at": now, **content}, self.content.head, self._key)
        if self.path is not None:
            try:
                storage.append(self.path, line, size=self._read)
            except storage.Changed as error:
                raise PrivacyError(
                    f"{self.path} was changed by somebody else while it was in use; nothing was released."
                ) from error
            except OSError as error:
                raise PrivacyError(f"{self.path} cannot be written: {error}. Nothing was released.") from error
            self._read += len(line)
        if release:  # made of plain figures, a moment ago: there is nothing to learn from its text
            self.content.count_release(content)
            self.content.follow(digest)
        else:
            self.content.take(line[:-1], self._key)
        self._tell(line[:-1])

    def knows(self, head: str) -> bool:
        """Whether a line with this hash is in the file."""
        return self.path is None or head == self.content.head or has_hash(self.path, head)

    def _tell(self, line: bytes) -> None:
        if self.unsent_lines is not None:
            self.unsent_lines.append(line)

    def copied(self) -> "LedgerFile":
        """What the file says so far, without the file: for those who follow it from another process."""
        found = LedgerFile(None)
        found.content = self.content
        return found


def release_line(
    run: str, state: Run, multiplier: float, count: int, participations: int, **notes: Any
) -> dict[str, Any]:
    """The line that counts releases."""
    one = {"rate": state.one.rate, "multiplier": multiplier, "participations": participations}
    return {"kind": "release", "run": run, "step": state.released, "count": count, **one, **notes}
