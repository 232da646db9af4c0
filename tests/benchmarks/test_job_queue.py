"""The queue of long measurements: order, resuming, what a line says, and that a kill costs nothing that was kept."""

import importlib.util
import inspect
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from discreet.papers.experiment import Place

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

FAKE = '''"""Jobs for a test: a step of the long one waits for a word, and answers it."""
import os
from jobs import Job

MODULES = ()

def work(case, place):
    kept = place.folder / "kept"
    done = int(kept.read_text()) if kept.is_file() else 0
    resumed = done
    if case.get("fails"):
        raise ValueError("no luck")
    go, gone = (os.open(place.folder.parents[2] / name, os.O_RDWR) for name in ("go", "gone"))
    while done < case["steps"]:
        if case["steps"] > 1:
            os.read(go, 1)
        done += 1
        scratch = kept.with_suffix(".new")
        scratch.write_text(str(done))
        scratch.replace(kept)
        place.tell(done, case["steps"])
        if case["steps"] > 1:
            os.write(gone, b".")
    return {"accuracy": 0.5, "epochs": 1.0, "examples": 10, "parameters": 5, "resumed": resumed}

def jobs(done):
    for i, case in enumerate(({"steps": 1}, {"steps": 1, "fails": True}, {"steps": 20})):
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


PLACE = f"""from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

@dataclass(frozen=True)
{inspect.getsource(Place).removeprefix("@dataclass(frozen=True)")}"""
TORCH = "__version__ = 'none'\ndef set_num_threads(count): pass\n"  # the queue asks no more of it


def as_others(code):
    """The queue's code, without standing back behind other tests."""
    nice = '["nice", "-n", "19", *command]'
    assert nice in code
    return code.replace(nice, "command").replace('write_text("19")', 'write_text("0")')


@pytest.fixture
def repository(tmp_path):
    """A repository with the queue's own code, of the library what it uses, and three small jobs."""
    root = tmp_path / "repository"
    (root / "benchmarks" / "jobs").mkdir(parents=True)
    papers = root / "src" / "discreet" / "papers"
    papers.mkdir(parents=True)
    (papers / "experiment.py").write_text(PLACE)
    (root / "src" / "torch.py").write_text(TORCH)
    for name in ("go", "gone"):
        os.mkfifo(tmp_path / name)
    (root / "benchmarks" / "job_queue.py").write_text(as_others((BENCHMARKS / "job_queue.py").read_text()))
    jobs = (
        (BENCHMARKS / "jobs" / "__init__.py")
        .read_text()
        .replace('MODULES = ("jobs.papers", "jobs.correlated")', 'MODULES = ("jobs.fake",)')
    )
    (root / "benchmarks" / "jobs" / "__init__.py").write_text(jobs)
    (root / "benchmarks" / "jobs" / "fake.py").write_text(FAKE)
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "it"]):
        subprocess.run([*git, *command], check=True)
    return root


def queue(repository, *command):
    path = repository / "benchmarks" / "job_queue.py"
    environment = os.environ | {"PYTHONPATH": str(repository / "src")}
    home = str(repository.parent / "home")
    found = subprocess.run(
        [sys.executable, str(path), "--home", home, *command],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    return found.stdout


@pytest.fixture
def steps(repository):
    """Has the long job take so many steps, and waits until it has."""
    go, gone = (os.open(repository.parent / name, os.O_RDWR) for name in ("go", "gone"))

    def take(count):
        os.write(go, b"." * count)
        for _ in range(count):
            assert select.select([gone], [], [], 600)[0], "the job has not gone on"
            os.read(gone, 1)

    take.go, take.gone = go, gone
    yield take
    queue(repository, "stop")
    os.close(go)
    os.close(gone)


def ended(pid):
    """Wait for the end of a process that is nobody's child here."""
    with open(os.pidfd_open(pid)) as process:
        assert select.select([process], [], [], 600)[0], "the worker has not ended"


def worker(repository):
    return int((repository.parent / "home" / "pid").read_text())


def test_a_killed_queue_goes_on_where_it_was_and_keeps_failures_and_commits(repository, steps):
    home = repository.parent / "home"
    results = home / "measured" / "fake" / "it" / "full.jsonl"
    commit = subprocess.run(
        ["git", "-C", str(repository), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    queue(repository, "start")
    steps(6)
    pid = worker(repository)
    os.kill(pid, signal.SIGKILL)
    ended(pid)
    assert "nobody works" in queue(repository, "status")
    assert len(results.read_text().splitlines()) == 1
    queue(repository, "start")
    steps(13)
    pid = worker(repository)
    steps(1)
    ended(pid)
    first, second = (json.loads(line) for line in results.read_text().splitlines())
    assert first["measured"]["resumed"] == 0
    assert second["measured"]["resumed"] == 6  # not from the beginning
    assert {first["commit"], second["commit"]} == {commit.stdout.strip()}
    assert second["case"] == {"steps": 20}
    (failure,) = [json.loads(line) for line in (home / "failed.jsonl").read_text().splitlines()]
    assert failure["error"].strip().endswith("ValueError: no luck")
    assert "failed: fake/it/full" in queue(repository, "status")


def test_stop_ends_the_worker_within_seconds_and_pause_holds_it(repository, steps):
    queue(repository, "start")
    steps(3)
    queue(repository, "pause")
    assert "is paused" in queue(repository, "status")
    os.write(steps.go, b".")
    assert not select.select([steps.gone], [], [], 0)[0]
    queue(repository, "resume")
    assert select.select([steps.gone], [], [], 600)[0]
    queue(repository, "stop")
    assert "nobody works" in queue(repository, "status")


def test_a_job_that_has_begun_stays_with_its_commit(repository, steps):
    home = repository.parent / "home"
    queue(repository, "start")
    steps(3)
    queue(repository, "stop")
    (origin_step,) = (home / "jobs").glob("*/commit")
    file = repository / "benchmarks" / "jobs" / "fake.py"
    file.write_text(file.read_text().replace('"accuracy": 0.5', '"accuracy": 0.9'))
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "commit", "-qam", "other"], check=True)
    results, old = home / "measured" / "fake" / "it" / "full.jsonl", origin_step.read_text()
    queue(repository, "start")
    steps(16)
    pid = worker(repository)
    steps(1)
    ended(pid)
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

    found = jobs.all_jobs({})
    assert len({job.key for job in found}) == len(found)
    assert [job.priority for job in found] == sorted(job.priority for job in found)
    for job in {job.function: job for job in found}.values():
        assert callable(job.load())
        assert job.estimate > 0


def measured(job, rate):
    """A line whose accuracy on held-out rows is best at a rate."""
    return {"measured": {"validation": -abs(job.case["learning_rate"] - rate)}}


def test_a_rate_is_chosen_on_held_out_rows_and_the_test_set_is_looked_at_only_then(loaded):
    from jobs import correlated

    setting = correlated.SETTINGS[0]
    arm = next(iter(setting.rates))
    done, seen = {}, []
    for _ in range(9):
        mine = [
            job for job in correlated.jobs(done) if job.case["arm"] == arm and job.case.items() >= setting.case.items()
        ]
        seen.append(mine)
        done |= {job.key: measured(job, 8.0) for job in mine if job.case.get("held_out")}
    assert all(job.case.get("held_out") for job in seen[0])
    assert [job.case["learning_rate"] for job in seen[-1] if job.case.get("held_out")] == [
        0.5,
        1.0,
        2.0,
        4.0,
        8.0,
        16.0,
    ]
    last = [job for job in seen[-1] if "held_out" not in job.case]
    assert [(job.seed, job.case["learning_rate"]) for job in last] == [(seed, 8.0) for seed in range(5)]
    assert all(job.priority > max(other.priority for other in seen[0]) for job in last)


def test_a_worker_may_be_told_of_one_group(loaded, tmp_path):
    import jobs

    home, found = loaded.Home(tmp_path), jobs.all_jobs({})
    assert all(map(home.takes, found))
    (tmp_path / "group").write_text("correlated")
    assert {job.group for job in found if home.takes(job)} == {"correlated"}
