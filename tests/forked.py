"""Processes for tests to kill and to signal: forked from a server that has imported everything once."""

import contextlib
import multiprocessing
import os
import signal
import sys

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["torch._dynamo", "torch.distributed.fsdp", "discreet.cli.app", "discreet.runs.run", "discreet.report", "rank_work",
     "shard_work", "crash_worker"]
)  # fmt: skip


class Forked:
    """A process that calls work(*arguments), with what a test needs of `subprocess.Popen`."""

    def __init__(self, work, *arguments):
        (said, saying), (complained, complaining) = CONTEXT.Pipe(duplex=False), CONTEXT.Pipe(duplex=False)
        started = (saying, complaining, dict(os.environ), work, arguments)
        self._process = CONTEXT.Process(target=_live, args=started, daemon=True)
        self._process.start()
        saying.close()
        complaining.close()
        self.stdout, self._stderr = (os.fdopen(os.dup(end.fileno())) for end in (said, complained))
        said.close()
        complained.close()

    def poll(self):
        return self._process.exitcode

    @property
    def returncode(self):
        return self._process.exitcode

    def send_signal(self, number):
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself, as subprocess.Popen takes it, too
            os.kill(self._process.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout):
        """What it still says and complains, when it has ended: too little of either to fill a pipe."""
        self._process.join(timeout)
        assert self._process.exitcode is not None, f"it has not ended after {timeout} seconds"
        return self.stdout.read(), self._stderr.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.join()
        self.stdout.close()
        self._stderr.close()


def _live(saying, complaining, environment, work, arguments):
    os.environ.clear()
    os.environ.update(environment)
    for end, number in ((saying, 1), (complaining, 2)):
        os.dup2(end.fileno(), number)
        end.close()
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    work(*arguments)
