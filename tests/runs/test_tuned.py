"""A trial's plan: it proves the same of the whole search, whichever setting was drawn."""

import pytest
from torch import nn

from discreet import ConfigError
from discreet.accounting import cost
from discreet.accounting.events import Event
from discreet.runs.config import from_dict, merged
from discreet.runs.tuned import METHODS, check_tune, score_noise

SPACE = {"budget.epochs": [2.0, 8.0], "optimizer.learning_rate": {"low": 0.1, "high": 1.0}, "model.name": ["linear"]}


def asked(**changes):
    values = {
        "data": {"name": "digits"},
        "budget": {"epsilon": 2.0, "epochs": 2.0, "batch_size": 128},
        "tune": {"runs": 4.0, "space": SPACE},
    }
    return merged(from_dict(values), changes)


def test_every_setting_is_planned_for_and_each_trial_proves_the_same():
    short, long = (asked(**{"budget.epochs": epochs}).plan(1437) for epochs in (2.0, 8.0))
    assert short.steps < long.steps
    assert short.mechanism.noise.multiplier < long.mechanism.noise.multiplier
    assert short.tuning == long.tuning
    assert len(short.tuning.candidates) == 2
    proven = {plan.guarantee().epsilon for plan in (short, long)}
    assert len(proven) == 1
    assert 1.98 < proven.pop() <= 2.0
    assert cost([Event.of_best(short.tuning)], 1e-5).epsilon <= 2.0


def test_settings_that_cost_nothing_do_not_change_the_plan():
    assert asked().plan(1437) == asked(**{"optimizer.learning_rate": 0.77}).plan(1437)


def test_a_noisy_score_is_among_what_is_counted():
    plan, bare = asked().plan(1437), asked(**{"tune.score": "held-out"}).plan(1437)
    noise = score_noise(asked(), asked().tune)
    scores = [[p.multiplier for p in events if p.rate == 1] for events in plan.tuning.candidates]
    assert scores == [[noise], [noise]]
    assert all(p.rate < 1 for events in bare.tuning.candidates for p in events)
    assert bare.mechanism.noise.multiplier < plan.mechanism.noise.multiplier
    assert score_noise(asked(), asked(**{"tune.score_noise": 5.0}).tune) == 5.0


@pytest.mark.parametrize("method", METHODS)
def test_a_trial_costs_the_same_whatever_its_model(method):
    config = asked(**{"method.name": method})
    check_tune(config, config.tune)
    plans = [
        config.plan(1437, model) for model in (None, nn.Linear(2, 2), nn.Sequential(nn.Linear(9, 30), nn.Linear(30, 4)))
    ]
    assert len({cost(plan.events(), 1e-5).epsilon for plan in plans}) == 1
    assert plans[0].tuning == plans[1].tuning == plans[2].tuning
    assert 1.9 < plans[2].guarantee().epsilon <= 2.0


def test_what_is_not_of_the_space_has_no_plan():
    with pytest.raises(ConfigError, match="not in the space"):
        asked(**{"budget.epochs": 3.0}).plan(1437)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method.name": "encode_denoise"}, "dp_sgd"),
        ({"method": {"name": "tanh_filter", "settings": {"form": "paper"}}}, "sound"),
        ({"federated.users": 10}, "federated"),
        ({"audit.canaries": 10}, "canaries"),
        ({"run.ledger": "all.jsonl"}, "registry"),
        ({"tune.score": "held-out", "tune.score_noise": 3.0}, "has none"),
        ({"tune.score_noise": -1.0}, None),
        ({"tune.runs": 0.5}, "too few"),
        ({"tune.space": {"budget.epochs": ["long"]}}, "epochs"),
        ({"tune.space": {"optimizer.learning": [1.0]}}, "learning"),
    ],
)
def test_what_does_not_go_with_a_search(changes, words):
    def check():
        config = asked(**changes)
        check_tune(config, config.tune)
        score_noise(config, config.tune)

    with pytest.raises(ConfigError, match=words):
        check()
