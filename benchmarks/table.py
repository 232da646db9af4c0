"""The whole table in one command: every model, on one thread and on two, beside other libraries, with peak memory.

    python benchmarks/table.py [--minutes 28] [--threads 1 2] [--only NAME ...] [--fastdp PATH] [--json FILE]
    python benchmarks/table.py --check    what got slower, or larger, by more than 10 % since the run that is kept
    python benchmarks/table.py --keep     keep this run, in benchmarks/measured/table.json

Steps are measured as speed.py does. What would not fit into the minutes is left out, the dearest first, but never SGD
and discreet; how long each takes is taken from the run that is kept. Where none was kept in one piece, those of
speed.py stand for it. Steps are compared as times SGD's of the same run, so that another machine's speed is not taken
for ours; what seems slower is measured again, and is slower only if it is so twice. `--check` exits with 1 then.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import speed
from models import SETTINGS
from race import machine, tables
from race.track import Rules

MEASURED = Path(__file__).parent / "measured"
KEPT = MEASURED / "table.json"
BEFORE = ("one-thread", "one-thread-large", "two-threads", "logistic-one-thread", "logistic-two-threads")
OURS, BASE = "discreet", "SGD"
PEERS = ("Opacus ghost", "Opacus ew", "vmap", "fastDP origin")
SLOWER = 1.1  # times what it was
LARGER = 8  # MiB beside that: allocators give and take as much
ROUNDS, SECONDS, WARM = 3, 0.15, 4.0
START = 6.0  # seconds that a process takes to start
Row = dict[str, Any]
Key = tuple[str, int, str]  # model, threads, competitor


# --- what is kept -----------------------------------------------------------------------------------------------------


def kept() -> dict[Key, Row]:
    """The rows of the last run that is kept in the repo."""
    files = [KEPT] if KEPT.is_file() else [MEASURED / "speed" / f"{name}.json" for name in BEFORE]
    return by_key(row for file in files for row in json.loads(file.read_text())["results"])


def by_key(rows: Iterable[Row]) -> dict[Key, Row]:
    return {(row["model"], row["threads"], row["competitor"]): row for row in rows}


# --- what fits into the minutes ---------------------------------------------------------------------------------------


def expected(key: Key, before: Mapping[Key, Row]) -> float:
    """Seconds that a competitor will take with a model: to start, to warm up, and in its rounds."""
    model, threads, name = key
    rows = [before.get(key), *(before.get((model, count, other)) for other in (name, BASE) for count in (threads, 1))]
    step = next((row["seconds"] * (1 if row["competitor"] == name else 3) for row in rows if _ran(row)), 1.0)
    return START + max(WARM, 8 * step) + ROUNDS * max(SECONDS, 2 * step)


def _ran(row: Row | None) -> bool:
    return row is not None and row["status"] == "ran"


def fitting(keys: Sequence[Key], seconds: float, before: Mapping[Key, Row]) -> list[Key]:
    """What is measured, in order: peers go, the dearest first, until the rest fits; nothing else does."""
    cost = {key: expected(key, before) for key in keys}
    left, total = list(keys), sum(cost.values())
    for key in sorted(keys, key=lambda k: -cost[k]):
        if total <= seconds:
            break
        if key[2] not in (OURS, BASE):
            left.remove(key)
            total -= cost[key]
    return left


# --- what got slower --------------------------------------------------------------------------------------------------


def slower(now: Mapping[Key, Row], before: Mapping[Key, Row]) -> dict[Key, list[str]]:
    """In words, for each model and number of threads of ours: what is more than it was by over a tenth."""
    found: dict[Key, list[str]] = {}
    for key, row in now.items():
        was, words = before.get(key), []
        if key[2] != OURS or was is None or was["status"] != "ran":
            continue
        if row["status"] != "ran":
            found[key] = [f"{tables.said(row)}, and it ran before"]
            continue
        base = (*key[:2], BASE)
        clock = "cpu" if key[1] == 1 else "wall"
        one, other = tables.ratio(row, now.get(base), clock), tables.ratio(was, before.get(base), clock)
        if one is not None and other is not None and one > SLOWER * other:
            words.append(f"{other:.2f} -> {one:.2f} times SGD, {100 * (one / other - 1):.0f} % slower")
        if row["peak"] > SLOWER * was["peak"] + LARGER:
            words.append(f"{was['peak']:.0f} -> {row['peak']:.0f} MiB")
        if words:
            found[key] = words
    return found


def verdict(found: Mapping[Key, Sequence[str]], compared: int) -> str:
    """What --check prints."""
    if not found:
        return f"{compared} steps compared: none is slower or larger by more than {100 * (SLOWER - 1):.0f} %."
    return "\n".join(
        f"{model}, {threads} thread(s): {'; '.join(words)}" for (model, threads, _), words in found.items()
    )


# --- measuring --------------------------------------------------------------------------------------------------------


def measured(keys: Sequence[Key], fastdp: str | None, cap: float) -> list[Row]:
    """Rows of results, model by model, those of one model in turns."""
    rows: list[Row] = []
    for model, threads in dict.fromkeys((model, threads) for model, threads, _ in keys):
        names = [name for *place, name in keys if tuple(place) == (model, threads)]
        rules = Rules(threads, ROUNDS, SECONDS, cap=cap, patience=60.0)
        found = list(speed.measure([model], names, rules, fastdp))
        print(tables.plain(tables.HEAD, tables.lines(found)), flush=True)
        rows += found
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=28.0)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", nargs="+", default=[""], help="parts of names of models, e.g. 'CNN, 256'")
    parser.add_argument("--fastdp", metavar="PATH", help="a checkout of awslabs/fast-differential-privacy")
    parser.add_argument("--memory-cap", type=float, default=10.0, metavar="GIB", help="for each process")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--keep", action="store_true")
    asked = parser.parse_args(arguments)
    titles = [s.title for s in SETTINGS if any(part in s.title for part in asked.only)]
    fastdp = asked.fastdp and str(Path(asked.fastdp).resolve())
    before = kept()
    names = [BASE, OURS, *PEERS[: None if fastdp else -1]]
    keys = [(title, threads, name) for title in titles for threads in asked.threads for name in names]
    chosen = fitting(keys, 60 * asked.minutes, before)
    words = sys.argv[1:] if arguments is None else arguments
    about = machine.about("table", words, allocator=machine.ALLOCATORS["tuned"], rounds=ROUNDS, seconds=SECONDS)
    if dropped := [key for key in keys if key not in chosen]:
        print("left out, as they would take too long:", "; ".join(f"{n} on {m}, {t}" for m, t, n in dropped))
    rows = measured(chosen, fastdp, asked.memory_cap)
    run = {"about": about, "results": rows}
    print(f"\n{speed.as_markdown(run)}")
    for place in [asked.json, KEPT if asked.keep else None]:
        if place is not None:
            place.write_text(json.dumps(run, indent=1) + "\n")
    if not asked.check:
        return 0
    now = by_key(rows)
    found = slower(now, before)
    if found:
        print("\nmeasured again:")
        again = by_key(measured([(*key[:2], name) for key in found for name in (BASE, OURS)], fastdp, asked.memory_cap))
        found = slower(again, before)
    print(f"\n{verdict(found, sum(key[2] == OURS and key in before for key in now))}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
