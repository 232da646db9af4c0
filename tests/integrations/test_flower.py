"""Flower carries the same mechanism: the same update as in one process, and no client can do more than its bound."""

import itertools
import logging
import os
import pickle
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from io import BytesIO

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

if find_spec("flwr") is None and not os.environ.get("CI"):
    pytest.skip(reason="flwr is not installed: pip install 'discreet[federated]'", allow_module_level=True)

from fake_grid import FakeGrid, FakeLink, context, over_the_wire
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore import telemetry
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity

from discreet import (
    AdaptiveClip,
    AutomaticClip,
    BLTGaussian,
    Clip,
    ConfigError,
    FixedSize,
    Gaussian,
    Mechanism,
    MinSeparation,
    PerLayerClip,
    Plan,
    Poisson,
    PrivacyError,
    verify,
)
from discreet.federated import Local, Rounds, fit
from discreet.integrations.flower import Federation, client, client_app, server, wire

USERS = 6
LOCAL = Local(learning_rate=0.5, batch_size=4)


@pytest.fixture(autouse=True)
def _a_task(monkeypatch):
    """Flower's messages carry the number of the run that they belong to."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def data_of(user):
    drawn = torch.Generator().manual_seed(user)
    return torch.randn(9, 5, generator=drawn), torch.randint(3, (9,), generator=drawn)


def load(ctx):
    return data_of(ctx.node_config["partition-id"])


def make_plan(steps=1, batch_size=USERS, bound=None, noise=0.0, users=USERS):
    sampling = Poisson(examples=users, batch_size=batch_size, unit="user")
    mechanism = Mechanism(bound=bound or Clip(0.3), noise=Gaussian(noise))
    return Plan(sampling=sampling, mechanism=mechanism, steps=steps, delta=1e-5)


def honest(user, model=make_model, bound=None, local=LOCAL, load=load):
    """A node that runs the real app."""
    app = client_app(model, load, local, bound=bound)
    return lambda message: [over_the_wire(app(message, context(user)))]


def everybody(**changed):
    """A grid of honest nodes, whose ids are not the users' numbers; `changed` are by user, as u3=..."""
    nodes = {100 + user: honest(user) for user in reversed(range(USERS))}
    return FakeGrid(nodes | {100 + int(name[1:]): node for name, node in changed.items()})


class Recorded(Rounds):
    """Rounds that remember who was drawn and who was added."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.drawn, self.added = [], []

    def draw(self, **there):
        self.drawn.append(super().draw(**there))
        self.added.append([])
        return self.drawn[-1]

    def add(self, users, updates, weights=None):
        self.added[-1].extend(users)
        super().add(users, updates, weights)


def federate(grid, plan=None, *, seed=7, ledger=None, optimizer=None, **options):
    """Train over a grid; returns the model and the rounds."""
    model = make_model()
    rounds = Recorded(model, plan or make_plan(), ledger, seed=seed)
    options = {"timeout": 0.0, "patience": 0.0} | options
    made = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=1.0))
    Federation(rounds, made(model.parameters()), **options).start(grid)
    rounds.detach()
    return model, rounds


def in_process(plan=None, *, seed=7, without=(), optimizer=None):
    """The same in one process; users in `without` contribute nothing."""
    model = make_model()
    rounds = Rounds(model, plan or make_plan(), seed=seed)
    made = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=1.0))
    stepping = made(model.parameters())
    while rounds.remaining:
        number, users = rounds.released, [u for u in rounds.draw() if u not in without]
        updates = [LOCAL.update(model, data_of(user), in_round=number, user=user) for user in users]
        if users:
            rounds.add(users, {name: torch.stack([u[name] for u in updates]) for name in updates[0]})
        rounds.release()
        stepping.step()
    rounds.detach()
    return model


def assert_same(found, wanted):
    for (name, p), q in zip(found.named_parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-5, msg=name)


@torch.no_grad()
def distance(found, other):
    """How far two models are from each other, over all parameters."""
    squares = [(p - q).double().square().sum() for p, q in zip(found.parameters(), other.parameters(), strict=True)]
    return float(torch.stack(squares).sum().sqrt())


# --- the same mechanism ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [Clip(0.3), PerLayerClip(0.1), AutomaticClip()], ids=lambda b: type(b).__name__)
@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_the_update_is_that_of_the_engines_in_one_process(bound, engine):
    plan = make_plan(steps=3, batch_size=3, bound=bound)
    model, rounds = federate(everybody(), plan)
    assert len({tuple(cohort) for cohort in rounds.drawn}) > 1
    wanted = make_model()
    fit(wanted, [data_of(user) for user in range(USERS)], plan, local=LOCAL, engine=engine, seed=7)
    assert_same(model, wanted)
    with pytest.raises(AssertionError):
        assert_same(model, make_model())


@pytest.mark.parametrize("bound", [Clip(0.3), PerLayerClip({"0": 0.05, "2": 0.2})], ids=lambda b: type(b).__name__)
def test_the_users_own_bound_changes_nothing_of_it(bound):
    plan = make_plan(steps=3, batch_size=3, bound=bound)
    grid = FakeGrid({user: honest(user, bound=bound) for user in range(USERS)})
    assert_same(federate(grid, plan)[0], in_process(plan))


@pytest.mark.parametrize("bound", [Clip(0.3), AdaptiveClip(0.3)], ids=lambda b: type(b).__name__)
def test_noise_server_optimizer_and_learned_bounds_are_those_of_one_process(bound):
    plan = make_plan(steps=3, batch_size=3, noise=1.5, bound=bound)
    momentum = lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)  # noqa: E731
    assert_same(federate(everybody(), plan, optimizer=momentum)[0], in_process(plan, optimizer=momentum))


def test_only_the_cohort_is_asked_and_each_once():
    grid = everybody()
    _, rounds = federate(grid, make_plan(steps=8, batch_size=2))
    wanted = Counter(user for cohort in rounds.drawn for user in cohort)
    assert 0 < sum(wanted.values()) < 8 * USERS
    assert {user: len(grid.rounds_of(100 + user)) for user in range(USERS)} == {u: wanted[u] for u in range(USERS)}
    assert [sorted(added) for added in rounds.added] == rounds.drawn


def test_every_message_has_a_nonce_of_its_own():
    grid = everybody()
    federate(grid, make_plan(steps=3))
    nonces = [message.content["discreet"]["nonce"] for _, message in grid.asked]
    assert len(set(nonces)) == len(nonces) == 4 * USERS
    assert all(len(nonce) == 32 for nonce in nonces)


def test_a_message_says_nothing_of_the_others():
    grid = everybody()
    federate(grid)
    for message in grid.rounds_of(103):
        assert set(message.content) == {"discreet", "model"}
        assert set(message.content["discreet"]) == {"format", "round", "user", "nonce"}


def test_the_denominator_is_public_and_not_who_answered():
    silent = {f"u{user}": lambda message: [] for user in range(1, USERS)}
    whole, _ = federate(everybody())
    alone, rounds = federate(Silenced(everybody(**silent)))
    assert rounds.added == [[0]]
    # clipped to 0.3, divided by 6 and not by 1
    assert distance(alone, make_model()) == pytest.approx(0.3 / USERS, rel=1e-4)
    assert_same(alone, in_process(without=range(1, USERS)))
    with pytest.raises(AssertionError):
        assert_same(whole, alone)


class Silenced(FakeGrid):
    """A grid in which everybody announces itself, also nodes that do not answer otherwise."""

    def __init__(self, grid):
        def announcing(user, node):
            announce = honest(user)
            return lambda message: (announce if message.metadata.message_type == "query" else node)(message)

        super().__init__({number: announcing(number - 100, node) for number, node in grid.nodes.items()})


# --- misbehaving clients ---------------------------------------------------------------------------------------------


def changed(change, user=3):
    """A node that changes its honest reply: `change` gets it, the arrays and what it says of itself."""
    answer = honest(user)

    def node(message):
        (reply,) = answer(message)
        if message.metadata.message_type == "query":
            return [reply]
        return change(reply, reply.content["update"], reply.content["discreet"])

    return node


def with_first(make):
    """Replace the first parameter's array."""

    def change(reply, update, about):
        update["0.weight"] = make(update["0.weight"].numpy())
        return [reply]

    return change


def with_bytes(make):
    """Replace the bytes of the first parameter's array, and none of its description."""

    def change(reply, update, about):
        array = update["0.weight"]
        update["0.weight"] = Array(array.dtype, array.shape, array.stype, make(array))
        return [reply]

    return change


def saved(values, **options):
    buffer = BytesIO()
    np.save(buffer, values, **options)
    return buffer.getvalue()


def with_values(make):
    """Replace the values of the first parameter's update, by way of the key that its bits are mixed with."""

    def change(reply, update, about):
        plain = wire.xor_with_key({name: torch.from_numpy(a.numpy()) for name, a in update.items()}, about["key"])
        plain["0.weight"] = make(plain["0.weight"])
        update.update({name: Array(t.numpy()) for name, t in wire.xor_with_key(plain, about["key"]).items()})
        return [reply]

    return change


def poked(value):
    def make(values):
        values[1, 2] = value
        return values

    return with_values(make)


class Bomb:
    """Unpickling this is noticed."""

    went_off = False

    def __reduce__(self):
        return setattr, (Bomb, "went_off", True)


def zipped(array):
    buffer = BytesIO()
    np.savez(buffer, array.numpy())
    return buffer.getvalue()


def replaced(**values):
    def change(reply, update, about):
        about.update(values)
        return [reply]

    return change


def renamed(reply, update, about):
    update["elsewhere"] = update.pop("0.weight")
    return [reply]


def left_out(reply, update, about):
    del update["0.bias"]
    return [reply]


def extra(reply, update, about):
    update["more"] = Array(np.zeros(3, np.float32))
    return [reply]


def no_update(reply, update, about):
    del reply.content["update"]
    return [reply]


def no_words(reply, update, about):
    del reply.content["discreet"]
    return [reply]


def of_other_kinds(reply, update, about):
    del reply.content["update"], reply.content["discreet"]
    reply.content["update"] = MetricRecord({"loss": 0.5})
    reply.content["discreet"] = ArrayRecord([np.zeros(3)])
    return [reply]


def failed(reply, update, about):
    return [Message(Error(0, "division by zero"), reply_to=reply)]


LIE = b"'shape': (9999999999,), "  # as long as the truth, and no memory for it
MISBEHAVIOURS = {
    "nan": poked(np.nan),
    "infinity": poked(np.inf),
    "another shape": with_first(lambda v: Array(v[:, :3])),
    "transposed": with_first(lambda v: Array(v.T)),
    "an outer dimension": with_first(lambda v: Array(v[None])),
    "flat": with_first(lambda v: Array(v.ravel())),
    "empty": with_first(lambda v: Array(v[:0])),
    "float64": with_first(lambda v: Array(np.zeros(v.shape, np.float64))),
    "float16": with_first(lambda v: Array(np.zeros(v.shape, np.float16))),
    "whole numbers": with_first(lambda v: Array(np.zeros(v.shape, np.int32))),
    "complex": with_first(lambda v: Array(np.zeros(v.shape, np.complex64))),
    "big-endian": with_first(lambda v: Array(np.zeros(v.shape, ">f4"))),
    "fortran order": with_first(lambda v: Array(np.asfortranarray(v))),
    "another serialisation": with_first(lambda v: Array("float32", v.shape, "torch.pickle", saved(v))),
    "a pickle": with_bytes(lambda a: pickle.dumps(Bomb())),
    "an array of objects": with_bytes(lambda a: saved(np.array([Bomb()]), allow_pickle=True)),
    "a zip of arrays": with_bytes(zipped),
    "a header that lies": with_bytes(lambda a: a.data.replace(b"'shape': (4, 5), }       ", LIE + b"}")),
    "int32 as float32": with_bytes(lambda a: saved(a.numpy().view(np.int32))),
    "bytes left out": with_bytes(lambda a: a.data[:-1]),
    "bytes more": with_bytes(lambda a: a.data + b"\0"),
    "nothing": with_bytes(lambda a: b""),
    "another name": renamed,
    "a parameter missing": left_out,
    "a parameter more": extra,
    "no update": no_update,
    "no words about it": no_words,
    "records of other kinds": of_other_kinds,
    "another round": replaced(round=1),
    "another nonce": replaced(nonce="0" * 32),
    "another format": replaced(format="discreet-flower/0"),
    "a nonce of another kind": replaced(nonce=0.0),
    "no key": replaced(key=""),
    "a short key": replaced(key=b"k"),
    "an error": failed,
    "silence": lambda *_: [],
    "what cannot be unpacked": lambda *_: [ValueError("Unexpected set of `children`.")],
    "what is too deep to unpack": lambda *_: [RecursionError()],
    "no message": lambda *_: ["hello"],
}


@pytest.mark.parametrize("how", MISBEHAVIOURS)
def test_a_reply_that_is_not_an_update_counts_as_exactly_zero(how):
    grid = everybody(u3=changed(MISBEHAVIOURS[how]))
    model, rounds = federate(grid)
    assert len(grid.rounds_of(103)) == 1
    assert sorted(rounds.added[0]) == [0, 1, 2, 4, 5]
    assert_same(model, in_process(without=[3]))
    assert not Bomb.went_off


def test_the_lying_header_is_one_that_numpy_would_believe():
    array = Array(np.zeros((4, 5), np.float32))
    told = array.data.replace(b"'shape': (4, 5), }       ", LIE + b"}")
    assert len(told) == len(array.data)
    assert told != array.data


@pytest.mark.parametrize("factor", [1e6, 1e30])
def test_a_huge_update_does_no_more_than_its_bound(factor):
    huge = changed(with_values(lambda v: (v.double() * factor).clip(-3e38, 3e38).float()))
    model, _ = federate(everybody(u3=huge))
    assert distance(model, in_process(without=[3])) <= 0.3 / USERS * (1 + 1e-4)


def test_a_replayed_reply_counts_as_zero():
    kept = []

    def replay(reply, update, about):
        kept.append(reply)
        return [Message(kept[0].content, reply_to=reply)]

    plan = make_plan(steps=2)
    _, rounds = federate(everybody(u3=changed(replay)), plan)
    assert [sorted(added) for added in rounds.added] == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 4, 5]]


def test_another_users_reply_counts_as_zero():
    stolen = []

    def keep(reply, update, about):
        stolen.append(reply.content)
        return [reply]

    def steal(reply, update, about):
        return [Message(stolen[-1], reply_to=reply)]

    _, rounds = federate(everybody(u2=changed(keep, user=2), u3=changed(steal)))
    assert sorted(rounds.added[0]) == [0, 1, 2, 4, 5]


@pytest.mark.parametrize("first", ["honest", "nan"])
def test_of_two_replies_the_first_counts_and_the_second_is_zero(first):
    def twice(reply, update, about):
        bad = over_the_wire(reply)
        poked(np.nan)(bad, bad.content["update"], bad.content["discreet"])
        return [reply, bad] if first == "honest" else [bad, reply]

    model, rounds = federate(everybody(u3=changed(twice)))
    counted = [0, 1, 2, 3, 4, 5] if first == "honest" else [0, 1, 2, 4, 5]
    assert sorted(rounds.added[0]) == counted
    assert_same(model, in_process(without=set(range(USERS)) - set(counted)))


def test_a_reply_that_cannot_be_unpacked_takes_no_other_with_it():
    bad = changed(MISBEHAVIOURS["what cannot be unpacked"])
    _, rounds = federate(everybody(u3=bad), make_plan(steps=2))
    assert [sorted(added) for added in rounds.added] == [[0, 1, 2, 4, 5]] * 2


def spoiled(kind, change):
    """Have user 3's upload of a kind of object changed on the way, its length in the head included."""

    def spoil(node, contents):
        if node != 103:
            return
        for key, content in contents.items():
            head, _, body = content.partition(b"\x00")
            words = head.split(b" ")
            if words[0] == kind:
                body = change(body)
                contents[key] = b" ".join([*words[:-1], str(len(body)).encode()]) + b"\x00" + body

    return spoil


SPOILED = {
    "nothing": (spoiled(b"Message", lambda body: body), None),
    "a chunk that is not there": (
        spoiled(b"Array", lambda body: body.replace(b'"arraychunk_ids": [0]', b'"arraychunk_ids": [7]')),
        IndexError,
    ),
    "a type that is no word": (spoiled(b"Array", lambda body: body.replace(b'"float32"', b"17")), TypeError),
    "no JSON": (spoiled(b"ArrayRecord", lambda body: b"{"), ValueError),
    "no text": (spoiled(b"ArrayRecord", lambda body: b"\xff\xfe"), UnicodeDecodeError),
    "a list": (spoiled(b"RecordDict", lambda body: b"[]"), AttributeError),
    "no message": (spoiled(b"Message", lambda body: b"\xff" * 9), Exception),
}


@pytest.mark.parametrize("how", SPOILED)
def test_what_flowers_own_grid_cannot_unpack_counts_as_zero(how):
    spoil, _ = SPOILED[how]
    model, rounds = federate(FakeLink(everybody().nodes, spoil).grid())
    counted = list(range(USERS)) if how == "nothing" else [0, 1, 2, 4, 5]
    assert sorted(rounds.added[0]) == counted
    assert_same(model, in_process(without=set(range(USERS)) - set(counted)))


@pytest.mark.parametrize("how", [how for how, (_, error) in SPOILED.items() if error])
def test_flowers_own_grid_drops_good_replies_with_a_bad_one(how):
    """Which is why replies are pulled one by one."""
    spoil, error = SPOILED[how]
    grid = FakeLink(everybody().nodes, spoil).grid()
    state = make_model().state_dict()
    about = {"format": wire.FORMAT, "round": 0, "nonce": "n"}
    contents = [
        RecordDict({"discreet": ConfigRecord(about | {"user": user}), "model": ArrayRecord(state)}) for user in (2, 3)
    ]
    sent = grid.push_messages([Message(c, 100 + u, "train") for c, u in zip(contents, (2, 3), strict=True)])
    with pytest.raises(error):
        grid.pull_messages(sent)


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self):
        self.now = 0.0
        self.slept = lambda: None  # what happens meanwhile

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        assert seconds > 0
        self.now += seconds
        self.slept()


class Slow(FakeGrid):
    """A grid in which answers to training messages take their time, by node."""

    def __init__(self, clock, seconds):
        super().__init__(everybody().nodes)
        self._clock, self._seconds, self._ready = clock, seconds, {}

    def push_messages(self, messages):
        (message,) = messages
        (sent,) = super().push_messages(messages)
        wait = self._seconds.get(message.metadata.dst_node_id, 0) if message.metadata.message_type == "train" else 0
        self._ready[sent] = self._clock.now + wait
        return [sent]

    def pull_messages(self, message_ids):
        return super().pull_messages([sent for sent in message_ids if self._ready[sent] <= self._clock.now])


def test_a_round_waits_for_its_timeout_and_no_longer(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(server, "time", clock)
    ended = []
    grid = Slow(clock, {103: 4.0, 104: 10.0, 105: 10.5})
    plan = make_plan(steps=2)
    _, rounds = federate(grid, plan, timeout=10.0, interval=3.0, after=lambda _: ended.append(clock.now))
    assert [sorted(added) for added in rounds.added] == [[0, 1, 2, 3, 4]] * 2  # late is late, also in the next round
    assert ended == [10.0, 20.0]


def test_a_round_ends_when_all_have_answered(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(server, "time", clock)
    ended = []
    federate(Slow(clock, {103: 4.0}), timeout=100.0, interval=3.0, after=lambda _: ended.append(clock.now))
    assert ended == [6.0]


def test_a_grid_that_is_gone_is_an_error_and_spends_nothing():
    grid = everybody()

    def die(reply, update, about):
        grid.dead = True
        return [ConnectionError("the SuperLink is gone")]

    grid.nodes[103] = changed(die)
    model = make_model()
    rounds = Rounds(model, make_plan(), seed=7)
    with pytest.raises(ConnectionError):
        Federation(rounds, torch.optim.SGD(model.parameters(), lr=1.0), timeout=0.0, patience=0.0).start(grid)
    assert rounds.released == 0
    assert_same(model, make_model())


names = st.sampled_from(["0.weight", "0.bias", "2.weight", "2.bias", "more"])
arrays = st.builds(
    Array,
    dtype=st.sampled_from(["float32", "float64", "object", "O"]),
    shape=st.sampled_from([(4, 5), (4,), (3, 4), (3,), (), (0,), (-1,), (2**62, 4)]),
    stype=st.sampled_from(["numpy.ndarray", "pickle"]),
    data=st.one_of(
        st.binary(max_size=300),
        st.sampled_from([(4, 5), (4,), (3, 4), (3,)]).map(lambda shape: saved(np.full(shape, np.nan, np.float32))),
    ),
)


@given(st.dictionaries(names, arrays, max_size=5), st.integers(-3, 3), st.sampled_from(["right", "wrong"]))
def test_whatever_is_sent_is_read_as_an_update_or_as_nothing(found, number, nonce):
    shapes = {name: tuple(p.shape) for name, p in make_model().named_parameters()}
    about = ConfigRecord({"format": wire.FORMAT, "round": number, "nonce": nonce, "key": bytes(32)})
    content = RecordDict({"discreet": about, "update": ArrayRecord(found)})
    update = wire.read_update(Message(content, 1, "train"), 0, "right", shapes)
    assert update is None or (number == 0 and nonce == "right" and not any(t.isnan().any() for t in update.values()))


# --- empty rounds, and what is counted -------------------------------------------------------------------------------


def test_rounds_without_anybody_release_noise_and_are_counted(tmp_path):
    plan = make_plan(steps=6, batch_size=1, noise=2.0)
    seeds = (seed for seed in range(1000) if empty_rounds(plan, seed) == 2)
    grid, ledger = everybody(), tmp_path / "ledger.jsonl"
    before = make_model()
    steps = []
    model, rounds = federate(grid, plan, seed=next(seeds), ledger=ledger, after=steps.append)
    assert sum(not cohort for cohort in rounds.drawn) == 2
    assert steps == [1, 2, 3, 4, 5, 6]
    assert verify(ledger).runs[0].released == 6
    with pytest.raises(AssertionError):
        assert_same(model, before)


def empty_rounds(plan, seed):
    rounds = Rounds(make_model(), plan, seed=seed)
    found = 0
    for _ in range(plan.steps):
        found += not rounds.draw()
        rounds.release()
    rounds.detach()
    return found


def test_a_federation_in_which_nobody_answers_still_releases_noise(tmp_path):
    silent = {f"u{user}": lambda message: [] for user in range(USERS)}
    plan = make_plan(noise=1.0)
    model, rounds = federate(Silenced(everybody(**silent)), plan, ledger=tmp_path / "ledger.jsonl")
    assert rounds.added == [[]]
    assert verify(tmp_path / "ledger.jsonl").runs[0].released == 1
    assert_same(model, in_process(plan, without=range(USERS)))


def test_a_federation_goes_on_where_its_ledger_ends(tmp_path):
    plan, ledger = make_plan(steps=3), tmp_path / "ledger.jsonl"

    class Stopped(Exception):
        pass

    def stop(released):
        if released == 2:
            raise Stopped

    model = make_model()
    rounds = Rounds(model, plan, ledger, seed=7)
    with pytest.raises(Stopped):
        Federation(rounds, torch.optim.SGD(model.parameters(), lr=1.0), timeout=0.0, patience=0.0, after=stop).start(
            everybody()
        )
    rounds.detach()
    grid = everybody()
    federate(grid, plan, ledger=ledger)
    assert len(grid.rounds_of(103)) == 1
    federate(grid := FakeGrid({}), plan, ledger=ledger)  # nothing is left, so nobody is waited for
    assert grid.asked == []


# --- who is there ----------------------------------------------------------------------------------------------------


def test_the_declared_population_is_waited_for(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(server, "time", clock)
    grid = FakeGrid({100 + user: honest(user) for user in range(USERS - 1)})

    def meanwhile():
        assert not any(message.metadata.message_type == "train" for _, message in grid.asked)
        if clock.now == 0.75:
            grid.nodes[200] = honest(USERS - 1)

    clock.slept = meanwhile
    _, rounds = federate(grid, patience=100.0, interval=0.25)
    assert clock.now == 0.75
    assert sorted(rounds.added[0]) == list(range(USERS))
    assert Counter(node for node, m in grid.asked if m.metadata.message_type == "query") == Counter(list(grid.nodes))


def test_a_population_that_does_not_come_is_waited_for_no_longer_than_patience(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(server, "time", clock)
    grid = FakeGrid({1: honest(0), 2: lambda message: [], 3: lambda message: [ValueError()]})
    with pytest.raises(ConfigError, match=r"1 of the plan's 6 users .* within 10 seconds \(2 more nodes are connected"):
        federate(grid, patience=10.0, interval=3.0)
    assert clock.now == 10.0


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ({1: 0}, "1 of the plan's 2 users announced themselves within 0 seconds"),
        ({}, "0 of the plan's 2 users"),
        ({1: 0, 2: 0}, "two nodes say they are user 0"),
        ({1: 0, 2: 1, 3: 1}, "two nodes say they are user 1"),
        ({1: 0, 2: 2}, "says it is user 2; the plan has users 0 to 1"),
        ({1: 0, 2: -1}, "says it is user -1"),
    ],
)
def test_other_nodes_than_the_plans_users_are_refused(nodes, message):
    grid = FakeGrid({node: honest(user) for node, user in nodes.items()})
    model = make_model()
    rounds = Rounds(model, make_plan(users=2, batch_size=1))
    with pytest.raises(ConfigError, match=message):
        Federation(rounds, torch.optim.SGD(model.parameters(), lr=1.0), timeout=0.0, patience=0.0).start(grid)
    assert rounds.released == 0
    assert not any(m.metadata.message_type == "train" for _, m in grid.asked)


def test_a_user_with_another_model_is_refused_before_anything_is_spent():
    with pytest.raises(ConfigError, match="user 3's model has other trainable parameters"):
        federate(everybody(u3=honest(3, model=lambda: nn.Linear(5, 3))))


@pytest.mark.parametrize("partition", [None, "3", 3.0, True])
def test_a_node_without_a_number_says_what_it_needs(partition):
    app = client_app(make_model, load, LOCAL)
    query = RecordDict({"discreet": ConfigRecord({"format": wire.FORMAT, "nonce": "n"})})
    with pytest.raises(ConfigError, match="partition-id=K"):
        app(Message(query, 1, "query"), context(partition))


def test_an_announcement_with_another_nonce_is_not_believed():
    def forged(message):
        (reply,) = honest(3)(message)
        reply.content["discreet"]["nonce"] = "0" * 32
        return [reply]

    with pytest.raises(ConfigError, match="5 of the plan's 6 users"):
        federate(everybody(u3=forged))


class Restarting(FakeGrid):
    """Before the second round, user 3's node is gone, and others are there; `later` are there before the third."""

    def __init__(self, then, later=None):
        super().__init__(everybody().nodes)
        self._then, self._later = then, later or {}

    def get_node_ids(self):
        done = len(self.rounds_of(100))
        if done == 1:
            self.nodes.pop(103, None)
            self.nodes.update(self._then)
        if done == 2:
            self.nodes.update(self._later)
        return super().get_node_ids()


@pytest.mark.parametrize(
    ("then", "back"),
    [
        ({}, False),
        ({900: honest(3)}, True),
        ({900: honest(4)}, False),  # who is there already
        ({900: honest(99)}, False),
        ({900: honest(3, model=lambda: nn.Linear(5, 3))}, False),
        ({900: lambda message: []}, False),
    ],
    ids=["gone", "back", "another's number", "no number", "another model", "silent"],
)
def test_a_user_whose_node_is_gone_counts_zero_until_it_is_back(then, back):
    grid = Restarting(then)
    _, rounds = federate(grid, make_plan(steps=3))
    there = list(range(USERS)) if back else [0, 1, 2, 4, 5]
    assert [sorted(added) for added in rounds.added] == [list(range(USERS)), there, there]
    assert len(grid.rounds_of(103)) == 1
    assert len(grid.rounds_of(900)) == (2 if back else 0)
    assert sum(m.metadata.message_type == "query" for node, m in grid.asked if node == 900) == len(then)


def test_a_node_that_never_says_who_it_is_does_not_keep_others_from_being_asked(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(server, "time", clock)
    grid = everybody(u3=lambda message: [])
    clock.slept = lambda: grid.nodes.update({900: honest(3)}) if clock.now == 2.0 else None
    _, rounds = federate(grid, patience=100.0, interval=1.0)
    assert clock.now == 2.0
    assert sorted(rounds.added[0]) == list(range(USERS))
    assert grid.rounds_of(103) == []


def test_a_node_that_says_twice_who_it_is_is_still_one_node():
    roster = server._Roster(FakeGrid({}), 2, "digest")
    for _ in range(2):
        roster.enrol(7, wire.Announcement(1, "digest"))
    assert roster.node(1) == 7
    with pytest.raises(ConfigError, match="two nodes say they are user 1"):
        roster.enrol(8, wire.Announcement(1, "digest"))


def test_a_silent_stranger_does_not_hold_up_a_population_that_is_there(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(server, "time", clock)
    grid = everybody()
    grid.nodes[1] = lambda message: []
    federate(grid, patience=100.0)
    assert clock.now == 0.0


def test_nobody_is_asked_who_he_is_while_all_users_are_there():
    grid = Restarting({900: honest(3), 103: honest(3)})
    federate(grid, make_plan(steps=3))
    assert all(node != 900 for node, _ in grid.asked)


def test_a_node_that_comes_back_as_itself_is_asked_again_who_it_is():
    grid = Restarting({}, later={103: honest(3)})
    _, rounds = federate(grid, make_plan(steps=3))
    assert [3 in added for added in rounds.added] == [True, False, True]
    assert sum(m.metadata.message_type == "query" for node, m in grid.asked if node == 103) == 2


def apart(steps, separation, most, batch_size=2):
    sampling = MinSeparation(examples=USERS, batch_size=batch_size, separation=separation, most=most)
    return Plan(sampling=sampling, mechanism=Mechanism(Clip(0.3), BLTGaussian(1.0)), steps=steps, delta=1e-5)


def test_the_server_asks_nobody_too_soon_again_and_only_who_is_there(tmp_path):
    ledger, grid = tmp_path / "ledger.jsonl", Restarting({900: honest(3)})  # user 3 comes back as another node
    _, rounds = federate(grid, apart(12, 3, 2), ledger=ledger)
    when = {u: [t for t, drawn in enumerate(rounds.drawn) if u in drawn] for u in range(USERS)}
    assert all(len(steps) <= 2 for steps in when.values())
    assert all(later - sooner >= 3 for steps in when.values() for sooner, later in itertools.pairwise(steps))
    assert sum(len(steps) for steps in when.values()) == 2 * USERS  # nobody is kept waiting for more than that
    assert [sorted(a) for a in rounds.added] == [sorted(d) for d in rounds.drawn]
    for node, user in ((100 + u, u) for u in range(USERS) if u != 3):
        assert len(grid.rounds_of(node)) == len(when[user])
    assert len(grid.rounds_of(103)) + len(grid.rounds_of(900)) == len(when[3])
    assert verify(ledger).runs[0].guarantee.epsilon == rounds.guarantee().epsilon


def test_who_took_part_before_a_server_that_knows_nothing_of_it_waits(tmp_path):
    class Killed(Exception):
        pass

    ledger, model = tmp_path / "ledger.jsonl", make_model()
    rounds = Rounds(model, apart(9, 3, 2), ledger, seed=7)

    def after(released):
        if released == 2:
            raise Killed

    with pytest.raises(Killed):
        Federation(rounds, torch.optim.SGD(model.parameters(), lr=1.0), timeout=0.0, patience=0.0, after=after).start(
            everybody()
        )
    rounds.detach()
    _, again = federate(everybody(), apart(9, 3, 2), ledger=ledger)
    assert [len(drawn) for drawn in again.drawn[:2]] == [0, 0]  # rounds 2 and 3: anybody may have been in round 1
    assert [len(drawn) for drawn in again.drawn] == [0, 0, 2, 2, 2, 0, 0]  # and each has one time left
    assert sorted(itertools.chain(*again.drawn)) == list(range(USERS))


def test_a_plan_that_names_no_number_of_users_is_refused():
    sampling = Poisson(rate=0.5, batch_size=3, unit="user")
    plan = Plan(sampling=sampling, mechanism=Mechanism(Clip(1.0), Gaussian(1.0)), steps=1, delta=1e-5)
    assert server._population(make_plan()) == USERS
    with pytest.raises(ConfigError, match="no public number of users"):
        server._population(plan)
    assert (
        server._population(Plan(sampling=FixedSize(9, 3, unit="user"), mechanism=plan.mechanism, steps=1, delta=1e-5))
        == 9
    )


# --- the user's side -------------------------------------------------------------------------------------------------


def ask(app, user=3, model=None, **about):
    """What the app answers to a training message."""
    told = {"format": wire.FORMAT, "round": 0, "user": 3, "nonce": "n"} | about
    state = (model or make_model()).state_dict()
    content = RecordDict({"discreet": ConfigRecord(told), "model": ArrayRecord(state)})
    return over_the_wire(app(over_the_wire(Message(content, 1, "train")), context(user)))


def opened(reply):
    """The update in a reply."""
    arrays = {name: torch.from_numpy(a.numpy()) for name, a in reply.content["update"].items()}
    return wire.xor_with_key(arrays, reply.content["discreet"]["key"])


def test_what_is_sent_cannot_be_guessed_from_the_users_data():
    app = client_app(make_model, load, LOCAL)
    one, other = ask(app), ask(app)
    assert all(torch.equal(t, opened(other)[name]) for name, t in opened(one).items())  # the same update, both times
    kept = [set(get_all_nested_objects(reply)) for reply in (one, other)]  # what Flower's SuperLink keeps it under
    assert len(kept[0]) > 5
    assert not kept[0] & kept[1]


@pytest.mark.parametrize("norm", [0.01, 0.3, 1e6])
def test_nothing_longer_than_the_bound_leaves_the_users_machine(norm):
    reply = ask(client_app(make_model, load, LOCAL, bound=Clip(norm)))
    update = reply.content["update"]
    wanted = LOCAL.update(make_model(), data_of(3), in_round=0, user=3)
    length = float(torch.cat([u.flatten() for u in wanted.values()]).double().norm())
    assert {a.dtype for a in update.values()} == {"float32"}
    sent = torch.cat([t.flatten() for t in opened(reply).values()]).double()
    assert float(sent.norm()) == pytest.approx(min(norm, length), rel=1e-6)


def test_a_bound_that_may_not_be_applied_twice_is_refused():
    with pytest.raises(ConfigError, match=r"AutomaticClip.*not what it is once"):
        client_app(make_model, load, LOCAL, bound=AutomaticClip())


def test_a_reply_holds_the_update_and_nothing_else():
    reply = ask(client_app(make_model, load, LOCAL))
    assert set(reply.content) == {"update", "discreet"}
    about = dict(reply.content["discreet"])
    assert len(about.pop("key")) == 32
    assert about == {"format": wire.FORMAT, "round": 0, "nonce": "n"}


def test_an_announcement_reads_no_data():
    def never(ctx):
        raise AssertionError

    app = client_app(make_model, never, LOCAL)
    query = RecordDict({"discreet": ConfigRecord({"format": wire.FORMAT, "nonce": "n"})})
    reply = app(Message(query, 1, "query"), context(3))
    assert set(reply.content["discreet"]) == {"format", "nonce", "user", "parameters"}


def secret(ctx):
    raise ValueError("patient 17 has no age")


@pytest.mark.parametrize(
    ("app", "about"),
    [
        (client_app(make_model, secret, LOCAL), {}),
        (client_app(lambda: nn.Linear(5, 3), load, LOCAL), {}),
        (client_app(make_model, load, LOCAL), {"user": 4}),
        (client_app(make_model, load, LOCAL), {"round": "0"}),
    ],
    ids=["data", "model", "user", "round"],
)
def test_a_failure_is_told_to_the_server_without_its_words(app, about):
    with pytest.raises(PrivacyError) as failure:
        ask(app, **about)
    assert str(failure.value) == "this user's training failed; its own log says why."
    assert failure.value.__cause__ is not None


def test_a_message_of_another_format_is_refused():
    with pytest.raises(PrivacyError, match="same version of discreet"):
        ask(client_app(make_model, load, LOCAL), format="discreet-flower/2")


def test_models_of_any_dtype_with_frozen_parts_and_buffers_arrive_as_they_are():
    def mixed():
        made = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Linear(5, 3).to(torch.bfloat16))
        made[0].requires_grad_(False)
        return made.eval()

    sent = mixed()
    with torch.no_grad():
        for value in sent.state_dict().values():
            value.add_(3)
    arrays = ArrayRecord({name: wire.to_array(t) for name, t in sent.state_dict().items()})
    arrived = client._load_weights(mixed(), over_the_wire(Message(RecordDict({"m": arrays}), 1, "train")).content["m"])
    for name, value in arrived.state_dict().items():
        assert value.dtype == sent.state_dict()[name].dtype
        assert torch.equal(value, sent.state_dict()[name])


def test_a_model_whose_state_is_more_than_tensors_is_refused():
    class Odd(nn.Linear):
        def get_extra_state(self):
            return "more"

        def set_extra_state(self, state):
            pass

    with pytest.raises(ConfigError, match="_extra_state"):
        wire.state_of(Odd(2, 2))


# --- what can be seen ------------------------------------------------------------------------------------------------


def test_nothing_is_logged_or_printed(caplog, capfd):
    caplog.set_level(logging.DEBUG)
    for name in ("flwr", "flwr-telemetry"):
        logging.getLogger(name).addHandler(caplog.handler)
    try:
        bad = changed(MISBEHAVIOURS["what cannot be unpacked"])
        assert federate(everybody(u3=bad, u4=lambda m: [] if m.metadata.group_id else honest(4)(m)))
    finally:
        for name in ("flwr", "flwr-telemetry"):
            logging.getLogger(name).removeHandler(caplog.handler)
    assert [record.getMessage() for record in caplog.records] == []
    assert capfd.readouterr() == ("", "")


def test_without_flower_the_remedy_is_named():
    code = "import sys; sys.modules['flwr'] = None; import discreet.integrations.flower"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ConfigError: Flower is not installed; pip install 'discreet[federated]'." in said.stderr


def test_telemetry_is_off():
    assert telemetry.FLWR_TELEMETRY_ENABLED == "0"
    assert os.environ["FLWR_TELEMETRY_ENABLED"] == os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


def test_a_process_with_telemetry_is_refused(monkeypatch):
    monkeypatch.setattr(telemetry, "FLWR_TELEMETRY_ENABLED", "1")
    with pytest.raises(ConfigError, match="FLWR_TELEMETRY_ENABLED=0"):
        federate(everybody())


@pytest.mark.parametrize("name", ["timeout", "patience", "interval"])
def test_times_make_sense(name):
    with pytest.raises(ConfigError, match=name):
        federate(everybody(), **{name: -1.0})
