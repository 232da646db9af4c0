import copy
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from discreet import (
    BudgetExhausted,
    Clip,
    ConfigError,
    FixedSize,
    Gaussian,
    Ledger,
    Mechanism,
    Plan,
    Poisson,
    PrivacyError,
    attach,
    methods,
    verify,
)
from discreet.accounting import cost
from discreet.accounting import gaussian as gdp
from discreet.accounting.guarantee import guarantee
from discreet.features import PrivatePCA, Projection
from discreet.features import pca as module
from discreet.stages.noise.random import KeyTree

DELTA = 1e-5


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "ledger.jsonl"


def total(x):
    """The sum before the noise."""
    return module._sum_of_products(*module._read(x))


def moved(one, other):
    """The squared Frobenius distance of two sums, in units of the grid's fourth power: exact."""
    steps = ((one - other) * 2.0**40).to(torch.int64).flatten().tolist()
    return sum(s * s for s in steps)


ONE = 2**80  # the square of 1 in those units


class Unreadable:
    """Data that cannot even be counted."""

    def __len__(self):
        raise RuntimeError("the data was read")

    def __getitem__(self, number):
        raise RuntimeError("the data was read")


class Examples(Dataset[object]):
    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], 7


# --- what one row may change -----------------------------------------------------------------------------------------

VALUES = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, 1.0, -1.0, 0.5, 3.0, 4.0, 1 / 3, 1e308, -1e308, 5e-324, 1e-200, math.nan, math.inf]),
)


@given(st.data(), st.integers(1, 6), st.integers(1, 7))
def test_one_row_moves_the_sum_by_at_most_one(data, count, width):
    rows = st.lists(VALUES, min_size=width, max_size=width)
    x = torch.tensor(data.draw(st.lists(rows, min_size=count, max_size=count)), dtype=torch.float64)
    other = torch.tensor([data.draw(rows)], dtype=torch.float64)
    whole, zeroed, replaced = total(x), total(torch.cat((0 * other.nan_to_num(), x[1:]))), torch.cat((other, x[1:]))
    assert moved(whole, total(x[1:])) <= ONE
    assert torch.equal(zeroed, total(x[1:]))
    assert moved(whole, total(replaced)) <= 2 * ONE


@pytest.mark.parametrize("scale", [1e-310, 1e-30, 0.1, 1 / 3, 1.0, 1e30, 1e300])
@pytest.mark.parametrize("width", [1, 2, 64, 1024])
def test_a_row_of_any_size_moves_the_sum_by_nearly_one_and_never_more(scale, width):
    """The trace is the squared norm of the one row, and exact. Rows of equal values are on the grid; others are not."""
    rows = torch.cat((torch.ones(1, width), torch.randn(6, width))).double() * scale
    for row in rows:
        assert 0.99 < total(row[None]).trace() <= 1


def test_the_bounds_are_attained():
    x = torch.eye(3)
    assert moved(total(x), total(x[1:])) == ONE
    assert moved(total(x[[0, 1]]), total(x[[2, 1]])) == 2 * ONE


@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf, -math.inf])
def test_rows_of_zeros_or_not_finite_contribute_exactly_zero(bad):
    x = torch.randn(9, 4)
    worse = x.clone()
    worse[3] = 0
    worse[3, 2] = bad
    kept = torch.arange(9) != 3
    assert torch.equal(total(worse), total(x[kept]))
    assert not torch.equal(total(x), total(x[kept]))


def test_a_row_that_was_not_normalised_would_be_left_out(monkeypatch):
    monkeypatch.setattr(module, "unit", lambda rows: rows)
    x = torch.tensor([[0.5, 0.5], [1.0, 2.0**-19]])
    assert torch.equal(total(x), total(x[:1]))


def test_the_sum_does_not_depend_on_chunks_and_order(monkeypatch):
    x = torch.randn(700, 300)
    usual = total(x)
    assert torch.equal(total(x.flip(0)), usual)
    monkeypatch.setattr(module, "_ROWS", 3)
    monkeypatch.setattr(module, "_STRIP", 7)
    assert torch.equal(total(x), usual)


def test_the_sum_is_that_of_the_outer_products_of_unit_rows():
    x = torch.randn(30, 5, 4, dtype=torch.float64)
    unit = F.normalize(x.flatten(1), dim=1)
    torch.testing.assert_close(total(x), unit.T @ unit, rtol=0, atol=30 * 2 * 2.0**-20)


def test_more_rows_than_can_be_summed_exactly_are_refused(monkeypatch):
    monkeypatch.setattr(module, "_MOST_ROWS", 4)
    total(torch.ones(4, 2))
    with pytest.raises(ConfigError, match="more than 4 rows"):
        total(torch.ones(5, 2))


# --- the noise -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.5, 16.0])
def test_noise_is_symmetric_and_of_the_stated_deviation(noise):
    """Five standard errors each: a false alarm in about one of 10^6 seeds."""
    width = 300
    drawn = module.with_noise(torch.zeros(width, width, dtype=torch.float64), noise, KeyTree(3).stream("test", 0))
    assert torch.equal(drawn, drawn.T)
    weighted = math.sqrt(2) * drawn[tuple(torch.triu_indices(width, width, offset=1))]
    for values in (weighted, drawn.diagonal()):
        assert values.square().mean().sqrt() == pytest.approx(noise, rel=5 / math.sqrt(2 * len(values)))
        assert abs(values.mean()) < 5 * noise / math.sqrt(len(values))
    assert len(drawn.unique()) == width * (width + 1) // 2  # no two entries share a draw


def test_the_triangle_so_weighted_has_the_frobenius_norm():
    """What one row moves, seen with the weights by which the noise is equal everywhere: exactly its squared length."""
    moved = total(torch.randn(1, 20))
    weighted = moved.triu(1) * math.sqrt(2) + moved.diagonal().diag()
    assert weighted.norm() == pytest.approx(moved.norm().item())
    assert 0.999 < weighted.norm() <= 1


def test_noise_is_added_to_the_sum():
    x = total(torch.randn(50, 20))
    noisy = module.with_noise(x, 2.0, KeyTree(3).stream("test", 0))
    zero = module.with_noise(torch.zeros_like(x), 2.0, KeyTree(3).stream("test", 0))
    torch.testing.assert_close(noisy - x, zero)


def test_a_seed_repeats_the_fit_and_none_does_not(path):
    x, pca = torch.randn(40, 6), PrivatePCA(components=3, noise=1.0)
    first, again, other = (pca.fit(x, path, seed=s).directions for s in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(pca.fit(x, path).directions, pca.fit(x, path).directions)


def test_much_noise_hides_the_directions(path):
    x = torch.zeros(100, 200)
    x[:, 7] = 1
    seen = PrivatePCA(components=1, noise=0.01).fit(x, path, seed=1).directions[7]
    hidden = PrivatePCA(components=1, noise=1e4).fit(x, path, seed=1).directions[7]
    assert seen > 0.999
    assert abs(hidden) < 0.3


# --- the directions --------------------------------------------------------------------------------------------------


def test_the_true_subspace_is_recovered_at_little_noise(path):
    basis = torch.linalg.qr(torch.randn(25, 3, dtype=torch.float64)).Q
    x = torch.randn(2000, 3, dtype=torch.float64) * torch.tensor([3.0, 2.0, 1.0]) @ basis.T
    found = PrivatePCA(components=3, noise=0.01).fit(x, path, seed=0).directions.double()
    assert torch.linalg.svdvals(found.T @ basis).min() > 1 - 1e-6


def test_directions_are_orthonormal_largest_first_and_of_fixed_sign(path):
    x = torch.randn(3000, 8) * torch.tensor([1.0, 9.0, 2.0, 7.0, 3.0, 1.0, 1.0, 1.0])
    directions = PrivatePCA(components=3, noise=0.01).fit(x, path, seed=0).directions
    torch.testing.assert_close(directions.T @ directions, torch.eye(3))
    assert directions.abs().argmax(0).tolist() == [1, 3, 4]
    assert directions[[1, 3, 4], [0, 1, 2]].min() > 0.9
    assert torch.equal(PrivatePCA(components=3, noise=0.01).fit(-x, path, seed=0).directions, directions)


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(5, 4),
        torch.full((5, 4), math.nan),
        torch.randn(1, 4),
        torch.zeros(0, 4),
        torch.ones(6, 4),
        torch.tensor([[1e38, -1e38, 1e-38, 0.0]]),
    ],
)
def test_degenerate_data_still_gives_orthonormal_directions(x, path):
    directions = PrivatePCA(components=4, noise=1.0).fit(x, path, seed=0).directions
    torch.testing.assert_close(directions.T @ directions, torch.eye(4))


def test_every_form_of_the_same_rows_gives_the_same_directions(path):
    x = torch.randint(0, 256, (30, 1, 3, 4), dtype=torch.uint8)
    frozen = x.numpy().copy()
    frozen.flags.writeable = False
    labels = torch.zeros(30)
    forms = [
        x.float(),
        x.double().requires_grad_(),
        (x, labels),
        TensorDataset(x, labels),
        frozen,
        Examples(x),
        list(x),
        x.flatten(1).tolist(),
        x.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1),
    ]
    pca = PrivatePCA(components=2, noise=1.0)
    usual = pca.fit(x, path, seed=0).directions
    for form in forms:
        assert torch.equal(pca.fit(form, path, seed=0).directions, usual)


def test_data_sets_are_read_in_chunks(path, monkeypatch):
    x, pca = torch.randn(11, 4), PrivatePCA(components=2, noise=1.0)
    usual = pca.fit(x, path, seed=0).directions
    monkeypatch.setattr(module, "_ROWS", 4)
    assert torch.equal(pca.fit(Examples(x), path, seed=0).directions, usual)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("components", "noise"), [(0, 1.0), (1.5, 1.0), (True, 1.0), (1, 0.0), (1, -1.0), (1, "4")])
def test_settings_that_make_no_sense_are_refused(components, noise):
    with pytest.raises(ConfigError, match="PrivatePCA's"):
        PrivatePCA(components=components, noise=noise)


@pytest.mark.parametrize("noise", [math.nan, math.inf])
def test_noise_must_be_finite(noise):
    with pytest.raises(ConfigError, match="finite"):
        PrivatePCA(components=1, noise=noise)


def test_more_components_than_values_are_refused_before_anything_is_counted(path):
    for x in (torch.ones(9, 2, 2), np.ones((9, 4)), torch.ones(9, 0)):
        with pytest.raises(ConfigError, match=r"components are 5, but a row has [04] values"):
            PrivatePCA(components=5, noise=1.0).fit(x, path)
    assert not path.exists()
    with pytest.raises(ConfigError, match="a row has 4 values"):
        PrivatePCA(components=5, noise=1.0).fit(Examples(torch.ones(9, 4)), path)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (DataLoader(TensorDataset(torch.ones(3, 2))), "DataLoader has no rows by number"),
        ((row for row in torch.ones(3, 2)), "generator has no rows by number"),
        ("rows", "str has no rows by number"),
        ({0: torch.ones(2)}, "dict has no rows by number"),
        (torch.tensor(1.0), "a single number has no rows"),
        (torch.ones(3, 2, dtype=torch.complex64), "complex64"),
        (np.ones((3, 2), np.complex128), "complex128"),
        ([], "the data has no rows"),
        ([torch.ones(2), torch.ones(3)], "row 1 has 3 values, the first has 2"),
        ([{"x": 1}], "cannot be read as numbers"),
    ],
)
def test_data_without_rows_of_numbers_is_refused(x, words, path):
    with pytest.raises(ConfigError, match=words):
        PrivatePCA(components=1, noise=1.0).fit(x, path)


@pytest.mark.parametrize("ledger", [None, 3, b"ledger"])
def test_a_fit_is_always_counted_somewhere(ledger):
    with pytest.raises(ConfigError, match="no ledger to count"):
        PrivatePCA(components=1, noise=1.0).fit(torch.ones(3, 2), ledger)


# --- what it costs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "epsilon"), [(16.0, 0.204), (7.0, 0.503), (4.0, 0.926)])
@pytest.mark.parametrize("adjacency", ["zero-out", "add-remove"])
def test_the_cost_is_that_of_one_gaussian_query(noise, epsilon, adjacency):
    event = PrivatePCA(components=60, noise=noise).cost(adjacency)
    assert (event.rate, event.steps, event.adjacency) == (1.0, 1, adjacency)
    found = cost([event], DELTA).epsilon
    assert found == pytest.approx(epsilon, abs=1e-3)
    assert found == pytest.approx(gdp.epsilon(1 / noise, DELTA), rel=1e-12)


@pytest.mark.parametrize("noise", [0.7, 4.0, 16.0])
def test_a_replacement_costs_a_shift_by_the_square_root_of_two(noise):
    """Not less, which would be unsafe, nor a shift by 2, which is what accounting takes a replacement for."""
    pca = PrivatePCA(components=60, noise=noise)
    found = cost([pca.cost("replace")], DELTA).epsilon
    assert found == pytest.approx(gdp.epsilon(math.sqrt(2) / noise, DELTA), rel=1e-8)
    assert cost([pca.cost()], DELTA).epsilon < found < gdp.epsilon(2 / noise, DELTA)


@pytest.mark.parametrize(
    "sampling",
    [
        Poisson(examples=1000, batch_size=100),
        Poisson(rate=0.1, batch_size=100),
        Poisson(examples=1000, batch_size=100, adjacency="replace"),
        FixedSize(examples=1000, batch_size=100),
    ],
)
def test_the_cost_composes_with_training_of_any_adjacency(sampling):
    event = Plan(sampling=sampling, mechanism=Mechanism(Clip(1.0), Gaussian(2.0)), steps=50, delta=DELTA).event()
    query = PrivatePCA(components=60, noise=4.0).cost(event.adjacency)
    apart = [cost([p], DELTA).epsilon for p in (event, query)]
    together = guarantee([event, query], DELTA).epsilon
    assert max(apart) < together < sum(apart)


def test_an_unknown_adjacency_is_refused_before_anything_is_counted(path):
    unknown: Any = "swap"
    with pytest.raises(ConfigError, match="adjacency"):
        PrivatePCA(components=1, noise=1.0).fit(torch.ones(3, 2), path, adjacency=unknown)
    assert not path.exists()


# --- the ledger ------------------------------------------------------------------------------------------------------


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_cost_is_on_disk_before_the_data_is_read(path):
    with pytest.raises(RuntimeError, match="the data was read"):
        PrivatePCA(components=2, noise=4.0).fit(Unreadable(), str(path))
    (line,) = lines(path)
    assert line["kind"] == "query"
    assert line["what"] == "2 principal directions, noise 4"
    assert line["phase"] == {"rate": 1.0, "multiplier": 4.0, "steps": 1, "adjacency": "zero-out"}


def test_the_ledger_says_that_a_seed_was_used(path):
    """And so does the guarantee of a run in the same file, and what verification says of it."""
    PrivatePCA(components=2, noise=4.0).fit(torch.ones(3, 2), path, seed=1)
    assert "fixed seed" in lines(path)[0]["broken"]
    plan = methods.dp_sgd(examples=3, batch_size=1, steps=1, noise=9.0, delta=1e-5)
    private = attach(nn.Linear(2, 2), plan, path)
    private.detach()
    assert not private.guarantee().sound
    assert not verify(path).runs[0].guarantee.sound


def test_a_cap_is_met_before_the_data_is_read(path):
    ledger = Ledger(path, dataset="mnist", epsilon=0.5, delta=DELTA)
    with pytest.raises(BudgetExhausted, match=r"it would be 0\.92"):
        PrivatePCA(components=2, noise=4.0).fit(Unreadable(), ledger)
    assert [line["kind"] for line in lines(path)] == ["dataset"]
    PrivatePCA(components=2, noise=16.0).fit(torch.ones(3, 2), ledger)
    assert ledger.guarantee().epsilon == pytest.approx(0.204, abs=5e-4)


def plan(**settings):
    sampling = settings.pop("sampling", Poisson(examples=20, batch_size=5))
    mechanism = Mechanism(Clip(1.0), Gaussian(1.0))
    return Plan(sampling=sampling, mechanism=mechanism, steps=4, delta=DELTA, **settings)


def train(private, model, x, y):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for rows, labels in private.batches((x, y)):
        private.backward(F.cross_entropy(model(rows), labels, reduction="none"))
        optimizer.step()


@pytest.mark.parametrize("normalise", [False, True])
def test_a_run_behind_the_projection_counts_it_in_its_own_ledger(path, normalise):
    x, y, pca = torch.rand(20, 1, 3, 3), torch.randint(2, (20,)), PrivatePCA(2, noise=4.0, normalise=normalise)
    projection = pca.fit(x, path)
    directions = projection.directions.clone()
    model = nn.Sequential(projection, nn.Linear(2, 2))
    private = attach(model, plan(), ledger=path)
    train(private, model, x, y)
    expected = cost([plan().event(), pca.cost()], DELTA).epsilon
    assert private.guarantee().epsilon == expected > plan().guarantee().epsilon
    private.detach()
    assert [line["kind"] for line in lines(path)] == ["query", "run", *["release"] * 4]
    assert verify(path).runs[0].guarantee.epsilon == expected
    assert torch.equal(projection.directions, directions)


def test_a_run_under_replacement_takes_a_projection_under_replacement(path, tmp_path):
    x, y, pca = torch.rand(20, 9), torch.randint(2, (20,)), PrivatePCA(2, noise=4.0)
    made = plan(sampling=FixedSize(examples=20, batch_size=5))
    model = nn.Sequential(pca.fit(x, path, adjacency="replace"), nn.Linear(2, 2))
    private = attach(model, made, ledger=path)
    train(private, model, x, y)
    assert private.guarantee().epsilon == cost([made.event(), pca.cost("replace")], DELTA).epsilon
    private.detach()
    other = tmp_path / "other.jsonl"
    model = nn.Sequential(pca.fit(x, other), nn.Linear(2, 2))
    with pytest.raises(PrivacyError, match="different relations"):
        attach(model, made, ledger=other).guarantee()


def test_a_plan_s_limit_includes_the_projection(path):
    x = torch.rand(20, 9)
    model = nn.Sequential(PrivatePCA(2, noise=4.0).fit(x, path), nn.Linear(2, 2))
    alone = plan().guarantee().epsilon
    with pytest.raises(BudgetExhausted, match="more than its limit"):
        attach(model, plan(epsilon=alone * 1.001), ledger=path)


def test_a_data_set_s_ledger_adds_the_projection_to_its_runs(path):
    x, y, pca = torch.rand(20, 9), torch.randint(2, (20,)), PrivatePCA(2, noise=4.0)
    ledger = Ledger(path, dataset="toy", epsilon=50.0, delta=DELTA)
    model = nn.Sequential(pca.fit(x, ledger), nn.Linear(2, 2))
    private = attach(model, plan(), ledger=ledger)
    train(private, model, x, y)
    private.detach()
    assert ledger.guarantee().epsilon == cost([plan().event(), pca.cost()], DELTA).epsilon


# --- the projection --------------------------------------------------------------------------------------------------


def test_a_projection_gives_each_row_s_coordinates():
    directions = torch.linalg.qr(torch.randn(6, 2)).Q
    x = torch.randn(5, 1, 2, 3)
    torch.testing.assert_close(Projection(directions)(x), x.flatten(1) @ directions)
    unit = Projection(directions, normalise=True)
    torch.testing.assert_close(unit(x), F.normalize(x.flatten(1)) @ directions)
    torch.testing.assert_close(unit(x * 1e30), unit(x))


def test_inputs_are_projected_as_they_are_unless_asked(path):
    x = torch.randn(5, 4)
    for normalise in (False, True):
        projection = PrivatePCA(components=4, noise=1.0, normalise=normalise).fit(x, path)
        length = torch.ones(5) if normalise else x.norm(dim=1)
        torch.testing.assert_close(projection(x).norm(dim=1), length)
    assert PrivatePCA(components=4, noise=1.0) == PrivatePCA(components=4, noise=1.0, normalise=False)


def test_a_projection_takes_whole_numbers():
    directions = torch.eye(4)[:, :3]
    x = torch.randint(0, 256, (5, 4), dtype=torch.uint8)
    assert torch.equal(Projection(directions)(x), x[:, :3].float())
    assert Projection(directions, normalise=True)(x).norm(dim=1).max() <= 1.000001


def test_normalised_rows_of_zeros_or_not_finite_become_zeros():
    x = torch.tensor([[0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0], [3.0, 4.0]])
    z = Projection(torch.eye(2), normalise=True)(x)
    torch.testing.assert_close(z, torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.6, 0.8]]))


def test_a_projection_has_nothing_to_train_and_is_saved():
    projection = Projection(torch.randn(4, 2), normalise=True)
    assert not list(projection.parameters())
    empty = Projection(torch.zeros(4, 2), normalise=True)
    empty.load_state_dict(copy.deepcopy(projection).state_dict())
    assert torch.equal(empty.directions, projection.directions)
    assert repr(empty) == "Projection(4, 2, normalise=True)"


def test_a_projection_keeps_its_own_directions():
    directions = torch.ones(4, 2)
    projection = Projection(directions)
    directions.zero_()
    assert projection.directions.min() == 1


@pytest.mark.parametrize("shape", [(3,), (3, 5), (3, 2, 1)])
def test_a_batch_of_another_shape_is_refused(shape):
    with pytest.raises(ConfigError, match="no rows of the 4 values"):
        Projection(torch.ones(4, 2))(torch.ones(shape))


@pytest.mark.parametrize("directions", [torch.ones(4), torch.ones(4, 2, dtype=torch.int64)])
def test_directions_of_another_shape_or_kind_are_refused(directions):
    with pytest.raises(ConfigError, match="a projection's directions"):
        Projection(directions)
