"""Events and tunings as plain values and back."""

import json

import pytest

import discreet
from discreet import ConfigError, Plan, PrivacyError, Tuning
from discreet.accounting import cost, rdp
from discreet.accounting.event_serialization import (
    event_from_dict,
    event_to_dict,
    tuning_from_dict,
    tuning_to_dict,
)
from discreet.accounting.events import Event
from discreet.accounting.guarantee import Guarantee, guarantee

ONE, TWO = Event(0.01, 1.0, 100), Event(0.02, 1.5, 100)
TUNING = Tuning(5, "geometric", "noisy", ((ONE,), (TWO, Event(1.0, 20.0, 1))))


def test_the_best_of_several_runs_is_read_as_it_was_written():
    event = Event.of_best(TUNING)
    assert event_from_dict(json.loads(json.dumps(event_to_dict(event)))) == event
    assert tuning_from_dict(json.loads(json.dumps(tuning_to_dict(TUNING)))) == TUNING
    assert tuning_to_dict(Tuning(5)) == {"type": "Tuning", "runs": 5.0}


def test_a_plan_and_a_guarantee_keep_what_each_setting_costs(tmp_path):
    plan = discreet.methods.dp_sgd(examples=1_000, batch_size=20, epochs=2, noise=1.5, delta=1e-5)
    tuned = discreet.calibrate(plan, 2.0)
    tuned = type(plan)(**{**vars(tuned), "tuning": TUNING, "epsilon": None})
    tuned.save(tmp_path / "plan.toml")
    assert Plan.load(tmp_path / "plan.toml") == tuned
    proven = tuned.guarantee()
    assert Guarantee.from_json(proven.to_json()) == proven


def test_the_best_is_an_event_that_composes_with_others():
    best = Event.of_best(TUNING)
    alone, both = cost([best], 1e-5).epsilon, cost([best, ONE], 1e-5).epsilon
    assert alone < both < alone + cost([ONE], 1e-5).epsilon + 1
    # by hand: Rényi divergences add up at each order
    total = rdp.divergences([best]) + rdp.divergences([ONE])
    assert both == pytest.approx(rdp.improved(total, rdp.ORDERS, 1e-5))
    assert "best of 5 runs" in guarantee([best, ONE], 1e-5).proof


def test_what_is_no_best_is_refused():
    with pytest.raises(ConfigError, match="candidates"):
        Event.of_best(Tuning(5))
    with pytest.raises(PrivacyError, match="different relations"):
        Event.of_best(Tuning(5, candidates=((ONE,), (Event(0.01, 1.0, 1, unit="user"),))))
    with pytest.raises(ConfigError, match="nothing but what these released"):
        Event(0.5, 1.0, 1, best=TUNING)
    with pytest.raises(PrivacyError, match="not proven"):
        Event.of_best(TUNING).per("user", 3)
    with pytest.raises(ConfigError, match="score"):
        Tuning(5, score="guessed")
