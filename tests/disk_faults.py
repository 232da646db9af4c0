"""A machine that fails on demand: the n-th file operation of a run is killed, torn, refused, or loses the power.

A run is carried out in a process that is forked when everything is imported. All file operations in its folder are
counted; at one of them something happens:

    before, within, after    the process dies there (within: half of the bytes are written)
    power                    it dies there, and what was not synced is lost: bytes, and names in folders
    ENOSPC, EIO, EROFS, ...  the operation fails so, and the process goes on as it may

What was released is told through a pipe at once, so that what an observer has seen is known however the process ends.
"""

import errno
import fcntl
import gc
import json
import os
import signal
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import torch

from discreet.features.statistics import Whitening
from discreet.ledger import storage
from discreet.release.private_sum import PrivateSum
from discreet.runs import tables

DEATHS = ("before", "within", "after", "power")
ERRORS = ("ENOSPC", "EIO", "EROFS")


@dataclass
class Disk:
    """Counts the file operations below a folder, and has something happen at one of them."""

    folder: Path
    at: int = -1
    what: str = ""
    only: str = ""  # count only operations of this name
    count: int = 0
    happened: bool = False
    log: list = field(default_factory=list)
    files: dict = field(default_factory=dict)  # descriptors below the folder, and their paths
    unsynced: list = field(default_factory=list)  # how to take back what is not on disk yet, the last first

    def mine(self, path):
        return isinstance(path, (str, os.PathLike)) and Path(os.path.abspath(path)).is_relative_to(self.folder)

    def operation(self, name, path, act, half=None):
        """Carry out an operation, or what happens in its place."""
        if self.only and name != self.only:
            return act()
        number, self.count = self.count, self.count + 1
        self.log.append((name, str(path)))
        if number != self.at:
            return act()
        self.happened = True
        if self.what in DEATHS:
            if self.what in ("within", "power") and half is not None:
                half()
            elif self.what == "after":
                act()
            self.die()
        if half is not None and self.what == "ENOSPC":
            half()
        raise OSError(getattr(errno, self.what), os.strerror(getattr(errno, self.what)), str(path))

    def die(self):
        if self.what == "power":
            for undo in reversed(self.unsynced):
                undo[1]()
        os.kill(os.getpid(), signal.SIGKILL)

    def lose(self, folder, undo):
        self.unsynced.append((str(folder), undo))

    def synced(self, path):
        """What was done to a file, or in a folder, is on disk."""
        self.unsynced = [u for u in self.unsynced if u[0] != str(path)]

    def install(self):
        """Put this in the place of the system's calls, in this process."""
        real = {
            name: getattr(os, name) for name in ("open", "close", "write", "fsync", "ftruncate", "truncate", "link")
        }
        real |= {name: getattr(os, name) for name in ("replace", "unlink", "mkdir", "rmdir")}
        flock, made = fcntl.flock, storage._made

        def open_(path, flags, mode=0o777, **more):
            if not self.mine(path):
                return real["open"](path, flags, mode, **more)
            new = flags & os.O_CREAT and not os.path.lexists(path)

            def act():
                descriptor = real["open"](path, flags, mode, **more)
                self.files[descriptor] = os.path.abspath(path)
                if new:
                    self.lose(Path(os.path.abspath(path)).parent, lambda: os.path.exists(path) and real["unlink"](path))
                return descriptor

            return self.operation("open", path, act) if new else act()

        def close(descriptor):
            self.files.pop(descriptor, None)
            real["close"](descriptor)

        def write(descriptor, data):
            path = self.files.get(descriptor)
            if path is None:
                return real["write"](descriptor, data)
            size = os.fstat(descriptor).st_size
            self.lose(path, lambda: os.path.exists(path) and real["truncate"](path, size))

            def half():
                real["write"](descriptor, bytes(data)[: len(data) // 2])

            return self.operation("write", path, lambda: real["write"](descriptor, data), half)

        def fsync(descriptor):
            path = self.files.get(descriptor)
            if path is None:
                return real["fsync"](descriptor)

            def act():  # what a sync does is done by `synced`: the real disk need not be waited for
                self.synced(path)

            return self.operation("fsync", path, act)

        def ftruncate(descriptor, size):
            path = self.files.get(descriptor)
            if path is None:
                return real["ftruncate"](descriptor, size)
            return self.operation("ftruncate", path, lambda: real["ftruncate"](descriptor, size))

        def replace(source, target, **more):
            if not self.mine(target):
                return real["replace"](source, target, **more)
            before = Path(target).read_bytes() if os.path.exists(target) else None
            mode = os.stat(target).st_mode if before is not None else 0

            def undo():
                if before is None:
                    os.path.exists(target) and real["unlink"](target)
                else:
                    Path(target).write_bytes(before)
                    os.chmod(target, mode)

            def act():
                real["replace"](source, target, **more)
                self.synced(target)  # what was written to the file that is gone does not matter any more
                self.unsynced = [(str(target), u[1]) if u[0] == str(source) else u for u in self.unsynced]
                self.lose(Path(os.path.abspath(target)).parent, undo)

            return self.operation("replace", target, act)

        def unlink(path, **more):
            if not self.mine(path):
                return real["unlink"](path, **more)
            return self.operation("unlink", path, lambda: real["unlink"](path, **more))

        def mkdir(path, mode=0o777, **more):
            if not self.mine(path):
                return real["mkdir"](path, mode, **more)
            return self.operation("mkdir", path, lambda: real["mkdir"](path, mode, **more))

        def lock(descriptor, how):
            path = self.files.get(descriptor)
            if path is None:
                return flock(descriptor, how)
            return self.operation("flock", path, lambda: flock(descriptor, how))

        def write_by(content, scratch):
            def half():
                made(content, scratch)
                real["truncate"](scratch, os.path.getsize(scratch) // 2)

            if not self.mine(scratch):
                return made(content, scratch)
            self.lose(scratch, lambda: os.path.exists(scratch) and real["truncate"](scratch, 0))
            return self.operation("write", scratch, lambda: made(content, scratch), half)

        os.open, os.close, os.write, os.fsync, os.ftruncate = open_, close, write, fsync, ftruncate
        os.replace, os.unlink, os.remove, os.mkdir = replace, unlink, unlink, mkdir
        fcntl.flock, storage._made = lock, write_by


@dataclass
class Life:
    """How a process ended, what it released until then, and how many file operations it made."""

    ended: str  # "done", "killed", or the error that it ended with
    released: list  # (run, step) of each release, and ("query", name)
    operations: int = 0
    log: str = ""


def live(work, disk):
    """Carry out `work()` in a process of its own, on this disk; how it went."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _child(work, disk, writing)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = [line.split(" ", 1) for line in pipe.read().split("\n") if line]
    _, status = os.waitpid(child, 0)
    told = dict(said)
    released = [tuple(rest.split()) for kind, rest in said if kind == "released"]
    ended = "killed" if os.WIFSIGNALED(status) else told.get("ended", "silence")
    return Life(ended, released, int(told.get("operations", 0)), told.get("log", ""))


def _child(work, disk, pipe):
    try:
        gc.disable()
        torch.set_num_threads(1)
        tell = _telling(pipe)
        _observe(tell)
        disk.install()
        try:
            work()
            ended = "done"
        except Exception as error:
            ended = f"{type(error).__name__}: {' '.join(str(error).split())}"
            if type(error).__name__ not in ("ConfigError", "PrivacyError", "BudgetExhausted", "OSError"):
                ended = " ".join(traceback.format_exc().split())
        tell(f"operations {disk.count}")
        tell(f"log {' '.join(name for name, _ in disk.log)}")
        tell(f"ended {ended}")
    finally:
        os._exit(0)


def _telling(pipe):
    write = os.write

    def tell(text):
        write(pipe, f"{text}\n".encode())

    return tell


def _observe(tell):
    """Tell of every release once it exists."""
    release, fit, look = PrivateSum.release, Whitening.fit, tables.private_schema

    def released(self, *arguments, **settings):
        found = release(self, *arguments, **settings)
        if self.on_disk:
            tell(f"released {self.run} {self.released}")
        return found

    def asked(self, *arguments, **settings):
        found = fit(self, *arguments, **settings)
        tell(f"released query {float(found.mean.sum())!r}")
        return found

    def looked(*arguments, **settings):
        found = look(*arguments, **settings)
        tell(f"released query {json.dumps(found, sort_keys=True, separators=(',', ':')).replace(' ', '')}")
        return found

    PrivateSum.release, Whitening.fit, tables.private_schema = released, asked, looked
    sys.stdout.flush()
