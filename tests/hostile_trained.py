"""Hostile inputs of what comes after training: rows to predict, tables to describe, folders whose ledger was forged."""

import hashlib
import json
import os
import shutil

import hostile_files
import numpy as np
import small_runs
from hostile_files import csvs, npzs, parquets
from hostile_runs import CONTENTS, forged
from hostile_texts import DIGITS
from safetensors.torch import load_file, save
from small_people import people_at, people_config

from discreet.runs.run import train

# what can be read, strange as it is: numbers beyond a range are cut, unknown words are nothing, and the head is enough
READ = (
    "good one", "100,000 digits", "unknown class", "only the head", "10^5 empty lines", " a cell", "columns of nothing",
    "no rows", "columns of controls", "changed page",
)  # fmt: skip
DESCRIBED = (
    "100,000 digits", "no number", "another script", "a formula", "of controls", "unknown class", "right to left",
    "columns of lists", "columns of tables", "columns of bytes", "changed page", "5,000 digits",
)  # fmt: skip
# of somebody who forges: other names for classes or data, and what is not used
FORGED = ("classes is a list of texts", "data is", "features is nothing", "target is nothing", "versions is a table",
          "settings is a table", "low is minus one", "inputs shape is a list", "whole numbers")  # fmt: skip

WRONG = {
    "nothing": None, "a text": "x", "a number": 1e300, "minus one": -1, "a list": [], "a table": {}, "truth": True,
    "a list of lists": [[1]], "controls": "\x1b[31m\u202e", "a billion": 10**9, "a list of texts": ["a", "b"],
    "a program": "os:system", "a formula": "=1+1",
}  # fmt: skip
PATHS = (
    ("kind",), ("schema",), ("label",), ("schema", "age"), ("schema", "age", "low"), ("schema", "rich"), ("shape",),
)  # fmt: skip


def make(folder):
    """Two runs that have finished: on a table of people, and on rows of numbers."""
    (folder / "people").mkdir()
    train(people_config(folder / "people"), folder / "people" / "run")
    train(small_runs.config(small_runs.table_at(folder)), folder / "numbers")
    return folder / "people" / "run", folder / "numbers"


def rows(folder, people, numbers):
    """Calls of predict by name, on files of rows that are not what they are called."""
    found = {}

    def add(name, run, file, content=None, more=()):
        put = _putter(folder / f"rows{len(found)}", file, content)
        found[f"predict {name}"] = lambda: (["predict", str(run), file, *more], put())

    for ending, contents in ((".csv", csvs), (".parquet", parquets)):
        for name, made in contents().items():
            if name != "a bomb of 4 10^6 rows":  # which are as many predictions
                add(f"{ending}, {name}", people, f"t{ending}", made)
    for name, made in npzs().items():
        add(f".npz, {name}", numbers, "t.npz", made)
    good = hostile_files.npy("(4, 5)", content=b"\0" * 80)
    plain = {
        "a good one": good, "cut off": good[:-20], "nothing": b"", "longer": good + b"x",
        "a pickle": hostile_files.npy("(4,)", "'|O'"), "a shape of 2^62": hostile_files.npy(f"({2**62},)"),
        "a shape below 0": hostile_files.npy("(-4, 5)"), "bytes": hostile_files.npy("(4, 5)", "'|u1'", b"\0" * 20),
        "not finite": hostile_files.npy("(4, 5)", content=b"\xff" * 80), "no array": b"\x93NUMPY" + b"\xff" * 100,
        "an archive": hostile_files.npz_bytes(x=np.zeros((4, 5), "f4")), "of another width": hostile_files.npy(),
    }  # fmt: skip
    for name, content in plain.items():
        add(f".npy, {name}", numbers, "t.npy", content)
    for run in (people, numbers):
        for file in (
            "/dev/zero",
            "/dev/null",
            ".",
            "n" * 5000,
            "\udcff.csv",
            "\x1b[31m.csv",
            "nowhere.npz",
            "a\nb.csv",
        ):
            add(f"{run.name}, rows at {file[:12]!r}", run, file)
    pipe = folder / "pipe.csv"
    os.mkfifo(pipe)
    add("a pipe", people, str(pipe))
    table = b"age,job\n30,clerk\n"
    for out in ("/dev/full", "no/such/o.csv", "o.txt", ".", "o" * 5000 + ".csv", "\udcff/o.csv"):
        add(f"out {out[:12]!r}", people, "t.csv", table, ["--out", out])
    return found


def tables(folder):
    """Calls of schema by name, on hostile tables and with hostile labels and places."""
    found = {}

    def add(name, file, content, *more):
        put = _putter(folder / f"table{len(found)}", file, content)
        found[f"schema, {name}"] = lambda: (["schema", file, *more], put())

    for ending, contents in ((".csv", csvs), (".parquet", parquets)):
        for name, made in contents().items():
            add(f"{ending}, {name}", f"t{ending}", made, "--label", "ill")
    good = b"age,job,ill\n30,nurse,no\n40,judge,yes\n"
    for label in ("", "x" * 100_000, "\x1b[31m", "\udcff", "age\nb", "job"):
        add(f"label {label[:9]!r}", "t.csv", good, "--label", label, *(["--regression"] if label == "job" else []))
    for out in ("/dev/full", "no/such/s.toml", ".", "s" * 5000, "/proc/s.toml"):
        add(f"out {out[:9]!r}", "t.csv", good, "--label", "ill", "--out", out)
    words = {
        "classes of 5,000 digits": f"a,ill\n1,{DIGITS}\n2,3\n",
        "a column called ignore": "ignore,ill\n1,no\n2,yes\n",
        "a label of one class": "a,ill\n1,no\n2,no\n",
        "a label of no class": "a,ill\n1,\n2,na\n",
        "only a label": "ill\nno\nyes\n",
    }
    for name, text in words.items():
        add(name, "t.csv", text.encode(), "--label", "ill")
    for file in ("/dev/zero", "/dev/null", ".", "nowhere.csv", "t.exe", "\udcff.csv"):
        add(f"a table at {file!r}", file, None, "--label", "ill")
    return found


def folders(folder, people, numbers):
    """Calls by name on copies of runs of which one file is something else, and the ledger has its hash."""
    found = {}

    def add(name, source, change, command=("predict",)):
        place = folder / f"run{len(found)}"
        rest = [str(people_at(folder)) if source == people else str(folder / "clouds.npz")]
        more = {"predict": rest, "export": ["--to", "torchscript"], "resume": [], "verify": []}[command[0]]

        def made():
            shutil.copytree(source, place)
            change(place)
            return [command[0], place.name, *more], folder

        found[f"{command[0]}: {name}"] = made

    def put(file, content):
        def change(place):
            (place / file).write_bytes(content)
            sign(place, file)

        return change

    def said(part, value):
        def change(place):
            values = json.loads((place / "model.json").read_text())
            inner = values
            for name in part[:-1]:
                inner = inner.get(name) if isinstance(inner, dict) else None
            if isinstance(inner, dict):
                inner[part[-1]] = value
            (place / "model.json").write_text(json.dumps(values))
            sign(place, "model.json")

        return change

    tree = json.loads((people / "model.json").read_text())
    parts = [(name,) for name in tree]
    parts += [("network", name) for name in tree["network"]] + [("inputs", *path) for path in PATHS]
    for part in parts:
        for what, value in WRONG.items():
            add(f"its {' '.join(part)} is {what}", people, said(part, value))
    for source in (people, numbers):
        for what, content in CONTENTS.items():
            for file in ("model.json", "model.safetensors"):
                add(f"{source.name}'s {file} is {what}", source, put(file, content))
    for part, value in ((("network", "shape"), [10**9]), (("network", "settings"), {"hidden": [8] * 2000})):
        add(f"its {part[1]} asks for much", people, said(part, value), ("export",))
    weights = load_file(people / "model.safetensors")
    first = next(iter(weights))
    for what, changed in {
        "no tensor": {},
        "one tensor less": {name: each for name, each in weights.items() if name != first},
        "a tensor of another shape": weights | {first: weights[first][:1]},
        "a tensor of whole numbers": weights | {first: weights[first].long()},
        "a tensor not finite": weights | {first: weights[first] * float("nan")},
        "a tensor more": weights | {"more": weights[first].clone()},
    }.items():
        add(f"its weights have {what}", people, put("model.safetensors", save(changed)))
    return found


def parted(calls, accepted, each):
    """Calls that must be refused, and those that need not be; of a quick test one in so many."""
    if not hostile_files.SOAK:
        calls = dict(list(calls.items())[::each])
    calls = {name: make() for name, make in calls.items()}
    fine = {name: call for name, call in calls.items() if any(words in name for words in accepted)}
    return {name: call for name, call in calls.items() if name not in fine}, fine


def _putter(place, file, content):
    """What makes a folder with a file in it, and returns the folder."""

    def put():
        place.mkdir()
        if content is not None:
            (place / file).write_bytes(content() if callable(content) else content)
        return place

    return put


def sign(place, file):
    """Have the ledger's closing line say that the run left this file, as a forger does."""
    path = place / "ledger.jsonl"
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    lines[-1]["files"][file] = hashlib.sha256((place / file).read_bytes()).hexdigest()
    path.write_bytes(forged(lines))
