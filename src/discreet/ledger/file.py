"""A ledger's file: what it is for, and how it is read and appended to by one process at a time."""

import glob
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any

from discreet._check import check_int, check_positive
from discreet.accounting import cost
from discreet.accounting.event_serialization import event_to_dict
from discreet.accounting.events import ROW, Event, check_unit, in_words, units_of
from discreet.accounting.guarantee import Condition, Guarantee, guarantee
from discreet.errors import BudgetExhausted, ConfigError, PrivacyError
from discreet.ledger import storage
from discreet.ledger.chain import FORMAT, chained
from discreet.ledger.conditions import recorded
from discreet.ledger.identity import HEX, Identity
from discreet.ledger.reading import counted_as_torn, has_hash, read_lines
from discreet.ledger.state import LedgerState

_WITHHELD = b""  # in place of a key that a pickle does not hold
_PATIENCE = 60.0  # seconds that others may have a data set's ledger


@dataclass(frozen=True)
class Ledger:
    """A file that counts what is spent.

    With `dataset` and `delta` it belongs to a data set and counts all runs, queries and processes that name it, each
    run with its whole declared horizon (where it ends may depend on what was seen); with `epsilon` it caps their total
    from then on. A file keeps the delta and the cap that it was given first: who names none takes the file's. Without
    `dataset` it holds one run. `key` signs every line, and is not pickled. `reserve` writes one line for so many
    releases: faster on a slow disk, and a crash then over-counts by as many. `stages` are noises of your own that its
    runs have, by class.

    `unit` is whom all of it protects ("user"); None leaves it to the runs. What is asked beside them (PrivatePCA,
    private_ranges, PrivateScore) protects rows; `rows` is the most that one unit has in any of it, and then it is
    counted for a whole unit, with so much less noise. Without, it is refused where runs protect anything but rows.
    Where no unit is named and runs protect different ones, each unit's own are capped, and nothing is proven of all.

    `by` and `place` are noted where a run begins: who began it, and where its folder is. `alone` says that
    it was kept out of its data set's ledger, which its guarantee then rests on.

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
    by: str = ""
    place: str = ""
    alone: bool = False

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
        if self.delta is None:
            raise ConfigError(f"the ledger of data set {self.dataset!r} needs the delta it counts at; give delta=.")
        if self.epsilon is not None:
            check_positive("a ledger's epsilon", self.epsilon)
        if not 0 < check_positive("a ledger's delta", self.delta) < 1:
            raise ConfigError(f"a ledger's delta is {self.delta!r}; it must be below 1.")

    @property
    def identity(self) -> Identity | None:
        """Which run counts here, if that is said."""
        return Identity(self.run) if isinstance(self.run, str) else self.run

    @property
    def notes(self) -> dict[str, Any]:
        """What is noted where a run begins."""
        noted = (("by", self.by), ("place", self.place), ("alone", self.alone))
        return {what: words for what, words in noted if words}

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

        What protects each row is counted for the ledger's unit, by its `rows`.

        Args:
            what: what is asked, in words.
            event: what it costs.
            broken: why it is not private after all (its noise came from a known seed); guarantees then say so.
            answer: the name of secret noise: the same noise on the same data is the same answer, and is counted once,
                however often a crash makes it necessary.
        """
        converted: dict[str, Any] = {}
        if self.rows is not None and self.unit is not None and event.unit == ROW:
            event, converted = event.per(self.unit, self.rows), {"rows": self.rows}
        book = LedgerFile(self)
        with book.locked():
            if answer and answer in book.content.answers:
                if book.content.answers[answer] != (what, event):
                    raise PrivacyError(
                        f"{what}: the noise for it is in the answer to another query already "
                        f"({book.content.answers[answer][0]}), and in two it hides neither. Nothing was asked."
                    )
                return
            if book.content.closed:
                raise PrivacyError(
                    f"{what}: {book.path} is closed, as its run has ended, and what it proves would change. Count what "
                    "is asked later in a data set's ledger. Nothing was asked."
                )
            others = book.content.horizon() if book.content.adds_up else []
            for unit in (self.unit or event.unit, *units_of(others)):
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

    def declare(self, conditions: Sequence[Condition]) -> None:
        """Write down what the guarantee of this ledger's run rests on, of its data, beside what was declared before.

        Args:
            conditions: what is taken to be so.
        """
        run = None if self.identity is None else self.identity.run
        if run is None or run == "":
            raise ConfigError("what is declared of a run's data needs the run's name; give Ledger(..., run=).")
        book = LedgerFile(self)
        with book.locked():
            if not set(conditions) <= set(book.content.facts.get(run, ())):
                book.append({"kind": "declared", "run": run, "conditions": recorded(conditions)})

    def guarantee(self) -> Guarantee:
        """What is proven of everything in this file together, every run with its declared horizon.

        It is for the unit that all of it protects. Where runs protect different ones nothing is proven of everything:
        epsilon is infinite, a broken condition says what each unit has, and `apart()` gives each one's own guarantee.
        """
        book = LedgerFile(self)
        with book.locked():
            pass
        dataset = book.content.dataset
        if dataset is None:
            raise ConfigError("the ledger names no data set, so it has no delta of its own; read a run's guarantee.")
        conditions = book.content.conditions
        return guarantee(book.content.horizon(), dataset["delta"], unit=self.unit, conditions=conditions)


def named(ledger: str | Path | Ledger | None, run: str | None) -> str | Path | Ledger | None:
    """A ledger for one run of it, by its name.

    Args:
        ledger: a path, a ledger, or None for one in memory.
        run: the name of the run that counts in it.
    """
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


def totals(events: Sequence[Event], delta: float) -> dict[str, float]:
    """Epsilon for each unit, of those releases that protect it.

    Args:
        events: the releases, of any units.
        delta: the probability that the guarantees leave out.
    """
    return {unit: cost([p for p in events if p.unit == unit], delta).epsilon for unit in units_of(events)}


# --- writing ---------------------------------------------------------------------------------------------------------


@contextmanager
def told_why(what: str, by_whom: str) -> Generator[None]:
    """Within, a lock that cannot be had is a PrivacyError that says who has it, and what to do."""
    try:
        yield
    except storage.InUse as error:
        raise PrivacyError(f"{what} is in use by {by_whom}") from error
    except OSError as error:
        raise PrivacyError(f"{what} cannot be locked: {error}") from error


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
        with told_why(str(self.path), "another run; wait for it, or detach it, or use another file."):
            # a file of one run is held for as long as it is attached
            self._lock.acquire(_PATIENCE if self.shared else 0.0)

    def let_go(self) -> None:
        """Let others have the file."""
        if self._lock is not None:
            self._lock.let_go()

    @contextmanager
    def locked(self) -> Generator[None]:
        """Hold the file for a moment, with what others have added read."""
        self.acquire()
        try:
            self.catch_up()
            yield
        finally:
            self.let_go()

    def owner(self, run: str) -> storage.Lock:
        """The lock of whoever makes releases of one run of a shared file."""
        return storage.Lock(f"{self.path}.{run}.lock")

    def sweep(self) -> None:
        """Take away what killed processes left beside a shared file: the locks of their runs."""
        if self.path is None or not self.shared:
            return
        for place in self.path.parent.glob(f"{glob.escape(self.path.name)}.*.lock"):
            run = place.name[len(self.path.name) + 1 : -len(".lock")]
            if run and not set(run) - HEX:
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

        torn = read_lines(self.content, path, self._read, self._key, tell)
        if torn:
            self._recover(path, torn)

    def _check_dataset(self) -> None:
        if self.ledger is None:
            return
        named = {k: getattr(self.ledger, k) for k in ("dataset", "epsilon", "delta")}
        if not self.content.lines:
            if self.ledger.dataset is not None:
                self.append({"kind": "dataset", **named})
            return
        found = self.content.dataset or dict.fromkeys(named)
        if found["epsilon"] is None and named["epsilon"] is not None and found == {**named, "epsilon": None}:
            self._set_cap(named["epsilon"])
        elif named["epsilon"] is None and named["dataset"] is not None:  # whoever names no cap takes the file's
            named = {**found, "dataset": named["dataset"]}
        if (self.content.dataset or dict.fromkeys(named)) != named:
            raise PrivacyError(
                f"{self.path} caps {self.content.dataset or 'one run'}, not {named}; name the data set and its cap as "
                "they were named first, or use another file."
            )

    def _set_cap(self, epsilon: float) -> None:
        """Cap a data set that had no cap, if it has not spent more already."""
        assert self.content.dataset is not None
        for unit, total in totals(self.content.horizon(), self.content.dataset["delta"]).items():
            if total > epsilon:
                raise BudgetExhausted(
                    f"data set {self.content.dataset['dataset']!r} is at epsilon {total:.4g} for each {unit} already, "
                    f"so that it cannot be capped at {epsilon:g}. Nothing was released."
                )
        self.append({"kind": "cap", "epsilon": epsilon})

    def _recover(self, path: Path, torn: bytes) -> None:
        """A line was being written when a process died: what it would have counted did not happen, but counts.

        The first line comes before any release, so that a file without a whole one is begun anew.
        """
        runs = counted_as_torn(self.content, path, torn)
        storage.truncate(path, self._read)
        for name in runs:
            if not self._alive(name):
                run = self.content.runs[name]
                due = run.left == 0
                self.append(run.line(name, run.stretch(run.released)[1], 1, int(due), recovered=True))

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
        lock.let_go(remove=True)
        return False

    def check_cap(self, *more: Event) -> None:
        """Raise unless these fit under the data set's cap, beside everything that was declared for the same unit."""
        capped = self.content.dataset
        if capped is None or capped["epsilon"] is None:
            return
        for unit, total in totals([*self.content.horizon(), *more], capped["delta"]).items():
            if total > capped["epsilon"]:
                raise BudgetExhausted(
                    f"data set {capped['dataset']!r} may spend epsilon {capped['epsilon']:g} at delta "
                    f"{capped['delta']:g} in all; with this it would be {total:.4g} for each {unit}. Nothing was "
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
        now = time.strftime("%Y-%m-%dT%H:%M:00Z", time.gmtime())  # seconds would tell how large secret batches were
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
