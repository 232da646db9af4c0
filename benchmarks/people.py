"""Tables of people at epsilon 1: discreet's recipes, beside scikit-learn without privacy and diffprivlib.

    pip install "discreet[datasets,sklearn]"; pip install --no-deps fairness   (docs/people.md says of which pip)
    python -m venv peer; peer/bin/pip install diffprivlib "scikit-learn<1.6"
    python benchmarks/people.py --peer peer/bin/python --json FILE [--seeds 3] [--only adult] [--epsilon 1]
    python benchmarks/people.py --json FILE --validation 0.2 --set optimizer.learning_rate=4
    python benchmarks/people.py --from FILE --update

A seed says which fifth of the rows is held out to test, and that is looked at once. With `--validation` a part of the
other rows is tested on, and nothing else is run: settings were chosen so, on the first seed. What FILE has
is not measured again. Logistic regression and
diffprivlib get the columns as discreet has them; boosted trees get the table as it is.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from race import machine, pages

import discreet
from discreet.data.columns import column_names, number_in, read_columns
from discreet.data.dataset import Split, validated
from discreet.data.named import load
from discreet.data.people import PEOPLE, people_file
from discreet.runs import recipes
from discreet.runs.config import assignments, merged
from discreet.runs.config import load as load_config
from discreet.runs.run import train

WAYS = {
    "discreet": "discreet",
    "diffprivlib": "diffprivlib, logistic regression",
    "plain": "logistic regression, no privacy",
    "trees": "boosted trees, no privacy",
}


def measured(scores: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Accuracy, and the area under the curve, of how much more the second class is likely than the first."""
    from sklearn.metrics import roc_auc_score

    return {"accuracy": float(((scores > 0) == y).mean()), "auc": float(roc_auc_score(y, scores))}


def private(name: str, seed: int, chosen: argparse.Namespace) -> dict[str, float]:
    """What the recipe reaches."""
    changes = {"data.settings": {"seed": seed}, "run.seed": seed, "budget.epsilon": chosen.epsilon}
    if chosen.validation:
        changes["data.validation"] = chosen.validation
    config = merged(load_config(recipes.path(name)), changes | assignments(chosen.set))
    with tempfile.TemporaryDirectory() as place:
        outcome = train(config, Path(place) / "run")
        trained = discreet.load(Path(place) / "run")
        assert outcome.guarantee.epsilon <= chosen.epsilon
        data = load(name, seed=seed)
        if chosen.validation:
            data = validated(data, chosen.validation)
        x, y = data.test
        scores = trained.outputs(x).diff(dim=1)[:, 0].numpy()
    found = measured(scores, y.numpy())
    assert abs(found["accuracy"] - (outcome.accuracy or 0)) < 1e-3
    return found | {"proven": outcome.guarantee.epsilon}


def public(name: str, seed: int, chosen: argparse.Namespace) -> dict[str, dict[str, float]]:
    """What is reached on the same rows without privacy."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    x, y, test_x, test_y = arrays(name, seed)
    linear = LogisticRegression(max_iter=2000).fit(x, y)
    found = {"plain": measured(linear.decision_function(test_x), test_y)}
    cells, words = as_numbers(name)
    train_rows, test_rows = Split(0.2, seed).parts(name, len(cells))
    trees = HistGradientBoostingClassifier(categorical_features=words, random_state=seed)
    said = trees.fit(cells[train_rows], y).predict_proba(cells[test_rows])[:, 1] - 0.5
    return found | {"trees": measured(said, test_y)}


def peer(name: str, seed: int, chosen: argparse.Namespace) -> dict[str, dict[str, float]]:
    """What diffprivlib's logistic regression reaches: no column, however many values it becomes, is longer than 1."""
    x, y, test_x, test_y = arrays(name, seed)
    columns = len(load(name, seed=seed).inputs["schema"]) - 1  # without the label
    columns -= "ignore" in load(name, seed=seed).inputs["schema"]
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "rows.npz"
        np.savez(file, x=x, y=y, test_x=test_x)
        words = [str(Path(__file__).parent / "tables_peer.py"), str(file), str(chosen.epsilon), str(math.sqrt(columns))]
        printed = subprocess.run([str(chosen.peer), *words], check=True, capture_output=True, text=True).stdout
    return {"diffprivlib": measured(np.asarray(json.loads(printed)), test_y)}


def arrays(name: str, seed: int) -> tuple[np.ndarray, ...]:
    """Rows to train on and to test on."""
    data = load(name, seed=seed)
    return tuple(part.numpy() for pair in (data.train, data.test) for part in pair)


def as_numbers(name: str) -> tuple[np.ndarray, list[bool]]:
    """A table's columns as they are: numbers, and words by number; and which are words."""
    path, label = people_file(name), PEOPLE[name].label
    names = [column for column in column_names(path) if column not in (label, "fnlwgt", "rownames")]
    columns, words = [], []
    for cells in (read_columns(path, names)[column] for column in names):
        try:
            columns.append([number_in(cell) for cell in cells])
            words.append(False)
        except ValueError:
            columns.append(np.unique(cells, return_inverse=True)[1])
            words.append(True)
    return np.stack([np.asarray(column, float) for column in columns], 1), words


def as_markdown(found: dict[str, Any]) -> str:
    """The table of the docs."""
    rows = [r for r in found["results"] if not r["validation"] and not r["set"]]
    ways = [way for way in WAYS if any(way in r for r in rows)]
    lines = [f"| | {' | '.join(WAYS[way] for way in ways)} |", f"| --- |{' ---: |' * len(ways)}"]
    for name in (name for name in PEOPLE if any(r["table"] == name for r in rows)):
        for epsilon in sorted({r["epsilon"] for r in rows if r["table"] == name}):
            own = [r for r in rows if r["table"] == name and r["epsilon"] == epsilon]
            for merit, factor, unit in (("accuracy", 100, " %"), ("auc", 1, "")):
                cells = []
                for way in ways:
                    values = [factor * r[way][merit] for r in own if way in r]
                    digits = 2 if merit == "accuracy" else 4
                    ends = f"{min(values):.{digits}f} to {max(values):.{digits}f}" if values else ""
                    cells.append(f"{statistics.fmean(values):.{digits}f}{unit} ({ends})" if values else "")
                lines.append(f"| {name}, epsilon {epsilon:g}, {merit} | {' | '.join(cells)} |")
    seeds = len({r["seed"] for r in rows})
    about = (
        f"Means of {seeds} drawings of the held-out fifth (lowest to highest). {machine.sentence(found['about'][0])}"
    )
    return "\n".join([*lines, "", about])


def main(arguments: list[str] | None = None) -> None:
    """Measure, or print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--only", nargs="+", choices=list(PEOPLE), default=list(PEOPLE))
    parser.add_argument("--peer", type=Path, help="a Python that has diffprivlib")
    parser.add_argument("--validation", type=float, default=0.0, help="the part of the other rows that is tested on")
    parser.add_argument("--set", nargs="+", default=[], help="settings in place of the recipe's, section.field=value")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--from", dest="source", type=Path, help="print what was measured before")
    parser.add_argument("--update", action="store_true", help="write it to docs/people.md")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if chosen.source is None:
        about = machine.about("people", sys.argv[1:] if arguments is None else arguments)
        found: dict[str, Any] = {"about": [about], "results": []}
        if chosen.json and chosen.json.is_file():
            found["results"] = json.loads(chosen.json.read_text())["results"]
        for name in chosen.only:
            for seed in range(1 if chosen.validation else chosen.seeds):
                key = {"table": name, "seed": seed, "epsilon": chosen.epsilon}
                key |= {"validation": chosen.validation, "set": chosen.set}
                row = next((r for r in found["results"] if key.items() <= r.items()), None)
                if row is None:
                    found["results"].append(row := key)
                if "discreet" not in row:
                    row["discreet"] = private(name, seed, chosen)
                if not chosen.validation and "plain" not in row:
                    row |= public(name, seed, chosen)
                if not chosen.validation and chosen.peer and "diffprivlib" not in row:
                    row |= peer(name, seed, chosen)
                print(json.dumps(row), flush=True)
                if chosen.json:
                    chosen.json.write_text(json.dumps(found, indent=1))
    else:
        found = json.loads(chosen.source.read_text())
    print(as_markdown(found))
    if chosen.update:
        pages.fill("docs/people.md", "people", as_markdown(found))


if __name__ == "__main__":
    main()
