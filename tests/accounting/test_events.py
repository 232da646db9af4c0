"""Events: what they refuse to be, what may be counted together, and units that do not add up."""

import math
from dataclasses import replace

import pytest

from discreet import ConfigError, PrivacyError
from discreet.accounting.events import Event, Magnitudes, check_units, in_words, merge, units_of

EVENT = Event(rate=0.1, multiplier=1.0, steps=10)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rate": 1.5}, "an event's rate is 1.5"),
        ({"rate": math.nan}, "an event's rate is nan"),
        ({"multiplier": -1.0}, "an event's multiplier is -1.0"),
        ({"multiplier": math.inf}, "an event's multiplier is inf"),
        ({"steps": 2.5}, "an event's steps"),
        ({"group": 0}, "an event's group"),
        ({"scheme": "by chance"}, "an event's scheme is 'by chance'"),
        ({"adjacency": "near"}, "an event's adjacency is 'near'"),
        ({"scheme": "fixed-size"}, "say 'replace'"),
        ({"crowded": 0.5, "crowded_rate": 0.05}, "crowded_rate is 0.05"),
        ({"pure": 1.0}, "of a pure mechanism nothing but its epsilon is known"),
        ({"scheme": "allocation", "rate": 0.3}, "a whole number of batches"),
        ({"scheme": "allocation", "adjacency": "replace"}, "random allocation"),
    ],
)
def test_what_cannot_be_is_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        replace(EVENT, **changes)


def test_groups_over_steps_of_different_coins_are_refused():
    with pytest.raises(PrivacyError, match="nothing is proven here"):
        replace(EVENT, theorem="C4", group=2)


def test_equal_releases_are_counted_together_wherever_they_stand():
    other = replace(EVENT, multiplier=2.0)
    merged = merge([EVENT, other, replace(EVENT, steps=5)])
    assert sorted(merged, key=lambda e: e.multiplier) == [replace(EVENT, steps=15), other]


def test_an_epoch_of_allocation_has_its_batches():
    assert replace(EVENT, scheme="allocation").batches == 10
    assert EVENT.batches == 1


def test_a_pure_mechanism_is_an_event_of_its_epsilon():
    event = Event.of_pure(0.5, 3)
    assert (event.pure, event.steps, event.rate, event.multiplier) == (0.5, 3, 1.0, 0.0)


def test_units_do_not_add_up():
    user = replace(EVENT, unit="user")
    assert units_of([EVENT, user, EVENT]) == ("example", "user")
    check_units("user", [user])
    with pytest.raises(PrivacyError):
        check_units("user", [user, EVENT])


def test_a_units_words_are_its_own():
    assert in_words("user") != in_words("example")


def test_magnitudes_have_a_norm():
    assert Magnitudes((3.0, 1.0), (1, 16)).norm == pytest.approx(5.0)
