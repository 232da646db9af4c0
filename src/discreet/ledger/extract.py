"""A run's own lines of a data set's ledger, and what all others on it were counted with: a copy that can be moved.

Each line is as the ledger has it, with its hash and the hash of the line before it there, so that whoever has the
ledger finds each of them in it. The last line is the extract's own: of which ledger, how long it was and its last hash
at that time, and the releases of everything else on the data set, added up, so that the total as of that date follows.
"""

import hashlib
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from discreet.accounting.event_serialization import event_from_dict, event_to_dict
from discreet.accounting.events import Event, merge
from discreet.accounting.guarantee import Condition
from discreet.errors import ConfigError, PrivacyError
from discreet.ledger import storage
from discreet.ledger.chain import chained, checked
from discreet.ledger.conditions import SEEDED, read_conditions, recorded
from discreet.ledger.file import Ledger, LedgerFile
from discreet.ledger.reading import take_line
from discreet.ledger.state import LedgerState

EXTRACT = "ledger-extract.jsonl"  # in a run's folder
_PREVIOUS = re.compile(rb'"previous": "([0-9a-f]{64}|)"')
_BESIDE = "everything else on the data set"


@dataclass(frozen=True)
class Extract:
    """Of which ledger an extract is: when it was made, how many lines and runs there were, and the last line's hash."""

    at: str
    ledger: str
    lines: int
    runs: int
    head: str


def write_extract(ledger: Ledger, run: str, path: str | Path) -> None:
    """Write a run's own lines of a data set's ledger, and what the total over the data set is as of now."""
    book = LedgerFile(ledger)
    with book.locked():
        content, source = book.content, book.path
        if source is None or run not in content.runs:
            return
        lines = b"".join(storage.pieces(source)).split(b"\n")[:-1]
    own = _own_lines(lines, run)
    events, broken = _others(content, run)
    own_line = {
        "kind": "extract",
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "ledger": source.name,
        "lines": content.lines,
        "runs": len(content.runs),
        "head": content.head,
        "own": _digest(own),
        "beside": [event_to_dict(event) for event in events],
        "broken": recorded(broken),
        "declared": recorded(content.declared),
    }
    last = chained(own_line, _hash_of(own[-1]), ledger.key or None)[0]
    try:
        storage.replace(path, b"".join(line + b"\n" for line in own) + last)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error


def compare_extract(path: Path, source: Path, stages: Sequence[type[Any]] = ()) -> None:
    """A PrivacyError unless a ledger, as far as it went then, is what an extract says of it: each line, and the rest.

    So it also shows that the ledger lost its end since.
    """
    state, extract = read_extract(path, stages=stages)
    try:
        *then, _ = b"".join(storage.pieces(source)).split(b"\n", extract.lines)
        run = next(iter(state.runs))
        content = LedgerState(stages=tuple(stages))
        for line in then:
            take_line(content, source, line, None)
        own = storage.read(path).split(b"\n")[:-2]
    except OSError as error:
        raise ConfigError(f"{path} cannot be compared with {source}: {error}") from error
    except StopIteration:
        raise PrivacyError(f"{path} is of no run.") from None
    if content.lines < extract.lines or content.head != extract.head:
        raise PrivacyError(
            f"{path} says that {source} had {extract.lines:,} lines and the last hash {extract.head}, and it has not: "
            "it was cut short or rewritten since, or the extract is another ledger's."
        )
    events, broken = _others(content, run)
    said = [event for what, event in state.queries if what == _BESIDE], state.broken, state.declared
    same = own == _own_lines(then, run) and extract.runs == len(content.runs)
    if not same or said != (events, broken, content.declared):
        raise PrivacyError(f"{path} is not what {source} had in its first {extract.lines:,} lines: it was changed.")


def _own_lines(lines: Sequence[bytes], run: str) -> list[bytes]:
    """A run's lines of a ledger, and the first one."""
    sign = f'"run": "{run}"'.encode()
    return [lines[0], *(line for line in lines[1:] if sign in line and _of(line, run))]


def _others(content: LedgerState, run: str) -> tuple[list[Event], tuple[Condition, ...]]:
    """The releases of everything but one run, and what is known of them not to be private."""
    others = [event for name, one in content.runs.items() if name != run for event in one.horizon()]
    asked = zip(content.queries, content.askers, strict=True)
    events = merge([*others, *(event for (_, event), asker in asked if asker != run)])
    seeded = any(one.seeded for name, one in content.runs.items() if name != run)
    return list(events), (*content.broken, *((SEEDED,) if seeded else ()))


def _of(line: bytes, run: str) -> bool:
    """Whether a line that names a run is its own."""
    return b'"kind": "release"' in line or json.loads(line).get("run") == run


def _digest(lines: Sequence[bytes]) -> str:
    return hashlib.sha256(b"\n".join(lines)).hexdigest()


def _hash_of(line: bytes) -> str:
    return str(json.loads(line)["hash"])


def read_extract(path: Path, key: bytes | None = None, stages: Sequence[type[Any]] = ()) -> tuple[LedgerState, Extract]:
    """What an extract's lines add up to, with everything else on the data set as one query; and of what it is.

    A line that is not as it was written, or is missing, is a PrivacyError.
    """
    state = LedgerState(stages=tuple(stages))
    try:
        *lines, last, rest = storage.read(path).split(b"\n")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except ValueError as error:
        raise PrivacyError(f"{path} is damaged at line 1: it holds no whole line.") from error
    for number, line in enumerate(lines):
        found = _PREVIOUS.search(line)
        if number and found is not None:  # lines between them are not here
            state.head = found[1].decode()
        take_line(state, path, line, key)
    try:
        said, _ = checked(last, state.head, key)
        if rest or said["kind"] != "extract" or said["own"] != _digest(lines):
            raise PrivacyError("it is not the line that closes an extract of these lines")
        events = [event_from_dict(values, stages) for values in said["beside"]]
        broken, declared = read_conditions(said["broken"]), read_conditions(said["declared"])
        extract = Extract(
            *(str(said[k]) for k in ("at", "ledger")), int(said["lines"]), int(said["runs"]), said["head"]
        )
    except PrivacyError as error:
        raise PrivacyError(f"{path} is damaged at its last line: {error}.") from error
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise PrivacyError(f"{path} is damaged at its last line: its content makes no sense ({error}).") from error
    state.queries += [(_BESIDE, event) for event in events]
    state.askers += [""] * len(events)
    state.broken, state.declared = broken, declared
    return replace(state, head=extract.head), extract


def as_of(extract: Extract) -> Condition:
    """What a total rests on that an extract gives."""
    words = (
        f"this total is of {extract.at}, when {extract.ledger} had {extract.lines:,} lines, {extract.runs:,} runs and "
        f"the last hash {extract.head}: what was counted since is in that ledger and not in this total"
    )
    return Condition(words, "assumed")
