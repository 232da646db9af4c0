"""Make the runs, plans, ledgers and checkpoints in kept/, and known.json, by the version that is there.

`PYTHONPATH=src:tests python tests/old_runs/make.py`. They are to stay as that version made them: later versions must
read them. So this is run again only to add what is new, and not to have old ones rewritten.
"""

import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from old_runs.old_plans import PLANS, SLOW
from old_runs.old_runs import HERE, KEPT, KEY, PLACE, cli, go_on, put, stateful, verified

import discreet
from discreet import ConfigError, Ledger, Plan, PrivacyError
from discreet.features import PrivatePCA
from discreet.ledger import chained
from discreet.runs.config import from_dict
from discreet.runs.outcome import read_end
from discreet.runs.progress import Watch
from discreet.runs.run import resume, train

SMALL = {
    "data": {"name": "digits"},
    "model": {"name": "mlp", "settings": {"hidden": [3]}},
    "budget": {"noise": 2.0, "steps": 5, "batch_size": 48},
    "run": {"checkpoint_every": 0.0},
    "evaluation": {"every": 0.05},
}
FLAGS = (
    "--data", "digits", "--model", "mlp", "--set", "model.settings.hidden=[3]", "--batch-size", "48", "--steps", "5",
)  # fmt: skip
USERS = (
    "--data", "digits", "--users", "40", "--users-per-round", "10", "--rounds", "4", "--model", "mlp", "--set",
    "model.settings.hidden=[3]", "--noise", "1.0", "--delta", "1e-3",
)  # fmt: skip
PATCHES = {
    "extractors": {"fine": {"kind": "patches", "atoms": 3, "size": 3, "images": 20, "grid": 1}},
    "cache": False,
    "workers": 1,
}


class Killed(BaseException):
    """A process that ends in the middle of a step."""


def settings(**sections):
    values = {name: dict(section) for name, section in SMALL.items()}
    for name, section in sections.items():
        values[name] = values.get(name, {}) | section
    return from_dict(values)


def stopped(folder, after=2, **sections):
    """A run that was stopped after so many steps."""
    steps = []
    train(settings(**sections), folder, Watch(step=steps.append, stop=lambda: len(steps) >= after))


def killed(folder, at=3, **sections):
    """A run whose process ended in the middle of a step."""

    def die(step):
        if step == at:
            raise Killed

    try:
        train(settings(**sections), folder, Watch(step=die))
    except Killed:
        return
    raise AssertionError("it was to be killed")


def make_runs(place):
    """Run folders: finished ones by the command line, and others that were stopped or killed."""
    cli("train", *FLAGS, "--epsilon", "3", "--out", place / "finished")
    cli("train", *FLAGS, "--noise", "2", "--method", "adaptive_clipping", "--out", place / "adaptive")
    cli("train", *FLAGS, "--noise", "2", "--method", "tanh_filter", "--optimizer", "adam", "--learning-rate", "0.01",
        "--averaging", "0.9", "--schedule", "cosine", "--out", place / "tanh-filter")  # fmt: skip
    cli("train", *FLAGS, "--noise", "2", "--audit", "20", "--out", place / "audited")
    cli("federate", *USERS, "--out", place / "federated")
    rows = {"model": {"name": "linear", "settings": {}}, "features": PATCHES}
    rows |= {"budget": {"noise": None, "epsilon": 3.0}, "method": {"settings": {"norm": 0.3}}}
    train(settings(**rows), place / "features")

    adam = {"name": "adam", "learning_rate": 0.01}
    stopped(place / "stopped", optimizer=adam, schedule={"name": "cosine"}, averaging={"decay": 0.9})
    killed(place / "killed")
    killed(place / "killed-without-checkpoint", run={"checkpoint_every": 1e9})
    stopped(place / "stopped-adaptive", method={"name": "adaptive_clipping"})
    stopped(place / "stopped-audited", audit={"canaries": 20, "score": "sum"})
    stopped(place / "stopped-features", **rows)
    stopped(place / "stopped-reserved", run={"reserve": 3})
    users = {"users": 40, "batch_size": 10}
    stopped(place / "stopped-federated", federated=users, budget={"batch_size": 10}, optimizer={"momentum": 0.5})
    sampling, clip, gaussian = {"type": "Poisson"}, {"type": "Clip", "norm": 1.0}, {"type": "Gaussian"}
    stages = {"sampling": sampling, "bound": clip, "noise": gaussian}
    stopped(place / "stopped-scheduled", stages=stages | {"noise_schedule": [1.5, 0.8]})
    stopped(place / "stopped-shuffled", stages=stages | {"sampling": {"type": "Shuffled"}}, budget={"batch_size": 479})
    denoise = {"denoise": {"type": "Kalman", "gain": 0.4}, "noise": {"type": "StudentT", "df": 5.0}}
    stopped(place / "stopped-denoised", stages=stages | denoise)

    shared = {"ledger": str(place / "all.jsonl"), "dataset": "digits", "dataset_epsilon": 30.0, "dataset_delta": 1e-5}
    train(settings(run=shared), place / "one-of-two")
    stopped(place / "two-of-two", run=shared)
    make_earlier(place)


def make_earlier(place):
    """A run and a data set's ledger of the format before: no names of those who write, no tests and no end."""
    shared = {"ledger": str(place / "earlier.jsonl"), "dataset": "digits", "dataset_epsilon": 30.0}
    stopped(place / "earlier", run=shared | {"dataset_delta": 1e-5})
    head, made = "", []
    for text in (place / "earlier.jsonl").read_text().splitlines():
        content = {k: v for k, v in json.loads(text).items() if k not in ("attempt", "conditions")}
        if content["kind"] == "end":
            continue
        content |= {"format": "discreet-ledger/1"} if "format" in content else {}
        line, head = chained(content, head, None)
        made.append(line)
    (place / "earlier.jsonl").write_bytes(b"".join(made))
    for name in ("run.json", "checkpoint", ".begun"):
        (place / "earlier" / name).unlink()


def make_checkpoint(place):
    """A checkpoint and its ledger, of a loop of one's own; one of its private state alone; and a signed ledger."""
    for name, key in (("checkpoint", None), ("signed", KEY)):
        parts = stateful()
        private = discreet.attach(parts[0], parts[1], ledger=Ledger(place / f"{name}.jsonl", key=key))
        go_on(parts, private, 2)
        if key is None:
            extra = {"words": ["kept"], "tensor": torch.arange(3)}
            model, _, optimizer, schedule = parts
            discreet.save_checkpoint(
                place / "checkpoint.safetensors",
                model=model, private=private, optimizer=optimizer, schedule=schedule, extra=extra,
            )  # fmt: skip
        private.detach()


def make_queries(place):
    """A data set's ledger with a query and a run, both at the level of users."""
    ledger = Ledger(place / "queries.jsonl", dataset="people", epsilon=20.0, delta=1e-5, unit="user", rows=3)
    PrivatePCA(components=2, noise=30.0).fit(torch.from_numpy(np.random.default_rng(0).normal(size=(60, 5))), ledger)
    plan = discreet.methods.dp_fedavg(users=20, users_per_round=5, rounds=3, noise=1.0, delta=1e-5)
    from discreet.federated import Rounds

    rounds = Rounds(torch.nn.Linear(2, 2), plan, ledger)
    rounds.draw()
    rounds.release()
    rounds.detach()


def make_plans(place):
    place.mkdir()
    for name, plan in PLANS.items():
        plan.save(place / f"{name}.toml")


def keep(place):
    """Take it to kept/ without the pages, which are made again, and without the paths of this machine."""
    for path in place.rglob("report-files"):
        shutil.rmtree(path)
    for path in [p for p in place.rglob("*") if p.name == "report.html" or p.suffix == ".lock" or p.name == ".lock"]:
        path.unlink()
    for path in place.rglob("*.toml"):
        path.write_text(path.read_text().replace(str(place), PLACE))
    shutil.rmtree(KEPT, ignore_errors=True)
    shutil.copytree(place, KEPT)
    found = [p for p in KEPT.rglob("*") if p.is_file() and str(place).encode() in p.read_bytes()]
    assert not found, f"the machine's paths are in {found}"


def known_of(place):
    """What is known of them, and how they end when they are continued."""
    runs = {}
    for folder in sorted(p.parent for p in place.glob("*/config.toml")):
        before, end = verified(folder), read_end(folder)
        outcome = resume(folder)
        runs[folder.name] = {
            "verified": before,
            "finished": end is not None,
            "accuracy": None if end is None else end.accuracy,
            "end": {"epsilon": outcome.guarantee.epsilon, "released": outcome.guarantee.released, "lost": outcome.lost},
        }
    return runs


def epsilon_of(plan):
    try:
        return plan.guarantee().epsilon
    except (ConfigError, PrivacyError) as error:
        return type(error).__name__


def main():
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(os.path.realpath(scratch)) / "kept"
        place.mkdir()
        make_runs(place)
        make_checkpoint(place)
        make_queries(place)
        make_plans(place / "plans")
        keep(place)
    with tempfile.TemporaryDirectory() as scratch:
        place = put(Path(scratch) / "kept")
        key = Path(scratch) / "key"
        key.write_bytes(KEY)
        ledgers = {
            name: verified(place / name) for name in ("all.jsonl", "earlier.jsonl", "checkpoint.jsonl", "queries.jsonl")
        }
        ledgers["signed.jsonl"] = verified(place / "signed.jsonl", "--key", key)
        known = {"ledgers": ledgers, "runs": known_of(place)}
    known["plans"] = {
        path.stem: None if path.stem in SLOW else epsilon_of(Plan.load(path))
        for path in sorted((KEPT / "plans").iterdir())
    }
    (HERE / "known.json").write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
