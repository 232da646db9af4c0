"""Federated rounds without coins: users take part at most so often, so far apart, and the server sees to it."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from discreet import (
    BandedGaussian,
    BLTGaussian,
    Clip,
    ConfigError,
    Gaussian,
    Mechanism,
    MinSeparation,
    Plan,
    Poisson,
    PrivacyError,
    federated,
    methods,
    verify,
)
from discreet.federated import Rounds
from discreet.stages.attendance import Attendance
from discreet.stages.noise.random import KeyTree

USERS = 30


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def plan(noise=None, *, per_round=4, separation=5, most=3, rounds=12):
    sampling = MinSeparation(examples=USERS, batch_size=per_round, separation=separation, most=most)
    noise = BLTGaussian(1.0, buffers=2) if noise is None else noise
    return Plan(sampling=sampling, mechanism=Mechanism(Clip(1.0), noise), steps=rounds, delta=1e-5)


def updates(cohort):
    return {name: torch.randn(len(cohort), *p.shape) for name, p in network().named_parameters()}


def rounds_of(rounds, count, **more):
    """So many rounds, and who took part in each."""
    seen = []
    for _ in range(count):
        cohort = rounds.draw(**more)
        if cohort:
            rounds.add(cohort, updates(cohort))
        rounds.release()
        seen.append(cohort)
    return seen


def holds(seen, separation, most):
    """Whether nobody took part too often, or too soon again."""
    for user in range(USERS):
        steps = [t for t, cohort in enumerate(seen) if user in cohort]
        if len(steps) > most or any(b - a < separation for a, b in itertools.pairwise(steps)):
            return False
    return True


@pytest.mark.parametrize(("separation", "most"), [(1, 3), (5, 3), (7, 1), (3, 12)])
def test_the_server_keeps_users_apart(separation, most):
    made = plan(Gaussian(1.0), separation=separation, most=most)
    rounds = Rounds(network(), made)
    seen = rounds_of(rounds, 12)
    assert holds(seen, separation, most)
    assert max(map(len, seen)) == 4
    assert len({user for cohort in seen for user in cohort}) > 20
    rounds.detach()


def test_those_who_are_there_take_part():
    rounds = Rounds(network(), plan())
    seen = rounds_of(rounds, 7, available=[3, 4, 5])
    assert seen == [[3, 4, 5], [], [], [], [], [3, 4, 5], []]
    with pytest.raises(ConfigError, match="none of the 30"):
        rounds.draw(available=[30])
    rounds.detach()
    coins = Plan(
        sampling=Poisson(examples=USERS, batch_size=4, unit="user"),
        mechanism=Mechanism(Clip(1.0), Gaussian(1.0)),
        steps=3,
        delta=1e-5,
    )
    with pytest.raises(ConfigError, match="MinSeparation"):
        Rounds(network(), coins).draw(available=[1])


def test_a_round_that_is_given_up_counts_for_who_was_drawn():
    rounds = Rounds(network(), plan(separation=3))
    first = rounds.draw(available=[1, 2])
    again = rounds.draw()
    rounds.release()
    later = rounds_of(rounds, 2)
    assert not {*first, *again} & {user for cohort in later for user in cohort}
    rounds.detach()


@pytest.mark.parametrize("noise", [BLTGaussian(1.0, buffers=2), BandedGaussian(1.0, bands=5)], ids=repr)
@pytest.mark.parametrize("stops", [(3, 6), (1, 2, 7, 9)], ids=str)
def test_a_restart_from_the_last_checkpoint_remembers_who_took_part(noise, stops, tmp_path):
    made, seen, state = plan(noise), [], None
    for stop in (*stops, 12):
        rounds = Rounds(network(), made, tmp_path / "ledger.jsonl")
        if state is not None:
            rounds.load_state_dict(state)
        seen += rounds_of(rounds, stop - len(seen))
        state = rounds.state_dict()
        rounds.detach()
    assert holds(seen, 5, 3)
    assert all(seen)  # nobody had to wait
    assert verify(tmp_path / "ledger.jsonl").runs[0].guarantee.epsilon == pytest.approx(made.guarantee().epsilon)


def test_a_restart_that_does_not_know_waits(tmp_path):
    made = plan(separation=3, most=2)
    rounds = Rounds(network(), made, tmp_path / "ledger.jsonl")
    seen = rounds_of(rounds, 1)
    state = rounds.state_dict()
    seen += rounds_of(rounds, 2)  # after the checkpoint
    rounds.detach()
    again = Rounds(network(), made, tmp_path / "ledger.jsonl")
    again.load_state_dict(state)
    later = rounds_of(again, 9)
    assert later[:2] == [[], []]
    assert later[2]  # three rounds after the last that was released
    assert holds([*seen, *later], 3, 2)
    again.detach()


def test_a_restart_without_a_checkpoint_knows_nothing(tmp_path):
    made = plan(separation=3, most=2)
    rounds = Rounds(network(), made, tmp_path / "ledger.jsonl")
    seen = rounds_of(rounds, 4)
    rounds.detach()
    again = Rounds(network(), made, tmp_path / "ledger.jsonl")
    assert rounds_of(again, 8) == [[]] * 8  # everybody may have taken part twice
    assert holds(seen, 3, 2)
    again.detach()


def test_a_state_without_its_attendance_is_refused():
    rounds = Rounds(network(), plan())
    rounds_of(rounds, 2)
    state = rounds.state_dict()
    fresh = Rounds(network(), plan())
    for attendance in (None, {}, {"last": torch.zeros(3)}, state["attendance"] | {"times": torch.full((USERS,), -1)}):
        with pytest.raises(PrivacyError, match="attendance"):
            fresh.load_state_dict({**state, "attendance": attendance})
    fresh.load_state_dict(state)
    for one in (rounds, fresh):
        one.detach()


def test_no_schedule_of_crashes_breaks_the_pattern():
    """Attendance alone, with random crashes: after each the state is that of some earlier step, or lost."""
    random, tree = np.random.default_rng(0), KeyTree(seed=0)
    for trial in range(60):
        separation, most = int(random.integers(1, 6)), int(random.integers(1, 4))
        sampler = MinSeparation(examples=USERS, batch_size=5, separation=separation, most=most)
        attendance, states, seen = Attendance(sampler), [(0, None)], []
        for step in range(25):
            if random.random() < 0.15:
                saved_at, state = states[random.integers(len(states))]
                attendance = Attendance(sampler, step)
                if state is not None:
                    attendance.check_state_dict(state)
                    attendance.load_state_dict(state, saved_at, step)
                states = [s for s in states if s[0] <= saved_at]
            stream = tree.stream(f"trial {trial} {random.integers(10**9)}", step)
            seen.append(attendance.draw(USERS, step, stream).tolist())
            states.append((step + 1, attendance.state_dict()))
        assert holds(seen, separation, most)


def test_federated_training_with_separation(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(120, 3)
    users = federated.Users.dealt(x, (x[:, 0] > 0).long(), USERS)
    made = methods.dp_fedavg(users=USERS, users_per_round=5, rounds=8, separation=4, most=2, noise=0.5)
    found = federated.fit(network(), users, made, ledger=tmp_path / "ledger.jsonl")
    assert found.guarantee.epsilon == pytest.approx(made.guarantee().epsilon)
    said = str(verify(tmp_path / "ledger.jsonl").runs[0].guarantee)
    assert "no user took part more than 2 times, nor twice within 4 steps" in said
    assert "a whole run, at most as revealing as one Gaussian release" in said
