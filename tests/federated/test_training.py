import pytest
import torch
from torch import nn

from discreet import AdaptiveClip, ConfigError, PerLayerClip, methods, verify
from discreet.federated import Local, Users, fit

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(600, 8, generator=GENERATOR)
Y = (X[:, 0] + 0.5 * X[:, 1] > 0).long()


def network():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


def plan(noise=0.5, rounds=20, users=60, per_round=30, **more):
    return methods.dp_fedavg(users=users, users_per_round=per_round, rounds=rounds, noise=noise, delta=1e-3, **more)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


USERS = Users.dealt(X, Y, 60, "dirichlet")
LOCAL = Local(learning_rate=0.3, epochs=2, batch_size=5)


@pytest.mark.parametrize("bound", [None, PerLayerClip(0.5), AdaptiveClip(0.5)], ids=["flat", "per layer", "adaptive"])
def test_a_model_learns_from_users(bound):
    model = network()
    fitted = fit(model, USERS, plan(bound=bound), local=LOCAL, test=(X, Y))
    assert fitted.accuracy > 0.8
    assert fitted.guarantee.unit == "user"
    assert fitted.guarantee.epsilon == plan(bound=bound).guarantee().epsilon
    checked = [c for c in fitted.guarantee.conditions if "own data alone" in c.text]
    assert [c.status for c in checked] == ["checked"]
    assert fitted.records[-1]["step"] == 20
    assert "users_per_second" in fitted.records[-1]


@pytest.mark.parametrize(
    "server",
    [
        lambda p: torch.optim.SGD(p, lr=1.0),
        lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9),
        lambda p: torch.optim.Adam(p, lr=0.05),
    ],
    ids=["fedavg", "momentum", "adam"],
)
def test_the_server_has_any_optimizer_and_engines_agree(server):
    found = []
    for engine in ("loop", "vectorised"):
        model = network().double()
        users = Users(X.double(), Y, USERS.rows)
        fit(model, users, plan(noise=0.0, rounds=5), local=LOCAL, optimizer=server(model.parameters()), engine=engine,
            seed=4)  # fmt: skip
        found.append(weights(model))
    assert float((found[0] - found[1]).abs().max()) < 1e-5
    assert float((found[0] - weights(network().double())).abs().max()) > 0.01


def test_a_round_is_what_its_cohort_makes_of_it():
    """One round of everybody, without noise, against clipped updates that are made one by one."""
    model = network()
    updates = [LOCAL.update(model, user, in_round=0, user=k) for k, user in enumerate(USERS)]
    rows = torch.stack([torch.cat([u.flatten() for u in update.values()]) for update in updates])
    clipped = rows * (0.4 / rows.norm(dim=1, keepdim=True)).clamp(max=1.0).nan_to_num(1.0)
    start = weights(model)
    fit(model, USERS, plan(noise=0.0, rounds=1, per_round=60, norm=0.4), local=LOCAL)
    assert torch.allclose(weights(model) - start, clipped.sum(0) / 60, atol=1e-6)


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_a_user_with_many_adversarial_records_moves_the_sum_by_at_most_the_bound(engine):
    made = plan(noise=0.0, rounds=1, per_round=60, norm=0.4)
    records = 1e4 * torch.randn(500, 8, generator=GENERATOR), torch.randint(2, (500,), generator=GENERATOR)

    def moved(user):
        model = network()
        start = weights(model)
        fit(model, [user if k == 7 else USERS[k] for k in range(60)], made, local=LOCAL, engine=engine)
        return (weights(model) - start).double()

    nothing = records[0][:0], records[1][:0]
    change = 60 * float((moved(records) - moved(nothing)).norm())
    assert 0.39 < change <= 0.4 * (1 + 1e-4)


def test_weights_and_their_public_total():
    shares = [min(1.0, len(rows) / 10) for rows in USERS.rows]
    model, same = network(), network()
    made = plan(noise=0.0, rounds=1, per_round=60)
    fit(model, USERS, made, local=LOCAL, weights=shares, denominator=40.0)
    fit(same, USERS, made, local=LOCAL, weights=torch.tensor(shares) / 2, denominator=20.0)
    assert torch.allclose(weights(model), weights(same), atol=1e-6)
    assert not torch.allclose(weights(model), weights(network()), atol=1e-3)
    for wrong in ([1.0], [2.0] * 60):
        with pytest.raises(ConfigError, match="from 0 to 1"):
            fit(network(), USERS, made, weights=wrong)


def test_a_run_that_was_stopped_is_resumed(tmp_path):
    made, model = plan(), network()
    files = {"ledger": tmp_path / "ledger.jsonl", "checkpoint": tmp_path / "checkpoint"}
    steps = []
    stopped = fit(model, USERS, made, local=LOCAL, on_step=steps.append, stop=lambda: len(steps) == 8, **files)
    assert not stopped.finished
    again = network()
    fitted = fit(again, USERS, made, local=LOCAL, test=(X, Y), **files)
    assert fitted.finished
    assert fitted.lost == 0
    assert verify(tmp_path / "ledger.jsonl").runs[0].released == 20
    assert fitted.accuracy > 0.8


def test_rounds_that_a_crash_lost_are_not_repeated(tmp_path):
    def crash(step):
        if step == 6:
            raise KeyboardInterrupt

    files = {"ledger": tmp_path / "ledger.jsonl", "checkpoint": tmp_path / "checkpoint", "checkpoint_every": 10**6}
    with pytest.raises(KeyboardInterrupt):
        fit(network(), USERS, plan(), local=LOCAL, on_step=crash, **files)
    fitted = fit(network(), USERS, plan(), local=LOCAL, **files)
    assert fitted.lost == 6
    assert verify(tmp_path / "ledger.jsonl").runs[0].released == 20


def test_users_without_records_and_empty_rounds_are_fine():
    users = [USERS[0], (X[:0], Y[:0]), USERS[2]]
    made = methods.dp_fedavg(users=3, users_per_round=1, rounds=30, noise=0.5, delta=1e-3)
    assert fit(network(), users, made, local=LOCAL).guarantee.released == 30


@pytest.mark.parametrize(
    ("users", "words"),
    [
        ([], "no users"),
        ([(X[:0], Y[:0])] * 60, "no user has any records"),
        ([(X[:2], Y[:2])] * 59, "59"),
        ([*([(X[:2], Y[:2])] * 59), (X[:2].long(), Y[:2])], "alike"),
        ([*([(X[:2], Y[:2])] * 59), (X[:2, :3], Y[:2])], "alike"),
        ([*([(X[:2], Y[:2])] * 59), (X[:3], Y[:2])], "different lengths"),
    ],
)
def test_users_that_do_not_fit_are_refused_before_anything_is_counted(users, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        fit(network(), users, plan(), ledger=tmp_path / "ledger.jsonl")
    assert not (tmp_path / "ledger.jsonl").exists()


def test_without_preflight_the_guarantee_says_what_is_assumed():
    fitted = fit(network(), USERS, plan(rounds=2), local=LOCAL, preflight=False)
    checked = [c for c in fitted.guarantee.conditions if "own data alone" in c.text]
    assert [c.status for c in checked] == ["assumed"]
