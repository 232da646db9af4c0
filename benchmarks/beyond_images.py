"""Accuracy against epsilon beyond images: the recipes for a table and for text, and the table with few rows.

    python benchmarks/beyond_images.py [--seeds 3] [--json FILE]
    python benchmarks/beyond_images.py --from FILE ... --update
    python benchmarks/beyond_images.py --tune

Data is made up by stated laws, so that the best possible accuracy is known. --tune tries learning rates on data of the
same laws with another seed, of which no row is ever trained or tested on otherwise. --update writes
docs/beyond-images.md and its figures.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from race import machine, pages
from torch.nn import functional as F

from discreet.models.networks import build
from discreet.report.charts import Axis, Chart, Series
from discreet.report.files import draw
from discreet.runs.build import make_optimizer, make_schedule, read_data
from discreet.runs.config import Config, load, merged
from discreet.training.evaluation import evaluate
from discreet.training.loop import fit

ROOT = Path(__file__).parent.parent
EPSILONS = (0.5, 1.0, 2.0, 3.0, 8.0)
RATES = (0.003, 0.01, 0.03)
TUNED = 1  # the seed of the data on which learning rates are tried
PLAIN_RATES = {"table": 0.03, "few-rows": 0.03, "text": 0.003}  # the best of those tried, without privacy
CASES = {
    "table": ("table", {}),
    "few-rows": ("table", {"data.settings": {"rows": 500, "seed": 0}, "budget.batch_size": 100}),
    "text": ("text", {}),
}
TITLES = {"table": "a table of 50,000 rows", "few-rows": "the same with 500 rows", "text": "10,000 sentences"}


def config_of(case: str, **changes: Any) -> Config:
    recipe, own = CASES[case]
    return merged(load(ROOT / "recipes" / f"{recipe}.toml"), {**own, **changes})


def train(config: Config, seed: int, private: bool = True) -> dict[str, Any]:
    """One training by a recipe, or the same steps on shuffled batches with neither bound nor noise."""
    data: Any = read_data(config)
    torch.manual_seed(seed)
    model = build(config.model.name, data.shape, data.classes, **config.model.settings)
    plan = config.plan(len(data.train[0]), model)
    optimizer = make_optimizer(config, model)
    schedule = make_schedule(config, optimizer, plan.steps)
    origin_step, epsilon = time.process_time(), None
    if private:
        whole = plan.sampling.epochs_in(plan.steps)
        fitted = fit(model, data.train, plan, optimizer=optimizer, schedule=schedule, evaluate_every=whole)
        epsilon = fitted.guarantee.epsilon
    else:
        plainly(model, data.train, plan, optimizer, schedule)
    labels = data.test[1]
    return {
        "accuracy": evaluate(model, data.test)["accuracy"],
        "proven": epsilon,
        "seconds": time.process_time() - origin_step,
        "best": data.best,
        "commonest": float(labels.bincount().max() / len(labels)),
    }


def plainly(model, data, plan, optimizer, schedule) -> None:
    x, y = data
    order = torch.randperm(0)
    for _ in range(plan.steps):
        if len(order) < plan.sampling.batch_size:
            order = torch.randperm(len(x))
        rows, order = order[: plan.sampling.batch_size], order[plan.sampling.batch_size :]
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()


def measure(cases, epsilons, seeds: int, tell) -> list[dict[str, Any]]:
    found = []
    for case in cases:
        for epsilon in (*epsilons, None):
            for seed in range(seeds):
                own = {"optimizer.learning_rate": PLAIN_RATES[case]} if epsilon is None else {"budget.epsilon": epsilon}
                config = config_of(case, **own)
                row = {"case": case, "epsilon": epsilon, "seed": seed} | train(config, seed, epsilon is not None)
                found.append(row)
                tell(row)
    return found


def tune(cases, rates) -> None:
    """Accuracy on other data of the same law, at the recipe's epsilon and without privacy."""
    print("| data | learning rate | private | without privacy |\n| --- | --- | --- | --- |")
    for case in cases:
        for rate in rates:
            settings = config_of(case).data.settings | {"seed": TUNED}
            config = config_of(case, **{"data.settings": settings, "optimizer.learning_rate": rate})
            both = (train(config, 0, private)["accuracy"] for private in (True, False))
            print(f"| {case} | {rate:g} | {' | '.join(f'{a:.1%}' for a in both)} |", flush=True)


def of(rows, case, epsilon) -> list[dict[str, Any]]:
    return [r for r in rows if (r["case"], r["epsilon"]) == (case, epsilon)]


def mean(rows) -> float:
    return statistics.fmean(r["accuracy"] for r in rows)


def words(rows) -> str:
    spread = f" ± {100 * statistics.stdev(r['accuracy'] for r in rows):.1f}" if len(rows) > 1 else ""
    return f"{100 * mean(rows):.1f}{spread}"


def charts(rows) -> list[Chart]:
    made = []
    for case in dict.fromkeys(r["case"] for r in rows):
        own = [r for r in rows if r["case"] == case]
        epsilons = sorted({r["epsilon"] for r in own if r["epsilon"] is not None})
        ends = epsilons[0], epsilons[-1]

        def level(name, value, ends=ends, **look):
            return Series(name, tuple((e, value) for e in ends), **look)

        lines = (
            Series("private", tuple((e, mean(of(rows, case, e))) for e in epsilons)),
            level("without privacy", mean(of(rows, case, None)), look="dashed", colour=1),
            level("best possible", own[0]["best"], colour=None),
            level("the commonest answer", own[0]["commonest"], look="dashed", colour=7),
        )
        x, y = Axis("epsilon, proven", "epsilon", log=True), Axis("accuracy on the test set", "share")
        made.append(Chart(f"beyond-images-{case}", TITLES[case][0].upper() + TITLES[case][1:], x, y, lines))
    return made


def as_markdown(found: dict[str, Any]) -> str:
    rows = found["results"]
    cases = list(dict.fromkeys(r["case"] for r in rows))
    epsilons = sorted({r["epsilon"] for r in rows if r["epsilon"] is not None})
    lines = [f"| accuracy, % | {' | '.join(TITLES[c] for c in cases)} |", f"| --- |{' --- |' * len(cases)}"]
    for epsilon in (*epsilons, None):
        name = "without privacy" if epsilon is None else f"epsilon {epsilon:g}"
        lines.append(f"| {name} | {' | '.join(words(of(rows, c, epsilon)) for c in cases)} |")
    for name, key in (("best possible", "best"), ("the commonest answer", "commonest")):
        values = (next(r[key] for r in rows if r["case"] == c) for c in cases)
        lines.append(f"| {name} | {' | '.join(f'{100 * v:.1f}' for v in values)} |")
    seconds = [statistics.fmean(r["seconds"] for r in rows if r["case"] == c and r["epsilon"]) for c in cases]
    lines.append(f"| seconds of one core, private | {' | '.join(f'{s:.2g}' for s in seconds)} |")
    seeds = len({r["seed"] for r in rows})
    first, *others = found["about"]
    commands = "".join(f" `{other['command']}`." for other in others)
    about = f"Means and standard deviations of {seeds} runs, delta 1e-5, zero-out. {machine.sentence(first)}{commands}"
    figures = "\n".join(f"![{c.title}](figures/{c.key}.svg)" for c in charts(rows))
    return "\n\n".join(["\n".join(lines), about, figures])


def options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--from", dest="sources", type=Path, nargs="+", help="print what was measured before")
    parser.add_argument("--tune", action="store_true", help="try learning rates on other data of the same laws")
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    parser.add_argument("--update", action="store_true", help="write docs/beyond-images.md and its figures")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    chosen = options(arguments)
    torch.set_num_threads(1)
    if chosen.tune:
        tune(chosen.only, chosen.rates)
        return
    if chosen.sources is None:
        about = machine.about("beyond_images", sys.argv[1:] if arguments is None else arguments)
        found: dict[str, Any] = {"about": [about], "results": []}

        def tell(row):
            found["results"].append(row)
            print(json.dumps(row), flush=True)
            if chosen.json:
                chosen.json.write_text(json.dumps(found, indent=1))

        measure(chosen.only, chosen.epsilons, chosen.seeds, tell)
    else:
        parts = [json.loads(file.read_text()) for file in chosen.sources]
        found = {key: [value for part in parts for value in part[key]] for key in ("about", "results")}
    print(as_markdown(found))
    if chosen.update:
        pages.fill("docs/beyond-images.md", "curves", as_markdown(found))
        draw(charts(found["results"]), ROOT / "docs" / "figures")


if __name__ == "__main__":
    main()
