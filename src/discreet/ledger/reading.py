"""Reading a ledger's file: its lines checked against the chain and added up, and what a crash cut off."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from discreet._check import limit
from discreet.errors import ConfigError, PrivacyError
from discreet.ledger import storage
from discreet.ledger.chain import cut_off
from discreet.ledger.state import LedgerState


def read(path: Path, key: bytes | None = None, stages: Sequence[type[Any]] = ()) -> tuple[LedgerState, bytes]:
    """Everything in a file, and what follows its last line's end: empty unless a write was cut off.

    A line that is not as it was written is a PrivacyError that names it, and a file that cannot be read a ConfigError.

    Args:
        path: the ledger.
        key: by which its lines are signed, if they are.
        stages: your own bounds, noises and samplers, by class.
    """
    content = LedgerState(stages=tuple(stages))
    try:
        torn = read_lines(content, path, 0, key)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return content, torn


def read_lines(
    content: LedgerState, path: Path, start: int, key: bytes | None, tell: Callable[[bytes], None] | None = None
) -> bytes:
    """Add up the lines from a place in a file on; what follows the last one's end."""
    rest = b""
    for piece in storage.pieces(path, start):
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > limit("line_bytes"):
            raise PrivacyError(f"{path} is damaged at line {content.lines + len(lines) + 1}: it is too long.")
        for line in lines:
            take_line(content, path, line, key)
            if tell is not None:
                tell(line)
    return rest


def take_line(content: LedgerState, path: Path, line: bytes, key: bytes | None) -> None:
    """Add up one line; a PrivacyError names the file and the line that is wrong."""
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
