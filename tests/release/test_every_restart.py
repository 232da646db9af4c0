"""Every way to break a short run off and take it up again: the ledger never counts less than what really happened."""

import itertools
from dataclasses import dataclass, field

import pytest
import torch
from soak import some

from discreet import (
    Allocation,
    BandedGaussian,
    BLTGaussian,
    Clip,
    CyclicPoisson,
    FixedOrder,
    Gaussian,
    Mechanism,
    MinSeparation,
    Plan,
    Shuffled,
    verify,
)
from discreet.ledger import Ledger
from discreet.release.private_sum import PrivateSum

N, STEPS = 6, 6
RUNS = [
    (Allocation(examples=N, batches=3), Gaussian(1.0)),
    (Shuffled(examples=N, batch_size=3), Gaussian(1.0)),
    (CyclicPoisson(examples=N, batch_size=1, groups=3), BandedGaussian(1.0, bands=2)),
    (FixedOrder(examples=N, batch_size=2), BLTGaussian(1.0, buffers=1)),
    (MinSeparation(examples=N, batch_size=2, separation=2, most=2, unit="example"), BandedGaussian(1.0, bands=2)),
]


@dataclass
class Truth:
    """What really happened: who took part in which release, its step, and by which draw of an epoch."""

    seen: list = field(default_factory=list)
    steps: list = field(default_factory=list)
    draws: list = field(default_factory=list)


def restarted(plan, file, reserve, ways):
    """A run of which, before each release but the first, something happens: nothing, a kill, a kill and an old state.

    The number of a way is how many releases ago the state was saved that is loaded; -1 is a process without one.
    """
    truth, states, process, private = Truth(), {}, 0, None
    for way in (-1, *ways):
        if way is not None:
            if private is not None:
                private.close()
            private, process = _begun(plan, Ledger(file, reserve=reserve)), process + 1
            states = {0: private.state_dict()} | states
            made = len(truth.seen) - way
            if way >= 0 and made in states:
                private.load_state_dict(states[made])
        if not private.remaining:
            break
        step = private.released
        truth.seen.append(private.draw(N, step).tolist())
        truth.steps.append(step)
        truth.draws.append((process, (step - private.origin_step) // getattr(plan.sampling, "batches", STEPS)))
        private.draw(N, step + 1)  # ahead, as a loader with workers does
        private.release()
        states[len(truth.seen)] = private.state_dict()
    counted = private._ledger.participations
    private.close()
    return truth, counted


def _begun(plan, book):
    return PrivateSum({"weight": torch.zeros(1)}, plan, book, count=1, probe=False, seed=None)


def check(plan, truth, counted):
    """What the theorems ask of the plan, of what really happened."""
    assert all(a < b for a, b in itertools.pairwise([-1, *truth.steps, STEPS]))
    who = plan.sampling.contract()
    for unit in range(N):
        mine = [t for t, drawn in enumerate(truth.seen) if unit in drawn]
        steps = [truth.steps[t] for t in mine]
        if plan.continues:
            assert all(b - a >= who.separation for a, b in itertools.pairwise(steps))
        assert who.most is None or len(steps) <= who.most
        if plan.whole_run:
            assert counted == 1
        elif who.scheme == "allocation":  # one batch of each draw, and each draw is counted
            assert len(set(truth.draws)) <= counted
            taken = [truth.draws[t] for t in mine]
            assert len(set(taken)) == len(taken)
        else:
            assert len(steps) <= counted


@pytest.mark.parametrize(("sampling", "noise"), RUNS, ids=lambda v: type(v).__name__)
def test_no_restart_makes_a_run_cost_more_than_its_ledger_says(sampling, noise, tmp_path):
    """All ways of two seams; up to three steps are counted ahead."""
    plan = Plan(sampling=sampling, mechanism=Mechanism(Clip(1.0), noise), steps=STEPS, delta=1e-5)
    options, long = (None, -1, 0, 2), 0
    for i, ways in enumerate(itertools.product(options, repeat=some(2, STEPS - 2))):
        file = tmp_path / f"{i}.jsonl"
        truth, counted = restarted(plan, file, 1 + i % 3, (*ways, None, None, None))
        check(plan, truth, counted)
        found = verify(file).runs[0]
        assert found.released >= len(truth.seen)
        assert found.guarantee.epsilon == pytest.approx(plan.guarantee().epsilon)
        long += len(truth.seen) == STEPS
    assert long
