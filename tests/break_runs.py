"""Runs of every kind, broken at every file operation and with every file changed: what went wrong, line by line.

    python tests/break_runs.py --kinds plain,features --faults deaths --sample 100 --seed 7

Each point costs some tenths of a second: processes are forked when everything is imported.
"""

import argparse
import gc
import json
import random
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from disk_faults import DEATHS, ERRORS, Disk, live
from kinds_of_run import ALIKE, KINDS, STEPS, Kind, warm

from discreet.errors import ConfigError, PrivacyError
from discreet.ledger import storage
from discreet.ledger.chain import cut_off
from discreet.ledger.extract import EXTRACT
from discreet.ledger.verification import verify
from discreet.report import read
from discreet.runs.outcome import read_end
from discreet.runs.progress import Watch
from discreet.runs.run import resume, train

FAULTS = ("deaths", "again", "refusals", "finished", "stopped")
REFUSED = ("ConfigError", "PrivacyError")  # which the command line says in one line; anything else is a traceback


@dataclass(frozen=True)
class Point:
    """What happens at which file operation of a kind of run, and perhaps at one of its continuation."""

    kind: str
    at: int
    what: str
    then: int = -1


@dataclass(frozen=True)
class Verdict:
    """How a run went that was broken at a point: whether it happened, what is wrong, what was said of a loss."""

    point: Point
    happened: bool
    wrong: str = ""
    said: str = ""


@cache
def operations(kind, root):
    """The file operations of a kind of run, by their names, in order."""
    place = Path(tempfile.mkdtemp(dir=root))
    life = live(lambda: kind.begin(place), Disk(place))
    assert life.ended == "done", life.ended
    names = life.log.split()
    assert len(names) == life.operations
    return names


def spread(kind, points):
    """The points of a kind; of those whose files are written as a plain run's each a third, so that all have all."""
    return points[ALIKE.index(kind.name) % 3 :: 3] if kind.name in ALIKE else points


def deaths(kind, root):
    """Every point at which a run can die and that leaves another disk, or has released more, than any other point.

    To die after an operation is to die before the next one, which may have released more until then: so it is tried
    of the last one alone. What a failing power leaves is what was on disk, which only some operations change: it is
    tried before each of these, and at the end.
    """
    names, found = operations(kind, root), []
    for n, name in enumerate(names):
        last = n == len(names) - 1
        found += [Point(kind.name, n, "before")]
        found += [Point(kind.name, n, "within")] * (name == "write")
        found += [Point(kind.name, n, "power")] * (last or name not in ("write", "open", "flock", "replace"))
        found += [Point(kind.name, n, "after")] * last
    return spread(kind, found)


def again(kind, root):
    """Points at which a run dies, and then dies again while it is continued."""
    draw, count = random.Random(kind.name), len(operations(kind, root))
    every = [(at, then, what) for at in range(count) for then in range(count) for what in DEATHS]
    return [Point(kind.name, at, what, then) for at, then, what in draw.sample(every, count // 2)]


def refusals(kind, root):
    """Every point at which the system can refuse an operation: no space, a broken or read-only disk, no locks.

    Each write is tried with a full disk, which leaves half of it, each lock without locks; and each operation with one
    of all errors in turn, as the code tells no two of them apart.
    """
    found, turn = [], random.Random(kind.name).randrange(len(ERRORS))
    for at, name in enumerate(operations(kind, root)):
        own = {"flock": "ENOLCK", "write": "ENOSPC"}.get(name)
        found += [Point(kind.name, at, what) for what in sorted({own, ERRORS[(at + turn) % len(ERRORS)]} - {None})]
    return spread(kind, found)


def break_at(point, place):
    """Break a run at a point, go on with it, and see whether all is well; the folder is taken away if it is."""
    kind, place = Kind(point.kind), Path(place)
    place.mkdir(parents=True)
    first = live(lambda: kind.begin(place), Disk(place, point.at, point.what))
    seen = list(first.released)
    said = "" if first.ended in ("done", "killed") else first.ended
    if point.then >= 0:
        seen += live(lambda: kind.go_on(place), Disk(place, point.then, point.what)).released
    if kind.beside_it:
        seen += live(lambda: kind.beside(place), Disk(place)).released
    last = live(lambda: kind.go_on(place), Disk(place))
    seen += last.released
    try:
        assert said == "" or said.split(":")[0] in REFUSED, said
        assert last.ended == "done", f"it cannot be resumed: {last.ended}"
        kind.check(place, seen)
    except Exception as error:
        return Verdict(point, first.ended != "done", f"{type(error).__name__}: {error}", said)
    shutil.rmtree(place)
    return Verdict(point, first.ended != "done", "", said)


# --- files that were changed -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """A file of a run that has finished or was stopped, changed in one way of many."""

    kind: str
    what: str  # "finished" or "stopped"
    file: str
    seed: int


def changes(kind, place, what, count):
    """Changes of every file of a run, the same number of each."""
    files = sorted(str(p.relative_to(place)) for p in place.rglob("*") if p.is_file() and not p.name.endswith(".lock"))
    return [Change(kind.name, what, name, seed) for name in files for seed in range(count)]


def mutated(content, draw):
    """Bytes changed, filled in, cut out, doubled, moved, swapped between lines, numbers and words replaced."""
    words = [b"-1", b"1e999", b"NaN", b"null", b"{}", b"[]", b'"x"', b"9" * 400, b"true", b"\x00", b"\xff", b"0.5"]
    while True:
        text, kind = bytearray(content or b"\n"), draw.randrange(9)
        at = draw.randrange(len(text))
        if kind == 0:
            text[at] = draw.randrange(256)
        elif kind == 1:
            del text[at : at + draw.randrange(1, 60)]
        elif kind == 2:
            text[at:at] = text[at : at + draw.randrange(1, 200)]
        elif kind == 3:
            text[at : at + draw.randrange(1, 12)] = draw.choice(words)
        elif kind == 4:
            text[at:] = bytes(len(text) - at)
        elif kind == 5:
            text += draw.choice([b"\x00" * 512, b"{", b"\n\n", draw.randbytes(20)])
        else:
            lines = bytes(text).split(b"\n")
            i, j = draw.randrange(len(lines)), draw.randrange(len(lines))
            if kind == 6:
                lines[i], lines[j] = lines[j], lines[i]
            elif kind == 7:
                lines.insert(i, lines[j])
            else:
                del lines[i]
            text = bytearray(b"\n".join(lines))
        if bytes(text) != content:
            return bytes(text)


def cut_short(text, content):
    """Whether a ledger only lost its end, or a line was begun there: what a crash leaves, and a chain cannot tell."""
    *lines, torn = text.split(b"\n")
    if not lines or lines != content.split(b"\n")[:-1][: len(lines)]:
        return False
    try:
        cut_off(torn or b"{", json.loads(lines[-1])["hash"])
    except PrivacyError:
        return False
    return True


def change_finished(change, place):
    """Change a file of a finished run: what is said of it must be what was said before, or that it was changed."""
    path = place / change.file
    folder = place / "a" if path.parent == place else path.parent
    first, shown = read_end(folder), read(folder)
    content = path.read_bytes()
    path.write_bytes(text := mutated(content, random.Random(f"{change}")))
    wrong, happened = "", False
    try:
        try:
            again = read_end(folder)
            if again != first:
                wrong = f"resume says {again}"
        except (ConfigError, PrivacyError):
            happened = True
        try:
            page = read(folder)
            happened |= bool(page.doubts)
            told = [(p.guarantee, p.accuracy, p.plan) for p in (page, shown)]
            if page.holds and told[0] != told[1]:
                wrong = f"the page says {told[0]}"
        except (ConfigError, PrivacyError):
            happened = True
        try:
            verify(folder)
            whole = path.name in ("ledger.jsonl", "all.jsonl") and not cut_short(text, content)
            if whole or path.name == EXTRACT:
                wrong = wrong or "verify says nothing of a changed ledger"
        except (ConfigError, PrivacyError):
            happened = True
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
    path.write_bytes(content)
    return Verdict(change, happened, wrong)


def change_stopped(change, place, root):
    """Change a file of a run that was stopped, and go on with it: refused, or within what was planned, and counted."""
    copy = Path(tempfile.mkdtemp(dir=root)) / "place"
    shutil.copytree(place, copy)
    path, kind = copy / change.file, Kind(change.kind)
    before = {run.run: run.released for run in verify(kind.ledger(place)).runs}
    content = path.read_bytes()
    path.write_bytes(text := mutated(content, random.Random(f"{change}")))
    for config in copy.glob("*/config.toml"):  # a data set's ledger is elsewhere now
        config.write_bytes(config.read_bytes().replace(str(place).encode(), str(copy).encode()))
    life = live(lambda: resume(copy / "a"), Disk(copy))
    wrong = ""
    try:
        if life.ended != "done" and life.ended.split(":")[0] not in REFUSED:
            wrong = life.ended
        if path.name.endswith("jsonl") and "metrics" not in path.name and not cut_short(text, content):
            assert life.ended != "done", "a changed ledger was continued"
        elif life.ended == "done" and not path.name.endswith("ledger.jsonl"):
            for run in verify(kind.ledger(copy)).runs:
                seen = [step for name, step in life.released if name == run.run]
                assert before.get(run.run, 0) + len(seen) <= run.released <= run.planned
                assert run.run in before or not seen or run.planned == STEPS
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
    if not wrong:
        shutil.rmtree(copy.parent)
    return Verdict(change, life.ended != "done", wrong)


def stop_early(kind, place):
    """A run that was stopped after two steps."""
    steps = []
    train(kind.config(place), place / "a", Watch(step=steps.append, stop=lambda: len(steps) >= 2))


# --- all of it -------------------------------------------------------------------------------------------------------


def verdicts(kinds, faults, *, sample=None, seed=0, each=10, root=None):
    """Break runs of these kinds by these faults, at every point or at a sample of them; how each went."""
    root = Path(tempfile.mkdtemp(prefix="discreet-faults-", dir=root))
    todo = []
    for name in kinds:
        kind = Kind(name)
        warm(kind, root / f"warm {name}")
        for fault in faults:
            if fault in ("deaths", "again", "refusals"):
                made = {"deaths": deaths, "again": again, "refusals": refusals}[fault](kind, root)
                todo += [(fault, point, None) for point in made]
            else:
                place = root / f"{fault} {name}"
                place.mkdir()
                kind.begin(place) if fault == "finished" else stop_early(kind, place)
                todo += [(fault, change, place) for change in changes(kind, place, fault, each)]
    if sample is not None and sample < len(todo):
        todo = random.Random(seed).sample(todo, sample)
    gc.collect()
    gc.freeze()  # forks then share what is in memory
    for number, (fault, point, place) in enumerate(todo):
        if fault == "finished":
            yield fault, change_finished(point, place)
        elif fault == "stopped":
            yield fault, change_stopped(point, place, root)
        else:
            yield fault, break_at(point, root / f"at {number}")
    if not any(storage.SCRATCH.fullmatch(p.name) for p in root.rglob("*")):
        shutil.rmtree(root, ignore_errors=True)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--each", type=int, default=10, help="changes of each file")
    parser.add_argument("--root", help="where runs are broken")
    given = parser.parse_args(arguments)
    chosen = given.kinds.split(","), given.faults.split(",")
    for fault, verdict in verdicts(*chosen, sample=given.sample, seed=given.seed, each=given.each, root=given.root):
        sys.stdout.write(f"{json.dumps({'fault': fault, **asdict(verdict)})}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
