"""What has been spent, in memory or on disk: one line a release, written before the release exists.

Each line is JSON and carries the hash of the one before it, so that a line cannot be changed, moved or taken out of the
middle unnoticed. Kinds of lines:

    dataset   what the file caps: all runs and queries on one data set, together
    run       a plan, the model's parameters and contract, what one step costs, versions; an audit, as it was declared
    release   one step of a run (or `count` of them, reserved ahead)
    query     something else that was asked of the data, with its cost: a covariance, an audit

Whoever can rewrite the whole file can forge it: a chain without a secret proves no more. A key closes that (every line
is then signed), and so does an anchor: the last line's hash, kept elsewhere.
"""

import copy
import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from discreet.accounting import cost
from discreet.accounting.guarantee import Condition, Guarantee, guarantee, phase_from_dict, phase_to_dict
from discreet.contracts import Layout, Phase
from discreet.errors import BudgetExhausted, ConfigError, PrivacyError, positive, whole
from discreet.plan import Plan

FORMAT = "discreet-ledger/1"
_PACKAGES = ("discreet", "torch", "numpy", "scipy", "dp-accounting", "cryptography")
_LONGEST = 1 << 24  # bytes a line may have
_CHAIN = ("previous", "hash", "signature")  # what a line says of its place in the file
_TEXT = json.JSONEncoder(sort_keys=True).encode
SEEDED = Condition(
    "noise and sampling came from a fixed seed, so whoever knows it can take the noise off again", "broken"
)


def together(ranks: int, shares: bool) -> tuple[Condition, ...]:
    """What a guarantee rests on where so many processes trained together, with noise in shares or not."""
    if ranks == 1:
        return ()
    who = f"{ranks} processes trained together"
    if shares:
        words = (
            f"{who}, each of which added Gaussian noise with 1/{ranks} of the variance to its sum before it left; this "
            "is for whoever sees what is released and knows none of these shares. For ranks that pool what they know "
            "(shares, the draw, what passes between ranks) only another rank's share hides that rank's examples: the "
            f"noise's multiplier over the square root of {ranks}, and no sampling"
        )
    else:
        words = (
            f"{who}; rank 0 drew the noise (of a sharded model, each its own shard's), and all of them and the network "
            "between them are trusted: they see the draw and sums before the noise"
        )
    return (Condition(words, "assumed"),)


@dataclass(frozen=True)
class Ledger:
    """A file that counts what is spent.

    With `dataset`, `epsilon` and `delta` it belongs to a data set and caps the total over all runs, queries and
    processes that name it, each run counting with its whole declared horizon (where it ends may depend on what was
    seen). Without, it holds one run. `key` signs every line. `reserve` writes one line for so many releases: faster on
    a slow disk, and a crash then over-counts by as many. `stages` are noises of your own that its runs have, by class.
    """

    path: str | Path
    dataset: str | None = None
    epsilon: float | None = None
    delta: float | None = None
    key: bytes | None = field(default=None, repr=False)
    reserve: int = 1
    stages: tuple[type[Any], ...] = ()

    def __post_init__(self) -> None:
        whole("a ledger's reserve", self.reserve, least=1, most=10**6)
        if self.key is not None and (not isinstance(self.key, bytes) or len(self.key) < 16):
            raise ConfigError("a ledger's key must be at least 16 secret bytes.")
        if self.dataset is None:
            if self.epsilon is not None or self.delta is not None:
                raise ConfigError("a ledger's epsilon and delta cap a data set; name it with dataset=.")
            return
        if self.epsilon is None or self.delta is None:
            raise ConfigError(f"the ledger of data set {self.dataset!r} needs the epsilon and delta it caps.")
        positive("a ledger's epsilon", self.epsilon)
        if not 0 < positive("a ledger's delta", self.delta) < 1:
            raise ConfigError(f"a ledger's delta is {self.delta!r}; it must be below 1.")

    def query(self, what: str, phase: Phase, *, broken: str = "") -> None:
        """Count something that is asked of the data beside training, before it is asked.

        `broken` says why it is not private after all (its noise came from a known seed); guarantees then say so.
        """
        book = Book(self)
        with book.locked():
            book.check_cap(phase)
            line = {"kind": "query", "what": what, "phase": phase_to_dict(phase)}
            book.append({**line, "broken": broken} if broken else line)

    def guarantee(self) -> Guarantee:
        """What is proven of everything in this file together, every run with its declared horizon."""
        book = Book(self)
        with book.locked():
            pass
        if self.delta is None:
            raise ConfigError("the ledger names no data set, so it has no delta of its own; read a run's guarantee.")
        return guarantee(book.content.horizon(), self.delta, conditions=book.content.conditions)


# --- what a file says ------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """One run, as its lines tell it."""

    opening: Mapping[str, Any]
    one: Phase  # what one step costs
    released: int = 0
    participations: int = 0
    recovered: int = 0
    last: int = 0  # the last step that raised the number of participations
    cheapened: bool = False  # whether a line counts less than its steps cost
    seeded: bool = False  # whether a release's noise came from a known seed
    unprobed: bool = False  # whether a release was made before anything was probed
    ranks: int = 1  # the most processes that made a release together
    shares: bool = True  # whether all that were made together had noise in shares
    _spent: list[Phase] = field(default_factory=list)
    _last: int = 0  # how many steps the last of them has: a Phase is made when it is asked for, not at each step

    @property
    def spent(self) -> list[Phase]:
        """What was counted, equal steps in a row together."""
        return [*self._spent[:-1], *(replace(last, steps=self._last) for last in self._spent[-1:])]

    @cached_property
    def stretches(self) -> list[tuple[int, float]]:
        """How many steps have which noise multiplier, in order."""
        factors = self.opening.get("schedule") or [[self.opening["steps"], 1.0]]
        return [(int(steps), self.one.multiplier * float(factor)) for steps, factor in factors]

    def stretch(self, step: int) -> tuple[int, float]:
        """How many steps from this one on have the same noise, and its multiplier."""
        multiplier = self.one.multiplier
        for steps, multiplier in self.stretches:
            if step < steps:
                return steps - step, multiplier
            step -= steps
        return 1, multiplier

    def count(self, rate: float, multiplier: float, participations: int, steps: int) -> None:
        same, planned = self.stretch(self.released)
        self.cheapened |= rate < self.one.rate or multiplier > planned or steps > same
        if participations:
            self.last = self.released
        self.released += steps
        self.participations += participations
        last = self._spent[-1] if self._spent else None
        if last is not None and (last.rate, last.multiplier) == (rate, multiplier):
            self._last += participations
        else:
            new = replace(self.one, rate=rate, multiplier=multiplier, steps=participations)
            self._spent, self._last = [*self.spent, new], participations

    def horizon(self) -> list[Phase]:
        """What the run was declared to spend, or what it has spent if that is more."""
        rest = max(0, int(self.opening["participations"]) - self.participations)
        if not self.opening.get("schedule"):
            return [*self.spent, replace(self.one, steps=rest)]
        left, done = [], self.released
        for steps, multiplier in self.stretches:
            left.append(replace(self.one, multiplier=multiplier, steps=max(0, steps - done)))
            done = max(0, done - steps)
        return [*self.spent, *left]


@dataclass
class Content:
    """What the lines read so far add up to."""

    dataset: Mapping[str, Any] | None = None
    runs: dict[str, Run] = field(default_factory=dict)
    queries: list[tuple[str, Phase]] = field(default_factory=list)
    broken: tuple[Condition, ...] = ()  # queries that are known not to be private
    hashes: list[str] = field(default_factory=list)
    stages: tuple[type[Any], ...] = ()

    @property
    def head(self) -> str:
        return self.hashes[-1] if self.hashes else ""

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What is known not to be private, of everything together."""
        return (*self.broken, *((SEEDED,) if any(run.seeded for run in self.runs.values()) else ()))

    def horizon(self) -> list[Phase]:
        """Everything that was declared: runs to their ends, and queries."""
        return [p for run in self.runs.values() for p in run.horizon()] + [p for _, p in self.queries]

    def take(self, line: bytes, key: bytes | None) -> None:
        """Check one line against the chain and add it up; a PrivacyError says what is wrong with it."""
        content = _parse(line)
        expected, digest = chained(content, self.head, key)
        if expected != line + b"\n":
            raise PrivacyError("it was changed, moved, or follows a gap")
        self.add(content, digest)

    def add(self, content: Mapping[str, Any], digest: str) -> None:
        """Add up one line that is known to follow in the chain."""
        if not self.hashes and content.get("format") != FORMAT:
            raise PrivacyError(f"its format is {content.get('format')!r}, this version reads {FORMAT!r}")
        self.count(content)
        self.hashes.append(digest)

    def count(self, content: Mapping[str, Any]) -> None:
        """Add up what a line says, without a place for it in the chain."""
        try:
            self._add(content)
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise PrivacyError(f"its content makes no sense ({error})") from error

    def _least(self, run: Run, count: int) -> int:
        """The fewest participations that the next `count` steps can add: passes that must begin in them."""
        length = int(run.opening["pass"])
        into = 0 if run.released == 0 else run.released - run.last  # steps of the current pass that are done
        left = 0 if run.released == 0 else max(0, length - into)
        return -(-max(0, count - left) // length)

    def _add(self, content: Mapping[str, Any]) -> None:
        kind = content["kind"]
        if kind == "release":
            run = self.runs[content["run"]]
            count = whole("count", content["count"], least=1)
            if content["step"] != run.released:
                raise PrivacyError(f"it counts step {content['step']!r} where {run.released} is due")
            taken = whole("participations", content["participations"], least=0, most=count)
            if run.released + count > int(run.opening["steps"]):
                raise PrivacyError("it counts more steps than its run has")
            if taken < self._least(run, count):
                raise PrivacyError("it counts fewer participations than its steps bring")
            run.count(float(content["rate"]), float(content["multiplier"]), taken, count)
            run.recovered += bool(content.get("recovered"))
            run.seeded |= bool(content.get("seeded"))
            run.unprobed |= bool(content.get("unprobed"))
            ranks = whole("ranks", content.get("ranks", 1), least=1)
            run.ranks = max(run.ranks, ranks)
            run.shares &= ranks == 1 or bool(content.get("noise_shares"))
        elif kind == "run":
            if content["run"] in self.runs or (self.runs and self.dataset is None):
                raise PrivacyError("it opens a second run in a file that holds one")
            whole("steps", content["steps"], least=0)
            whole("participations", content["participations"], least=0, most=content["steps"])
            whole("pass", content["pass"], least=1)
            for steps, factor in content.get("schedule", []):
                whole("a stretch's steps", steps, least=0)
                positive("a stretch's factor", factor)
            one = phase_from_dict(content["phase"], self.stages)
            if one.group != 1 or not isinstance(content["plan"], dict) or not isinstance(content["parameters"], list):
                raise PrivacyError("it does not describe a run")
            if not isinstance(content.get("audit", {}), dict):
                raise PrivacyError("it does not describe an audit")
            self.runs[str(content["run"])] = Run(content, one)
        elif kind == "query":
            self.queries.append((str(content["what"]), phase_from_dict(content["phase"], self.stages)))
            if "broken" in content:
                self.broken = *self.broken, Condition(str(content["broken"]), "broken")
        elif kind == "dataset":
            if self.hashes:
                raise PrivacyError("it names a data set after the file's beginning")
            named = {k: content[k] for k in ("dataset", "epsilon", "delta")}
            if not isinstance(named["dataset"], str) or not 0 < positive("delta", named["delta"]) < 1:
                raise PrivacyError("it names no data set and cap")
            positive("epsilon", named["epsilon"])
            self.dataset = named
        else:
            raise PrivacyError(f"its kind is {kind!r}, which is not known")


def chained(content: Mapping[str, Any], previous: str, key: bytes | None) -> tuple[bytes, str]:
    """A line of the file, and its hash."""
    body = {k: v for k, v in content.items() if k not in _CHAIN} | {"previous": previous}
    # the text of both, with and without the hash, has its keys in order: what stands before it and what stands after it
    before = _TEXT({k: v for k, v in body.items() if k < "hash"})[1:-1]
    after = _TEXT({k: v for k, v in body.items() if k > "hash"})[1:-1]
    digest = hashlib.sha256(f"{{{before}{', ' if before else ''}{after}}}".encode()).hexdigest()
    signature = content.get("signature")  # if there is no key, there is nothing to check it with
    if key is not None:
        signature = hmac.new(key, digest.encode(), hashlib.sha256).hexdigest()
    if signature is not None or "signature" in content:
        after = _TEXT({**{k: v for k, v in body.items() if k > "hash"}, "signature": signature})[1:-1]
    return f'{{{before}{", " if before else ""}"hash": "{digest}", {after}}}\n'.encode(), digest


def _parse(line: bytes) -> dict[str, Any]:
    if len(line) > _LONGEST:
        raise PrivacyError("it is too long")
    try:
        content = json.loads(line, parse_constant=_no_constants)
    except (ValueError, RecursionError) as error:
        raise PrivacyError(f"it cannot be read ({error})") from error
    if not isinstance(content, dict):
        raise PrivacyError("it is not a record")
    return content


def _no_constants(name: str) -> None:
    raise ValueError(f"{name} is no figure")


def read(path: Path, key: bytes | None = None, stages: Sequence[type[Any]] = ()) -> tuple[Content, bytes]:
    """Everything in a file, and what follows its last line's end: empty unless a write was cut off.

    A line that is not as it was written is a PrivacyError that names it.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise PrivacyError(f"{path} cannot be read: {error}") from error
    torn = lines.pop()
    content = Content(stages=tuple(stages))
    for number, line in enumerate(lines, 1):
        _take(content, path, number, line, key)
    return content, torn


def _take(content: Content, path: Path, number: int, line: bytes, key: bytes | None) -> None:
    try:
        content.take(line, key)
    except (PrivacyError, ConfigError) as error:
        raise PrivacyError(f"{path} is damaged at line {number}: {error}.") from error


# --- writing ---------------------------------------------------------------------------------------------------------


class Book:
    """A ledger's file, opened: reads what others added, and appends."""

    def __init__(self, ledger: Ledger | None, stages: Sequence[type[Any]] = ()) -> None:
        self.ledger = ledger
        self.path = None if ledger is None else Path(ledger.path)
        self.content = Content(stages=(*stages, *(() if ledger is None else ledger.stages)))
        self._key = None if ledger is None else ledger.key
        self._read = 0  # bytes of the file that are in `content`
        self.news: list[bytes] | None = None  # lines that others are still to be told of, where there are others
        self._lock: FileLock | None = None
        if self.path is not None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self.path = self.path.resolve()  # one file has one lock, whatever it is called by
                self._lock = FileLock(f"{self.path}.lock")
            except OSError as error:
                raise PrivacyError(f"{self.path} cannot be used as a ledger: {error}") from error

    def acquire(self, timeout: float) -> None:
        """Hold the file, so that nobody else counts in it at the same time."""
        if self._lock is None:
            return
        try:
            self._lock.acquire(timeout=timeout)
        except Timeout as error:
            raise PrivacyError(
                f"{self.path} is in use by another run; wait for it, or detach it, or use another file."
            ) from error
        except OSError as error:
            raise PrivacyError(f"{self.path} cannot be locked: {error}") from error

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    @contextmanager
    def locked(self) -> Generator[None]:
        """Hold the file for a moment, with what others have added read."""
        shared = self.ledger is not None and self.ledger.dataset is not None
        self.acquire(timeout=60 if shared else 0)  # a file of one run is held for as long as it is attached
        try:
            self.catch_up()
            yield
        finally:
            self.release()

    def catch_up(self) -> None:
        """Read what was appended since the last time; write the data set's line where the file is new."""
        if self.path is not None and self.path.exists():
            try:
                with self.path.open("rb") as file:
                    file.seek(self._read)
                    added = file.read()
            except OSError as error:
                raise PrivacyError(f"{self.path} cannot be read: {error}") from error
            *lines, torn = added.split(b"\n")
            for line in lines:
                _take(self.content, self.path, len(self.content.hashes) + 1, line, self._key)
                self._read += len(line) + 1
                self._tell(line)
            if torn:
                self._recover(torn)
        self._check_dataset()

    def _check_dataset(self) -> None:
        if self.ledger is None:
            return
        named = {k: getattr(self.ledger, k) for k in ("dataset", "epsilon", "delta")}
        if not self.content.hashes:
            if self.ledger.dataset is not None:
                self.append({"kind": "dataset", **named})
        elif (self.content.dataset or dict.fromkeys(named)) != named:
            raise PrivacyError(
                f"{self.path} caps {self.content.dataset or 'one run'}, not {named}; name the data set and its cap as "
                "they were named first, or use another file."
            )

    def _recover(self, torn: bytes) -> None:
        """A line was being written when a process died: what it would have counted did not happen, but counts."""
        assert self.path is not None
        if not self.content.hashes:
            raise PrivacyError(f"{self.path} is damaged at line 1: its beginning is cut off; start with a new ledger.")
        with self.path.open("r+b") as file:
            file.truncate(self._read)
        unfinished = {n: r for n, r in self.content.runs.items() if r.released < int(r.opening["steps"])}
        named = {n: r for n, r in unfinished.items() if n.encode() in torn}
        for name, run in (named or unfinished).items():  # if it does not say whose it was, each counts one
            due = run.released == 0 or run.released - run.last >= int(run.opening["pass"])
            self.append(release_line(name, run, 1, int(due), recovered=True))

    def check_cap(self, *more: Phase) -> None:
        """Raise unless these fit under the data set's cap, beside everything that was declared."""
        if self.ledger is None or self.ledger.dataset is None:
            return
        assert self.ledger.epsilon is not None
        assert self.ledger.delta is not None
        total = cost([*self.content.horizon(), *more], self.ledger.delta).epsilon
        if total > self.ledger.epsilon:
            raise BudgetExhausted(
                f"data set {self.ledger.dataset!r} may spend epsilon {self.ledger.epsilon:g} at delta "
                f"{self.ledger.delta:g} in all; with this it would be {total:.4g}. Nothing was released."
            )

    def append(self, content: Mapping[str, Any]) -> None:
        """Write one line and have it on disk before returning; a line that could not be written is taken back."""
        release = content["kind"] == "release"
        if release and self.path is None and self.news is None:  # there is no line that somebody could read
            self.content.count(content)
            return
        first = {} if self.content.hashes else {"format": FORMAT}
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line, digest = chained({**first, "at": now, **content}, self.content.head, self._key)
        if self.path is not None:
            if self.path.exists() and self.path.stat().st_size != self._read:
                raise PrivacyError(
                    f"{self.path} was changed by somebody else while it was in use; nothing was released."
                )
            try:
                with self.path.open("ab") as file:
                    file.write(line)
                    file.flush()
                    os.fsync(file.fileno())
                if self._read == 0:  # a new file: have its name on disk too
                    sync_folder(self.path.parent)
            except BaseException:  # an interruption, too, must not leave half a line for the next one to be glued to
                self._take_back()
                raise
            self._read += len(line)
        if release:  # made of plain figures, a moment ago: there is nothing to learn from its text
            self.content.add(content, digest)
        else:
            self.content.take(line[:-1], self._key)
        self._tell(line[:-1])

    def _tell(self, line: bytes) -> None:
        if self.news is not None:
            self.news.append(line)

    def copied(self) -> "Book":
        """What the file says so far, without the file: for those who follow it from another process."""
        found = Book(None)
        found.content = self.content
        return found

    def _take_back(self) -> None:
        assert self.path is not None
        try:
            with self.path.open("r+b") as file:
                file.truncate(self._read)
        except OSError:  # then a torn line stays, which the next reader recognises
            return


def sync_folder(folder: Path) -> None:
    """Have new names in a folder on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def release_line(run: str, state: Run, count: int, participations: int, **notes: Any) -> dict[str, Any]:
    """The line that counts releases."""
    multiplier = state.stretch(state.released)[1]
    one = {"rate": state.one.rate, "multiplier": multiplier, "participations": participations}
    return {"kind": "release", "run": run, "step": state.released, "count": count, **one, **notes}


News = tuple[tuple[bytes, ...], tuple[int, int, int]]  # lines; releases, participations and what is counted ahead


class Account:
    """The releases of one plan on one model, in a book.

    Guarantee: `spend` returns only after the release is counted, and with a file only after it is on disk. A crash
    can only over-count, by at most what was reserved.
    """

    def __init__(
        self, ledger: Ledger | None, plan: Plan, layout: Layout, audit: Mapping[str, Any] | None = None
    ) -> None:
        self._stages = (type(plan.mechanism.noise),)
        self._book = Book(ledger, self._stages)
        self._shared = ledger is not None and ledger.dataset is not None
        self._reserve = 1 if ledger is None else ledger.reserve
        self._own: FileLock | None = None
        self._plan = plan
        opening = _opening(plan, layout) | ({} if audit is None else {"audit": dict(audit)})
        if self._shared and plan.tuning is not None:
            raise ConfigError("a tuned plan's cost does not add up with other runs'; give it a ledger of its own.")
        self._book.acquire(timeout=60 if self._shared else 0)
        try:
            self._book.catch_up()
            self._name = self._find(opening)
        except BaseException:
            self._book.release()
            raise
        if self._shared:
            self._book.release()
        self._ahead = 0  # releases that are on disk and not made yet
        self._spent, self._taken = self._run.released, self._run.participations

    def _find(self, opening: Mapping[str, Any]) -> str:
        """The run of this plan and model that the file holds, or a new one."""
        runs = self._book.content.runs
        for name, run in runs.items():
            same = [key for key in ("plan", "parameters", "phase") if run.opening.get(key) != opening[key]]
            left = run.released < self._plan.steps and run.participations < int(run.opening["participations"])
            if not same and not self._shared and run.opening.get("audit") != opening.get("audit"):
                raise PrivacyError(
                    f"{self._book.path} declares another audit ({run.opening.get('audit')}); what is tested is fixed "
                    "before the first release. Go on with the same, or begin a new run."
                )
            alike = not same and run.opening.get("audit") == opening.get("audit")
            if alike and (not self._shared or (left and self._owns(name))):
                return name
            if same and not self._shared:
                what = {"parameters": "model", "phase": "model"}.get(same[0], "plan")
                raise PrivacyError(
                    f"{self._book.path} belongs to another {what}; what it has spent cannot be continued. Use a new "
                    "ledger file for a new run, or attach the plan and model the file was made with."
                )
        name = secrets.token_hex(8)
        if self._shared:
            self._book.check_cap(*Run(opening, phase_from_dict(opening["phase"], self._stages)).horizon())
        self._book.append({**opening, "run": name})
        self._owns(name)
        return name

    def _owns(self, name: str) -> bool:
        """Hold one run of a shared file for this process; False if another has it."""
        if self._shared:
            lock = FileLock(f"{self._book.path}.{name}.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                return False
            self._own = lock
        return True

    @property
    def _run(self) -> Run:
        return self._book.content.runs[self._name]

    @property
    def released(self) -> int:
        """How many releases have been counted and made."""
        return self._spent

    @property
    def participations(self) -> int:
        """How many of the releases one unit can have taken part in."""
        return self._taken

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The releases that were made, equal ones in a row counted together."""
        ahead = self._run.participations - self._taken
        made: list[Phase] = []
        for phase in reversed(self._run.spent):  # what is counted ahead was counted last
            taken = min(ahead, phase.steps)
            ahead -= taken
            made.insert(0, replace(phase, steps=phase.steps - taken))
        return tuple(made)

    @property
    def unprobed(self) -> bool:
        """Whether some release of this run was made before anything was probed."""
        return self._run.unprobed

    def together(self, ranks: int, shares: bool) -> tuple[Condition, ...]:
        """What the guarantee rests on where processes trained together, or so many will."""
        return together(max(ranks, self._run.ranks), self._run.shares and (shares or ranks == 1))

    @property
    def queries(self) -> tuple[Phase, ...]:
        """What else this file's run asked of the data."""
        return () if self._shared else tuple(p for _, p in self._book.content.queries)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What this file adds to what a run's guarantee rests on."""
        dataset = self._book.content.dataset
        broken = (*self._book.content.broken, *((SEEDED,) if self._run.seeded else ()))
        if dataset is None:
            return broken
        alone = (
            f"this is of the run alone: what else was asked of data set {dataset['dataset']!r}, also what went into "
            "the model before (a projection), is in its ledger's guarantee"
        )
        return (*broken, Condition(alone, "assumed"))

    @property
    def head(self) -> str:
        """The hash of the last line."""
        return self._book.content.head

    def knows(self, head: str) -> bool:
        """Whether a line with this hash is in the file."""
        return head in self._book.content.hashes

    def spend(self, possible: Callable[[int], int] = int, **notes: Any) -> None:
        """Count one release of the plan, before it is made.

        `possible(n)` is how many of the next n releases one unit can take part in: n, or less where the sampler takes
        each unit only once in several steps.
        """
        if self._ahead == 0:
            with self._held():
                first = max(self._spent, self._run.released)
                count = max(1, min(self._reserve, self._plan.steps - first, self._run.stretch(first)[0]))
                self._append(count, possible(count), **notes)
            self._ahead = count
        self._taken += possible(1)
        self._ahead -= 1
        self._spent += 1

    def restore(self, released: int, participations: int, **notes: Any) -> None:
        """Count releases that a checkpoint knows of and this ledger does not, in one line."""
        # what was reserved is spent
        self._spent, self._taken, self._ahead = self._run.released, self._run.participations, 0
        missing = released - self._spent
        if missing > 0:
            taken = max(0, participations - self._taken)
            with self._held():
                self._append(missing, taken, restored=True, **notes)
            self._spent, self._taken, self._ahead = released, self._taken + taken, 0

    # --- followed by other processes ---------------------------------------------------------------------------------

    def followed(self) -> "Account":
        """This account as other processes have it: they write nothing, and follow what is written here."""
        found = copy.copy(self)
        found._book, found._own = self._book.copied(), None
        self._book.news = []
        return found

    def news(self) -> "News":
        """What was written and read since the last time, for those who follow."""
        lines, self._book.news = self._book.news or [], []
        return tuple(lines), (self._spent, self._taken, self._ahead)

    def follow(self, news: "News") -> None:
        """Take over what the one who writes has written."""
        lines, (self._spent, self._taken, self._ahead) = news
        for line in lines:
            self._book.content.take(line, None)

    def _held(self) -> AbstractContextManager[None]:
        """The file, with what others have added read: one's own is held anyway."""
        return self._book.locked() if self._shared else nullcontext()

    def _append(self, count: int, participations: int, **notes: Any) -> None:
        if self._run.released + count > self._plan.steps:  # counted by somebody else's recovery, or restored
            raise BudgetExhausted(f"all {self._plan.steps:,} steps of the plan are counted; nothing was released.")
        while count:
            piece = min(count, self._run.stretch(self._run.released)[0])  # one line has one noise
            taken = participations if piece == count else min(piece, participations)
            self._book.append(release_line(self._name, self._run, piece, taken, **notes))
            count, participations = count - piece, participations - taken

    def close(self) -> None:
        """Let others open the file, or this run in it."""
        if self._own is not None:
            self._own.release()
        if not self._shared:
            self._book.release()


def _opening(plan: Plan, layout: Layout) -> dict[str, Any]:
    """The line that opens a run."""
    contract = plan.mechanism.contract(layout, plan.mechanism.bound.start(layout))
    blocks = [[list(b.members), b.norm, b.size] for b in contract.blocks]
    content = {
        "kind": "run",
        "plan": plan.to_dict(),
        "steps": plan.steps,
        "participations": plan.sampling.participations(plan.steps),
        "pass": steps_in_a_pass(plan),
        "phase": phase_to_dict(plan.phase(layout, steps=1)),
        **({"schedule": plan.stretches} if plan.noise_schedule else {}),
        "contract": {"blocks": blocks, "premises": list(contract.premises)},
        "parameters": [[n, list(s)] for n, s in zip(layout.names, layout.shapes, strict=True)],
        "versions": {name: _version(name) for name in _PACKAGES},
    }
    try:
        return json.loads(json.dumps(content))
    except TypeError as error:
        raise ConfigError(
            f"the plan's stages cannot be written down: {error}; give them settings of plain values."
        ) from error


def steps_in_a_pass(plan: Plan) -> int:
    """How many steps in a row a unit takes part in only once."""
    low, high = 1, max(2, plan.steps + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if plan.sampling.participations(middle) <= 1 else (low, middle)
    return low


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
