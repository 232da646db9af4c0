"""Hostile run folders: copies of a small run in which one file is something else."""

import json
import os
import shutil
import struct

import numpy as np
import small_runs
import torch
from hostile_texts import DIGITS
from safetensors.torch import save

from discreet.ledger import chained
from discreet.runs.run import train

COMMANDS = {  # each file, and a command that reads it; a report that is written takes long
    "config.toml": "resume", "plan.toml": "report", "run.json": "resume", "ledger.jsonl": "verify",
    "metrics.jsonl": "resume", "guarantee.json": "resume", "end.json": "resume", "model.safetensors": "verify",
}  # fmt: skip
DEEP = b"[" * 100_000 + b"]" * 100_000
CONTENTS = {
    "nothing": b"",
    "a NUL": b"\0" * 100,
    "a list": b"[]",
    "a number": b"1",
    "a table": b"{}",
    "torn": b'{"a": ',
    "deep": DEEP,
    "deep tables": b'{"a": ' * 50_000 + b"1" + b"}" * 50_000,
    "a number of 5,000 digits": b'{"step": ' + DIGITS.encode() + b"}",
    "a number of 400 digits": b'{"step": 1' + b"0" * 400 + b"}",
    "half a letter": b'{"run": "\\ud800", "step": "\\udfff"}',
    "controls": b'{"\\u001b[31m": "\\u0007"}',
    "no UTF-8": b"\xff\xfe{}",
    "a pickle": b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x02id\x94\x85\x94R\x94.",
    "a tensor file of a head of 2^60": struct.pack("<Q", 2**60) + b"{}",
    "a tensor file of a deep head": struct.pack("<Q", len(DEEP)) + DEEP,
}  # fmt: skip
PLACES = {
    "a folder": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
    "300 MB of nothing": lambda path: _sparse(path, 300 << 20),
    "not there": lambda path: None,
}


def _sparse(path, size):
    with path.open("wb") as file:
        file.truncate(size)


def make(folder):
    """A run that has finished, and one that was stopped; their folders."""
    config = small_runs.config(small_runs.table_at(folder))
    train(config, folder / "done")
    train(config, folder / "stopped", small_runs.stopping(3))
    return folder / "done", folder / "stopped"


def calls(folder, done, stopped):
    """Calls by name, each on a copy of its own."""
    found = {}

    def add(name, source, command, change):
        place = folder / f"{len(found)}"
        shutil.copytree(source, place)
        change(place)
        found[f"{command}: {name}"] = ([command, place.name], folder)

    def put(file, content):
        return lambda place: (place / file).write_bytes(content)

    def replaced(file, fill):
        def change(place):
            (place / file).unlink(missing_ok=True)
            fill(place / file)

        return change

    for file, command in COMMANDS.items():
        for what, content in CONTENTS.items():
            add(f"{file} is {what}", done, command, put(file, content))
        for what, fill in PLACES.items():
            add(f"{file} is {what}", done, command, replaced(file, fill))
    for file in ("config.toml", "plan.toml", "run.json", "ledger.jsonl", "metrics.jsonl", "checkpoint"):
        for what, content in CONTENTS.items():
            add(f"a stopped run's {file} is {what}", stopped, "resume", put(file, content))
    for what, lines in ledgers((done / "ledger.jsonl").read_bytes()).items():
        add(f"a ledger with {what}", done, "verify", put("ledger.jsonl", lines))
    for what, content in checkpoints(stopped / "checkpoint").items():
        add(f"a checkpoint with {what}", stopped, "resume", put("checkpoint", content))
    return found


# --- ledgers ---------------------------------------------------------------------------------------------------------

WRONG = {
    "nothing": None, "a text": "x", "a number": 1e300, "minus one": -1, "infinity": "inf", "a list": [], "a table": {},
    "a deep list": json.loads("[" * 40 + "]" * 40), "a large number": 10**400, "controls": "\x1b[31m", "truth": True,
    "half a letter": "\ud800",
}  # fmt: skip


def ledgers(good):
    """The bytes of ledgers: some that anybody can make, and some of a forger who can chain lines."""
    lines = good.splitlines()
    plain = {
        "a line twice": [*lines, lines[-1]],
        "lines in another order": lines[::-1],
        "a line taken out": lines[:1] + lines[2:],
        "no first line": lines[1:],
        "10^5 empty lines": [*lines, *[b""] * 100_000],
        "a line of 20 MB": [*lines, b"x" * 20_000_000],
        "a line of deep lists": [DEEP, *lines],
        "a carriage return": [line + b"\r" for line in lines],
        "a NUL": [*lines, b"\0" * 10_000],
        "bytes that are no UTF-8": [*lines, b"\xff\xfe"],
    }
    found = {what: b"\n".join(content) + b"\n" for what, content in plain.items()}
    opening = next(i for i, line in enumerate(lines) if b'"kind": "run"' in line)
    first, before = json.loads(lines[opening]), [json.loads(line) for line in lines[:opening]]
    for key in sorted(first.keys() - {"hash", "previous"}):
        for what, value in WRONG.items():
            found[f"{key} being {what}"] = forged(
                [*before, first | {key: value}, *map(json.loads, lines[opening + 1 :])]
            )
    release = next(i for i, line in enumerate(lines) if b'"release"' in line)
    for key in ("count", "multiplier", "participations", "rate", "run", "step", "kind"):
        for what, value in list(WRONG.items())[:8]:
            changed = [json.loads(line) for line in lines]
            changed[release][key] = value
            found[f"a release's {key} being {what}"] = forged(changed)
    return found


def forged(lines):
    """Lines chained anew, as somebody does who knows how."""
    out, previous = [], json.loads(chained(lines[0], lines[0].get("previous", ""), None)[0]).get("previous", "")
    for line in lines:
        text, previous = chained({k: v for k, v in line.items() if k != "hash"}, previous, None)
        out.append(text)
    return b"".join(out)


# --- checkpoints -----------------------------------------------------------------------------------------------------


def checkpoints(path):
    """The bytes of checkpoints that are almost right."""
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    head, body = json.loads(content[8 : 8 + size]), content[8 + size :]

    def with_head(head, body=body):
        text = json.dumps(head).encode()
        return struct.pack("<Q", len(text)) + text + body

    def with_tree(change):
        metadata = head["__metadata__"]
        return with_head(head | {"__metadata__": metadata | {"tree": change(metadata["tree"])}})

    first = next(name for name in head if name != "__metadata__")
    tree = json.loads(head["__metadata__"]["tree"])
    found = {
        "renamed keys": with_tree(lambda tree: tree.replace("weight", "weigth")),
        "a renamed part": with_tree(lambda tree: tree.replace('"optimizer"', '"optimiser"')),
        "numbers for texts": with_tree(lambda tree: tree.replace('"released"', "1")),
        "texts for numbers": with_tree(lambda tree: tree.replace("3", '"three"')),
        "other releases": with_tree(lambda tree: tree.replace('"released", 3', '"released", 300')),
        "releases below 0": with_tree(lambda tree: tree.replace('"released", 3', '"released", -3')),
        "a deep tree": with_tree(lambda tree: "[" * 100_000 + "]" * 100_000),
        "a deep table": with_tree(lambda tree: '{"list": [' * 3000 + "1" + "]}" * 3000),
        "a tree of nothing": with_tree(lambda tree: "{}"),
        "no tree": with_tree(lambda tree: ""),
        "nan in the tree": with_tree(lambda tree: tree.replace("3", "NaN", 1)),
        "a number of 5,000 digits": with_tree(lambda tree: tree.replace("3", DIGITS, 1)),
        "another format": with_head(head | {"__metadata__": head["__metadata__"] | {"format": "\x1b[31m"}}),
        "no metadata": with_head({k: v for k, v in head.items() if k != "__metadata__"}),
        "no tensors": with_head({"__metadata__": head["__metadata__"]}, b""),
        "a tensor missing": with_head({k: v for k, v in head.items() if k != first}),
        "a tensor of another type": with_head(head | {first: head[first] | {"dtype": "I32"}}),
        "a tensor of another shape": with_head(head | {first: head[first] | {"shape": [10**12]}}),
        "a tensor elsewhere": with_head(head | {first: head[first] | {"data_offsets": [0, 10**15]}}),
        "a tensor of halves": save({"0": torch.zeros(2, dtype=torch.float16)}),
        "half of it": content[: len(content) // 2],
        "random tensors": content[: 8 + size] + np.random.default_rng(0).bytes(len(body)),
    }
    for place, (name, _) in enumerate(tree["table"]):
        for what, value in {"a list": {"list": []}, "a number": 1, "nothing": None, "a text": "x"}.items():
            changed = json.loads(json.dumps(tree))
            changed["table"][place][1] = value
            found[f"{what} for its {name}"] = with_tree(lambda _, changed=changed: json.dumps(changed))
    return found
