"""The example app on Flower itself: in its simulation, and as real SuperLink and SuperNode processes over loopback."""

import os
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from discreet import verify
from discreet.federated import Rounds

if find_spec("flwr") is None and not os.environ.get("CI"):
    pytest.skip(reason="flwr is not installed: pip install 'discreet[federated]'", allow_module_level=True)

APP = Path(__file__).parent.parent.parent / "examples" / "flower_app"
SEED = 3
# a seeded run's cohort and noise are known, so that what comes out can be compared with one process's
SAID = [r"", r"accuracy on held-out rows: \d+\.\d%", r"Using SuperLink: loopback .*", r"Successfully started run \d+"]
SAID += [r".*Starting logstream for run_id `\d+`", r".*Start `flwr-serverapp` process", r".*Successfully installed .*"]
SAID += [r".*INFO.*:\s*"]


@pytest.fixture
def task(monkeypatch):
    """What the example's server and users agree on."""
    monkeypatch.syspath_prepend(str(APP))
    for name in [name for name in sys.modules if name.split(".")[0] == "flower_app"]:
        monkeypatch.delitem(sys.modules, name)
    return runpy.run_path(str(APP / "flower_app" / "task.py"))


def check(out, task, users, cohort, rounds):
    """The run's ledger counts every round, and its model is the one that one process makes."""
    settings = task["Settings"](users=users, cohort=cohort, rounds=rounds)
    (run,) = verify(out / "ledger.jsonl").runs
    assert run.released == rounds
    assert "for each user" in (out / "guarantee.txt").read_text()
    model = task["make_model"]()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rounds = Rounds(model, settings.plan, seed=SEED)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    while rounds.remaining:
        number, taking_part = rounds.released, rounds.draw()
        for user in taking_part:
            moved = task["LOCAL"].update(model, task["rows_of"](user, users), in_round=number, user=user)
            rounds.add([user], {name: t[None] for name, t in moved.items()})
        rounds.release()
        optimizer.step()
    found = load_file(out / "model.safetensors")
    for name, value in model.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-5)
        assert not torch.allclose(found[name], before[name], atol=1e-3)


def test_in_simulation(tmp_path, task):
    arguments = ["--users", "3", "--cohort", "2", "--rounds", "2", "--seed", str(SEED), "--out", str(tmp_path)]
    command = [sys.executable, str(APP / "simulate.py"), *arguments]
    said = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert said.returncode == 0, said.stderr
    check(tmp_path, task, users=3, cohort=2, rounds=2)
    assert re.fullmatch(SAID[1], said.stdout.strip())


def test_with_real_processes_over_loopback(tmp_path, task, monkeypatch, capsys):
    arguments = ["--users", "2", "--cohort", "2", "--rounds", "1", "--seed", str(SEED), "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["loopback.py", *arguments])
    runpy.run_path(str(APP / "loopback.py"), run_name="__main__")  # ends all it started, or raises
    check(tmp_path, task, users=2, cohort=2, rounds=1)
    for line in capsys.readouterr().out.splitlines():
        assert any(re.fullmatch(known, re.sub(r"\x1b\[\d+m", "", line)) for known in SAID), line
