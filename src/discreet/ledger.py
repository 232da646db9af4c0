"""What has been spent, in memory or on disk: one line a release, written before the release exists.

Each line carries the hash of the one before it, so that a line cannot be changed, moved or taken out of the middle
unnoticed. (Whoever can rewrite the whole file can forge it: a chain without a secret proves no more.)
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from discreet.contracts import Layout, Phase
from discreet.errors import PrivacyError
from discreet.plan import Plan

_FORMAT = "discreet-ledger/1"


class Ledger:
    """The releases of one plan on one model.

    Guarantee: `spend` returns only after the release is counted, and with a path only after it is on disk. A crash
    can only over-count.
    """

    def __init__(self, path: str | Path | None, plan: Plan, layout: Layout) -> None:
        self._path = None if path is None else Path(path)
        self._one = plan.phase(layout, steps=1)
        self._possible = plan.sampling.participations
        self._released = 0
        self._last = 0  # the last step that raised the number of participations
        self._lock = None if self._path is None else _lock(self._path)
        self._head = ""
        self._runs: list[Phase] = []
        opening = {
            "kind": "plan",
            "format": _FORMAT,
            "plan": plan.to_dict(),
            "parameters": [[n, list(s)] for n, s in zip(layout.names, layout.shapes, strict=True)],
        }
        if self._path is not None and self._path.exists() and self._path.stat().st_size > 0:
            try:
                self._reopen(self._path, opening)
            except BaseException:
                self.close()
                raise
        else:
            self._append(opening | {"versions": {name: version(name) for name in ("torch", "numpy", "scipy")}})

    @property
    def released(self) -> int:
        """How many releases have been counted."""
        return self._released

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The releases, equal ones in a row counted together."""
        return tuple(self._runs)

    @property
    def participations(self) -> int:
        """How many of the releases one unit can have taken part in."""
        return sum(run.steps for run in self._runs)

    @property
    def head(self) -> str:
        """The hash of the last line."""
        return self._head

    def spend(self, participations: int = 1, **notes: Any) -> None:
        """Count one release of the plan, before it is made.

        `participations` is by how many the releases that one unit may have taken part in grow: 1, or 0 where the
        sampler takes each unit only once in several steps and this is not the first of them.
        """
        entry = {"rate": self._one.rate, "multiplier": self._one.multiplier, "participations": participations}
        self._append({"kind": "release", "step": self.released, **entry, **notes})
        self._count(self._one.rate, self._one.multiplier, participations)

    def close(self) -> None:
        """Let others open the file."""
        if self._lock is not None:
            self._lock.release()

    def _count(self, rate: float, multiplier: float, participations: int) -> None:
        if participations:
            self._last = self._released
        self._released += 1
        last = self._runs[-1] if self._runs else None
        if last is not None and (last.rate, last.multiplier) == (rate, multiplier):
            self._runs[-1] = replace(last, steps=last.steps + participations)
        else:
            self._runs.append(replace(self._one, rate=rate, multiplier=multiplier, steps=participations))

    def _append(self, content: Mapping[str, Any]) -> None:
        line, head = _chain(content, self._head)
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        self._head = head

    def _reopen(self, path: Path, opening: Mapping[str, Any]) -> None:
        """Read the file, check its chain and that it is of the same plan and model, and count what it holds."""
        raw = path.read_bytes()
        lines = raw.split(b"\n")
        torn = lines.pop()  # what follows the last line's end: empty unless a write was cut off
        for number, line in enumerate(lines, 1):
            content = _parse(path, number, line)
            if _chain(content, self._head)[0] != line + b"\n":
                raise PrivacyError(f"{path} is damaged at line {number}: it was changed, moved, or follows a gap.")
            self._head = _chain(content, self._head)[1]
            if number == 1:
                _check_opening(path, content, opening)
            elif content.get("kind") == "release":
                self._count(float(content["rate"]), float(content["multiplier"]), int(content["participations"]))
        if not lines:
            raise PrivacyError(f"{path} is damaged at line 1: its plan is cut off; start with a new ledger.")
        if torn:  # a release was being counted when the process died: it counts
            with path.open("r+b") as file:
                file.truncate(len(raw) - len(torn))
            since = self.released - self._last
            self.spend(self._possible(since + 1) - self._possible(since), recovered=True)


def _lock(path: Path) -> FileLock:
    """Hold the file, so that no other run counts in it at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(f"{path}.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise PrivacyError(
            f"{path} is in use by another run; wait for it, or detach it, or use another file."
        ) from error
    return lock


def _chain(content: Mapping[str, Any], previous: str) -> tuple[bytes, str]:
    """A line of the file, and its hash."""
    body = {key: value for key, value in content.items() if key not in ("previous", "hash")} | {"previous": previous}
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps(body | {"hash": digest}, sort_keys=True).encode() + b"\n", digest


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except ValueError as error:
        raise PrivacyError(f"{path} is damaged at line {number}: it cannot be read ({error}).") from error
    if not isinstance(content, dict):
        raise PrivacyError(f"{path} is damaged at line {number}: it is not a record.")
    return content


def _check_opening(path: Path, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    plain = json.loads(json.dumps(expected))
    for key in ("format", "plan", "parameters"):
        if found.get(key) != plain[key]:
            raise PrivacyError(
                f"{path} belongs to another {'model' if key == 'parameters' else key}; what it has spent cannot be "
                "continued. Use a new ledger file for a new run, or attach the plan and model the file was made with."
            )
