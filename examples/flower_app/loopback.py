"""The app on real Flower processes: a SuperLink and a SuperNode for each user, over this machine's loopback.

    python examples/flower_app/loopback.py [--users 2] [--cohort 2] [--rounds 1] [--noise 1.0] [--out run]

What it does by hand is what a deployment does on many machines: start `flower-superlink`, start a `flower-supernode`
for each user with its number, hand in the app with `flwr run`. Everything listens on 127.0.0.1 and free ports, without
TLS, and is ended when the run is over or anything goes wrong. On a network, TLS and authenticated SuperNodes are
needed: see README.md.
"""

import argparse
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack
from dataclasses import asdict, fields
from pathlib import Path

from flower_app.task import Settings

APP = Path(__file__).parent
SILENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # what is installed here is used
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "OMP_NUM_THREADS": "1",
}


class Process:
    """A process whose words are read as it says them; leaving the `with` ends it, and waits for all it has started.

    Flower's processes start others, with other outputs and in other sessions, but all with the same input. Nobody reads
    it, so that it can be one end of a pipe: the other end says when the last of them is gone.
    """

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._name, self.lines = command[0], []
        self._said, self._ended = threading.Condition(), False
        self._others, held = os.pipe()
        self._process = subprocess.Popen(
            [str(Path(sys.executable).parent / command[0]), *command[1:]],
            stdin=held,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        os.close(held)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as words:
            for line in words:
                with self._said:
                    self.lines.append(line.rstrip())
                    self._said.notify_all()
        with self._said:
            self._ended = True
            self._said.notify_all()

    def wait_for(self, words: str, seconds: float) -> None:
        """Return when the process has said so; an error if it ends before, or takes longer."""
        with self._said:
            self._said.wait_for(lambda: self._ended or any(words in line for line in self.lines), seconds)
            if not any(words in line for line in self.lines):
                raise RuntimeError("\n".join([f"{self._name} did not say {words!r}; it said:", *self.lines]))

    def wait(self, seconds: float) -> int:
        """Its exit code, when it has ended by itself."""
        return self._process.wait(seconds)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, how)

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        gone = self._gone(20)
        self.stop(signal.SIGKILL)
        gone = gone or self._gone(20)
        os.close(self._others)
        self._process.wait()
        self._reader.join(5)
        if not gone:
            raise RuntimeError(f"{self._name} has left processes behind.")

    def _gone(self, seconds: float) -> bool:
        """Whether all that had the input are gone within so many seconds."""
        return bool(select.select([self._others], [], [], seconds)[0])


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def run(settings: Settings, *, seconds: float = 300) -> list[str]:
    """Train; returns what the server's app said."""
    with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
        port = free_port()
        link, here = f"127.0.0.1:{port}", ["--insecure", "--host", "127.0.0.1"]
        (Path(home) / "config.toml").write_text(f'[superlink.loopback]\naddress = "{link}"\ninsecure = true\n')
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = os.environ | SILENT | {"FLWR_HOME": home, "PATH": path}

        def start(*command: str) -> Process:
            return stack.enter_context(Process(list(command), environment))

        superlink = start("flower-superlink", *here, "--port", str(port))
        superlink.wait_for("Uvicorn running on", 60)
        numbers = [f"partition-id={user} num-partitions={settings.users}" for user in range(settings.users)]
        node = ["flower-supernode", *here, "--superlink", link]
        nodes = [start(*node, "--port", str(free_port()), "--node-config", number) for number in numbers]
        stack.callback(lambda: [node.stop() for node in nodes])  # all at once, and then wait for each
        told = " ".join(
            f'{name}="{v}"' if isinstance(v, str) else f"{name}={v}" for name, v in asdict(settings).items()
        )
        flwr = start("flwr", "run", str(APP), "loopback", "--run-config", told, "--stream")
        if flwr.wait(seconds) or not (Path(settings.out) / "guarantee.txt").exists():
            raise RuntimeError("\n".join(["the run has failed:", *flwr.lines, *superlink.lines]))
        return flwr.lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Settings):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    parser.set_defaults(users=2, cohort=2, rounds=1)
    settings = Settings(**vars(parser.parse_args()))
    settings = Settings(**asdict(settings) | {"out": str(Path(settings.out).resolve())})
    print("\n".join(run(settings)))


if __name__ == "__main__":
    main()
