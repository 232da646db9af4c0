"""Runs of every kind that die, or are refused something, at any file operation: nothing is lost, nothing spent twice.

In `make test` at a hundred points that were drawn once, in `make soak` at all of them, and with every file changed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import break_runs
import pytest

SOAK = bool(os.environ.get("DISCREET_SOAK"))


def broken(tmp_path, *arguments):
    """The verdicts of a process that forks: one with threads of its own could not."""
    command = [sys.executable, str(Path(break_runs.__file__)), "--root", str(tmp_path), *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert found.returncode == 0, found.stderr
    return [json.loads(line) for line in found.stdout.splitlines()]


def test_runs_that_are_broken_anywhere_lose_nothing_and_spend_nothing_twice(tmp_path):
    found = broken(tmp_path, "--faults", "deaths,refusals", *(() if SOAK else ("--sample", "100", "--seed", "24")))
    assert [verdict for verdict in found if verdict["wrong"]] == []
    assert len(found) > 5000 if SOAK else len(found) == 100
    assert sum(verdict["happened"] for verdict in found) > 0.8 * len(found)


@pytest.mark.skipif(not SOAK, reason="a part of make soak")
@pytest.mark.parametrize(("fault", "least"), [("again", 1000), ("finished", 2000), ("stopped", 1000)])
def test_runs_that_die_twice_or_whose_files_were_changed_claim_nothing_that_is_not_so(tmp_path, fault, least):
    found = broken(tmp_path, "--faults", fault)
    assert [verdict for verdict in found if verdict["wrong"]] == []
    assert len(found) > least


def test_a_disk_that_forgets_is_noticed_where_nothing_is_synced(tmp_path):
    """The harness finds what it is for: without syncs a lost power takes releases back that were seen."""
    code = (
        "import sys, break_runs\n"
        "from discreet import _storage as storage\n"
        "append = storage.append\n"
        "storage.append = lambda path, data, size=None, durable=True: append(path, data, size=size, durable=False)\n"
        "break_runs.main(sys.argv[1:])\n"
    )
    command = [sys.executable, "-c", code, "--root", str(tmp_path), "--kinds", "plain", "--faults", "deaths"]
    where = os.pathsep.join([str(Path(break_runs.__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": where}
    found = subprocess.run(
        [*command, "--sample", "8", "--seed", "1"], capture_output=True, text=True, env=environment, check=True
    )
    wrong = [v for v in map(json.loads, found.stdout.splitlines()) if v["wrong"]]
    assert wrong
    assert {v["point"]["what"] for v in wrong} == {"power"}
