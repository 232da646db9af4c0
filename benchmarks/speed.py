"""Time and memory of one training step of discreet beside non-private SGD and other libraries.

    python benchmarks/speed.py [--threads 1 2] [--rounds 9] [--seconds 0.5] [--only NAME ...] [--competitors NAME ...]
                               [--memory-cap GIB] [--patience SECONDS] [--allocator tuned|default] [--fastdp PATH]
                               [--json FILE]
    python benchmarks/speed.py --from FILE ... [--markdown] [--update]

Every competitor takes whole training steps (forward, backward, private gradient, noise, optimizer) on the same random
batch, in a process of its own; rounds are interleaved, one process at a time. docs/speed.md says what is measured.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from models import SETTINGS
from race import machine, pages, tables
from race.competitors import COMPETITORS, note_of
from race.track import Job, Rules, race
from rich.console import Console

# what a step should cost at most, times that of SGD
GOALS = {
    "MLP 784-32-10": 1.6, "MLP 784-1000-10": 1.1, "MNIST CNN": 1.0, "small AlexNet": 1.1, "WRN-16-4": 1.1,
    "transformer 4x256, 128 tokens": 1.1, "LSTM 128, 64 tokens": 1.5, "logistic 20,000": 1.05,
}  # fmt: skip
SHORT = ("discreet", "Opacus ghost", "Opacus ew", "vmap", "fastDP origin")  # those of README


def job(competitor: str, title: str, fastdp: str | None = None) -> Job:
    arguments = {"competitor": competitor, "title": title, "fastdp": fastdp}
    compiled = competitor == "jax-privacy"  # before its first step, which needs no small one
    return Job("race.competitors", "step_of", arguments, None if compiled else arguments | {"batch": 2})


def measure(titles: Iterable[str], names: Iterable[str], rules: Rules, fastdp: str | None = None, progress=None):
    """Rows of results, model by model."""
    for title in titles:
        tell = (lambda words, title=title: progress(f"{title}: {words}")) if progress else (lambda _: None)
        for name, result in race({n: job(n, title, fastdp) for n in names}, rules, tell).items():
            note = note_of(name, title)
            yield {"model": title, "threads": rules.threads, "competitor": name, "note": note, **result}


def as_markdown(*several: dict[str, Any]) -> str:
    """The tables of one run after the other."""
    return "\n\n".join(_tables(found) for found in several)


def _tables(found: dict[str, Any]) -> str:
    parts = [machine.sentence(found["about"])]
    for threads in dict.fromkeys(row["threads"] for row in found["results"]):
        for clock, words in (("wall", "time"), ("cpu", "CPU time")):
            count = "one thread" if threads == 1 else f"{threads} threads"
            parts += [f"{count.capitalize()}, {words}:", tables.overview(found["results"], threads, clock)]
    return "\n\n".join(parts)


def overview(*several: dict[str, Any]) -> str:
    """The short table of README: CPU time over that of SGD, the first number of threads, and what each needs in memory.

    A model's line is of the last run that has it. What is remarked of a figure stands in docs/speed.md.
    """
    threads = several[0]["results"][0]["threads"]
    lines: dict[str, tuple[str, list[str]]] = {}
    for found in several:
        for (model, count), group in tables.grouped(found["results"]).items():
            if count == threads:
                lines[model] = machine.summary(found["about"]), _short_line(model, group)
    head = ["model, batch", *SHORT, "MiB of SGD", *(f"of {name}" for name in SHORT[:2])]
    table = tables.markdown(head, [line for _, line in lines.values()])
    return f"{table}\n\n{'; '.join(dict.fromkeys(about for about, _ in lines.values()))}."


def _short_line(model: str, group: dict[str, tables.Row]) -> list[str]:
    def time(row: tables.Row | None) -> str:
        if row is None:
            return ""
        remark = "*" if row["note"] else ""
        return f"{tables.ratio(row, group['SGD'], 'cpu'):.2f}{remark}" if row["status"] == "ran" else tables.said(row)

    def peak(row: tables.Row | None) -> str:
        return f"{row['peak']:.0f}" if row is not None and row["status"] == "ran" else ""

    return [model, *(time(group.get(name)) for name in SHORT), *(peak(group.get(n)) for n in ("SGD", *SHORT[:2]))]


def goals(*several: dict[str, Any]) -> str:
    """What was aimed for and what was reached: CPU time on one thread, time on the clock on two, memory, and others.

    A model's cells are of the last run that has them.
    """
    found: dict[tuple[str, int], dict[str, tables.Row]] = {}
    for run in several:
        found |= tables.grouped(run["results"])
    return tables.markdown(GOALS_HEAD, [goal_line(found, s.title, GOALS[s.name]) for s in SETTINGS])


GOALS_HEAD = [
    "model, batch", "goal", "one thread", "keep", "two threads", "keep", "memory", "of SGD twice", "fastest library",
    "it takes", "vmap takes",
]  # fmt: skip


def goal_line(found: dict[tuple[str, int], dict[str, tables.Row]], title: str, goal: float) -> list[str]:
    one, two = found.get((title, 1), {}), found.get((title, 2), {})

    def over(group: dict[str, tables.Row], name: str, base: str, clock: str) -> float | None:
        return tables.ratio(group[name], group.get(base), clock) if name in group else None

    def peak(base: str) -> str:
        ran = all(one.get(name, {}).get("status") == "ran" for name in ("discreet", base))
        return f"{one['discreet']['peak'] / max(one[base]['peak'], 1):.2f}" if ran else ""

    others = {n: t for n in one if n.startswith(LIBRARIES) and (t := over(one, n, "discreet", "cpu")) is not None}
    best = min(others, key=others.__getitem__, default="")
    cells = [over(one, name, "SGD", "cpu") for name in ("discreet", "discreet keep")]
    cells += [over(two, name, "SGD", "wall") for name in ("discreet", "discreet keep")]
    ratios = [tables.times(others.get(best)), tables.times(over(one, "vmap", "discreet", "cpu"))]
    return [title, f"{goal:g}", *map(tables.times, cells), peak("SGD"), peak("SGD twice"), best, *ratios]


LIBRARIES = ("Opacus", "fastDP", "jax-privacy")


def options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5, help="about how long a round of one competitor takes")
    parser.add_argument("--only", nargs="+", default=[""], help="parts of names of models, e.g. 'CNN, 256'")
    parser.add_argument("--competitors", nargs="+", default=list(COMPETITORS), choices=list(COMPETITORS))
    half = machine.memory()["available"] // 2 // machine.GIB
    parser.add_argument("--memory-cap", type=float, default=half, metavar="GIB", help="for each process")
    parser.add_argument(
        "--patience", type=float, default=300.0, metavar="SECONDS", help="for each competitor and model"
    )
    parser.add_argument("--allocator", choices=list(machine.ALLOCATORS), default="tuned")
    parser.add_argument("--fastdp", metavar="PATH", help="a checkout of awslabs/fast-differential-privacy")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--from", dest="source", type=Path, nargs="+", help="print what was measured before")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--update", action="store_true", help="write the tables into README.md and docs/speed.md")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    chosen = options(arguments)
    if chosen.source is None:
        several = [run(chosen, sys.argv[1:] if arguments is None else arguments)]
    else:
        several = [json.loads(source.read_text()) for source in chosen.source]
        if not chosen.markdown:
            print(tables.plain(tables.HEAD, tables.lines([row for found in several for row in found["results"]])))
    if chosen.markdown:
        print(as_markdown(*several))
    if chosen.update:
        pages.fill("docs/speed.md", "steps", as_markdown(*several))
        pages.fill("docs/speed.md", "goals", goals(*several))
        pages.fill("README.md", "overview", overview(*several))


def run(chosen: argparse.Namespace, words: list[str]) -> dict[str, Any]:
    titles = [s.title for s in SETTINGS if any(part in s.title for part in chosen.only)]
    if not titles:
        sys.exit(f"no model is called {' or '.join(chosen.only)}; there are {'; '.join(s.title for s in SETTINGS)}.")
    fastdp = chosen.fastdp and str(Path(chosen.fastdp).resolve())
    settings = {"rounds": chosen.rounds, "seconds": chosen.seconds, "memory cap GiB": chosen.memory_cap}
    about = machine.about("speed", words, allocator=machine.ALLOCATORS[chosen.allocator], **settings)
    found: dict[str, Any] = {"about": about, "results": []}
    print(json.dumps(about, indent=2), flush=True)
    with Console(stderr=True).status("") as status:
        for threads in chosen.threads:
            rules = Rules(threads, chosen.rounds, chosen.seconds, chosen.allocator, chosen.memory_cap, chosen.patience)
            for title in titles:
                rows = list(measure([title], chosen.competitors, rules, fastdp, status.update))
                found["results"] += rows
                print(f"\n{threads} threads\n{tables.plain(tables.HEAD, tables.lines(rows))}", flush=True)
                if chosen.json:
                    chosen.json.write_text(json.dumps(found, indent=1))
    return found


if __name__ == "__main__":
    main()
