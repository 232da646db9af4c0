"""What was tried to break runs, and what came of it: the table of docs/reliability.md.

python benchmarks/reliability.py [--sample N] [--each N] [--workers 2] [--page docs/reliability.md]
DISCREET_VERDICTS=verdicts make soak, and then: python benchmarks/reliability.py --verdicts verdicts [--page ...]

Runs of every kind are broken at every file operation (tests/break_runs.py); --sample takes so many deaths of each
kind, and half as many of second deaths and of refused operations. `make soak` does the same: its verdicts need not
be made again. The page's table is replaced between its marks.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from break_runs import FAULTS  # noqa: E402 (beside the tests)
from kinds_of_run import KINDS  # noqa: E402

WORDS = {
    "before": "the process is killed before a file operation",
    "within": "the process is killed within a write",
    "after": "the process is killed after a file operation",
    "power": "the power fails: what was not synced is lost, bytes and names",
    "again": "killed, or without power, and again while it is continued",
    "ENOSPC": "the disk is full (ENOSPC), with half of a write done",
    "EIO": "an operation fails (EIO): writes, syncs, renames, locks",
    "EROFS": "the disk is read-only (EROFS)",
    "ENOLCK": "no locks (ENOLCK)",
    "finished": "a file of a finished run is changed: resume, verify, report",
    "stopped": "a file of a stopped run is changed, and it is resumed",
}


def carried_out(kind, fault, given):
    """The verdicts on one kind of run and fault, by a process of its own."""
    command = [sys.executable, str(ROOT / "tests" / "break_runs.py"), "--kinds", kind, "--faults", fault]
    command += ["--each", str(given.each)]
    if given.sample is not None and fault in ("deaths", "again", "refusals"):
        command += ["--sample", str(given.sample if fault == "deaths" else -(-given.sample // 2))]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    verdicts = [json.loads(line) for line in found.stdout.splitlines()]
    sys.stderr.write(f"{kind}, {fault}: {len(verdicts)}\n")
    return verdicts


def everything(given):
    """All verdicts, made now or taken from where `make soak` kept them, and the words for how."""
    at = f"{time.strftime('%Y-%m-%d')}, {platform.machine()}"
    if given.verdicts is not None:
        files = sorted(given.verdicts.glob("*.jsonl"))
        verdicts = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        at = f"{time.strftime('%Y-%m-%d', time.localtime(max(f.stat().st_mtime for f in files)))}, {platform.machine()}"
        return verdicts, f"`DISCREET_VERDICTS=verdicts make soak`, {at}."
    start, todo = time.perf_counter(), [(kind, fault) for fault in FAULTS for kind in KINDS]
    with ThreadPoolExecutor(given.workers) as pool:
        found = list(pool.map(lambda one: carried_out(*one, given), todo))
    sampled = "" if given.sample is None else f" --sample {given.sample}"
    minutes = (time.perf_counter() - start) / 60
    words = f"`python benchmarks/reliability.py{sampled} --each {given.each}`, {at}, {minutes:.0f} minutes with "
    return [verdict for some in found for verdict in some], f"{words}{given.workers} processes."


def table(verdicts):
    """Kinds of fault, numbers tried and failures, as Markdown."""
    tried, failed, kinds = Counter(), Counter(), {}
    for verdict in verdicts:
        fault = verdict["fault"]
        what = WORDS[fault if fault in WORDS else verdict["point"]["what"]]
        tried[what] += 1
        failed[what] += bool(verdict["wrong"])
        kinds.setdefault(what, set()).add(verdict["point"]["kind"])
    rows = ["| fault | kinds of run | tried | failures |", "| --- | --- | --- | --- |"]
    rows += [f"| {w} | {len(kinds[w])} | {tried[w]:,} | {failed[w]} |" for w in WORDS.values() if tried[w]]
    return "\n".join([*rows, f"| in all | {len(KINDS)} | {tried.total():,} | {failed.total()} |"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, help="deaths of each kind of run; all if not given")
    parser.add_argument("--each", type=int, default=10, help="changes of each file")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--page", type=Path, help="a page whose table is replaced")
    parser.add_argument("--verdicts", type=Path, help="a folder in which make soak kept what was found")
    given = parser.parse_args()
    verdicts, words = everything(given)
    text = f"{table(verdicts)}\n\n{words}"
    print(text)
    for verdict in verdicts:
        if verdict["wrong"]:
            print(json.dumps(verdict))
    if given.page is not None:
        page = given.page.read_text()
        marks = r"(<!-- begin table -->\n).*?(\n<!-- end table -->)"
        given.page.write_text(re.sub(marks, lambda m: f"{m[1]}{text}{m[2]}", page, flags=re.S))


if __name__ == "__main__":
    main()
