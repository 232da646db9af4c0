"""Batches that the library makes of units with several rows: whose each is, gradients, neighbours, empty draws."""

import pickle
import warnings
from collections import UserDict
from functools import partial

import pytest
import torch
from by_hand import CASES, case
from by_hand.brute_force import difference, gradient, ragged, released
from by_hand.flat import NESTED
from torch import nn
from torch.utils.data import DataLoader, default_collate
from zoo.neighbours import Scripted

import discreet
from discreet import ConfigError, PrivacyError, collate
from discreet.gradients import Engine
from discreet.release.batching import PaddedCollate, parts_of
from discreet.release.collate import side_by_side

UNITS = case.UNITS
OURS = {
    case.flat: collate.flat,
    case.one_graph: collate.graphs,
    case.bags: collate.bags,
    case.packed: collate.packed,
    case.jagged: collate.jagged,
    case.time_first: collate.time_first,
}  # what networks by hand are given by functions of their own
NETWORKS = [one for one in CASES if one.build()[2] in OURS]
ONE_OF_EACH = (
    "sets by index add", "graph attention", "bags of words and means", "packed lstm", "nested rows",
    "nested rows by their values", "time first cells",
)  # fmt: skip
SOME = [one for one in NETWORKS if one.name in ONE_OF_EACH]


def made(network):
    """A network, its rows, the library's way to make a batch of them, and its losses."""
    model, rows, theirs, loss = network.build()
    return model, rows, OURS[theirs], loss


def ids(network):
    return network.name


def test_each_kind_of_batch_is_tried():
    assert len(SOME) == len(ONE_OF_EACH)
    assert {made(one)[2] for one in SOME} == set(OURS.values())


@pytest.mark.parametrize("network", [one for one in NETWORKS if one.name not in NESTED], ids=ids)
def test_gradients_are_those_of_autograd_for_each_loss_alone(network):
    model, rows, together, loss = made(network)
    engine, batch = Engine(model), together(rows)
    for _ in range(2):
        losses = loss(model, batch)
        each = torch.stack([gradient(model, one, retain=True) for one in losses])
        found = engine.gradients(losses, len(rows), ragged=partial(ragged, batch, len(rows)))
        assert difference(found, each, engine.layout) < 1e-5


@pytest.mark.parametrize("bare", [False, True], ids=["by a function", "as tensors"])
@pytest.mark.parametrize("network", SOME, ids=ids)
def test_one_unit_moves_what_is_released_by_no_more_than_the_bound(network, bare):
    if network.name in NESTED and bare:
        return  # refused by name
    _, rows, together, loss = made(network)
    moved = []
    for there in (range(UNITS), [0, 1, 3]):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "each example is taken in a batch of its own")
            model = network.build()[0]
            moved.append(released(model, rows, together, loss, there, 1e-2, preflight=True, bare=bare))
    assert 0.05 < float((moved[0] - moved[1]).norm()) / 1e-2 <= 1 + 1e-4


@pytest.mark.parametrize("network", SOME, ids=ids)
def test_draws_of_nobody_of_one_and_of_all_are_released(network):
    model, rows, together, loss = made(network)
    sampling = Scripted(examples=UNITS, batch_size=UNITS, script=((), (2,), tuple(range(UNITS)), ()))
    mechanism = discreet.Mechanism(discreet.Clip(1.0), discreet.Gaussian(1e-6))
    plan = discreet.Plan(sampling=sampling, mechanism=mechanism, steps=4, delta=1e-5)
    private = discreet.attach(model, plan, seed=1)
    lengths = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "each example is taken in a batch of its own")
        for batch in private.batches(rows, collate_fn=together):
            private.backward(lambda given: loss(model, given), batch)
            lengths.append(float(torch.cat([p.grad.flatten() for p in model.parameters()]).norm()))
    assert private.released == 4
    assert [length < 1e-4 for length in lengths] == [True, False, False, True]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bare", [False, True], ids=["by a function", "as tensors"])
def test_what_mixes_rows_that_are_known_to_lie_side_by_side_is_refused_whatever_their_number(bare):
    rows = [torch.randn(2, 6) for _ in range(UNITS)]  # 8 rows for 4 units: no length tells
    model = nn.Linear(6, 3)

    def loss(model, batch):
        hidden = model(batch.rows)
        return case.summed(hidden - hidden.mean(0), batch.owner, batch.units).square().sum(1)

    with pytest.raises(PrivacyError):
        released(model, rows, collate.flat, loss, range(UNITS), 1.0, preflight=True, bare=bare)


def test_rows_know_their_unit():
    batch = collate.flat([torch.ones(2, 3), torch.ones(0, 3), torch.ones(1, 3)])
    assert batch.owner.tolist() == [0, 0, 2]
    assert (batch.units, batch.rows.shape) == (3, (3, 3))
    entries = collate.bags([torch.tensor([4, 5]), torch.tensor([], dtype=torch.long), torch.tensor([6])])
    assert (entries.input.tolist(), entries.offsets.tolist()) == ([4, 5, 6], [0, 2, 2])
    one = torch.tensor([[0, 1], [1, 0]])
    joined = collate.graphs([(torch.ones(2, 1), one), (torch.ones(3, 1), one)])
    assert joined.edges.tolist() == [[0, 1, 2, 3], [1, 0, 3, 2]]
    assert joined.batch.tolist() == [0, 0, 1, 1, 1]
    assert collate.time_first([torch.zeros(5, 2)] * 3).shape == (5, 3, 2)
    assert collate.jagged([torch.zeros(5, 2), torch.zeros(1, 2)]).offsets().tolist() == [0, 5, 6]


def test_each_column_is_collated_in_its_own_way():
    together = pickle.loads(pickle.dumps(collate.columns(collate.flat, default_collate)))  # workers get it
    some, labels = together([(torch.ones(2, 3), 1), (torch.ones(1, 3), 0)])
    assert some.owner.tolist() == [0, 0, 1]
    assert labels.tolist() == [1, 0]
    with pytest.raises(ConfigError, match=r"the examples have \[3\] parts, and there are 2 collate functions"):
        together([(1, 2, 3)])


@pytest.mark.parametrize(
    ("batch", "known"),
    [
        (collate.flat([torch.ones(2, 1)] * 2), True),
        ({"words": collate.bags([torch.tensor([1])] * 2)}, True),
        (UserDict(words=collate.bags([torch.tensor([1])] * 2)), True),
        ((collate.packed([torch.ones(2, 1)] * 2), torch.ones(2)), True),
        (collate.jagged([torch.ones(2, 1)] * 2), True),
        ([torch.ones(2, 1), torch.ones(3, 1)], True),  # one each
        ([torch.ones(2, 1), torch.ones(2, 1)], False),  # two columns
        ((torch.ones(2, 1), torch.ones(2)), False),
        ("text", False),
    ],
)
def test_rows_that_lie_side_by_side_are_known(batch, known):
    assert side_by_side(batch, 2) is known


def test_a_padding_row_has_the_form_of_a_batch_of_one_and_constants_in_it():
    row = torch.full((3, 2), 7.0)
    nobody = PaddedCollate(collate.flat, row)([])
    assert nobody.units == 1
    assert nobody.owner.tolist() == [0, 0, 0]
    assert not nobody.rows.any()
    steps = PaddedCollate(collate.packed, row)([])
    assert steps.batch_sizes.tolist() == [1, 1, 1]
    assert not steps.data.any()
    words = PaddedCollate(lambda some: [len(text) for text in some], "a secret")([])
    assert words == [0]


def test_a_function_that_takes_no_constants_gets_its_own_batch_as_constants():
    def strict(rows):
        assert rows[0].any()
        return torch.stack(rows)

    assert not PaddedCollate(strict, torch.ones(3))([]).any()
    assert PaddedCollate(strict, torch.ones(3))([]).shape == (1, 3)
    secret = object()
    with pytest.raises(ConfigError, match="of which no padding row can be made"):
        PaddedCollate(lambda rows: rows, secret)


def test_what_a_packed_and_a_nested_batch_are_made_of_is_looked_at():
    steps, nested = collate.packed([torch.ones(2, 1), torch.ones(1, 1)]), collate.jagged([torch.ones(2, 1)] * 2)
    shapes = [tuple(part.shape) for part in parts_of((steps, nested))]
    assert shapes == [(3, 1), (2,), (2,), (2,), (4, 1), (3,)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The PyTorch API of nested tensors")
        strided = torch.nested.nested_tensor([torch.ones(2, 1), torch.ones(3, 1)])
    assert [len(part) for part in parts_of(strided)] == [2, 3]


@pytest.mark.parametrize("short", [False, True], ids=["a loader of one's own", "in pieces"])
def test_rows_are_known_to_lie_side_by_side_wherever_their_batch_is_made(short):
    """All units have two rows, so that lengths look like numbers of units; memory ends at more than three units."""
    rows = [torch.randn(2, 6) + i for i in range(UNITS)]
    model = nn.Linear(6, 3)
    sampling = Scripted(examples=UNITS, batch_size=UNITS, script=(tuple(range(UNITS)),))
    mechanism = discreet.Mechanism(discreet.Clip(1.0), discreet.Gaussian(1e-6))
    private = discreet.attach(model, discreet.Plan(sampling=sampling, mechanism=mechanism, steps=1, delta=1e-5), seed=1)
    known = []

    def loss(batch):
        known.append(private._loop.current().side_by_side())
        if short and batch.units > 3:
            raise MemoryError
        return case.summed(model(batch.rows), batch.owner, batch.units).square().sum(1)

    if short:
        for batch in private.batches(rows, collate_fn=collate.flat):
            private.backward(loss, batch)
    else:
        loader = DataLoader(rows, batch_sampler=private.batch_sampler(), collate_fn=private.collate(rows, collate.flat))
        for batch in loader:
            private.backward(loss(batch))
    assert private.released == 1
    assert all(known)


def test_nested_rows_in_the_strided_layout_are_taken():
    rows = [torch.randn(1 + i, 6) for i in range(UNITS)]
    models = [nn.Linear(6, 3) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())

    def strided(units):
        return (torch.nested.as_nested_tensor(list(units), layout=torch.strided),)

    def loss(model, batch):
        return torch.stack([model(rows).square().sum() for rows in batch[0].unbind()])

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The PyTorch API of nested tensors")
        moved = [
            released(model, rows, strided, loss, there, 1e-2, preflight=True, bare=False)
            for model, there in zip(models, (range(UNITS), [0, 1, 3]), strict=True)
        ]
    assert 0.05 < float((moved[0] - moved[1]).norm()) / 1e-2 <= 1 + 1e-4
