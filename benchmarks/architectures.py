"""Architectures of transformers, made tiny, and networks written by hand: exact, how fast, refused and why.

For each: whether each example's gradient is that of autograd on its loss alone, what a private step costs beside the
same step without privacy (CPU time and peak memory), which kernels were chosen, and which ops have no rule. Results are
written one by one to benchmarks/measured/architectures.json; what is there is not measured again.

    python benchmarks/architectures.py [NAME ...] [--exact] [--again] [--list] [--update]
    python benchmarks/architectures.py [NAME ...] --wide     at width 256, texts of 64 tokens, 16 in a batch
"""

import argparse
import json
import os
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from race import architectures as pages  # noqa: E402 (their paths are known from here on)
from race.machine import processor  # noqa: E402
from race.measuring import measured  # noqa: E402

RESULTS = HERE / "measured" / "architectures.json"
WIDE = HERE / "measured" / "wide_architectures.json"
SECONDS = 300  # that an architecture may take


def cases(*, wide):
    """What is measured: a name, and how its model, rows, collate function and losses are made."""
    import by_hand
    import tiny_architectures

    if wide:
        return {case.name: case for case in tiny_architectures.cases(tiny_architectures.WIDE)}
    return {case.name: case for case in [*by_hand.CASES, *by_hand.MIXING, *tiny_architectures.cases()]}


def about(*, wide):
    """The machine, and what ran on it."""
    import transformers

    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    command = "OMP_NUM_THREADS=1 python benchmarks/architectures.py" + " --wide" * wide
    return {"date": time.strftime("%Y-%m-%d"), "machine": processor(), "command": command, **versions}


def apart(case, *, costs=True):
    """What was measured in a process of its own: what crashes or hangs takes nothing with it."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(SECONDS)
        try:
            found = measured(case, costs=costs)
        except BaseException as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            why = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
            found = {"outcome": "error", "why": why, "where": f"{Path(place.filename).name}:{place.lineno}"}
        os.write(writes, json.dumps(found).encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"outcome": "error", "why": f"ended after {SECONDS} s, or crashed"}


def read(results):
    """What was measured before."""
    return json.loads(results.read_text()) if results.exists() else {}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only these")
    parser.add_argument("--exact", action="store_true", help="leave time and memory out")
    parser.add_argument("--again", action="store_true", help="measure also what is there")
    parser.add_argument("--wide", action="store_true", help="at a realistic width")
    parser.add_argument("--update", action="store_true", help="measure nothing; write docs/architectures.md")
    parser.add_argument("--list", action="store_true", help="measure nothing; count the outcomes")
    arguments = parser.parse_args()
    results = WIDE if arguments.wide else RESULTS
    kept = read(results)
    if arguments.update:
        pages.update(read(RESULTS), read(WIDE))
        return
    if arguments.list:
        print(Counter(row["outcome"] for name, row in kept.items() if name != "about"))
        return
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    import transformers

    transformers.logging.set_verbosity_error()
    every = cases(wide=arguments.wide)
    for name in arguments.names or every:
        if arguments.again or name not in kept:
            found = apart(every[name], costs=not arguments.exact)
            kept = read(results)
            kept[name] = {"group": every[name].group, **found}
            kept["about"] = about(wide=arguments.wide)
            scratch = results.with_suffix(f".{os.getpid()}")
            scratch.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")
            scratch.replace(results)  # another that measures beside this one reads it whole
            print(name, found, flush=True)


if __name__ == "__main__":
    main()
