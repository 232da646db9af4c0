"""The zoo of tests/zoo through the library: what was refused, by which probe, at which step; written to docs/zoo.md.

Each member is trained by `private.backward(loss_fn, batch)` for some steps, once a seed. With `--kept`, each run is
written to a file of a folder when it ends, and one that is there is not made again. `make soak` makes 20 runs of 60
steps of each member, and keeps them there if it is told where: `DISCREET_VERDICTS=FOLDER make soak`.

    python benchmarks/zoo.py [--steps 12] [--seeds 3] [--kept FOLDER] [--update]
"""

import argparse
import json
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import torch
from race.machine import processor
from rich.progress import track

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from zoo.members import MEMBERS  # noqa: E402 (it lies beside the tests)
from zoo.running import Outcome, keep, probe_of, run  # noqa: E402

PAGE = ROOT / "docs" / "zoo.md"
START = "<!-- by benchmarks/zoo.py from here -->"


def told(outcomes):
    """How a member's runs ended, in few words."""
    words = Counter()
    for outcome in outcomes:
        if outcome.kind == "refused":
            words[f"refused at step {max(outcome.step, 0)} ({probe_of(outcome)})"] += 1
        elif outcome.kind == "accepted":
            words[outcome.isolation] += 1
        else:
            words[f"its own error at step {outcome.step}"] += 1
    if len(words) == 1:
        return next(iter(words))
    return "; ".join(f"{count}x {word}" for word, count in words.most_common())


def table(found, *, sound):
    yield "| member | why | outcome |"
    yield "| --- | --- | --- |"
    for member, outcomes in found.items():
        if member.sound is sound:
            yield f"| {member.name} | {member.why} | {told(outcomes)} |"


def page(found, steps, seeds):
    """The tables and what they come to."""
    mixing = [o for m, some in found.items() if not m.sound for o in some]
    sound = [o for m, some in found.items() if m.sound for o in some]
    refused, vouched = sum(o.kind == "refused" for o in mixing), sum(o.vouched for o in mixing)
    alarms, checked = sum(o.kind != "accepted" for o in sound), sum(o.vouched for o in sound)
    yield (
        f"{time.strftime('%Y-%m-%d')}, {processor()}, torch {torch.__version__}: "
        f"`python benchmarks/zoo.py --steps {steps} --seeds {seeds} --update`."
    )
    yield ""
    assumed = len(sound) - alarms - checked
    yield f"- Members that mix or carry state: {len(mixing)} runs; refused {refused}, *checked* or *proven* {vouched}."
    yield f"- Sound members: {len(sound)} runs; refused {alarms}, *checked* {checked}, *assumed* {assumed}."
    yield ""
    yield "## Members that mix examples or carry state"
    yield ""
    yield from table(found, sound=False)
    yield ""
    yield "## Sound members"
    yield ""
    yield from table(found, sound=True)


def runs(steps, seeds, kept):
    """The outcomes of every member. All members have a seed before any has the next."""
    done = {}
    for file in sorted(kept.glob("zoo-*.jsonl")) if kept is not None else ():
        lines = map(json.loads, file.read_text().splitlines())
        done |= {(line["name"], line["steps"], line["seed"]): line["outcome"] for line in lines}
    found = {member: [] for member in MEMBERS}
    for seed, member in track([(seed, member) for seed in range(seeds) for member in MEMBERS], "runs"):
        if (outcome := done.get((member.name, steps, seed))) is not None:
            found[member].append(Outcome(member, **outcome))
            continue
        found[member].append(run(member, steps=steps, seed=seed))
        if kept is not None:
            kept.mkdir(parents=True, exist_ok=True)
            keep(found[member][-1], steps, seed, kept / f"zoo-{MEMBERS.index(member):03}.jsonl")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--kept", type=Path, metavar="FOLDER", help="where runs are kept, a line of JSON for each")
    parser.add_argument("--update", action="store_true", help="write docs/zoo.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = runs(arguments.steps, arguments.seeds, arguments.kept)
    lines = "\n".join(page(found, arguments.steps, arguments.seeds))
    if arguments.update:
        PAGE.write_text(PAGE.read_text().split(START)[0] + f"{START}\n\n{lines}\n")
    else:
        print(lines)


if __name__ == "__main__":
    main()
