"""Several runs: in processes beside each other they are what they are in one; those that were stopped go on."""

import os
import select
import subprocess
import sys

from msgspec import structs, to_builtins
from small_runs import config, table_at

from discreet.runs.outcome import read_end
from discreet.runs.progress import Watch
from discreet.tuning import trials
from discreet.tuning.trials import Job, carried_out, finished


def jobs(tmp_path, count):
    one = config(table_at(tmp_path))
    one = structs.replace(one, run=structs.replace(one.run, alone=True))
    return [Job(tmp_path / "runs" / str(number), to_builtins(one)) for number in range(count)]


def test_two_processes_carry_out_what_there_is(tmp_path):
    several = jobs(tmp_path, 2)
    ended = list(carried_out(several, 2, Watch()))
    assert sorted(job.folder.name for job, _ in ended) == ["0", "1"]
    assert all(done for _, done in ended)
    assert read_end(several[0].folder).guarantee.epsilon == read_end(several[1].folder).guarantee.epsilon
    assert len(finished(job.folder for job in several)) == 2


def test_a_run_that_was_stopped_is_continued_and_none_is_begun(tmp_path):
    several, looks = jobs(tmp_path, 2), []

    def stop():
        looks.append(1)
        return len(looks) > 3

    assert [done for _, done in carried_out(several, 1, Watch(stop=stop))] == [False]
    assert not several[1].folder.exists()
    assert [done for _, done in carried_out(several, 1, Watch())] == [True, True]


KILLED = """
import multiprocessing, os, signal, sys
from concurrent.futures import ProcessPoolExecutor
from discreet.tuning import trials
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, trials._settle, (context.Event(), 1)) as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_whose_parent_was_killed_ends(tmp_path):
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    with subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        worker = os.pidfd_open(int(parent.stdout.readline()))
        parent.stdin.close()
    ended, _, _ = select.select([worker], [], [], 300)  # seconds after which it is given up
    os.close(worker)
    assert ended


def test_a_run_of_a_worker_whose_parent_was_killed_is_stopped(tmp_path, monkeypatch):
    job, looks = jobs(tmp_path, 1)[0], []

    class Orphaned:
        def is_set(self):
            looks.append(1)
            return len(looks) > 3

    monkeypatch.setattr(trials, "_orphaned", Orphaned())
    monkeypatch.setattr(trials, "_stop", [type("Never", (), {"is_set": lambda self: False})()])
    assert not trials._in_process(job)
    assert (job.folder / "ledger.jsonl").is_file()
    assert not (job.folder / "end.json").exists()
