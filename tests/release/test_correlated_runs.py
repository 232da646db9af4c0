"""Runs with noise that remembers: what is released is what is proven, also after crashes, and for verify."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from forgery import rewritten
from torch import nn

from discreet import (
    BandedGaussian,
    BLTGaussian,
    Clip,
    CyclicPoisson,
    FixedOrder,
    Gaussian,
    Mechanism,
    MinSeparation,
    PerLayerClip,
    Plan,
    Poisson,
    PrivacyError,
    attach,
    verify,
)
from discreet.accounting.gaussian import epsilon as gaussian_epsilon
from discreet.ledger import Ledger
from discreet.release import sums
from discreet.stages.noise.correlated.toeplitz import dense

N = 24
CYCLIC = CyclicPoisson(examples=N, batch_size=3, groups=4)
FIXED = FixedOrder(examples=N, batch_size=6)
SETTINGS = [
    (BandedGaussian(1.5, bands=4), CYCLIC),
    (BandedGaussian(1.5, bands=3), FIXED),
    (BLTGaussian(1.5, buffers=2), FIXED),
    (BLTGaussian(1.5, buffers=2), MinSeparation(examples=N, batch_size=5, separation=3, most=2, unit="example")),
]


def plan(noise, sampling=CYCLIC, steps=10, bound=None):
    allocation = "joint" if bound is None or isinstance(bound, Clip) else "power"
    mechanism = Mechanism(bound or Clip(1.0), noise, allocation)
    return Plan(sampling=sampling, mechanism=mechanism, steps=steps, delta=1e-5)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def rows(without=None):
    """Examples whose first coordinate says who they are; one may be left out: then it is empty (no gradient)."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(N, 3, generator=generator, dtype=torch.float64)
    x[:, 0] = torch.arange(N) + 1.0
    weight = torch.ones(N, dtype=torch.float64)
    if without is not None:
        weight[without] = 0.0
    return x, weight


def steps_of(private, network, data, count=None, learning=0.0):
    """Releases, and who took part in each."""
    released, seen = [], []
    for x, weight in private.batches(data):
        private.backward(network(x).square().sum(1) * weight)
        released.append(torch.cat([p.grad.flatten() for p in network.parameters()]))
        seen.append([int(v) - 1 for v in x[:, 0]])
        for p in network.parameters():
            p.data.sub_(p.grad, alpha=learning)
        if len(released) == count:
            break
    return torch.stack(released) if released else torch.zeros(0), seen


def whole(made, without=None, seed=7, **more):
    network = model()
    private = attach(network, made, seed=seed, preflight=False, **more)
    return (*steps_of(private, network, rows(without)), private)


# --- what is released


def test_one_band_is_gaussian_bit_for_bit():
    sampling = Poisson(examples=N, batch_size=4)
    for other in (BandedGaussian(1.5, bands=1), BandedGaussian(1.5, bands=1, coefficients=(0.3,))):
        a, seen, _ = whole(plan(Gaussian(1.5), sampling))
        b, again, _ = whole(plan(other, sampling))
        assert torch.equal(a, b)
        assert seen == again


@pytest.mark.parametrize(("noise", "sampling"), SETTINGS, ids=repr)
@pytest.mark.parametrize("bound", [Clip(0.7), PerLayerClip(0.5)], ids=repr)
def test_noise_is_the_filter_of_a_plain_runs(noise, sampling, bound):
    """The same seed draws the same coins and the same fresh noise; what differs is the filter."""
    made = plan(noise, sampling, bound=bound)
    plain, seen, _ = whole(plan(Gaussian(1.5), sampling, bound=bound))
    filtered, again, _ = whole(made)
    assert seen == again
    bare, _, _ = whole(plan(Gaussian(0.0), sampling, bound=bound))  # no noise
    noise = made.mechanism.noise
    c = noise.strategy.matrix(10) / noise.column_norm
    expected = np.linalg.solve(c, (plain - bare).numpy())
    assert (filtered - bare).numpy() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(("noise", "sampling"), SETTINGS, ids=repr)
def test_neighbours_of_a_whole_run_differ_by_at_most_the_sensitivity(noise, sampling):
    """With the noise held fixed, C times the difference of what is released, for each example left out."""
    made = plan(noise, sampling)
    with_all, seen, _ = whole(made)
    noise, event, largest = made.mechanism.noise, made.event(), 0.0
    c = noise.strategy.matrix(10) / noise.column_norm
    for i in range(0, N, 3):
        without, _, _ = whole(made, without=i)
        moved = c @ (with_all - without).numpy() * sampling.batch_size
        steps = [t for t, who in enumerate(seen) if i in who]
        if event.theorem == "C1":
            assert np.linalg.norm(moved) <= made.mechanism.noise.multiplier / event.multiplier + 1e-9
            largest = max(largest, np.linalg.norm(moved))
        assert len(steps) <= (event.steps if event.theorem == "C4" else math.inf)
        for t in steps:  # each participation moves its own rows
            own = np.zeros((10, moved.shape[1]))
            own[t] = (with_all - without)[t].numpy() * sampling.batch_size
            assert np.linalg.norm(c @ own) <= 1 + 1e-9
        assert all(b - a >= sampling.contract().separation for a, b in itertools.pairwise(steps))
    if event.theorem == "C1":
        assert largest > 0.5 * made.mechanism.noise.multiplier / event.multiplier  # and it is no idle bound


def test_noise_remembers_piece_by_piece(monkeypatch):
    made = plan(BandedGaussian(1.5, bands=4))
    expected = [whole(plan(Gaussian(1.5)))[0], whole(made)[0]]
    monkeypatch.setattr(sums, "PIECE", 7)
    cut = [whole(plan(Gaussian(1.5)))[0], whole(made)[0]]
    bare, _, _ = whole(plan(Gaussian(0.0)))
    noise = made.mechanism.noise
    c = noise.strategy.matrix(10) / noise.column_norm
    for plain, filtered in (expected, cut):  # drawn in other pieces, filtered alike
        assert c @ (filtered - bare).numpy() == pytest.approx((plain - bare).numpy(), abs=1e-10)


def test_shares_of_noise_add_up_to_filtered_noise():
    """Two ranks with their own streams, each filtered by itself: the sum is the filter of the sum."""
    noise = plan(BandedGaussian(1.0, bands=3)).mechanism.noise
    fresh = torch.randn(6, 2, 5, dtype=torch.float64)
    one, two, both = noise.start(), noise.start(), noise.start()
    for drawn in fresh:
        a, b = drawn[0].clone(), drawn[1].clone()
        total = a + b
        for memory, values in ((one, a), (two, b), (both, total)):
            memory.filter(values, "flat", 0)
            memory.advance()
        assert torch.allclose(a + b, total, atol=1e-12)


# --- the ledger, and what is proven of the file alone


@pytest.mark.parametrize(("noise", "sampling"), SETTINGS, ids=repr)
def test_a_run_its_ledger_and_its_plan_say_the_same(noise, sampling, tmp_path):
    made = plan(noise, sampling)
    _, _, private = whole(made, ledger=tmp_path / "ledger.jsonl")
    found = verify(tmp_path / "ledger.jsonl").runs[0]
    for guarantee in (private.guarantee(), found.guarantee):
        assert guarantee.epsilon == pytest.approx(made.guarantee().epsilon)
        assert "takes back a part of" in str(guarantee)
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert lines[0]["participations"] == made.charges(10) == sum(line["participations"] for line in lines[1:])
    written = lines[0]["plan"]["noise"]
    assert written["type"] == type(noise).__name__
    assert written.get("coefficients") or written["decay"]
    assert lines[0]["phase"]["theorem"] == made.event().theorem


def test_before_its_end_a_whole_run_is_spent():
    made, network = plan(BLTGaussian(1.5, buffers=2), FIXED), model()
    private = attach(network, made, preflight=False)
    steps_of(private, network, rows(), 2)
    assert private.guarantee().so_far == pytest.approx(private.guarantee().epsilon)
    assert private.remaining == 8
    cyclic = attach(network2 := model(), plan(BandedGaussian(1.5, bands=4)), preflight=False)
    steps_of(cyclic, network2, rows(), 2)
    assert cyclic.guarantee().so_far < cyclic.guarantee().epsilon


@pytest.mark.parametrize(("noise", "sampling"), SETTINGS, ids=repr)
@pytest.mark.parametrize("stops", [(3,), (1, 4, 4, 7)], ids=str)
def test_a_run_that_is_taken_up_again_goes_on_where_the_ledger_stands(noise, sampling, stops, tmp_path):
    """Killed after some releases, with no checkpoint at all: nothing more is charged, and each unit's steps stay apart.

    What each release adds is found out by the same run without noise, so that the joint mechanism can be checked.
    """
    made, ledger, seen, moved = plan(noise, sampling), tmp_path / "ledger.jsonl", [], []
    for stop in (*stops, made.steps):
        network = model()
        private = attach(network, made, ledger=ledger, preflight=False, seed=len(seen))
        assert private.released == len(seen)
        _, who = steps_of(private, network, rows(), stop - len(seen)) if stop > len(seen) else (None, [])
        seen += who
        private.detach()
        moved.append(len(seen))
    assert len(seen) == made.steps
    assert private.guarantee().epsilon == pytest.approx(made.guarantee().epsilon)
    assert verify(ledger).runs[0].guarantee.epsilon == pytest.approx(made.guarantee().epsilon)
    who = sampling.contract()
    for i in range(N):
        steps = [t for t, drawn in enumerate(seen) if i in drawn]
        assert all(b - a >= who.separation for a, b in itertools.pairwise(steps))
        assert who.most is None or len(steps) <= who.most
        if isinstance(sampling, CyclicPoisson):
            assert all(t % 4 == i % 4 for t in steps)
    # the joint sensitivity of the filters, cut at the seams, with unit shares in the steps that were really taken
    noise = made.mechanism.noise
    c, cut = noise.strategy.matrix(10) / noise.column_norm, np.zeros((10, 10))
    for start, stop in itertools.pairwise([0, *moved]):
        cut[start:stop, start:stop] = c[start:stop, start:stop]
    for i in range(N):
        share = np.array([float(i in drawn) for drawn in seen])
        if made.whole_run:
            assert np.linalg.norm(cut @ share) <= noise.multiplier / made.event().multiplier + 1e-9


def test_a_restart_filters_fresh_noise_from_an_empty_memory(tmp_path):
    made, plain = plan(BandedGaussian(1.5, bands=4)), plan(Gaussian(1.5))
    parts = []
    for one in (made, plain, plan(Gaussian(0.0))):
        ledger = tmp_path / f"{len(parts)}.jsonl"
        released = []
        for seed, count in ((1, 5), (2, 5)):
            network = model()
            private = attach(network, one, ledger=ledger, preflight=False, seed=seed)
            released.append(steps_of(private, network, rows(), count)[0])
            private.detach()
        parts.append(released)
    noise = made.mechanism.noise
    c = noise.strategy.matrix(5) / noise.column_norm
    for filtered, fresh, bare in zip(*parts, strict=True):
        assert c @ (filtered - bare).numpy() == pytest.approx((fresh - bare).numpy(), abs=1e-10)


def test_a_state_that_is_loaded_empties_the_memory():
    made = plan(BandedGaussian(1.5, bands=4))
    network = model()
    private = attach(network, made, preflight=False, seed=3)
    steps_of(private, network, rows(), 3)
    assert private._aggregate._memory._kept
    private.load_state_dict(private.state_dict())
    assert not private._aggregate._memory._kept
    assert "memory" not in private.state_dict()


@pytest.mark.parametrize(("noise", "sampling"), SETTINGS, ids=repr)
def test_an_older_checkpoint_never_gives_steps_back(noise, sampling, tmp_path):
    made, ledger = plan(noise, sampling), tmp_path / "ledger.jsonl"
    network = model()
    private = attach(network, made, ledger=ledger, preflight=False)
    _, seen = steps_of(private, network, rows(), 2)
    state = private.state_dict()
    _, more = steps_of(private, network, rows(), 3)
    private.detach()
    again = attach(model_again := model(), made, ledger=ledger, preflight=False)
    again.load_state_dict(state)
    assert again.released == 5
    _, rest = steps_of(again, model_again, rows())
    assert len(rest) == 5
    everything, who = [*seen, *more, *rest], sampling.contract()
    for i in range(N):
        steps = [t for t, drawn in enumerate(everything) if i in drawn]
        assert all(b - a >= who.separation for a, b in itertools.pairwise(steps))
        assert who.most is None or len(steps) <= who.most
    assert again.guarantee().epsilon == pytest.approx(made.guarantee().epsilon)


def test_a_torn_line_and_reserved_steps_are_counted_once_a_round(tmp_path):
    made, ledger = plan(BandedGaussian(1.5, bands=4), steps=12), tmp_path / "ledger.jsonl"
    network = model()
    private = attach(network, made, ledger=Ledger(ledger, reserve=3), preflight=False)
    steps_of(private, network, rows(), 4)  # six are counted
    private.detach()
    with ledger.open("ab") as file:
        file.write(b'{"at": "20')
    assert verify(ledger).runs[0].guarantee.epsilon == pytest.approx(made.guarantee().epsilon)
    again = attach(model(), made, ledger=ledger, preflight=False)
    assert again.released == 7
    assert again._aggregate._ledger.participations == made.charges(7) == 2
    assert again.remaining == 5
    assert again.guarantee().epsilon == pytest.approx(made.guarantee().epsilon)


def test_a_torn_line_of_a_whole_run_is_no_second_run(tmp_path):
    made, ledger = plan(BLTGaussian(1.5, buffers=2), FIXED), tmp_path / "ledger.jsonl"
    network = model()
    private = attach(network, made, ledger=ledger, preflight=False)
    steps_of(private, network, rows(), 4)
    private.detach()
    with ledger.open("ab") as file:
        file.write(b'{"at": "20')
    assert verify(ledger).runs[0].guarantee.epsilon == pytest.approx(made.guarantee().epsilon)
    assert attach(model(), made, ledger=ledger, preflight=False).guarantee().epsilon == pytest.approx(
        made.guarantee().epsilon
    )


def test_no_more_steps_than_the_strategy_was_proven_for(tmp_path):
    made = plan(BLTGaussian(1.5, buffers=2), FIXED, steps=4)
    network = model()
    private = attach(network, made, ledger=tmp_path / "ledger.jsonl", preflight=False)
    steps_of(private, network, rows())
    assert private.remaining == 0
    with pytest.raises(PrivacyError):
        private._aggregate.release()


@pytest.mark.parametrize("change", ["coefficients", "bands", "groups", "multiplier", "theorem", "participations"])
def test_a_forged_ledger_is_refused(change, tmp_path):
    """Each of them alone would claim less than the run cost."""
    noise, sampling = (BandedGaussian(1.5, bands=3), FIXED) if change in ("coefficients", "theorem") else SETTINGS[0]
    whole(plan(noise, sampling), ledger=tmp_path / "ledger.jsonl")

    def forge(line):
        if line["kind"] != "run":
            return
        if change == "coefficients":
            line["plan"]["noise"]["coefficients"] = [1.0, 1.0, 1.0]
        elif change == "bands":
            line["plan"]["noise"] |= {"bands": 5, "coefficients": [1.0] * 5}
        elif change == "groups":
            line["plan"]["sampling"]["groups"] = 8
        elif change == "multiplier":
            line["phase"]["multiplier"] *= 2
        elif change == "theorem":
            line["phase"]["theorem"] = ""
        else:
            line["participations"] = 1

    rewritten(tmp_path / "ledger.jsonl", forge)
    with pytest.raises(PrivacyError):
        verify(tmp_path / "ledger.jsonl")


# --- an attack that knows everything but whether one took part


@pytest.mark.parametrize(
    ("noise", "sampling"),
    [
        (BLTGaussian(1.0, buffers=2), FixedOrder(examples=4, batch_size=1)),
        (BandedGaussian(1.0, bands=3), CyclicPoisson(examples=4, batch_size=1, groups=4)),
    ],
    ids=repr,
)
def test_a_distinguishing_game_is_as_good_as_is_proven_and_no_better(noise, sampling):
    """The whitened sum along the worst direction is N(mu, 1) or N(0, 1), mu that of the proven Gaussian curve.

    2,000 games a world on the filters' own output: the mean is off by more than 4.5 standard errors with a chance of
    7e-6, so that more leakage than is proven would show.
    """
    made = Plan(sampling=sampling, mechanism=Mechanism(Clip(1.0), noise), steps=12, delta=1e-5)
    noise, event = made.mechanism.noise, made.event()
    mu = math.sqrt(event.steps) / event.multiplier
    assert made.guarantee().epsilon == pytest.approx(gaussian_epsilon(mu, 1e-5), rel=1e-3)
    share = torch.zeros(12, dtype=torch.float64)
    share[:: sampling.contract().separation] = 1.0
    torch.manual_seed(0)
    memory, games = noise.start(), torch.randn(12, 2000, dtype=torch.float64)
    for step in games:
        memory.filter(step, "game", 0)
        memory.advance()
    c = torch.from_numpy(dense(noise.strategy.column(12)) / noise.column_norm)
    aim = c @ share
    scores = (aim / aim.norm()) @ (c @ (games + share[:, None]))
    assert scores.mean() == pytest.approx(mu, abs=4.5 / math.sqrt(2000))
    assert scores.var() == pytest.approx(1, abs=4.5 * math.sqrt(2 / 2000))
    assert float(aim.norm()) <= mu + 1e-9
