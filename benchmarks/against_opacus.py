"""The same training in Opacus and in discreet: accuracy, time and memory, and what the accountants are worth, apart.

    python benchmarks/against_opacus.py [--seeds 5] [--epochs 3] [--batch-size 500] [--epsilon 3] [--modes hooks ghost]
                                        [--json FILE]
    python benchmarks/against_opacus.py --from FILE [--update]

The MNIST CNN of the papers, with the same first weights, Poisson sampling at the same rate, clipping norm, optimizer
and noise, which is what Opacus's own accountant asks for at this epsilon. Then discreet once more with the noise that
its own accountant asks for. Each training is a process of its own on one core; libraries take turns, seed by seed.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from race import machine, pages, tables

DELTA, CLIP, RATE = 1e-5, 1.0, 1.0
TOLERANCE = 1e-3  # of epsilon, in the search for Opacus's noise: ten times finer than its usual one
OURS, OWN = "discreet", "discreet, its own noise"
INSTALL = "Opacus is not installed here; pip install opacus (1.6 is what docs/comparison.md has)."


# --- in a process of its own -----------------------------------------------------------------------------------------


def train(library: str, seed: int, noise: float, epochs: int, batch_size: int, mode: str = "hooks") -> dict[str, float]:
    """One training from the seed's weights: accuracy on the test set, seconds, and the growth of resident memory."""
    import torch
    from race.worker import give_back, peak_of, resident

    from discreet.data import load
    from discreet.models.networks import build
    from discreet.release.batching import as_tensors
    from discreet.training.evaluation import evaluate

    torch.set_num_threads(1)
    loaded = load("mnist")
    data, test = as_tensors(loaded.train), as_tensors(loaded.test)
    torch.manual_seed(seed)
    model = build("cnn", (1, 28, 28), 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    loop = (_discreet if library == "discreet" else _opacus)(model, optimizer, data, noise, epochs, batch_size, mode)
    give_back()
    before = resident("VmRSS")
    wall, cpu = time.perf_counter(), time.process_time()
    peak = peak_of(loop, 1)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    accuracy = evaluate(model, test, rows=2000)["accuracy"]
    return {"accuracy": accuracy, "wall": wall, "cpu": cpu, "memory": peak - before}


def _discreet(model, optimizer, data, noise: float, epochs: int, batch_size: int, mode: str):
    from torch.nn import functional as F

    import discreet

    plan = discreet.methods.dp_sgd(
        examples=len(data[0]), batch_size=batch_size, epochs=epochs, noise=noise, norm=CLIP, delta=DELTA
    )
    private = discreet.attach(model, plan)

    def loop() -> None:
        for x, y in private.batches(data):
            private.backward(F.cross_entropy(model(x), y, reduction="none"))
            optimizer.step()
            optimizer.zero_grad()
        private.detach()

    return loop


def _opacus(model, optimizer, data, noise: float, epochs: int, batch_size: int, mode: str):
    from opacus import PrivacyEngine
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    criterion: Any = nn.CrossEntropyLoss()
    made = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, criterion=criterion, noise_multiplier=noise, max_grad_norm=CLIP,
        data_loader=DataLoader(TensorDataset(*data), batch_size=batch_size), grad_sample_mode=mode,
    )  # fmt: skip
    wrapped, private, loader = made[0], made[1], made[-1]
    if mode == "ghost":
        criterion = made[2]

    def loop() -> None:
        for _ in range(epochs):
            for x, y in loader:
                private.zero_grad()
                criterion(wrapped(x), y).backward()
                private.step()

    return loop


def noises(epsilon: float, epochs: int, batch_size: int, examples: int = 60_000) -> dict[str, dict[str, float]]:
    """The noise that each accountant asks for at this epsilon, and the epsilon that discreet proves with it."""
    from discreet.methods import dp_sgd
    from opacus.accountants.utils import get_noise_multiplier

    settings = {"examples": examples, "batch_size": batch_size, "epochs": epochs, "delta": DELTA, "norm": CLIP}
    rate, steps = batch_size / examples, dp_sgd(noise=1.0, **settings).steps
    asked = {
        f"Opacus, {name.upper()}": get_noise_multiplier(
            target_epsilon=epsilon, target_delta=DELTA, sample_rate=rate, steps=steps, accountant=name,
            epsilon_tolerance=TOLERANCE,
        )
        for name in ("rdp", "prv")
    }  # fmt: skip
    asked["discreet"] = dp_sgd(epsilon=epsilon, **settings).mechanism.noise.multiplier
    return {
        name: {"noise": float(noise), "epsilon": dp_sgd(noise=float(noise), **settings).guarantee().epsilon}
        for name, noise in asked.items()
    }


def _elsewhere(function: str, **arguments: Any) -> dict[str, Any]:
    """What a function of this file returns, in a process of its own, held to one core."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), "--worker", json.dumps([function, arguments])],
        env=machine.environment(1, "tuned"), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{function} {arguments} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _worker(words: str) -> None:
    import os
    import warnings

    warnings.filterwarnings("ignore")
    os.sched_setaffinity(0, machine.cores(1))
    function, arguments = json.loads(words)
    print(json.dumps({"train": train, "noises": noises}[function](**arguments)))


# --- all of them, and what is shown ----------------------------------------------------------------------------------


def run(chosen: argparse.Namespace, words: list[str]) -> dict[str, Any]:
    if find_spec("opacus") is None:
        sys.exit(INSTALL)
    if 60_000 % chosen.batch_size:
        sys.exit(f"--batch-size {chosen.batch_size} does not divide 60,000: Opacus would sample at another rate.")
    length = {"epochs": chosen.epochs, "batch_size": chosen.batch_size}
    asked = _elsewhere("noises", epsilon=chosen.epsilon, **length)
    print(json.dumps(asked, indent=1), flush=True)
    theirs, own = asked["Opacus, PRV"]["noise"], asked["discreet"]["noise"]
    racers: dict[str, dict[str, Any]] = {
        **{f"Opacus {mode}": {"library": "opacus", "noise": theirs, "mode": mode} for mode in chosen.modes},
        OURS: {"library": "discreet", "noise": theirs},
        OWN: {"library": "discreet", "noise": own},
    }
    settings = {"epsilon": chosen.epsilon, "delta": DELTA, "norm": CLIP, "rate": RATE, **length}
    about = machine.about("against_opacus", words, seeds=chosen.seeds, **settings)
    found: dict[str, Any] = {"about": about, "noises": asked, "results": {name: [] for name in racers}}
    for seed in range(chosen.seeds):
        names = list(racers)
        for name in names if seed % 2 == 0 else reversed(names):
            result = _elsewhere("train", seed=seed, **racers[name], **length)
            found["results"][name].append(result)
            print(f"seed {seed}, {name}: {json.dumps(result)}", flush=True)
            if chosen.json:
                chosen.json.write_text(json.dumps(found, indent=1))
    return found


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """The mean, and its standard error; nan for a single value."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.fmean(values), error


def difference(a: list[float], b: list[float]) -> float:
    """How far apart two means are, in standard errors of their difference."""
    (x, u), (y, v) = mean_and_error(a), mean_and_error(b)
    apart = math.hypot(u, v)
    return (x - y) / apart if apart else 0.0 if x == y else math.copysign(math.inf, x - y)


def verdict(found: dict[str, Any]) -> str:
    """Whether accuracies are equal at equal noise, in words."""
    ours = [r["accuracy"] for r in found["results"][OURS]]
    parts = []
    for name, rows in found["results"].items():
        if not name.startswith("Opacus"):
            continue
        away = difference(ours, [r["accuracy"] for r in rows])
        words = "equal within two standard errors" if abs(away) <= 2 else "further apart than two standard errors"
        parts.append(f"{name}: {words} (discreet is {away:+.1f} of them away)")
    return "Accuracy at equal noise, " + "; ".join(parts) + "."


def shown(found: dict[str, Any], form) -> str:
    about, noise = found["about"], found["noises"]
    settings = (
        f"MNIST, the papers' CNN, {about['epochs']} epochs of Poisson batches of {about['batch_size']} expected, SGD "
        f"with learning rate {about['rate']:g}, clipping norm {about['norm']:g}, delta {about['delta']:g}; "
        f"{about['seeds']} seeds."
    )
    first = next(iter(found["results"]))
    baseline = [r["accuracy"] for r in found["results"][first]]
    rows = []
    for name, results in found["results"].items():
        accuracies = [r["accuracy"] for r in results]
        mean, error = mean_and_error(accuracies)
        used = noise["discreet" if name == OWN else "Opacus, PRV"]["noise"]
        away = "" if name == first else f"{difference(accuracies, baseline):+.1f}"
        cpu, memory = (statistics.median(r[key] for r in results) for key in ("cpu", "memory"))
        rows.append([name, f"{used:.4f}", f"{mean:.2%} ± {100 * error:.2f}", away, f"{cpu:.1f}", f"{memory:.0f}"])
    head = ["", "noise", "accuracy ± standard error", f"from {first}, standard errors", "seconds of CPU", "MiB"]
    gain = [[name, f"{v['noise']:.4f}", f"{v['noise'] / noise['discreet']['noise'] - 1:+.1%}", f"{v['epsilon']:.4f}"]
            for name, v in noise.items()]  # fmt: skip
    asks = ["accountant", f"noise for epsilon {about['epsilon']:g}", "more than discreet's", "discreet proves"]
    return "\n\n".join(
        [f"{machine.sentence(about)} {settings}", form(head, rows), verdict(found), "The accountants alone:",
         form(asks, gain)]
    )  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=500, help="must divide 60,000")
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--modes", nargs="+", default=["hooks"], choices=["hooks", "ghost"], help="of Opacus")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--from", dest="source", type=Path, help="print what was measured before")
    parser.add_argument("--update", action="store_true", help="write the tables into docs/comparison.md")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.worker:
        _worker(chosen.worker)
        return
    words = sys.argv[1:] if arguments is None else arguments
    found = run(chosen, words) if chosen.source is None else json.loads(chosen.source.read_text())
    print(shown(found, tables.plain))
    if chosen.update:
        pages.fill("docs/comparison.md", "opacus", shown(found, tables.markdown))


if __name__ == "__main__":
    main()
