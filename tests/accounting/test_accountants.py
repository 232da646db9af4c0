"""Accountants: which covers what, that the smallest figure wins, and that each one's figure is a bound."""

import math

import pytest

from discreet.accounting.accountants import ACCOUNTANTS, AVERAGED, CLOSED, LOSSES, PLAIN, RARE, RENYI, SUM, best
from discreet.accounting.events import Event

DELTA = 1e-5
ALWAYS = Event(rate=1.0, multiplier=5.0, steps=10)
SAMPLED = Event(rate=0.01, multiplier=1.0, steps=10)
SOME_BATCH = Event(rate=0.25, multiplier=3.0, steps=4, scheme="fixed-batches", adjacency="zero-out")
PURE = Event.of_pure(0.1, 3)
WHOLE = Event(rate=1.0, multiplier=3.0, steps=2, hardening="exact", adjacency="zero-out")


@pytest.mark.parametrize(
    ("accountant", "covered"),
    [
        (RARE, {ALWAYS, SAMPLED, PURE, WHOLE}),
        (CLOSED, {ALWAYS}),
        (PLAIN, {ALWAYS, SAMPLED}),
        (AVERAGED, {SOME_BATCH}),
        (SUM, {PURE}),
        (LOSSES, {ALWAYS, SAMPLED, PURE}),
        (RENYI, {ALWAYS, SAMPLED, SOME_BATCH, PURE, WHOLE}),
    ],
)
def test_each_covers_what_it_can_prove(accountant, covered):
    events = (ALWAYS, SAMPLED, SOME_BATCH, PURE, WHOLE)
    assert {event for event in events if accountant.covers([event])} == covered


@pytest.mark.parametrize("event", [ALWAYS, SAMPLED, SOME_BATCH, PURE, WHOLE])
def test_the_best_is_the_smallest_of_those_that_cover(event):
    epsilon, by = best([event], DELTA)
    figures = [a.epsilon((event,), DELTA) for a in ACCOUNTANTS if a.covers([event])]
    assert epsilon == pytest.approx(min(figures), rel=1e-12)
    assert by.covers([event])


def test_where_one_is_exact_no_other_is_asked():
    assert best([ALWAYS], DELTA)[1] is CLOSED
    assert [a for a in ACCOUNTANTS if a.exact] == [CLOSED]


def test_who_hardly_ever_takes_part_loses_nothing():
    rare = Event(rate=1e-8, multiplier=0.5, steps=100)
    assert best([rare], DELTA) == (0.0, RARE)
    assert RARE.epsilon((SAMPLED,), DELTA) == math.inf


def test_epsilons_of_pure_mechanisms_add_up():
    assert SUM.epsilon((PURE, Event.of_pure(0.2)), DELTA) == pytest.approx(0.5)


def test_names_are_different():
    assert len({a.name for a in ACCOUNTANTS}) == len(ACCOUNTANTS)
