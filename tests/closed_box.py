"""The command line in a box: calls in one forked child with limits on memory and time, and what each said.

The child's address space may grow by a gibibyte, and a call may compute for ten seconds: the machine's load has no say
in either. A call that waits for what never comes is ended with the child, and has not been answered.
"""

import io
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from contextlib import suppress
from dataclasses import dataclass

import torch

import discreet.audit.audit_run
import discreet.report
import discreet.runs.run  # noqa: F401
from discreet.cli import main

MEMORY = 1 << 30  # bytes, beyond what the process has already
SECONDS = 10.0  # of processor time for one call
WAITING = 300  # seconds after which a child that computes nothing is taken to wait for ever


@dataclass(frozen=True)
class Said:
    """How a call ended: its exit code, what it said, and the seconds that it computed."""

    code: int
    out: str
    err: str
    seconds: float = 0.0

    @property
    def lines(self):
        """The lines that it complains in."""
        return [line for line in self.err.splitlines() if line]


def say(arguments, folder, **settings):
    """One call: `discreet ARGUMENTS` in a folder."""
    return say_all({"it": (arguments, folder)}, **settings)["it"]


def say_all(calls, *, encoding="utf-8", out=None, err=None, environment=None, memory=MEMORY):
    """What each call said, by name, for calls (arguments, folder) by name; None for those that had no end.

    `out` and `err` are descriptors that take the places of what is written down.
    """
    with tempfile.TemporaryFile() as answers:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # other threads wait for work that a child never gives
            child = os.fork()
        if child == 0:
            _live(calls, answers, encoding, (out, err), environment or {}, memory)
        os.waitpid(child, 0)
        answers.seek(0)
        found = dict(json.loads(line) for line in answers.read().splitlines())
    return {name: Said(*found[name]) if name in found else None for name in calls}


def _live(calls, answers, encoding, ends, environment, memory):
    """The child: it never returns."""
    try:
        os.environ.update(environment)
        torch.set_num_threads(1)
        if memory is not None:
            with open("/proc/self/statm") as file:
                now = int(file.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (now + memory, now + memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for name, (arguments, folder) in calls.items():
            signal.alarm(WAITING)
            used = int(time.process_time())
            resource.setrlimit(resource.RLIMIT_CPU, (used + 3 * int(SECONDS), resource.RLIM_INFINITY))
            answer = _call(arguments, folder, encoding, ends)
            answers.write(json.dumps([name, answer]).encode() + b"\n")
            answers.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _call(arguments, folder, encoding, ends):
    os.chdir(folder)
    files = [tempfile.TemporaryFile() for _ in ends]  # noqa: SIM115 (the child ends soon, and closes them)
    for place, (end, file) in enumerate(zip(ends, files, strict=True), 1):
        os.dup2(file.fileno() if end is None else end, place)
    for name, place in (("stdout", 1), ("stderr", 2)):
        raw = os.fdopen(os.dup(place), "wb")
        setattr(sys, name, io.TextIOWrapper(raw, encoding=encoding, errors="strict", line_buffering=name == "stderr"))
    sys.argv = ["discreet", *arguments]
    began = time.process_time()
    try:
        main()
        code = 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:
        code = 98
        with suppress(OSError):
            traceback.print_exc()
    seconds = time.process_time() - began
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.close()
        except (OSError, ValueError):
            code = 97
    said = []
    for file in files:
        file.seek(0)
        said.append(file.read().decode(encoding, "replace"))
    return code, *said, seconds


def wrong(calls, codes=(2,), **settings):
    """Of calls by name, those that did not end in one line and one of these codes in time; {} is what tests want."""
    found = {}
    for name, said in say_all(calls, **settings).items():
        if said is None:
            found[name] = "it had no end"
        elif said.code not in codes or said.seconds > SECONDS or (said.code and not _one_line(said)):
            found[name] = said
    return found


def _one_line(said):
    """Whether a refusal is one line that can be read, and has nothing that steers a terminal."""
    lines = said.lines
    return len(lines) == 1 and len(lines[0]) <= 300 and lines[0].isprintable() and said.out == ""
