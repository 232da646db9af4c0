"""What a run's lines add up to: how many passes its steps must have begun, however many of them a line counts."""

import itertools

import pytest

from discreet import Allocation, BandedGaussian, Clip, CyclicPoisson, FixedOrder, Gaussian, Mechanism, Plan, Shuffled
from discreet.errors import PrivacyError
from discreet.ledger.opening import opening_of
from discreet.ledger.state import Run
from discreet.stages.sensitivity import Layout

LAYOUT = Layout(("weight",), ((2,),))
SAMPLERS = [
    (Shuffled(examples=12, batch_size=4), Gaussian(1.0)),
    (Allocation(examples=12, batches=3), Gaussian(1.0)),
    (FixedOrder(examples=12, batch_size=4), Gaussian(1.0)),
    (CyclicPoisson(examples=12, batch_size=2, groups=3), BandedGaussian(1.0, bands=3)),
]
STEPS = 7


def plan_of(sampling, noise):
    return Plan(sampling=sampling, mechanism=Mechanism(Clip(1.0), noise), steps=STEPS, delta=1e-5)


def run_of(plan):
    return Run(opening_of(plan, LAYOUT), plan.event(LAYOUT, steps=1))


@pytest.mark.parametrize(("sampling", "noise"), SAMPLERS, ids=lambda v: type(v).__name__)
def test_lines_of_any_length_are_counted_whatever_crashes_there_were(sampling, noise):
    """Every cut of seven steps into lines, with a crash before any of them, as the run itself counts them."""
    plan = plan_of(sampling, noise)
    for cuts in itertools.product((0, 1, 2), repeat=STEPS - 1):  # no new line, a new one, one after a crash
        run, origin, starts = run_of(plan), 0, [0, *(i + 1 for i, cut in enumerate(cuts) if cut)]
        for first, stop in itertools.pairwise([*starts, STEPS]):
            if first and cuts[first - 1] == 2 and not plan.continues:
                origin = first
            taken = plan.charges(stop - first, after=first - origin)
            run.count_release(first, stop - first, taken, run.one.rate, run.one.multiplier)
        assert run.released == STEPS
        assert run.participations >= plan.charges(STEPS)


def test_no_lines_that_are_taken_count_fewer_passes_than_their_steps_bring():
    """Whatever lines say of six steps in passes of three: if all are taken, as many passes as that can hold them."""
    plan = plan_of(*SAMPLERS[0])
    one, taken = run_of(plan).one, 0
    for cuts in itertools.product((False, True), repeat=5):
        edges = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), 6]
        counts = [b - a for a, b in itertools.pairwise(edges)]
        for said in itertools.product(*(range(count + 1) for count in counts)):
            run = run_of(plan)
            try:
                for count, participations in zip(counts, said, strict=True):
                    run.count_release(run.released, count, participations, one.rate, one.multiplier)
            except PrivacyError:
                assert not _could_be(counts, said)
            else:
                taken += 1
                assert _could_be(counts, said)
    assert taken > 100


def _could_be(counts, said):
    """Whether passes of at most three steps can have begun so often in each line, by every choice of where."""
    steps = sum(counts)
    owner = [line for line, count in enumerate(counts) for _ in range(count)]
    for begins in itertools.product((False, True), repeat=steps - 1):
        places = [0, *(i + 1 for i, begun in enumerate(begins) if begun)]
        long = all(b - a <= 3 for a, b in itertools.pairwise([*places, steps]))
        if long and all(said[line] == sum(owner[p] == line for p in places) for line in range(len(counts))):
            return True
    return False
