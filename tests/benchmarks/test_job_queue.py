"""The queue of long measurements: order, resuming, what a line says, and that a kill costs nothing that was kept."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

FAKE = '''"""Jobs for a test."""
import time
from jobs import Job

MODULES = ()

def work(case, place):
    kept = place.folder / "kept"
    done = int(kept.read_text()) if kept.is_file() else 0
    resumed = done
    if case.get("fails"):
        raise ValueError("no luck")
    while done < case["steps"]:
        time.sleep(0.05)
        done += 1
        scratch = kept.with_suffix(".new")
        scratch.write_text(str(done))
        scratch.replace(kept)
        place.tell(done, case["steps"])
    return {"accuracy": 0.5, "epochs": 1.0, "examples": 10, "parameters": 5, "resumed": resumed}

def jobs():
    for i, case in enumerate(({"steps": 1}, {"steps": 1, "fails": True}, {"steps": 60})):
        yield Job("fake/it/full.jsonl", case, 0, "jobs.fake:work", float(i), 1.0, "fake")
'''


@pytest.fixture
def loaded(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("job_queue", BENCHMARKS / "job_queue.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    for name in [n for n in sys.modules if n == "jobs" or n.startswith("jobs.")]:
        del sys.modules[name]


@pytest.fixture
def repository(tmp_path):
    """A repository with the queue's own code, the library linked, and three small jobs."""
    root = tmp_path / "repository"
    (root / "benchmarks" / "jobs").mkdir(parents=True)
    (root / "src").symlink_to(BENCHMARKS.parent / "src")
    (root / "benchmarks" / "job_queue.py").write_text((BENCHMARKS / "job_queue.py").read_text())
    jobs = (
        (BENCHMARKS / "jobs" / "__init__.py")
        .read_text()
        .replace('MODULES = ("jobs.papers",)', 'MODULES = ("jobs.fake",)')
    )
    (root / "benchmarks" / "jobs" / "__init__.py").write_text(jobs)
    (root / "benchmarks" / "jobs" / "fake.py").write_text(FAKE)
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "it"]):
        subprocess.run([*git, *command], check=True)
    return root


def queue(repository, *command):
    path = repository / "benchmarks" / "job_queue.py"
    environment = os.environ | {"PYTHONPATH": str(BENCHMARKS.parent / "src")}
    home = str(repository.parent / "home")
    found = subprocess.run(
        [sys.executable, str(path), "--home", home, *command],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    return found.stdout


def kept(home):
    """How far the job that has begun is."""
    with contextlib.suppress(ValueError, OSError):
        return max((int(file.read_text()) for file in (home / "jobs").glob("*/kept")), default=0)
    return 0


def until(condition):
    """Wait for what is bound to come; looked for so often that no busy machine is too slow."""
    for _ in range(6_000):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("it did not come")


def test_a_killed_queue_goes_on_where_it_was_and_keeps_failures_and_commits(repository):
    home = repository.parent / "home"
    results = home / "measured" / "fake" / "it" / "full.jsonl"
    commit = subprocess.run(
        ["git", "-C", str(repository), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    queue(repository, "start")
    until(lambda: kept(home) > 5)
    os.kill(int((home / "pid").read_text()), signal.SIGKILL)
    time.sleep(0.3)
    assert "nobody works" in queue(repository, "status")
    assert len(results.read_text().splitlines()) == 1
    queue(repository, "start")
    until(lambda: len(results.read_text().splitlines()) == 2)
    first, second = (json.loads(line) for line in results.read_text().splitlines())
    assert first["measured"]["resumed"] == 0
    assert second["measured"]["resumed"] > 5  # not from the beginning
    assert {first["commit"], second["commit"]} == {commit.stdout.strip()}
    assert second["case"] == {"steps": 60}
    (failure,) = [json.loads(line) for line in (home / "failed.jsonl").read_text().splitlines()]
    assert failure["error"].strip().endswith("ValueError: no luck")
    assert "failed: fake/it/full" in queue(repository, "status")


def test_stop_ends_the_worker_within_seconds_and_pause_holds_it(repository):
    home = repository.parent / "home"
    queue(repository, "start")
    until(lambda: kept(home) > 2)
    queue(repository, "pause")
    assert "is paused" in queue(repository, "status")
    before = kept(home)
    time.sleep(0.5)
    assert kept(home) == before
    queue(repository, "stop")
    assert "nobody works" in queue(repository, "status")


def test_a_job_that_has_begun_stays_with_its_commit(repository, loaded):
    home = repository.parent / "home"
    queue(repository, "start")
    until(lambda: kept(home) > 2)
    queue(repository, "stop")
    (origin_step,) = (home / "jobs").glob("*/commit")
    file = repository / "benchmarks" / "jobs" / "fake.py"
    file.write_text(file.read_text().replace('"accuracy": 0.5', '"accuracy": 0.9'))
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "commit", "-qam", "other"], check=True)
    results, old = home / "measured" / "fake" / "it" / "full.jsonl", origin_step.read_text()
    queue(repository, "start")
    until(lambda: len(results.read_text().splitlines()) == 2)
    last = json.loads(results.read_text().splitlines()[-1])
    assert last["commit"] == old
    assert last["measured"]["accuracy"] == 0.5


def test_results_are_merged_and_a_cut_line_is_left_out(loaded, tmp_path, capsys):
    home, measured = loaded.Home(tmp_path / "home"), tmp_path / "measured"
    line = {"key": "a", "group": "g", "case": {"x": 1}, "seed": 0, "measured": {"accuracy": float("inf")}, "seconds": 1}
    loaded.append(home / "measured" / "p" / "e" / "full.jsonl", line)
    file = home / "measured" / "p" / "e" / "full.jsonl"
    file.write_text(file.read_text() + '{"key": "cut')
    loaded.append(file, line | {"key": "b", "seed": 1})
    others = set(loaded.Home(tmp_path / "nothing").done())  # what the repository has already
    assert others
    assert set(home.done()) == {"a", "b"} | others
    loaded.append(measured / "p" / "e" / "full.jsonl", line | {"measured": {"accuracy": 0.1}})
    loaded.collect(home, measured)
    merged = [json.loads(text) for text in (measured / "p" / "e" / "full.jsonl").read_text().splitlines()]
    assert [(v["seed"], v["measured"]["accuracy"]) for v in merged] == [(0, "inf"), (1, "inf")]


def test_every_job_can_be_named_and_found(loaded):
    import jobs

    found = jobs.all_jobs()
    assert len({job.key for job in found}) == len(found)
    assert [job.priority for job in found] == sorted(job.priority for job in found)
    for job in {job.function: job for job in found}.values():
        assert callable(job.load())
        assert job.estimate > 0
