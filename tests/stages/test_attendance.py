"""Who took part when: whatever is drawn ahead, given up, lost or loaded, nobody takes part too often or too soon."""

import itertools

import numpy as np
import pytest

from discreet import MinSeparation
from discreet.stages.attendance import Attendance
from discreet.stages.noise.random import KeyTree

USERS = 4


def holds(seen, separation, most):
    """Whether nobody took part too often, or too soon again."""
    for user in range(USERS):
        steps = [t for t, cohort in enumerate(seen) if user in cohort]
        if len(steps) > most or any(b - a < separation for a, b in itertools.pairwise(steps)):
            return False
    return True


def test_a_draw_ahead_that_was_given_up_is_no_excuse():
    """Drawn for step 4 before the checkpoint, then in step 3 by a process that knew nothing: not again in step 4."""
    sampler, tree = MinSeparation(examples=USERS, batch_size=2, separation=2, most=9), KeyTree(seed=0)
    first = Attendance(sampler)
    first.draw(USERS, 0, tree.stream("first", 0), [1])
    first.draw(USERS, 4, tree.stream("first", 4), [0])
    state = first.state_dict()
    second = Attendance(sampler, 1)  # without the checkpoint
    assert second.draw(USERS, 3, tree.stream("second", 3), [0]).tolist() == [0]
    third = Attendance(sampler, 4)
    third.load_state_dict(state, 1, 4)
    assert third.draw(USERS, 4, tree.stream("third", 4), [0]).tolist() == []
    assert third.draw(USERS, 5, tree.stream("third", 5), [0]).tolist() == [0]


@pytest.mark.parametrize(("separation", "most"), [(1, 2), (2, 9), (3, 2), (4, 9)])
def test_no_schedule_of_draws_ahead_and_crashes_breaks_the_pattern(separation, most):
    """Random schedules: draws up to three steps ahead, and processes that begin with any older state, or with none."""
    random, tree = np.random.default_rng(separation), KeyTree(seed=0)
    sampler = MinSeparation(examples=USERS, batch_size=2, separation=separation, most=most)
    for trial in range(150):
        attendance, states, seen = Attendance(sampler), [], []
        for step in range(14):
            what = random.integers(6)
            if what < 2:
                attendance = Attendance(sampler, step)
                if what and states:
                    saved_at, state = states[random.integers(len(states))]
                    attendance.check_state_dict(state)
                    attendance.load_state_dict(state, saved_at, step)
            drawn = {}
            for ahead in range(1 + random.integers(4)):  # a later draw of the same step is in place of the first
                stream = tree.stream(f"{trial} {random.integers(10**9)}", step + ahead)
                drawn[step + ahead] = attendance.draw(USERS, step + ahead, stream).tolist()
            if what == 5:
                drawn[step] = attendance.draw(USERS, step, tree.stream(f"{trial} again", step)).tolist()
            states.append((step, attendance.state_dict()))
            seen.append(drawn[step])
        assert holds(seen, separation, most)
