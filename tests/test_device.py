"""The tests of tests/device and the engine's, on a device made in Python, in a process of their own: torch cannot
forget a device."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


ENGINE = "gradients/test_engine.py"
# fused recurrent layers have kernels of a device's own, and bags fields that only the CPU leaves empty
ASKED = "device or (norms_and_sums and not LSTM and not GRU and not RNN and not bag)"


def test_what_runs_on_a_device():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "device"), str(HERE / ENGINE)]
    command += ["-k", ASKED]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")} | {"DISCREET_DEVICE": "1"}
    ended = subprocess.run(command, env=environment, cwd=HERE.parent, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
