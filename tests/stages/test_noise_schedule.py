"""Noise that changes on the way: accounted, drawn, counted in the ledger and verified as it was planned."""

from dataclasses import replace

import pytest
import torch
from forgery import rewritten
from torch import nn
from torch.nn import functional as F

from discreet import (
    BudgetExhausted,
    Clip,
    ConfigError,
    Encode,
    Gaussian,
    Ledger,
    Mechanism,
    Plan,
    Poisson,
    PrivacyError,
    Shuffled,
    StudentT,
    attach,
    calibrate,
    verify,
)
from discreet.accounting import cost
from discreet.accounting.events import Event

FACTORS = (2.0, 1.0, 0.5)


def plan(steps=7, noise=1.0, schedule=FACTORS, **settings):
    return Plan(
        sampling=Poisson(examples=40, batch_size=10),
        mechanism=Mechanism(Clip(1.0), Gaussian(noise)),
        steps=steps,
        delta=1e-5,
        noise_schedule=schedule,
        **settings,
    )


def rows():
    return torch.zeros(40, 200), torch.zeros(40, dtype=torch.long)


def train(private, model, steps=None):
    found = []
    for x, y in private.batches(rows(), steps=steps):
        private.backward(F.cross_entropy(model(x), y, reduction="none") * 0)
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]) * 10)
    return found


def test_the_stretches_are_equal_and_add_up():
    assert plan().stretches == ((2, 2.0), (3, 1.0), (2, 0.5))
    assert [plan().noise_factor(i) for i in range(9)] == [2, 2, 1, 1, 1, 0.5, 0.5, 0.5, 0.5]
    assert plan(steps=2).stretches == ((1, 2.0), (0, 1.0), (1, 0.5))


def test_it_costs_what_its_phases_cost_together():
    rate = 10 / 40
    events = [Event(rate, 2.0, 2), Event(rate, 1.0, 3), Event(rate, 0.5, 2)]
    assert plan().guarantee().epsilon == pytest.approx(cost(events, 1e-5).epsilon)
    assert plan(schedule=()).guarantee().epsilon < plan().guarantee().epsilon
    assert plan(schedule=(1.0, 1.0)).guarantee().epsilon == pytest.approx(plan(schedule=()).guarantee().epsilon)


def test_calibration_keeps_the_shape_and_never_overshoots():
    made = calibrate(plan(steps=300, noise=None), epsilon=2.0)
    assert made.noise_schedule == FACTORS
    assert 1.98 < made.guarantee().epsilon <= 2.0


def test_other_releases_can_be_planned_beside_it():
    pca = Event(1.0, 4.0, 1)
    alone = calibrate(plan(steps=300, noise=None), epsilon=2.0)
    both = calibrate(plan(steps=300, noise=None), epsilon=2.0, beside=[pca])
    assert both.mechanism.noise.multiplier > alone.mechanism.noise.multiplier
    assert both.guarantee(beside=[pca]).epsilon <= 2.0 < alone.guarantee(beside=[pca]).epsilon


def test_the_noise_that_is_drawn_follows_it():
    model = nn.Linear(200, 20)
    private = attach(model, plan(), seed=1)
    found = [float(g.std()) for g in train(private, model)]
    assert found == pytest.approx([2, 2, 1, 1, 1, 0.5, 0.5], rel=0.05)


@pytest.mark.parametrize("reserve", [1, 4])
def test_the_ledger_counts_each_step_at_its_noise_and_verifies(tmp_path, reserve):
    path = tmp_path / "ledger.jsonl"
    model = nn.Linear(200, 20)
    private = attach(model, plan(), Ledger(path, reserve=reserve))
    train(private, model, steps=3)
    assert private.guarantee().epsilon == pytest.approx(plan().guarantee().epsilon)
    private.detach()
    again = attach(model, plan(), Ledger(path, reserve=reserve))
    train(again, model)
    assert again.released == 7
    assert again.guarantee().epsilon == pytest.approx(plan().guarantee().epsilon)
    again.detach()
    found = verify(path).runs[0]
    assert found.follows_from_its_plan
    assert found.guarantee.epsilon == pytest.approx(plan().guarantee().epsilon)


def test_a_checkpoint_of_a_lost_ledger_is_counted_at_the_right_noise():
    model = nn.Linear(200, 20)
    private = attach(model, plan())
    train(private, model, steps=6)
    state = private.state_dict()
    private.detach()
    other = attach(model, plan())
    other.load_state_dict(state)
    assert [(p.steps, p.multiplier) for p in other._aggregate._ledger.events] == [(2, 2.0), (3, 1.0), (1, 0.5)]
    assert other.guarantee().epsilon == pytest.approx(plan().guarantee().epsilon)


def test_releases_that_are_cheaper_than_their_stretch_are_noticed(tmp_path):
    path = tmp_path / "ledger.jsonl"
    private = attach(model := nn.Linear(200, 20), plan(), path)
    train(private, model)
    private.detach()

    def cheaper(content):
        if content.get("step") == 5:
            content["multiplier"] = 1.0

    rewritten(path, cheaper)
    with pytest.raises(PrivacyError, match="costs less"):
        verify(path)


def test_a_schedule_that_is_not_the_plans_is_noticed(tmp_path):
    path = tmp_path / "ledger.jsonl"
    attach(nn.Linear(200, 20), plan(), path).detach()

    def cheaper(content):
        if "schedule" in content:
            content["schedule"] = [[7, 2.0]]

    rewritten(path, cheaper)
    with pytest.raises(PrivacyError, match="not what its plan"):
        verify(path)


def test_a_data_sets_cap_counts_the_whole_schedule(tmp_path):
    most = plan().guarantee().epsilon
    with pytest.raises(BudgetExhausted):
        attach(nn.Linear(200, 20), plan(), Ledger(tmp_path / "a", dataset="d", epsilon=most * 0.99, delta=1e-5))
    attach(nn.Linear(200, 20), plan(), Ledger(tmp_path / "b", dataset="d", epsilon=most * 1.001, delta=1e-5))


def test_a_limit_on_epsilon_is_checked_with_the_schedule():
    flat = plan(schedule=()).guarantee().epsilon
    with pytest.raises(BudgetExhausted):
        attach(nn.Linear(200, 20), plan(epsilon=flat * 1.01))


def test_a_plan_with_a_schedule_is_saved_and_read(tmp_path):
    plan().save(tmp_path / "plan.toml")
    assert Plan.load(tmp_path / "plan.toml") == plan()
    assert plan(schedule=[1.0, 2.0]).noise_schedule == (1.0, 2.0)


@pytest.mark.parametrize("wrong", [(0,), (-1.0,), ("1",), "12", 3, (1.0,) * 65])
def test_settings_are_checked(wrong):
    with pytest.raises(ConfigError):
        plan(schedule=wrong)


def test_what_is_not_accounted_is_refused():
    with pytest.raises(ConfigError, match="Gaussian noise"):
        replace(plan(), mechanism=Mechanism(Clip(1.0), StudentT(9, 1.0)))
    with pytest.raises(ConfigError, match="each step on its own"):
        replace(plan(), sampling=Shuffled(examples=40, batch_size=10))


def test_learning_rates_grow_with_the_batch():
    assert plan().learning_rate(0.1, 5) == pytest.approx(0.2)
    with pytest.raises(ConfigError):
        plan().learning_rate(0, 5)


def test_claims_follow_the_schedule():
    half = replace(plan(steps=100, schedule=(0.5, 0.5)), mechanism=Mechanism(Encode(size=3), Gaussian(2.0)))
    flat = replace(plan(steps=100, schedule=()), mechanism=Mechanism(Encode(size=3), Gaussian(1.0)))
    assert half.guarantee().claims[0].epsilon == pytest.approx(flat.guarantee().claims[0].epsilon)


def test_torn_lines_of_a_schedule_are_taken_off_where_they_were_counted(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, dataset="d", epsilon=1e4, delta=1e-5, reserve=3)
    private = attach(model := nn.Linear(200, 20), plan(steps=6, schedule=(1.0, 2.0, 3.0)), ledger)
    train(private, model, steps=1)
    for _ in range(3):
        with path.open("ab") as file:
            file.write(b'{"at": "20')
        ledger.query("something", Event(1.0, 50.0, 1))
    assert private.guarantee().epsilon > 0
    assert private.spent > 0
