"""Time and memory of one step of LoRA on a Llama-like model: discreet beside the non-private step and Opacus.

    python benchmarks/lora.py [--threads 1] [--rounds 9] [--seconds 1] [--competitors NAME ...] [--json FILE] [--quick]
    python benchmarks/lora.py --from FILE [--markdown] [--update]

Models and adapters are those of transformers and peft, unmodified, with random weights; adapters stand at all products
of each layer. Every competitor takes whole steps (forward, backward, private gradient, noise, AdamW) on the same random
sequences, with the mean over a sequence's tokens for its loss, in a process of its own; rounds are interleaved.
"""

import argparse
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from race import machine, pages, tables
from race.adapters import COMPETITORS, llama, sizes
from race.track import Job, Rules, race
from rich.console import Console

SETTINGS = {
    "short": {"size": {"width": 256, "depth": 4, "words": 4_000, "length": 32, "rank": 8}, "batch": 32},
    "long": {"size": {"width": 256, "depth": 4, "words": 4_000, "length": 128, "rank": 8}, "batch": 16},
    "wide": {"size": {"width": 512, "depth": 8, "words": 8_000, "length": 64, "rank": 16}, "batch": 16},
}
QUICK = {"quick": {"size": {"width": 64, "depth": 2, "words": 500, "length": 16, "rank": 4}, "batch": 8}}
SMALL = {"size": QUICK["quick"]["size"] | {"depth": 1}, "batch": 2}


def title(setting: dict[str, Any]) -> str:
    size, (every, trained) = setting["size"], sizes(llama(**setting["size"]))
    return (
        f"Llama-like, {every / 1e6:.2g} M parameters, {trained / 1e3:.3g} k trained, {size['length']} tokens, "
        f"{setting['batch']}"
    )


def measure(setting: dict[str, Any], names: list[str], rules: Rules, progress) -> list[dict[str, Any]]:
    jobs = {n: Job("race.adapters", "step_of", {"competitor": n, **setting}, {"competitor": n, **SMALL}) for n in names}
    found, model = race(jobs, rules, progress), title(setting)
    return [{"model": model, "threads": rules.threads, "competitor": n, "note": "", **r} for n, r in found.items()]


def as_markdown(found: dict[str, Any]) -> str:
    rows = found["results"]
    return f"{machine.sentence(found['about'])}\n\n{tables.overview(rows, rows[0]['threads'], 'wall')}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="about how long a round of one competitor takes")
    parser.add_argument("--competitors", nargs="+", default=list(COMPETITORS), choices=COMPETITORS)
    half = machine.memory()["available"] // 2 // machine.GIB
    parser.add_argument("--memory-cap", type=float, default=half, metavar="GIB", help="for each process")
    parser.add_argument("--patience", type=float, default=300.0, metavar="SECONDS")
    parser.add_argument("--allocator", choices=list(machine.ALLOCATORS), default="tuned")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="a tiny model and two rounds, to see that it works")
    parser.add_argument("--from", dest="source", type=Path, help="print what was measured before")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--update", action="store_true", help="write the table into docs/speed.md")
    chosen = parser.parse_args(arguments)
    if chosen.source is None:
        found = run(chosen, sys.argv[1:] if arguments is None else arguments)
    else:
        found = json.loads(chosen.source.read_text())
        print(tables.plain(tables.HEAD, tables.lines(found["results"])))
    if chosen.markdown:
        print(as_markdown(found))
    if chosen.update:
        pages.fill("docs/speed.md", "lora", as_markdown(found))


def run(chosen: argparse.Namespace, words: list[str]) -> dict[str, Any]:
    rounds, seconds = (2, 0.05) if chosen.quick else (chosen.rounds, chosen.seconds)
    rules = Rules(chosen.threads, rounds, seconds, chosen.allocator, chosen.memory_cap, chosen.patience)
    settings = {"rounds": rounds, "seconds": seconds, "memory cap GiB": chosen.memory_cap}
    about = machine.about("lora", words, allocator=machine.ALLOCATORS[chosen.allocator], **settings)
    about["versions"] |= {name: version(name) for name in ("transformers", "peft")}
    found: dict[str, Any] = {"about": about, "results": []}
    with Console(stderr=True).status("") as status:
        for name, setting in (QUICK if chosen.quick else SETTINGS).items():
            rows = measure(setting, chosen.competitors, rules, lambda w, name=name: status.update(f"{name}: {w}"))
            found["results"] += rows
            print(f"\n{tables.plain(tables.HEAD, tables.lines(rows))}", flush=True)
            if chosen.json:
                chosen.json.write_text(json.dumps(found, indent=1))
    return found


if __name__ == "__main__":
    main()
