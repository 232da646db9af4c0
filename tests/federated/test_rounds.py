import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from discreet import (
    AdaptiveClip,
    AutomaticClip,
    BoundedNetwork,
    BudgetExhausted,
    Clip,
    ConfigError,
    Encode,
    FixedSize,
    Gaussian,
    Ledger,
    Mechanism,
    PerLayerClip,
    Plan,
    Poisson,
    PrivacyError,
    RadialTanh,
    ScaledTanh,
    calibrate,
    methods,
    verify,
)
from discreet.federated import Rounds
from discreet.stages.sensitivity import Layout

USERS = 6


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def plan(bound=None, noise=0.0, *, users=USERS, per_round=None, rounds=3, **more):
    sampling = Poisson(examples=users, batch_size=per_round or users, unit="user")
    mechanism = Mechanism(bound or Clip(1.0), Gaussian(noise))
    return Plan(sampling=sampling, mechanism=mechanism, steps=rounds, delta=1e-5, **more)


def some(count=USERS, size=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {name: size * torch.randn(count, *p.shape, generator=generator) for name, p in network().named_parameters()}


def released(rounds, model, updates, users=None, weights=None):
    """The gradients of one round, as one vector."""
    cohort = rounds.draw()
    rounds.add(cohort if users is None else users, updates, weights)
    rounds.release()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def flat(updates):
    return torch.cat([u.flatten(1) for u in updates.values()], 1)


def one_round(made, updates, weights=None, users=None, **more):
    model = network()
    rounds = Rounds(model, made, **more)
    found = released(rounds, model, updates, users, weights)
    rounds.detach()
    return found


# --- what is released ------------------------------------------------------------------------------------------------


def test_the_gradient_is_minus_the_mean_of_clipped_updates():
    rows = flat(some(size=0.2))
    clipped = rows * (1.0 / rows.norm(dim=1, keepdim=True)).clamp(max=1.0)
    assert (rows.norm(dim=1) > 1).any()
    assert (rows.norm(dim=1) < 1).any()
    assert torch.allclose(one_round(plan(), some(size=0.2)), -clipped.sum(0) / USERS, atol=1e-6)


def test_a_step_of_sgd_with_rate_one_moves_the_weights_by_the_mean_update():
    model, updates = network(), some(size=0.01)
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    rounds = Rounds(model, plan())
    released(rounds, model, updates)
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert torch.allclose(after - before, flat(updates).mean(0), atol=1e-6)


def test_updates_in_several_parts_are_those_in_one():
    model, updates = network(), some()
    rounds = Rounds(model, plan())
    cohort = rounds.draw()
    for part in (cohort[:1], cohort[1:4], cohort[4:]):
        rounds.add(part, {name: u[part] for name, u in updates.items()})
    rounds.release()
    found = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert torch.allclose(found, one_round(plan(), updates), atol=1e-6)


def test_weights_multiply_what_was_bounded():
    rows = flat(some())
    clipped = rows * (1.0 / rows.norm(dim=1, keepdim=True)).clamp(max=1.0)
    weights = [1.0, 0.5, 0.0, 0.25, 1.0, 0.1]
    wanted = -(clipped * torch.tensor(weights)[:, None]).sum(0) / 2.5
    assert torch.allclose(one_round(plan(), some(), weights, denominator=2.5), wanted, atol=1e-6)


@pytest.mark.parametrize("weights", [[1.1] * USERS, [-0.1] * USERS, [math.nan] * USERS, [1.0], [math.inf] * USERS])
def test_weights_out_of_range_are_refused(weights):
    with pytest.raises(ConfigError, match="from 0 to 1"):
        one_round(plan(), some(), weights)


LAYOUT = Layout(*zip(*((n, tuple(p.shape)) for n, p in network().named_parameters()), strict=True))


# --- one user's influence --------------------------------------------------------------------------------------------

BOUNDS = [
    Clip(0.7),
    AutomaticClip(norm=0.7),
    PerLayerClip({"0": 0.5, "2": 0.3}),
    PerLayerClip(0.2),
    AdaptiveClip(0.7),
    AdaptiveClip(0.7, rule="mean", per_layer=True),
    RadialTanh(0.7),
    ScaledTanh(0.7),
    Encode(0.7),
]


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda b: type(b).__name__)
@settings(max_examples=settings().max_examples // 4)
@given(st.integers(0, 10**6), st.sampled_from([1e-6, 0.1, 1.0, 1e3, 1e15, 1e30, math.inf, math.nan]))
def test_leaving_a_user_out_moves_the_sum_by_at_most_the_bound(bound, seed, size):
    updates = some(seed=seed)
    adversarial = {name: u.clone() for name, u in updates.items()}
    for u in adversarial.values():
        u[2] *= size
    weights = torch.rand(USERS, generator=torch.Generator().manual_seed(seed)).tolist()
    made = plan(bound).fit_to(network())
    present = one_round(made, adversarial, weights)
    others = [0, 1, 3, 4, 5]
    absent = one_round(made, {n: u[others] for n, u in adversarial.items()}, [weights[i] for i in others], others)
    contract = made.mechanism.bound.contract(LAYOUT, made.mechanism.bound.start(LAYOUT))
    limit = math.hypot(*(b.norm for b in contract.blocks if not b.share))
    assert present.isfinite().all()
    assert float((present - absent).double().norm()) * USERS <= limit * (1 + 1e-5)


def test_a_user_who_is_not_bounded_would_be_noticed():
    class Loose(Clip):
        def apply(self, norms, state):
            return {name: torch.ones_like(n) for name, n in norms.items()}

    with pytest.raises(PrivacyError, match="does not bound"):
        one_round(plan(Loose(0.7)), some(size=10.0))


# --- updates that do not come as they should -------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_update_that_is_not_finite_is_one_that_never_came(value):
    broken = some()
    broken["0.weight"][3, 0, 0] = value
    others = [0, 1, 2, 4, 5]
    wanted = one_round(plan(), {n: u[others] for n, u in some().items()}, users=others)
    assert torch.equal(one_round(plan(), broken), wanted)


def test_nothing_comes_at_all():
    model = network()
    rounds = Rounds(model, plan())
    rounds.draw()
    rounds.release()
    assert all(bool((p.grad == 0).all()) for p in model.parameters())
    assert rounds.released == 1


def test_a_second_update_of_a_user_counts_for_nothing():
    model, updates = network(), some()
    rounds = Rounds(model, plan())
    cohort = rounds.draw()
    rounds.add(cohort, updates)
    rounds.add(cohort[:2], {n: 50 * u[:2] for n, u in updates.items()})
    rounds.release()
    found = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert torch.equal(found, one_round(plan(), updates))


def test_a_user_twice_in_one_call_counts_once():
    doubled = {n: torch.cat([u, 9 * u[1:2]]) for n, u in some().items()}
    assert torch.equal(one_round(plan(), doubled, users=[0, 1, 2, 3, 4, 5, 1]), one_round(plan(), some()))


def test_who_was_not_drawn_cannot_send():
    rounds = Rounds(network(), plan(per_round=1, rounds=5))
    cohort = rounds.draw()
    stranger = next(user for user in range(USERS) if user not in cohort)
    with pytest.raises(PrivacyError, match="not drawn"):
        rounds.add([stranger], {n: u[:1] for n, u in some().items()})


@pytest.mark.parametrize("change", ["missing", "more", "shape", "dtype"])
def test_updates_of_another_model_are_refused(change):
    updates = some()
    if change == "missing":
        del updates["0.bias"]
    elif change == "more":
        updates["3.bias"] = torch.zeros(USERS, 2)
    elif change == "shape":
        updates["0.bias"] = torch.zeros(USERS, 5)
    else:
        updates["0.bias"] = torch.zeros(USERS, 4, dtype=torch.long)
    with pytest.raises(ConfigError, match=r"bias"):
        one_round(plan(), updates)


def test_rounds_are_drawn_added_and_released_in_order():
    rounds = Rounds(network(), plan())
    with pytest.raises(PrivacyError, match="no open round"):
        rounds.add([0], {n: u[:1] for n, u in some().items()})
    with pytest.raises(PrivacyError, match="no open round"):
        rounds.release()
    rounds.draw()
    rounds.release()
    with pytest.raises(PrivacyError, match="no open round"):
        rounds.release()


def test_a_round_that_is_given_up_leaves_nothing_behind():
    model = network()
    rounds = Rounds(model, plan())
    rounds.add(rounds.draw(), some(seed=7))
    assert torch.equal(released(rounds, model, some()), one_round(plan(), some()))
    assert rounds.released == 1


def test_drawing_again_cannot_choose_another_cohort():
    rounds = Rounds(network(), plan(users=1000, per_round=100))
    assert rounds.draw() == rounds.draw()


# --- sampling and noise ----------------------------------------------------------------------------------------------


def test_users_take_part_by_coins_of_the_plans_rate():
    """1,000 users x 60 rounds at rate 0.2: 5 deviations off happens in less than 1 of 10^6 runs."""
    rounds = Rounds(network(), plan(users=1000, per_round=200, rounds=60))
    counts = []
    while rounds.remaining:
        counts.append(len(rounds.draw()))
        rounds.release()
    assert abs(sum(counts) - 12_000) < 5 * math.sqrt(60_000 * 0.2 * 0.8)
    assert len(set(counts)) > 10


def test_an_empty_cohort_releases_noise_and_is_counted():
    model = network()
    rounds = Rounds(model, plan(noise=2.0, users=10**6, per_round=1, rounds=400))
    while True:
        cohort = rounds.draw()
        rounds.release()
        if not cohort:
            break
    assert all(bool((p.grad != 0).all()) for p in model.parameters())


@pytest.mark.parametrize(("denominator", "scale"), [(None, 5.0), (2.0, 2.0)])
def test_noise_is_added_once_with_the_plans_deviation(denominator, scale):
    """26 values x 400 rounds: the sample deviation is within 4 % but for less than 1 of 10^7 runs."""
    model = network()
    rounds = Rounds(model, plan(Clip(0.5), noise=3.0, users=5, rounds=400), denominator=denominator, seed=3)
    values = []
    while rounds.remaining:
        rounds.draw()
        rounds.release()
        values += [p.grad.flatten() for p in model.parameters()]
    assert float(torch.cat(values).std()) == pytest.approx(3.0 * 0.5 / scale, rel=0.04)


# --- guarantee, ledger, budget ---------------------------------------------------------------------------------------


def test_the_guarantee_is_for_each_user():
    made = methods.dp_fedavg(users=1000, users_per_round=100, rounds=50, noise=1.0, delta=1e-5)
    rounds = Rounds(network(), made)
    proven = rounds.guarantee()
    assert (proven.unit, proven.adjacency) == ("user", "zero-out")
    same = methods.dp_sgd(examples=1000, batch_size=100, steps=50, noise=1.0, delta=1e-5)
    assert proven.epsilon == same.guarantee().epsilon
    assert "one user's records were all replaced" in str(proven)
    assert {c.status for c in proven.conditions if "own data alone" in c.text} == {"assumed"}


def test_dp_fedavg_has_the_papers_delta_unless_it_is_given():
    made = methods.dp_fedavg(users=1000, users_per_round=100, rounds=50, epsilon=4)
    assert made.delta == pytest.approx(1000**-1.1)
    assert 3.9 < made.guarantee().epsilon <= 4


def test_a_round_is_on_disk_before_it_is_released(tmp_path, monkeypatch):
    rounds = Rounds(network(), plan(noise=1.0), tmp_path / "ledger.jsonl")
    rounds.add(rounds.draw(), some())

    def broken(*args):
        assert (tmp_path / "ledger.jsonl").read_text().count('"kind": "release"') == 1
        raise KeyboardInterrupt

    monkeypatch.setattr(rounds._aggregate._sums, "noised", broken)
    with pytest.raises(KeyboardInterrupt):
        rounds.release()
    assert rounds.released == 1


def test_a_ledger_of_rounds_verifies(tmp_path):
    model = network()
    rounds = Rounds(model, plan(noise=1.0, per_round=2), tmp_path / "ledger.jsonl")
    while rounds.remaining:
        rounds.draw()
        rounds.release()
    proven = rounds.guarantee()
    rounds.detach()
    found = verify(tmp_path / "ledger.jsonl").runs[0]
    assert found.guarantee.epsilon == proven.epsilon
    assert found.guarantee.unit == "user"
    with pytest.raises(PrivacyError, match="spent"):
        Rounds(model, plan(noise=1.0, per_round=2), tmp_path / "ledger.jsonl").draw()


def test_a_data_sets_cap_holds_for_users(tmp_path):
    ledger = Ledger(tmp_path / "all.jsonl", dataset="phones", epsilon=2.2, delta=1e-5)
    made = calibrate(plan(noise=1.0, per_round=2), 2.0)
    rounds = Rounds(network(), made, ledger)
    rounds.detach()
    with pytest.raises(BudgetExhausted, match="phones"):
        Rounds(network(), calibrate(plan(noise=1.0, per_round=2, rounds=4), 2.0), ledger)


def test_a_plan_over_its_limit_is_refused():
    with pytest.raises(BudgetExhausted, match="more than its limit"):
        Rounds(network(), plan(noise=0.5, epsilon=0.1))


def test_a_seeded_run_says_that_it_is_broken():
    rounds = Rounds(network(), plan(noise=1.0), seed=1)
    assert not rounds.guarantee().sound


def test_an_adaptive_bound_learns_and_is_resumed():
    made = plan(AdaptiveClip(1.0), noise=0.01, rounds=40)
    model = network()
    rounds = Rounds(model, made)
    for _ in range(30):
        released(rounds, model, some(size=0.02))
    usual = float(flat(some(size=0.02)).norm(dim=1).median())
    learned = rounds.learned["bound"]["norms"][0]
    assert usual / 2 < learned < 2 * usual
    state = rounds.state_dict()
    rounds.detach()
    again = Rounds(model, made)
    again.load_state_dict(state)
    assert again.released == 30
    assert again.learned["bound"]["norms"][0] == learned


# --- what is refused -------------------------------------------------------------------------------------------------


def test_a_plan_for_examples_is_refused():
    made = methods.dp_sgd(examples=10, batch_size=5, steps=2, noise=1.0)
    with pytest.raises(ConfigError, match="unit='user'"):
        Rounds(network(), made)


@pytest.mark.parametrize(
    ("mechanism", "words"),
    [
        (Mechanism(BoundedNetwork(1.0), Gaussian(1.0)), "inside the network"),
        (Mechanism(Clip(1.0), Gaussian(1.0), microbatch=2), "microbatch"),
    ],
)
def test_stages_that_see_no_update_are_refused(mechanism, words):
    made = Plan(sampling=Poisson(examples=9, batch_size=3, unit="user"), mechanism=mechanism, steps=2, delta=1e-5)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    with pytest.raises(ConfigError, match=words):
        Rounds(model, made)


def test_a_sampler_of_fixed_size_takes_users_too():
    sampling = FixedSize(examples=9, batch_size=3, unit="user")
    made = Plan(sampling=sampling, mechanism=Mechanism(Clip(1.0), Gaussian(1.0)), steps=2, delta=1e-5)
    assert len(Rounds(network(), made).draw()) == 3


def test_a_secret_number_of_users_is_given_with_the_draw():
    sampling = Poisson(rate=0.5, batch_size=3, unit="user")
    made = Plan(sampling=sampling, mechanism=Mechanism(Clip(1.0), Gaussian(1.0)), steps=2, delta=1e-5)
    rounds = Rounds(network(), made)
    with pytest.raises(ConfigError, match="users="):
        rounds.draw()
    assert set(rounds.draw(7)) <= set(range(7))


def test_a_plain_backward_pass_raises_until_detached():
    model = network()
    rounds = Rounds(model, plan())
    with pytest.raises(PrivacyError, match="without privacy"):
        model(torch.ones(1, 3)).sum().backward()
    rounds.detach()
    model(torch.ones(1, 3)).sum().backward()
    with pytest.raises(PrivacyError, match="detached"):
        rounds.draw()
