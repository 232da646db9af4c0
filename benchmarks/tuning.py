"""Settings searched at a total epsilon, beside usual settings at that epsilon and beside a search that charges nothing.

    python benchmarks/tuning.py [--seeds 5] [--only digits] [--json FILE]
    python benchmarks/tuning.py --from FILE --update

- "usual": one run at epsilon with the settings that discreet has where nobody says any;
- "tuned": discreet.tuning, the best of a number of trials drawn with mean --runs, by a noisy score, epsilon in all;
- "for free": as many trials, drawn anew, each at epsilon by itself, the best by its accuracy on the test rows. Epsilon
  is what people claim of that; "proven" is what all of its trials come to.

Digits are scikit-learn's, an MLP. The table is made up: 5,000 rows, 12 columns, 7 classes, a linear model.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from msgspec import structs
from race import machine, pages

from discreet.accounting import cost
from discreet.cli.options import configured
from discreet.runs.config import Config, merged
from discreet.runs.run import train
from discreet.runs.schema import TuneSection
from discreet.tuning.draws import draw
from discreet.tuning.tune import tune

WAYS = ("usual", "tuned", "for free")
SPACES: dict[str, dict[str, Any]] = {
    "digits": {
        "optimizer.learning_rate": {"low": 0.1, "high": 8.0, "log": True},
        "method.settings.norm": [0.3, 1.0, 3.0],
        "budget.epochs": [10.0, 20.0, 40.0],
    },
    "table": {
        "optimizer.learning_rate": {"low": 0.25, "high": 8.0, "log": True},
        "method.settings.norm": [0.3, 1.0, 3.0],
        "budget.epochs": [15.0, 30.0, 60.0],
    },
}


def made_up(folder: Path) -> Path:
    """A table in a file, with the ranges that the law of its columns has."""
    import pandas as pd
    from sklearn.datasets import make_classification

    x, y = make_classification(
        5_000, 12, n_informative=8, n_redundant=2, n_classes=7, n_clusters_per_class=1, class_sep=1.5, random_state=0
    )
    frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(x.shape[1])])
    path = folder / "kinds.csv"
    frame.assign(y=[f"kind {k}" for k in y]).to_csv(path, index=False)
    lines = [f"[{column}]\nlow = -8.0\nhigh = 8.0" for column in frame.columns]
    classes = json.dumps(sorted({f"kind {k}" for k in y}))
    (folder / "kinds.schema.toml").write_text("\n".join([*lines, f"[y]\nclasses = {classes}"]))
    return path


def usual(case: str, epsilon: float, folder: Path) -> Config:
    """What `discreet train` would run; evaluated at the end."""
    flags = {"budget.epsilon": epsilon, "evaluation.every": 100.0, "run.alone": True}
    if case == "digits":
        return configured(None, {"data.name": "digits", **flags}, None)
    return configured(made_up(folder), {"data.label": "y", **flags}, None)


def measure(case: str, seed: int, epsilon: float, runs: float, place: Path) -> list[dict[str, Any]]:
    """What each way reaches once."""
    config = usual(case, epsilon, place)
    asked = TuneSection(space=SPACES[case], runs=runs)
    one = train(merged(config, {"run.seed": seed}), place / "usual")
    found = [{"way": "usual", "accuracy": one.accuracy, "proven": one.guarantee.epsilon, "trials": 1}]
    while True:
        tuned = tune(structs.replace(config, tune=asked), place / "tuned")
        if tuned.best is not None:
            break
    own = tuned.best
    found.append(
        {"way": "tuned", "accuracy": own.accuracy, "proven": own.guarantee.epsilon, "trials": len(tuned.trials)}
    )
    best, events = 0.0, []
    trials = draw(asked).trials
    for trial in trials:
        ended = train(merged(config, trial.settings), place / trial.name)
        best, events = max(best, ended.accuracy or 0.0), [*events, *ended.guarantee.events]
    all_of = cost(events, config.budget.delta).epsilon
    found.append({"way": "for free", "accuracy": best, "proven": all_of, "trials": len(trials)})
    return [{"case": case, "seed": seed, "epsilon": epsilon, "runs": runs} | row for row in found]


def as_markdown(found: dict[str, Any]) -> str:
    """The table of the docs."""
    rows = found["results"]
    lines = [
        "| | accuracy, % | ε that is said | ε that is proven | trials |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for case in dict.fromkeys(row["case"] for row in rows):
        for way in WAYS:
            own = [row for row in rows if (row["case"], row["way"]) == (case, way)]
            values, proven = [100 * row["accuracy"] for row in own], [row["proven"] for row in own]
            spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
            span = f"{min(proven):.2f}" if way != "for free" else f"{min(proven):.1f} to {max(proven):.1f}"
            trials = " ".join(str(row["trials"]) for row in own) if way != "usual" else "1"
            cells = f"{statistics.fmean(values):.1f}{spread} | {own[0]['epsilon']:g} | {span} | {trials}"
            lines.append(f"| {case}, {way} | {cells} |")
    seeds, runs = len({row["seed"] for row in rows}), rows[0]["runs"]
    about = (
        f"Means and standard deviations of {seeds} repetitions, δ = 1e-5, {runs:g} trials on average (logarithmic). "
        f"{machine.sentence(found['about'][0])}"
    )
    return "\n".join([*lines, "", about])


def main(arguments: list[str] | None = None) -> None:
    """Measure, or print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--runs", type=float, default=8.0)
    parser.add_argument("--only", nargs="+", choices=list(SPACES), default=list(SPACES))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--from", dest="source", type=Path, help="print what was measured before")
    parser.add_argument("--update", action="store_true", help="write it to docs/tuning.md")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if chosen.source is None:
        about = machine.about("tuning", sys.argv[1:] if arguments is None else arguments)
        found: dict[str, Any] = {"about": [about], "results": []}
        for seed in range(chosen.seeds):
            for case in chosen.only:
                with tempfile.TemporaryDirectory() as place:
                    found["results"] += measure(case, seed, chosen.epsilon, chosen.runs, Path(place))
                print(json.dumps(found["results"][-3:]), flush=True)
                if chosen.json:
                    chosen.json.write_text(json.dumps(found, indent=1))
    else:
        found = json.loads(chosen.source.read_text())
    print(as_markdown(found))
    if chosen.update:
        pages.fill("docs/tuning.md", "tuning", as_markdown(found))


if __name__ == "__main__":
    main()
