"""A training process is killed at random moments and resumed, again and again: nothing is lost, nothing spent twice."""

import os
import random

import crash_worker
from forked import Forked

from discreet import verify

KILLS = int(os.environ.get("DISCREET_KILLS", 300 if os.environ.get("DISCREET_SOAK") else 5))


def live(folder, lines):
    """Start the worker and kill it after so many lines (None: let it end); what it said."""
    said = []
    with Forked(crash_worker.main, folder) as worker:
        for line in worker.stdout:
            said.append(line.split())
            if lines is not None and len(said) >= lines:
                worker.kill()  # it goes on working until the signal arrives: any moment of a step
                break
        rest = worker.stdout.read()
    return said + [line.split() for line in rest.splitlines(keepends=True) if line.endswith("\n")]


def test_a_process_that_is_killed_again_and_again_ends_within_its_budget(tmp_path):
    draw, plan = random.Random(7), crash_worker.plan()
    kills, campaigns = 0, 0
    while kills < KILLS:
        folder = tmp_path / str(campaigns)
        folder.mkdir()
        campaigns += 1
        seen, ended = 0, False
        while not ended:
            dies = kills < KILLS
            said = live(folder, draw.randrange(1, 14) if dies else None)
            kills += dies
            seen += sum(words[0] == "released" for words in said)
            found = verify(folder / "ledger.jsonl")
            (run,) = found.runs
            assert run.released >= seen  # what an observer saw is counted
            assert run.released <= plan.steps
            assert run.guarantee.epsilon <= plan.epsilon
            steps = [int(words[1]) for words in said if words[0] == "released"]
            assert steps == sorted(set(steps))  # no step is released twice
            for words in said:
                if words[0] == "done":
                    ended = True
                    assert float(words[1]) <= plan.epsilon
        assert run.released == plan.steps


def test_a_crash_in_the_middle_of_a_line_is_resumed_and_counted(tmp_path):
    live(tmp_path, 4)
    path = tmp_path / "ledger.jsonl"
    before = verify(path).runs[0].released
    path.write_bytes(path.read_bytes() + b'{"at": "20')
    said = live(tmp_path, None)
    assert said[-1][0] == "done"
    released = [int(words[1]) for words in said if words[0] == "released"]
    assert released[0] == before + 2  # the torn line counts for one
    assert verify(path).runs[0].recovered == 1
