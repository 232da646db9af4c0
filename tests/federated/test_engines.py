import pytest
import torch
from torch import nn
from torch.nn import functional as F

from discreet import ConfigError, PrivacyError
from discreet.federated import Local
from discreet.federated import engines as rooms
from discreet.federated.engines import Loop, Vectorised, engine_for


def loss(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


def ragged(*counts, shape=(1, 6, 6), seed=0):
    """Users with so many records each."""
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(n, *shape, generator=generator), torch.randint(3, (n,), generator=generator)) for n in counts]


class Words(nn.Module):
    """An embedding whose weights are used twice, and a bare parameter."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.shift = nn.Parameter(torch.randn(6))
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        pooled = self.table((x[:, 0, :, 0].abs() * 3).long().clamp(max=10)).mean(1) + self.shift
        return self.out(pooled) + (pooled @ self.table.weight.T)[:, :3]


def partly_frozen():
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3))
    model[1].weight.requires_grad_(False)
    return model


MODELS = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 3)),
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 3)),
    "convolution": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)
    ),
    "layer norm": lambda: nn.Sequential(nn.Flatten(), nn.LayerNorm(36), nn.Linear(36, 3)),
    "words": Words,
    "frozen": partly_frozen,
}
LOCALS = {
    "one batch": Local(batch_size=None, learning_rate=0.3),
    "small batches": Local(batch_size=3, epochs=2),
    "momentum": Local(batch_size=4, epochs=3, momentum=0.9, weight_decay=0.01),
    "adam": Local(batch_size=3, epochs=2, optimizer="adam", learning_rate=0.01),
    "rmsprop": Local(batch_size=5, optimizer="rmsprop", learning_rate=0.001),
}


def made(name="mlp", double=True):
    torch.manual_seed(3)
    model = MODELS[name]()
    return model.double() if double else model


def doubled(data):
    return [(x.double(), y) for x, y in data]


# --- one user --------------------------------------------------------------------------------------------------------


def test_an_update_is_how_far_plain_training_moves_the_weights():
    model, (data,) = made(), doubled(ragged(7))
    local = Local(batch_size=3, epochs=2, learning_rate=0.2)
    found = local.update(model, data, in_round=4, user=9)
    weights = [p.detach().clone().requires_grad_() for p in model.parameters()]
    x, y = data
    for order in local.orders(7, in_round=4, user=9):
        for rows in (order[:3], order[3:6], order[6:]):
            hidden = torch.tanh(x[rows].flatten(1) @ weights[0].T + weights[1])
            mean = F.cross_entropy(hidden @ weights[2].T + weights[3], y[rows])
            gradients = torch.autograd.grad(mean, weights)
            weights = [(w - 0.2 * g).detach().requires_grad_() for w, g in zip(weights, gradients, strict=True)]
    for change, weight, start in zip(found.values(), weights, model.parameters(), strict=True):
        assert torch.allclose(change, weight - start, atol=1e-12)


def test_the_model_itself_stays_as_it_was():
    model, (data,) = made(), doubled(ragged(7))
    before = [p.detach().clone() for p in model.parameters()]
    Local().update(model, data, in_round=0, user=0)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())


def test_every_epoch_takes_each_record_once_in_another_order():
    orders = Local(batch_size=4, epochs=3).orders(50, in_round=0, user=1)
    assert torch.equal(orders.sort(1).values, torch.arange(50).expand(3, 50))
    assert len({tuple(order.tolist()) for order in orders}) == 3


def test_orders_follow_from_seed_round_and_user_alone():
    local = Local(batch_size=4)
    one = local.orders(50, in_round=2, user=7)
    torch.manual_seed(99)
    assert torch.equal(one, local.orders(50, in_round=2, user=7))
    for other in (local.orders(50, in_round=3, user=7), local.orders(50, in_round=2, user=8)):
        assert not torch.equal(one, other)
    assert not torch.equal(one, Local(batch_size=4, seed=1).orders(50, in_round=2, user=7))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"epochs": 0}, "epochs"),
        ({"batch_size": 0}, "batch_size"),
        ({"optimizer": "lion"}, "sgd, adam"),
        ({"optimizer": "adam", "momentum": 0.9}, "momentum"),
        ({"momentum": -1.0}, "momentum"),
    ],
)
def test_local_settings_that_make_no_sense_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        Local(**settings)


# --- many users ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS)
def test_both_engines_make_each_users_own_update(name, local):
    model, data, users = made(name), doubled(ragged(7, 3, 0, 10, 1, 4)), [8, 0, 3, 5, 1, 13]
    alone = [local.update(model, d, in_round=2, user=u, loss=loss) for d, u in zip(data, users, strict=True)]
    for engine in (Loop(model, local, loss), Vectorised(model, local, loss)):
        for _ in range(2):  # nothing is left from the first time
            found = engine.updates(data, users, 2)
            for parameter, moved in found.items():
                wanted = torch.stack([update[parameter] for update in alone])
                assert torch.allclose(moved, wanted, rtol=1e-7, atol=1e-10), (type(engine).__name__, parameter)
    assert set(found) == {n for n, p in model.named_parameters() if p.requires_grad}


def test_engines_agree_in_single_precision():
    model, data = made("convolution", double=False), ragged(*[5] * 20)
    local = Local(batch_size=2, epochs=2)
    one, other = Loop(model, local, loss).updates(data, range(20), 0), Vectorised(model, local, loss)
    for name, moved in other.updates(data, range(20), 0).items():
        assert float((moved - one[name]).abs().max()) < 1e-5


def test_users_who_do_not_fit_at_once_are_taken_in_parts(monkeypatch):
    model, data = made(), doubled(ragged(7, 3, 0, 10, 1, 4))
    engine = Vectorised(model, Local(batch_size=3), loss)
    wanted = engine.updates(data, range(6), 0)
    monkeypatch.setattr(rooms, "_BYTES", 3 * 4 * sum(p.numel() * 8 for p in model.parameters()) + 10 * 36 * 8)
    found = engine.updates(data, range(6), 0)
    assert all(torch.allclose(found[n], wanted[n], atol=1e-12) for n in wanted)


@pytest.mark.parametrize("kind", [Loop, Vectorised])
def test_a_user_whose_records_are_not_finite_spoils_nobody_else(kind):
    model, data = made(), doubled(ragged(6, 6, 6))
    engine = kind(model, Local(batch_size=2), loss)
    wanted = engine.updates(data, range(3), 0)
    data[1][0][2, 0, 0, 0] = torch.nan
    found = engine.updates(data, range(3), 0)
    for name, moved in found.items():
        assert torch.equal(moved[[0, 2]], wanted[name][[0, 2]])
    assert any(bool(moved[1].isnan().any()) for moved in found.values())


def test_each_user_has_dropout_of_its_own():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 3))
    ((x, y),) = ragged(8)
    found = Vectorised(model, Local(batch_size=None), loss).updates([(x, y)] * 3, range(3), 0)
    moved = found["2.weight"]
    assert not torch.allclose(moved[0], moved[1])
    assert not torch.allclose(moved[1], moved[2])


# --- which engine ----------------------------------------------------------------------------------------------------

EXAMPLE = (torch.zeros(1, 6, 6), torch.tensor(0))


@pytest.mark.parametrize("name", [n for n in MODELS if n != "words"])
def test_plain_models_are_vectorised(name):
    found = engine_for("auto", made(name, double=False), Local(), loss, EXAMPLE)
    engine, alone = found.engine, found.alone
    assert isinstance(engine, Vectorised)
    assert alone


def test_dropout_is_no_reason_to_loop():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 3))
    found = engine_for("auto", model, Local(), loss, EXAMPLE)
    engine, alone = found.engine, found.alone
    assert isinstance(engine, Vectorised)
    assert alone


class Branching(nn.Module):
    """Decides by values, which cannot be vectorised."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(36, 3)

    def forward(self, x):
        out = self.layer(x.flatten(1))
        return out if float(out.sum()) > 0 else 2 * out


class Padded(nn.Module):
    """Uses the mean of its batch, in which padding would count."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(36, 3)

    def forward(self, x):
        return self.layer(x.flatten(1) - x.flatten(1).mean(0))


@pytest.mark.parametrize("model", [Branching, Padded])
def test_other_models_are_trained_one_user_after_the_other(model):
    found = engine_for("auto", model(), Local(), loss, EXAMPLE)
    engine, alone = found.engine, found.alone
    assert isinstance(engine, Loop)
    assert alone
    with pytest.raises(ConfigError, match="engine='loop'"):
        engine_for("vectorised", model(), Local(), loss, EXAMPLE)


class Remembering(nn.Module):
    """Keeps something of each batch in a plain attribute."""

    def __init__(self):
        super().__init__()
        self.layer, self.memory = nn.Linear(36, 3), torch.zeros(36)

    def forward(self, x):
        out = self.layer(x.flatten(1) - self.memory)
        self.memory = 0.5 * self.memory + 0.5 * x.detach().flatten(1).mean(0)
        return out


@pytest.mark.parametrize("kind", ["auto", "loop"])
def test_what_a_model_keeps_does_not_reach_the_next_user(kind):
    found = engine_for(kind, Remembering(), Local(), loss, EXAMPLE)
    engine, alone = found.engine, found.alone
    assert isinstance(engine, Loop)
    assert alone


class Sharing(nn.Module):
    """Keeps something where every copy of it looks."""

    memory = torch.zeros(36)

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(36, 3)

    def forward(self, x):
        out = self.layer(x.flatten(1) - Sharing.memory)
        Sharing.memory = 0.5 * Sharing.memory + 0.5 * x.detach().flatten(1).mean(0)
        return out


class Counting(nn.Module):
    """Anneals by the number of calls, which every copy of it counts."""

    calls = 0

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(36, 3)

    def forward(self, x):
        Counting.calls += 1
        return self.layer(x.flatten(1)) * (1 + Counting.calls / 20)


@pytest.mark.parametrize("model", [Sharing, Counting])
def test_a_model_that_carries_something_from_user_to_user_is_not_called_checked(model, monkeypatch):
    monkeypatch.setattr(model, "calls" if model is Counting else "memory", getattr(model, "calls", torch.zeros(36)))
    assert not engine_for("loop", model(), Local(), loss, EXAMPLE).alone


def test_an_engine_that_mixes_users_is_refused():
    class Mixing(Loop):
        def updates(self, data, users, in_round):
            return {n: u + u.mean(0) for n, u in super().updates(data, users, in_round).items()}

    with pytest.raises(PrivacyError, match="another user's data"):
        rooms._probed(lambda: Mixing(made(double=False), Local(), loss), rooms._made_up(EXAMPLE, Local()))


def test_what_is_drawn_for_a_user_does_not_depend_on_who_else_is_there():
    model, data = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 3)), ragged(6, 6, 6)
    engine = Loop(model, Local(batch_size=2), loss)
    all_three, last_two = engine.updates(data, range(3), 0), engine.updates(data[1:], [1, 2], 0)
    assert all(torch.equal(all_three[n][1:], last_two[n]) for n in all_three)


@pytest.mark.parametrize("kind", [Loop, Vectorised])
def test_random_numbers_of_local_training_are_secret(kind):
    """A seed that everybody knows tells nothing of them, and they do not touch the caller's."""
    model, data = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 3)), ragged(6, 6)
    found = []
    for _ in range(2):
        torch.manual_seed(5)
        found.append(kind(model, Local(), loss).updates(data, range(2), 0)["2.weight"])
        after = torch.rand(1)
        torch.manual_seed(5)
        assert torch.equal(after, torch.rand(1))
    assert not torch.allclose(*found)


def test_a_loss_that_looks_at_its_whole_batch_sees_one_user_alone():
    def scaled(outputs, targets):
        each = F.cross_entropy(outputs, targets, reduction="none")
        return each / each.detach().max().clamp(min=50)

    model, data = made(), doubled(ragged(6, 6, 6))
    wanted = Vectorised(model, Local(), scaled).updates(data, range(3), 0)
    data[1] = (data[1][0] * 1e6, data[1][1])
    found = Vectorised(model, Local(), scaled).updates(data, range(3), 0)
    assert all(torch.allclose(found[n][[0, 2]], wanted[n][[0, 2]], atol=1e-12) for n in found)


def test_one_user_with_very_many_records_is_trained_apart(monkeypatch):
    model, data = made(), doubled(ragged(300, 3, 4, 5))
    engine = Vectorised(model, Local(batch_size=10), loss)
    wanted = engine.updates(data, range(4), 0)
    monkeypatch.setattr(rooms, "_BYTES", 2 * 300 * 36 * 8)
    parts = []
    train = engine._train
    monkeypatch.setattr(engine, "_train", lambda s, d, u, r: parts.append(len(u)) or train(s, d, u, r))
    found = engine.updates(data, range(4), 0)
    assert parts[0] < 4
    assert all(torch.allclose(found[n], wanted[n], atol=1e-12) for n in wanted)


def test_a_buffer_that_is_written_does_not_reach_the_next_user():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(36, 3)
            self.register_buffer("seen", torch.zeros(36))

        def forward(self, x):
            out = self.layer(x.flatten(1) - self.seen)
            self.seen += x.detach().flatten(1).mean(0)
            return out

    found = engine_for("auto", Counting(), Local(), loss, EXAMPLE)
    engine, alone = found.engine, found.alone
    assert isinstance(engine, Loop)
    assert alone


def test_probing_looks_at_shapes_and_types_alone():
    model = made(double=False)
    example = (torch.full((1, 6, 6), torch.nan), torch.tensor(2))
    assert engine_for("auto", model, Local(), loss, example).alone


def test_an_unknown_engine_is_refused():
    with pytest.raises(ConfigError, match="auto, vectorised, loop"):
        engine_for("fast", made(), Local(), loss, EXAMPLE)
