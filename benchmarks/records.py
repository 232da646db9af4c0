"""Accuracy at a proven epsilon: each recipe at each epsilon, by `discreet train` in a process of its own, three seeds.

    python benchmarks/records.py --json FILE [--only cifar10 ...] [--epsilons 3 1] [--seeds 3] [--cold]
    python benchmarks/records.py --json FILE --validation 0.1 --set optimizer.learning_rate=60
    python benchmarks/records.py --json FILE --only cifar10-backbone --epsilons 1 3; ... --only cifar10-backbone --plain
    python benchmarks/records.py --from FILE --update

A run is added to FILE when it has finished; one that is there with the same recipe is not run again. `--cold` gives a
run a cache of its own, so that its time is from raw data. `--validation` holds out a part of the training examples and
tests on that: settings are chosen so, never on the test part. `--update` writes the tables of docs/records.md and
README.md, and the figures docs/figures/records-*.svg.
"""

import argparse
import hashlib
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from race.pages import fill

from discreet.report.charts import Axis, Chart, Series, svg

ROOT = Path(__file__).parent.parent
RECIPES, FIGURES, PAGES = ROOT / "recipes", ROOT / "docs" / "figures", ROOT
EPSILONS = (0.5, 1.0, 2.0, 3.0, 8.0)
NAMES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10 (JPEG copy)"}
PUBLIC = {"cifar10-backbone": "CIFAR-10 (JPEG copy)"}  # recipes on a public network
GOALS = {("mnist", 3.0): 98.9, ("fashion-mnist", 3.0): 91.0, ("cifar10", 3.0): 72.0, ("cifar10", 1.0): 68.0}
GOALS |= {("cifar10-backbone", 1.0): 80.0, ("cifar10-backbone", 3.0): 82.0}
PUBLISHED = {  # (epsilon, accuracy, who), at delta 1e-5 and mostly by Rényi divergences
    "mnist": [
        (0.5, 90.0, "Abadi 2016"), (2.0, 95.0, "Abadi 2016"), (8.0, 97.0, "Abadi 2016"), (3.2, 96.1, "Nasr 2020"),
        (2.93, 98.1, "Papernot 2021"), (3.0, 98.7, "Tramèr and Boneh 2021"),
    ],
    "fashion-mnist": [(2.7, 86.1, "Papernot 2021"), (3.0, 89.7, "Tramèr and Boneh 2021")],
    "cifar10": [
        (3.0, 55.0, "Nasr 2020"), (7.53, 66.2, "Papernot 2021"), (3.0, 69.3, "Tramèr and Boneh 2021"),
        (1.0, 56.8, "De 2022"), (2.0, 65.9, "De 2022"), (4.0, 73.5, "De 2022"), (6.0, 79.5, "De 2022"),
        (8.0, 81.4, "De 2022"), (8.0, 82.5, "ScaleNorm 2022"), (1.0, 72.3, "DP-RandP 2023"),
    ],
}  # fmt: skip


def recipe_for(name, epsilon):
    """The recipe of a data set, or the one for small epsilons where there is one."""
    small = RECIPES / f"{name}-epsilon-1.toml"
    return small if epsilon <= 1 and small.is_file() else RECIPES / f"{name}.toml"


def key_of(row):
    return tuple(row[k] for k in ("recipe", "content", "epsilon", "seed", "validation", "set"))


def run(name, epsilon, seed, chosen):
    """One run: what was reached, in how many seconds, with how much memory at most."""
    recipe = recipe_for(name, epsilon)
    content = hashlib.sha256(recipe.read_bytes()).hexdigest()[:12]
    row = {"data": name, "recipe": recipe.name, "content": content, "epsilon": epsilon, "seed": seed}
    row |= {"validation": chosen.validation, "set": chosen.set}
    if any(key_of(row) == key_of(known) for known in chosen.rows):
        return None
    with tempfile.TemporaryDirectory(dir=chosen.scratch) as folder:
        settings = [f"run.seed={seed}", *chosen.set]
        settings += [f"data.validation={chosen.validation}"] if chosen.validation else []
        words = [
            sys.executable,
            "-c",
            "from discreet.cli import main; main()",
            "train",
            str(recipe),
            "--epsilon",
            str(epsilon),
            "--json",
        ]
        words += ["--out", f"{folder}/run", *(w for s in settings for w in ("--set", s))]
        environment = os.environ | ({"XDG_CACHE_HOME": f"{folder}/cache"} if chosen.cold else {})
        start, load = time.perf_counter(), os.getloadavg()[0]
        child = subprocess.Popen(words, stdout=subprocess.PIPE, env=environment, text=True)
        assert child.stdout is not None
        printed = child.stdout.read()
        _, status, used = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
        if status:
            raise SystemExit(f"{shlex.join(words)} failed")
        result = json.loads(printed.splitlines()[-1])
        trained = json.loads(Path(folder, "run", "metrics.jsonl").read_text().splitlines()[-1])["seconds"]
    figures = {"accuracy": 100 * result["accuracy"], "proven": result["guarantee"]["epsilon"], "seconds": seconds}
    figures |= {"training": trained, "cpu": used.ru_utime + used.ru_stime, "peak": used.ru_maxrss / 2**20, "load": load}
    return row | figures | {"cold": chosen.cold, "at": time.strftime("%Y-%m-%d")}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where results are kept, and continued")
    parser.add_argument("--from", dest="source", type=Path, help="show results, and run nothing")
    parser.add_argument("--only", nargs="+", choices=[*NAMES, *PUBLIC], default=list(NAMES))
    parser.add_argument("--epsilons", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--cold", action="store_true", help="a cache of its own for each run: time from raw data")
    parser.add_argument("--validation", type=float, default=0.0, help="the part of the training examples tested on")
    parser.add_argument("--set", nargs="+", default=[], help="settings in place of the recipe's, section.field=value")
    parser.add_argument("--plain", action="store_true", help="the head without privacy on the same features, alone")
    parser.add_argument("--scratch", type=Path, help="where run folders are made, and taken away again")
    parser.add_argument("--update", action="store_true", help="write the tables and figures of docs/records.md")
    chosen = parser.parse_args(arguments)
    file = chosen.source or chosen.json
    if file is None:
        parser.error("give --json or --from")
    found = json.loads(file.read_text()) if file.is_file() else {"about": {}, "runs": []}
    chosen.rows = found["runs"]
    if chosen.source is None:
        about = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
        found["about"] = {"machine": about}
        for name in chosen.only if chosen.plain else ():
            found["plain"] = found.get("plain", {}) | {name: head(recipe_for(name, 3.0))}
            file.write_text(json.dumps(found, indent=1))
        seeds = range(0) if chosen.plain else range(chosen.first_seed, chosen.first_seed + chosen.seeds)
        for seed in seeds:
            for name in chosen.only:
                for epsilon in chosen.epsilons:
                    row = run(name, epsilon, seed, chosen)
                    if row is not None:
                        known = json.loads(file.read_text())["runs"] if file.is_file() else []
                        chosen.rows = found["runs"] = [*known, row]
                        file.write_text(json.dumps(found, indent=1))
                        print(json.dumps(row), flush=True)
    measured = [r for r in found["runs"] if not r["validation"] and not r["set"] and _current(r)]
    tables = {"accuracy": accuracy(measured), "cost": cost(measured)}
    if any(r["data"] in PUBLIC for r in measured):
        tables["public"] = public(measured, found.get("plain", {}), found["about"]["machine"])
    print("\n\n".join(tables.values()))
    if chosen.update:
        for name, table in tables.items():
            fill("docs/records.md", name, table, PAGES, kind="records")
        fill("README.md", "overview", overview(measured, found["about"]["machine"]), PAGES, kind="records")
        draw(measured)


def _current(row):
    """Whether the recipe is still what was run."""
    path = RECIPES / row["recipe"]
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest()[:12] == row["content"]


def groups(rows, names=NAMES):
    """Runs by data set and epsilon, in order."""
    for name in names:
        for epsilon in EPSILONS:
            these = [r for r in rows if r["data"] == name and r["epsilon"] == epsilon]
            if these:
                yield name, epsilon, these


def accuracy(rows):
    lines = ["| data | epsilon | proven | accuracy | seeds | lowest, highest | goal |", "| --- |" + " --- |" * 6]
    for name, epsilon, these in groups(rows):
        values = [r["accuracy"] for r in these]
        goal = GOALS.get((name, epsilon))
        word = "" if goal is None else f"{goal:.1f}: {'reached' if statistics.mean(values) >= goal else 'missed'}"
        ends = f"{min(values):.2f}, {max(values):.2f}"
        figures = f"{max(r['proven'] for r in these):.4f} | {statistics.mean(values):.2f} | {len(values)} | {ends}"
        lines.append(f"| {NAMES[name]} | {epsilon:g} | {figures} | {word} |")
    return "\n".join(lines)


def overview(rows, machine):
    """Those that have a goal, for README."""
    lines = ["| data | proven epsilon | test accuracy | from raw data, on two cores |", "| --- |" + " --- |" * 3]
    for name, epsilon, these in groups(rows):
        if (name, epsilon) in GOALS:
            cold = min((r["seconds"] for r in these if r["cold"]), default=None)
            mean = statistics.mean(r["accuracy"] for r in these)
            proven = f"{max(r['proven'] for r in these):.4f}"
            lines.append(
                f"| {NAMES[name]} | {proven} | {mean:.2f} % | {'' if cold is None else f'{cold / 60:.1f} min'} |"
            )
    days = sorted({r["at"] for r in rows})
    return "\n".join(lines) + f"\n\nMeans over seeds; {days[-1]}, {machine}."


def cost(rows):
    """The quickest run of each: wall time, and what all its threads took of the processors."""
    titles = "from raw data: wall, processors | features cached: wall, processors, training"
    lines = [f"| data | epsilon | {titles} | peak memory |"]
    lines.append("| --- |" + " --- |" * 4)
    for name, epsilon, these in groups(rows):
        cold, warm = ([r for r in these if r["cold"] is c] for c in (True, False))
        first, rest = (min(part, key=lambda r: r["seconds"], default=None) for part in (cold, warm))
        raw = "" if first is None else f"{first['seconds']:.0f} s, {first['cpu']:.0f} s"
        kept = "" if rest is None else f"{rest['seconds']:.0f} s, {rest['cpu']:.0f} s, {rest['training']:.0f} s"
        peak = max(r["peak"] for r in these)
        lines.append(f"| {NAMES[name]} | {epsilon:g} | {raw} | {kept} | {peak:.1f} GiB |")
    return "\n".join(lines)


def public(rows, plain, machine):
    """Recipes on a public network, with the head that knows no privacy on the same features beside them."""
    lines = [
        "| data | epsilon | proven | accuracy | seeds | lowest, highest | no privacy | goal | from raw data | cached |"
    ]
    lines.append("| --- |" + " --- |" * 9)
    for name, epsilon, these in groups(rows, PUBLIC):
        values = [r["accuracy"] for r in these]
        mean, goal = statistics.mean(values), GOALS.get((name, epsilon))
        word = "" if goal is None else f"{goal:.1f}: {'reached' if mean >= goal else 'missed'}"
        figures = (
            f"{max(r['proven'] for r in these):.4f} | {mean:.2f} | {len(values)} | {min(values):.2f}, {max(values):.2f}"
        )
        beside = f"{plain[name]:.2f}" if name in plain else ""
        times = []
        for cold in (True, False):
            quickest = min((r for r in these if r["cold"] is cold), key=lambda r: r["seconds"], default=None)
            times.append(
                "" if quickest is None else f"{quickest['seconds']:.0f} s, {quickest['cpu']:.0f} s of processors"
            )
        lines.append(f"| {PUBLIC[name]} | {epsilon:g} | {figures} | {beside} | {word} | {' | '.join(times)} |")
    days = sorted({r["at"] for r in rows if r["data"] in PUBLIC})
    return "\n".join(lines) + f"\n\n{days[-1]}, {machine}."


def head(recipe):
    """The test accuracy of a linear head without privacy, its weight decay chosen on a tenth of the training rows."""
    from discreet.runs.build import read_data
    from discreet.runs.config import load

    config = load(recipe)
    data = read_data(config)
    rows = {}
    for part, (images, labels) in (("train", data.train), ("test", data.test)):
        found = config.pipeline().extract(images)
        rows[part] = torch.cat([each[:].flatten(1).float() for each in found.values()], 1), labels
    (x, y), (test_x, test_y) = rows["train"], rows["test"]
    mean, spread = x.mean(0), x.std(0).clamp(min=1e-6)
    x, test_x = (x - mean) / spread, (test_x - mean) / spread
    cut = len(x) // 10
    tried = {decay: right(fitted(x[cut:], y[cut:], decay), x[:cut], y[:cut]) for decay in (3e-3, 3e-2, 3e-1)}
    return right(fitted(x, y, max(tried, key=lambda decay: tried[decay])), test_x, test_y)


def fitted(x, y, decay):
    """Weights and biases of multinomial logistic regression, by L-BFGS."""
    weights = torch.zeros(x.shape[1] + 1, int(y.max()) + 1, requires_grad=True)
    search = torch.optim.LBFGS([weights], max_iter=60, line_search_fn="strong_wolfe")

    def loss():
        search.zero_grad()
        value = torch.nn.functional.cross_entropy(x @ weights[:-1] + weights[-1], y)
        value = value + decay / 2 * weights[:-1].square().sum()
        value.backward()
        return value

    search.step(loss)
    return weights.detach()


def right(weights, x, y):
    return 100 * float(((x @ weights[:-1] + weights[-1]).argmax(1) == y).float().mean())


def chart(name, rows):
    """Ours as a line through the means, published results as points."""
    ours = tuple((e, statistics.mean(r["accuracy"] for r in these) / 100) for n, e, these in groups(rows) if n == name)
    who = sorted({w for _, _, w in PUBLISHED[name]})
    others = []
    for number, w in enumerate(who, 1):
        points = tuple((e, a / 100) for e, a, of in PUBLISHED[name] if of == w)
        others.append(Series(w, points, "points", number))
    return Chart(
        f"records-{name}",
        f"{NAMES[name]}: accuracy at a proven epsilon",
        Axis("epsilon at delta 1e-5", "epsilon", low=0.5, high=8.0, log=True),
        Axis("test accuracy", "share"),
        (Series("discreet, two CPU cores", ours, "line", 0), *others),
    )


def draw(rows):
    for name in NAMES:
        if any(r["data"] == name for r in rows):
            (FIGURES / f"records-{name}.svg").write_text(svg(chart(name, rows), alone=True))


if __name__ == "__main__":
    main()
