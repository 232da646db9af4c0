"""Tables at epsilon 1: discreet in two commands, beside scikit-learn without privacy and diffprivlib.

    pip install statsmodels; python -m venv peer; peer/bin/pip install diffprivlib "scikit-learn<1.6"
    python benchmarks/tables.py --peer peer/bin/python [--seeds 10] [--only wine fair] [--json FILE]
    python benchmarks/tables.py --from FILE --update

Three tables of scikit-learn (breast cancer, wine, diabetes), one of statsmodels (fair: 6,366 answers to a magazine),
one made up (20,000 rows, 12 columns, 7 classes: the shape of covertype). A seed shuffles the rows, so that others are
held out.

- "private": `discreet schema` and `discreet train` as written: every range is marked private and paid for (but the
  diabetes target's, which is stated: 353 rows do not tell it from the noise);
- "declared": the same with the ranges stated, as if they were known;
- scikit-learn and diffprivlib get the declared ranges too: columns from -1 to 1, on the same rows. diffprivlib's
  guarantees have delta 0, discreet's 1e-5.
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
import pandas as pd
import torch
from race import machine, pages

from discreet.cli.options import configured
from discreet.data.describe import describe
from discreet.runs.build import read_data
from discreet.runs.run import train

TABLES = ("wine", "diabetes", "breast cancer", "fair", "made up")
NUMBERS = {"diabetes"}
WAYS = ("commonest", "plain", "private", "declared", "diffprivlib", "diffprivlib NB")
TITLES = {
    "commonest": "commonest class, or mean",
    "plain": "scikit-learn, no privacy",
    "private": "discreet, ranges private",
    "declared": "discreet, ranges declared",
    "diffprivlib": "diffprivlib, linear",
    "diffprivlib NB": "diffprivlib, naive Bayes",
}


def table(name: str) -> pd.DataFrame:
    """A table with its label in the column `y`."""
    from sklearn import datasets

    if name == "fair":
        from statsmodels.datasets import fair

        frame = fair.load_pandas().data
        label = frame.pop("affairs") > 0
        return frame.assign(y=label.map({True: "some", False: "none"}))
    if name == "made up":
        x, y = datasets.make_classification(
            20_000,
            12,
            n_informative=8,
            n_redundant=2,
            n_classes=7,
            n_clusters_per_class=1,
            class_sep=1.5,
            random_state=0,
        )
        frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(x.shape[1])])
        return frame.assign(y=[f"kind {k}" for k in y])
    loaded: Any = {
        "wine": datasets.load_wine,
        "diabetes": datasets.load_diabetes,
        "breast cancer": datasets.load_breast_cancer,
    }[name](as_frame=True, **({"scaled": False} if name == "diabetes" else {}))
    frame = loaded.data.rename(columns=lambda c: c.replace(" ", "_").replace("/", "_"))
    y = loaded.target if name in NUMBERS else loaded.target.map(lambda k: str(loaded.target_names[k]))
    return frame.assign(y=y)


def undeclared(path: Path, frame: pd.DataFrame, numbers: bool) -> str:
    """The schema that the command writes, but for a number's range, which few rows cannot tell: that is stated."""
    text = describe(path, "y", regression=numbers)
    return f"{text.partition('[y]')[0]}[y]\nlow = {frame.y.min()}\nhigh = {frame.y.max()}" if numbers else text


def declared(frame: pd.DataFrame, numbers: bool) -> str:
    """A schema that states the ranges, as if somebody knew them."""
    lines = []
    for column in frame.columns.drop("y"):
        low, high = float(frame[column].min()), float(frame[column].max())
        lines += [f'["{column}"]', f"low = {low}", f"high = {high}"]
    if numbers:
        return "\n".join([*lines, "[y]", f"low = {frame.y.min()}", f"high = {frame.y.max()}"])
    return "\n".join([*lines, "[y]", f"classes = {json.dumps(sorted(frame.y.unique()))}"])


def measure(name: str, seed: int, epsilon: float, python: Path) -> dict[str, float]:
    """What each way reaches on one shuffling: accuracy, or of numbers the root mean square error."""
    numbers = name in NUMBERS
    frame = table(name).sample(frac=1, random_state=seed)
    scale = (frame.y.max() - frame.y.min()) / 2 if numbers else 1.0  # targets are from -1 to 1
    found = {}
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "people.csv"
        frame.to_csv(path, index=False)
        beside = Path(place) / "people.schema.toml"
        for way, text in (
            ("private", undeclared(path, frame, numbers)),
            ("declared", declared(frame, numbers)),
        ):
            beside.write_text(text)
            config = configured(path, {"data.label": "y", "budget.epsilon": epsilon, "run.seed": seed}, None)
            outcome = train(config, Path(place) / way)
            assert outcome.guarantee.epsilon <= epsilon
            merit = outcome.merit or {}
            found[way] = float(merit["rmse"] if numbers else outcome.accuracy or 0)
            found["commonest"] = float(merit["mean_rmse"] if numbers else merit["majority"])
        data = read_data(configured(path, {"data.label": "y"}, None))
    (x, y), (test_x, test_y) = ((a.numpy(), b.numpy()) for a, b in (data.train, data.test))
    y, test_y = y.squeeze(), test_y.squeeze()

    from sklearn.linear_model import LinearRegression, LogisticRegression

    plain = LinearRegression() if numbers else LogisticRegression(max_iter=2000)
    for way, answers in ({"plain": plain.fit(x, y).predict(test_x)} | peer(python, x, y, test_x, epsilon)).items():
        if numbers:
            found[way] = float(scale * math.sqrt(np.square(np.clip(answers, -1, 1) - test_y).mean()))
        else:
            found[way] = float((np.asarray(answers) == test_y).mean())
    return found


def peer(python: Path, x: np.ndarray, y: np.ndarray, test_x: np.ndarray, epsilon: float) -> dict[str, list[float]]:
    """What diffprivlib's models say, with the bounds that follow from the declared ranges."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "rows.npz"
        np.savez(file, x=x, y=y, test_x=test_x)
        command = [str(python), str(Path(__file__).parent / "tables_peer.py"), str(file), str(epsilon)]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def as_markdown(found: dict[str, Any]) -> str:
    """The table of the docs."""
    rows = found["results"]
    names = [name for name in TABLES if any(r["table"] == name for r in rows)]
    ways = [way for way in WAYS if any(way in r for r in rows)]
    lines = [f"| | {' | '.join(TITLES[way] for way in ways)} |", f"| --- |{' ---: |' * len(ways)}"]
    for name in names:
        own = [r for r in rows if r["table"] == name]
        cells = []
        for way in ways:
            values = [r[way] for r in own if way in r]
            factor, unit = (1, "") if name in NUMBERS else (100, " %")
            spread = statistics.stdev(values) * factor if len(values) > 1 else 0.0
            cells.append(f"{statistics.fmean(values) * factor:.1f}{unit} ± {spread:.1f}" if values else "")
        lines.append(f"| {name}, {own[0]['rows']:,} rows | {' | '.join(cells)} |")
    seeds = len({r["seed"] for r in rows})
    about = (
        f"Means and standard deviations of {seeds} shufflings, a fifth of the rows held out, epsilon "
        f"{rows[0]['epsilon']:g}. Accuracy; of diabetes the root mean square error, less is better. "
        f"{machine.sentence(found['about'][0])}"
    )
    return "\n".join([*lines, "", about])


def main(arguments: list[str] | None = None) -> None:
    """Measure, or print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--only", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--peer", type=Path, default=Path(sys.executable), help="a Python that has diffprivlib")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--from", dest="source", type=Path, help="print what was measured before")
    parser.add_argument("--update", action="store_true", help="write it to docs/tables.md")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if chosen.source is None:
        about = machine.about("tables", sys.argv[1:] if arguments is None else arguments)
        found: dict[str, Any] = {"about": [about], "results": []}
        for name in chosen.only:
            for seed in range(chosen.seeds):
                row = {"table": name, "seed": seed, "epsilon": chosen.epsilon, "rows": len(table(name))}
                found["results"].append(row | measure(name, seed, chosen.epsilon, chosen.peer))
                print(json.dumps(found["results"][-1]), flush=True)
                if chosen.json:
                    chosen.json.write_text(json.dumps(found, indent=1))
    else:
        found = json.loads(chosen.source.read_text())
    print(as_markdown(found))
    if chosen.update:
        pages.fill("docs/tables.md", "tables", as_markdown(found))


if __name__ == "__main__":
    main()
