"""How a run is closed in its ledger: with what it rests on, and the hashes of what it leaves; or withdrawn."""

from collections.abc import Mapping, Sequence
from typing import Any

from discreet.accounting.guarantee import Condition
from discreet.ledger.conditions import recorded
from discreet.ledger.file import Ledger, LedgerFile


def conclude(ledger: Ledger, run: str, rests_on: Sequence[Condition], end: Mapping[str, Any] | None) -> str:
    """Write down what a run rests on, if that is new, and that it has ended, if it has; the last line's hash.

    A run that has ended is left as it is.

    Args:
        ledger: where the run counts.
        run: its name.
        rests_on: what was tested of it, and what was not.
        end: the hashes of the files that it leaves (`files`), and how many of its steps a crash took (`lost`); None
            where it goes on another time.
    """
    book = LedgerFile(ledger)
    with book.locked():
        found = book.content.runs.get(run)
        if found is None:
            return book.content.head
        unsent_lines = {} if tuple(rests_on) == found.rests_on else {"conditions": recorded(rests_on)}
        if found.end is None and end is not None:
            book.append({**end_line(run, found.released, end), **unsent_lines})
        elif found.end is None and unsent_lines:
            book.append({"kind": "evidence", "run": run, **unsent_lines})
        return book.content.head if found.end is None else str(found.end["hash"])


def withdraw(ledger: Ledger, run: str) -> None:
    """Write down that a run which has released nothing never will: then it costs nothing.

    Args:
        ledger: where the run counts.
        run: its name.
    """
    book = LedgerFile(ledger)
    with book.locked():
        found = book.content.runs.get(run)
        if found is not None and found.end is None and found.released == 0:
            book.append(end_line(run, 0, {"files": {}, "lost": 0}))


def end_line(run: str, released: int, end: Mapping[str, Any]) -> dict[str, Any]:
    """The line that closes a run."""
    return {"kind": "end", "run": run, "released": released, **end}
