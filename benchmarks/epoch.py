"""Examples a second in whole epochs of MNIST: sampling, loading, forward, private gradient, noise and optimizer.

    python benchmarks/epoch.py [--threads 1 2] [--rounds 5] [--allocator tuned|default] [--json FILE] [--quick]
    python benchmarks/epoch.py --from FILE [--markdown] [--update]

The MNIST CNN at batch size 256, one epoch of 234 steps a round; then loaders alone, without a model, four epochs a
round. Competitors run in turns, each in a process of its own. Without MNIST's files random images of the same shape are
taken, and said.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from race import machine, pages, tables
from race.epochs import BATCH, LOADERS, STEPS, WHOLE, images
from race.track import Job, Rules, race
from rich.console import Console

HEAD = ["", "examples a second", "most", "x the first", ""]


def rates(row: dict[str, Any]) -> list[float]:
    """Examples a second, round by round."""
    return [fed / (row["steps"] * wall) for fed, wall in zip(row["examples"], row["wall"], strict=True)]


def lines(rows: list[dict[str, Any]]) -> list[list[str]]:
    first = next((statistics.median(rates(row)) for row in rows if row["status"] == "ran"), None)
    found = []
    for row in rows:
        if row["status"] != "ran" or first is None:
            found.append([row["competitor"], "", "", "", row["why"]])
            continue
        fed = rates(row)
        middle = statistics.median(fed)
        found.append([row["competitor"], f"{middle:,.0f}", f"{max(fed):,.0f}", f"{middle / first:.2f}", ""])
    return found


def shown(found: dict[str, Any], form) -> str:
    about = found["about"]
    parts = [f"{machine.sentence(about)} {about['data']}, batch {BATCH}."]
    for kind, words in (("whole", "Whole epochs"), ("loaders", "Loaders alone")):
        for threads in dict.fromkeys(row["threads"] for row in found["results"]):
            rows = [row for row in found["results"] if row["kind"] == kind and row["threads"] == threads]
            parts += [f"{words}, {threads} thread{'s' * (threads > 1)}:", form(HEAD, lines(rows))]
    return "\n\n".join(parts)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--allocator", choices=list(machine.ALLOCATORS), default="tuned")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="eight steps a round of whole epochs")
    parser.add_argument("--from", dest="source", type=Path, help="print what was measured before")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--update", action="store_true", help="write the tables into docs/speed.md")
    chosen = parser.parse_args(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    found = run(chosen, words) if chosen.source is None else json.loads(chosen.source.read_text())
    print(shown(found, tables.markdown if chosen.markdown else tables.plain))
    if chosen.update:
        pages.fill("docs/speed.md", "epoch", shown(found, tables.markdown))


def run(chosen: argparse.Namespace, words: list[str]) -> dict[str, Any]:
    allocator = machine.ALLOCATORS[chosen.allocator]
    about = machine.about("epoch", words, data=images()[1], rounds=chosen.rounds, allocator=allocator)
    found: dict[str, Any] = {"about": about, "results": []}
    # a loader is fast, and a round begins with memory that is fresh to it: four epochs, or that is what is measured
    kinds = ("whole", WHOLE, 8 if chosen.quick else STEPS), ("loaders", LOADERS, 4 * STEPS)
    with Console(stderr=True).status("") as status:
        for threads in chosen.threads:
            rules = Rules(threads, chosen.rounds, allocator=chosen.allocator)
            for kind, names, steps in kinds:
                jobs = {
                    name: Job("race.epochs", "step_of", {"kind": kind, "competitor": name}, steps=steps)
                    for name in names
                }
                for name, result in race(jobs, rules, status.update).items():
                    found["results"].append({"kind": kind, "threads": threads, "competitor": name, **result})
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1))
    return found


if __name__ == "__main__":
    main()
