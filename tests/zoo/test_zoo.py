"""Every member of the zoo through the library: none that mixes is vouched for, none that is sound is refused.

In `make test` each runs for 12 steps with one seed, in `make soak` for 60 steps with 20 seeds.
"""

import os
import warnings
from itertools import product
from pathlib import Path

import pytest

from zoo import neighbours
from zoo.members import MEMBERS, SOUND
from zoo.running import STEPS, keep, run

SOAK = bool(os.environ.get("DISCREET_SOAK"))
KEPT = os.environ.get("DISCREET_VERDICTS")  # where to keep what was said, for the page of benchmarks/zoo.py --kept
SEEDS, LENGTH = (range(20), 60) if SOAK else (range(1), STEPS)
TRIED = [*product(neighbours.VICTIMS, neighbours.BOUNDS)]
ALONE = {  # taken one row at a time
    "power iteration by hand",
    "contrastive with fixed negatives",
    "differences of a running sum",
}


@pytest.mark.parametrize("member", MEMBERS, ids=lambda m: m.name)
def test_what_mixes_is_never_vouched_for_and_what_is_sound_runs(member):
    for seed in SEEDS:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "each example is taken in a batch of its own")
            outcome = run(member, steps=LENGTH, seed=seed)
        if KEPT:
            Path(KEPT).mkdir(parents=True, exist_ok=True)
            keep(outcome, LENGTH, seed, Path(KEPT, f"zoo-{MEMBERS.index(member):03}.jsonl"))
        assert not outcome.wrong, (seed, outcome)


@pytest.mark.parametrize("member", SOUND, ids=lambda m: m.name)
def test_one_row_moves_what_is_released_by_no_more_than_the_bound(member):
    moved = []
    tried = TRIED if SOAK else [TRIED[0] if SOUND.index(member) % 2 else TRIED[-1]]  # all of them take a minute
    for (victim, bound), double in product(tried, (True, False) if SOAK else (member.make().double,)):
        if double and not member.make().double:  # it is made for short floats
            continue
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "each example is taken in a batch of its own")
            found = neighbours.movement(member, victim, bound, double=double, probes=member.name in ALONE)
        assert found <= 1 + (1e-5 if double else 1e-4), (victim, bound, double)
        moved.append(found)
    far_off = member.name == "loss clipped at a constant"  # far from the constant, a loss has no gradient
    assert max(moved) > 0.05 or (far_off and not SOAK), "the row that is left out must count for something"
