"""What is asked of the kept runs, and what else goes with them: where they are, and how they are looked at."""

import json
import shutil
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from typer.testing import CliRunner

import discreet
from discreet.cli.app import app

HERE = Path(__file__).parent
KEPT = HERE / "kept"
PLACE = "@PLACE@"  # where the folder of runs was, in the configs that say so
KEY = b"an old key, of no other use"


def put(place):
    """A copy of everything that is kept, whose paths are those of the copy."""
    shutil.copytree(KEPT, place)
    for path in place.rglob("*.toml"):
        path.write_text(path.read_text().replace(PLACE, str(place)))
    return place


def cli(*arguments):
    """What a command prints; it must end well."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def verified(place, *options):
    """What `discreet verify` finds, without what differs from copy to copy."""
    found = json.loads(cli("verify", place, "--json", *options))
    runs = [
        {name: run[name] for name in ("run", "released", "planned", "ended", "recovered")}
        | {name: run["guarantee"][name] for name in ("epsilon", "delta", "unit", "adjacency")}
        | {"broken": [c["text"] for c in run["guarantee"]["conditions"] if c["status"] == "broken"]}
        for run in found["runs"]
    ]
    total = None if found["total"] is None else found["total"]["epsilon"]
    names = ("lines", "head", "torn", "signed", "old", "dataset", "queries", "absent", "own")
    return {name: found[name] for name in names} | {"runs": runs, "total": total}


def stateful():
    """What a checkpoint was made of: a model, its plan, an optimizer with a state, and a schedule."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    bound, denoise = discreet.AdaptiveClip(1.0), discreet.Kalman(gain=0.4)
    plan = discreet.Plan(
        sampling=discreet.Shuffled(60, 20),
        mechanism=discreet.Mechanism(bound, discreet.Gaussian(1.5), denoise=denoise),
        steps=6,
        delta=1e-5,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
    return model, plan, optimizer, schedule


def examples():
    """Data for it."""
    draw = torch.Generator().manual_seed(0)
    return torch.randn(60, 5, generator=draw), torch.randint(3, (60,), generator=draw)


def go_on(parts, private, steps):
    """So many steps; the released gradients' norms."""
    model, _, optimizer, schedule = parts
    norms = []
    for x, y in private.batches(examples(), steps=steps):
        private.backward(F.cross_entropy(model(x), y, reduction="none"))
        norms.append(sum(float(p.grad.square().sum()) for p in model.parameters()) ** 0.5)
        optimizer.step()
        schedule.step()
    return norms
