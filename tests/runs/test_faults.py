"""Runs of every kind that die, or are refused something, at any file operation: nothing is lost, nothing spent twice.

In `make test` at a hundred points that were drawn once, in `make soak` at all of them, and with every file changed.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import break_runs
import pytest
from kinds_of_run import ALIKE, KINDS

SOAK = bool(os.environ.get("DISCREET_SOAK"))
KEPT = os.environ.get("DISCREET_VERDICTS")  # where to keep what was found, for the table of benchmarks/reliability.py


def broken(tmp_path, *arguments):
    """The verdicts of a process that forks: one with threads of its own could not."""
    command = [sys.executable, str(Path(break_runs.__file__)), "--root", str(tmp_path), *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout, [json.loads(line) for line in found.stdout.splitlines()]


def test_runs_that_are_broken_anywhere_lose_nothing_and_spend_nothing_twice(tmp_path):
    kinds = ",".join(kind for kind in KINDS if kind not in ALIKE)
    _, found = broken(tmp_path, "--kinds", kinds, "--faults", "deaths,refusals", "--sample", "100", "--seed", "24")
    assert [verdict for verdict in found if verdict["wrong"]] == []
    assert len(found) == 100
    assert sum(verdict["happened"] for verdict in found) > 0.8 * len(found)


@pytest.mark.skipif(not SOAK, reason="a part of make soak")
@pytest.mark.parametrize("kind", KINDS)
def test_every_point_at_which_a_run_can_break_and_every_file_of_it_changed(tmp_path, kind):
    text, found = broken(tmp_path, "--kinds", kind)
    if KEPT:
        Path(KEPT).mkdir(parents=True, exist_ok=True)
        Path(KEPT, f"{kind}.jsonl").write_text(text)
    assert [verdict for verdict in found if verdict["wrong"]] == []
    tried = Counter(verdict["fault"] for verdict in found)
    least = {"deaths": 60, "refusals": 40, "again": 50, "finished": 120, "stopped": 80}
    assert {fault: tried[fault] for fault in least if tried[fault] < least[fault]} == {}
    for fault in ("deaths", "refusals"):
        happened = [verdict["happened"] for verdict in found if verdict["fault"] == fault]
        assert sum(happened) > 0.5 * len(happened)


def test_a_disk_that_forgets_is_noticed_where_nothing_is_synced(tmp_path):
    """The harness finds what it is for: without syncs a lost power takes releases back that were seen."""
    code = (
        "import sys, break_runs\n"
        "from discreet.ledger import storage\n"
        "append = storage.append\n"
        "storage.append = lambda path, data, size=None, durable=True: append(path, data, size=size, durable=False)\n"
        "break_runs.main(sys.argv[1:])\n"
    )
    command = [sys.executable, "-c", code, "--root", str(tmp_path), "--kinds", "plain", "--faults", "deaths"]
    where = os.pathsep.join([str(Path(break_runs.__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": where}
    found = subprocess.run(
        [*command, "--sample", "8", "--seed", "17"], capture_output=True, text=True, env=environment, check=True
    )
    wrong = [v for v in map(json.loads, found.stdout.splitlines()) if v["wrong"]]
    assert wrong
    assert {v["point"]["what"] for v in wrong} == {"power"}
