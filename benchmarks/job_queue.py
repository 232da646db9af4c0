"""The queue of long measurements: one thread, low priority, from a clone pinned at a commit, resumable after a kill.

    python benchmarks/job_queue.py start       clone HEAD if need be, pin it, and work in the background
    python benchmarks/job_queue.py status      what is done, running, failed and left, with core-hours
    python benchmarks/job_queue.py pause       stand still at once, in memory (before something is timed)
    python benchmarks/job_queue.py resume      go on
    python benchmarks/job_queue.py stop        end within seconds; `start` goes on from the last checkpoint
    python benchmarks/job_queue.py collect     copy results into benchmarks/measured, to be committed
    python benchmarks/job_queue.py list        all jobs in their order
    python benchmarks/job_queue.py retry       forget failures

`start --group NAME` takes up jobs of one group alone. --home, or $DISCREET_QUEUE, is where it lives
(~/.cache/discreet-queue if neither is given):

    clones/COMMIT/    the code that runs      measured/      results, a line each as they come
    pinned            the commit for new jobs jobs/KEY/      checkpoints of what has begun, and its commit
    pid, log          of the worker           failed.jsonl   what raised an error, with its traceback

A job that has begun goes on in the clone that it began in; a new one begins in the pinned clone. `start` while it works
pins the present HEAD, which the worker takes up after the present job. Uncommitted changes are never run.
"""

import argparse
import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Home:
    """The folder that the queue lives in."""

    path: Path

    def __truediv__(self, name):
        return self.path / name

    @property
    def pinned(self):
        """The commit that new jobs run from."""
        return (self / "pinned").read_text().strip()

    def takes(self, job):
        """Whether a job is of the group that `start` was told of, if it was told of one."""
        file = self / "group"
        return not file.is_file() or job.group == file.read_text()

    def clone(self, commit):
        """The folder of a commit's code, made if it is not there."""
        folder = self / "clones" / commit
        if not folder.is_dir():
            scratch = folder.with_name(f".{commit}")
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.parent.mkdir(parents=True, exist_ok=True)
            source = (self / "source").read_text().strip()
            subprocess.run(["git", "clone", "--quiet", "--no-checkout", source, str(scratch)], check=True)
            subprocess.run(["git", "-C", str(scratch), "checkout", "--quiet", "--detach", commit], check=True)
            scratch.replace(folder)
        return folder

    def worker(self):
        """The worker's process, or None where none is alive."""
        with contextlib.suppress(OSError, ValueError):
            pid = int((self / "pid").read_text())
            if b"job_queue.py" in Path(f"/proc/{pid}/cmdline").read_bytes() and _state_of(pid) != "Z":
                return pid
        return None

    def done(self):
        """Lines of results by key: of this queue, and those that the repository has from others."""
        found = {}
        for folder in (REPO / "benchmarks" / "measured", self / "measured"):
            for file in sorted(folder.rglob("*.jsonl")):
                found |= {values["key"]: values for values in lines(file) if "key" in values}
        return found

    def failed(self):
        """Lines of failures by key."""
        return {values["key"]: values for values in lines(self / "failed.jsonl")}


def lines(file):
    """The values of a file's lines; one that a crash cut off is not there."""
    if not file.is_file():
        return
    for line in file.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def append(file, values):
    """One more line, on disk."""
    file.parent.mkdir(parents=True, exist_ok=True)
    cut = file.is_file() and not file.read_bytes().endswith(b"\n")
    with file.open("a", encoding="utf-8") as out:
        out.write("\n" * cut + json.dumps(writable(values)) + "\n")
        out.flush()
        os.fsync(out.fileno())


def writable(value):
    """The same without numbers that JSON does not have."""
    if isinstance(value, dict):
        return {k: writable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [writable(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


# --- the worker ------------------------------------------------------------------------------------------------------


def work(home, commit, only=None):
    """Run one job after another; `only` is one that began in this commit's clone; afterwards the pinned one goes on."""
    with contextlib.suppress(OSError):  # where sessions share the processor alike, niceness counts within one alone
        Path("/proc/self/autogroup").write_text("19")
    import torch
    from jobs import all_jobs

    torch.set_num_threads(1)
    while True:
        done, failed = home.done(), home.failed()
        waiting = [job for job in all_jobs(done) if job.key not in done and job.key not in failed and home.takes(job)]
        if only is not None:
            waiting = [job for job in waiting if job.key == only]
        elif home.pinned != commit:
            become(home, home.pinned)
        if not waiting:
            if only is None:
                (home / "pid").unlink(missing_ok=True)
                say("nothing is left.")
                return
            become(home, home.pinned)
        job, only = waiting[0], None
        origin_step = home / "jobs" / job.key / "commit"
        if origin_step.is_file() and origin_step.read_text() != commit:
            become(home, origin_step.read_text(), job.key)
        run(home, commit, job)


def become(home, commit, only=None):
    """Go on as the worker of another clone, in the same process."""
    clone = home.clone(commit)
    os.environ["PYTHONPATH"] = f"{clone / 'src'}"
    command = [sys.executable, str(clone / "benchmarks" / "job_queue.py"), "--home", str(home.path), "work", commit]
    os.execv(sys.executable, [*command, *([] if only is None else [only])])


def run(home, commit, job):
    """One job, from its checkpoint if there is one; its line is kept, or its failure."""
    import torch

    from discreet.papers.experiment import Place

    folder = home / "jobs" / job.key
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "commit").write_text(commit)
    earlier = 0.0
    with contextlib.suppress(OSError, ValueError):
        earlier = json.loads((folder / "progress.json").read_text())["seconds"]
    began, last = time.process_time(), 0.0
    say(f"begins: {job.name}")

    def tell(steps, total):
        nonlocal last
        if time.monotonic() - last > 5:
            last = time.monotonic()
            spent = earlier + time.process_time() - began
            unsent_lines = {"name": job.name, "key": job.key, "done": steps, "total": total, "seconds": spent}
            scratch = folder / ".progress.json"
            scratch.write_text(json.dumps(unsent_lines))
            scratch.replace(folder / "progress.json")

    tell(0, 1)
    (home / "current").write_text(job.key)
    try:
        measured = job.load()(job.case, Place(folder, job.seed, tell))
    except Exception:
        say(traceback.format_exc())
        told = {"key": job.key, "name": job.name, "commit": commit, "error": traceback.format_exc()}
        append(home / "failed.jsonl", told)
        shutil.rmtree(folder, ignore_errors=True)
        return
    values = {
        "key": job.key,
        "group": job.group,
        "case": dict(job.case),
        "seed": job.seed,
        "measured": measured,
        "seconds": round(earlier + time.process_time() - began, 1),
        "at": time.strftime("%Y-%m-%d"),
        "commit": commit,
        "torch": torch.__version__,
    }
    append(home / "measured" / job.results, values)
    shutil.rmtree(folder, ignore_errors=True)
    say(f"done in {values['seconds']:,.0f} core-seconds.")


def say(words):
    """A line in the log."""
    print(time.strftime("%Y-%m-%d %H:%M:%S"), words, flush=True)


# --- commands --------------------------------------------------------------------------------------------------------


def start(home, group=None):
    """Pin HEAD, and begin to work unless somebody does: on jobs of one group, or on all."""
    home.path.mkdir(parents=True, exist_ok=True)
    if group is None:
        (home / "group").unlink(missing_ok=True)
    else:
        (home / "group").write_text(group)
    commit = subprocess.run(["git", "-C", str(REPO), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    commit = commit.stdout.strip()
    (home / "source").write_text(str(REPO))
    clone = home.clone(commit)
    (home / "pinned").write_text(commit)
    pid = home.worker()
    if pid is not None:
        print(f"pinned {commit[:10]}; worker {pid} takes it up after the present job.")
        return
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    command = [sys.executable, str(clone / "benchmarks" / "job_queue.py"), "--home", str(home.path), "work", commit]
    with (home / "log").open("a") as log:
        worker = subprocess.Popen(
            ["nice", "-n", "19", *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | threads | {"PYTHONPATH": str(clone / "src")},
            start_new_session=True,
            cwd=home.path,
        )
    (home / "pid").write_text(str(worker.pid))
    print(f"pinned {commit[:10]}; worker {worker.pid} began, its log is {home / 'log'}.")


def stop(home):
    """End the worker; what it was at goes on from its checkpoint at the next start."""
    pid = home.worker()
    if pid is None:
        print("no worker is alive.")
        return
    for sign in (signal.SIGCONT, signal.SIGTERM, signal.SIGKILL):
        os.kill(pid, sign)
        until = time.monotonic() + (0 if sign == signal.SIGCONT else 3)
        while time.monotonic() < until and home.worker() is not None:
            time.sleep(0.1)
        if home.worker() is None:
            break
    (home / "pid").unlink(missing_ok=True)
    print(f"worker {pid} has ended.")


def signalled(home, sign, words):
    """Send the worker a signal."""
    pid = home.worker()
    if pid is None:
        print("no worker is alive.")
    else:
        os.kill(pid, sign)
        print(f"worker {pid} {words}.")


def _state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def status(home):
    """What is done, running, failed and left."""
    from jobs import all_jobs

    done, failed = home.done(), home.failed()
    jobs = all_jobs(done)
    pid = home.worker()
    how = "nobody works" if pid is None else f"worker {pid} {'is paused' if _state_of(pid) == 'T' else 'works'}"
    print(f"{how}; pinned is {home.pinned[:10] if (home / 'pinned').is_file() else 'nothing'}.")
    origin_step = {}
    for file in (home / "jobs").glob("*/progress.json"):
        with contextlib.suppress(OSError, ValueError):
            values = json.loads(file.read_text())
            origin_step[values["key"]] = values
    current = (home / "current").read_text() if (home / "current").is_file() else ""
    for key, values in origin_step.items():
        what = "running" if key == current and pid is not None else "begun"
        print(f"{what}: {values['name']}: {values['done']} of {values['total']}, {values['seconds']:,.0f} core-seconds")
    for values in failed.values():
        print(f"failed: {values['name']}: {values['error'].strip().splitlines()[-1]}")
    print(f"\n{'group':<12} {'done':>6} {'hours':>7} {'left':>6} {'hours':>7}")
    total = [0, 0.0, 0, 0.0]
    groups = dict.fromkeys([*(v["group"] for v in done.values()), *(j.group for j in jobs)])
    for group in sorted(groups):
        had = [v["seconds"] / 3600 for v in done.values() if v["group"] == group]
        left = [j for j in jobs if j.group == group and j.key not in done and j.key not in failed]
        hours = sum(max(0.0, j.estimate - origin_step.get(j.key, {}).get("seconds", 0.0)) / 3600 for j in left)
        row = [len(had), sum(had), len(left), hours]
        total = [a + b for a, b in zip(total, row, strict=True)]
        print(f"{group:<12} {row[0]:>6} {row[1]:>7.2f} {row[2]:>6} {row[3]:>7.2f}")
    print(f"{'all':<12} {total[0]:>6} {total[1]:>7.2f} {total[2]:>6} {total[3]:>7.2f}")


def collect(home, measured):
    """Merge results into the repository's; a later line of the same case and seed replaces an earlier one."""
    for file in sorted((home / "measured").rglob("*.jsonl")):
        target = measured / file.relative_to(home / "measured")
        found = {}
        for values in [*lines(target), *lines(file)]:
            found[json.dumps([sorted(values["case"].items()), values["seed"]])] = values
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("".join(json.dumps(values) + "\n" for values in found.values()), encoding="utf-8")
        print(f"{target.relative_to(measured)}: {len(found)} lines")


def show(home):
    """All jobs in order."""
    from jobs import all_jobs

    done, failed = home.done(), home.failed()
    for job in all_jobs(done):
        mark = "done" if job.key in done else "failed" if job.key in failed else ""
        print(f"{job.priority:>7g} {job.estimate:>8,.0f} s {mark:<6} {job.name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, default=os.environ.get("DISCREET_QUEUE", "~/.cache/discreet-queue"))
    parser.add_argument("--group", help="start: only jobs of this group")
    parser.add_argument("--measured", type=Path, default=REPO / "benchmarks" / "measured", help="where collect writes")
    commands = ("start", "status", "pause", "resume", "stop", "collect", "list", "retry", "work")
    parser.add_argument("command", choices=commands)
    parser.add_argument("more", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # who reads only the first lines of `status` does no harm
    home = Home(Path(arguments.home).expanduser().resolve())
    if arguments.command == "work":
        work(home, *arguments.more)
    elif arguments.command == "pause":
        signalled(home, signal.SIGSTOP, "stands still")
    elif arguments.command == "resume":
        signalled(home, signal.SIGCONT, "goes on")
    elif arguments.command == "collect":
        collect(home, arguments.measured)
    elif arguments.command == "retry":
        (home / "failed.jsonl").unlink(missing_ok=True)
    elif arguments.command == "start":
        start(home, arguments.group)
    else:
        {"status": status, "stop": stop, "list": show}[arguments.command](home)


if __name__ == "__main__":
    main()
