"""Units that have their turn: gradients are made, weighed and added a few units at a time; the release is the same."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from discreet import AdaptiveClip, AutomaticClip, Clip, Gaussian, Mechanism, PerLayerClip, Plan, Poisson, attach
from discreet.gradients import Engine
from discreet.gradients.forms import OuterProduct, base
from discreet.gradients.forms.materialized import Stored
from discreet.gradients.results import Chunks

N = 12


class Standardised(nn.Conv2d):
    """A weight that is prepared, so that gradients are pulled back to it."""

    def forward(self, x):
        variance, mean = torch.var_mean(self.weight, (1, 2, 3), correction=0, keepdim=True)
        return F.conv2d(x, (self.weight - mean) * torch.rsqrt(variance + 1e-5), self.bias)


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), Standardised(4, 5, 2), nn.Tanh(), nn.Flatten(2),
        nn.Linear(9, 6), nn.Tanh(), nn.Flatten(), nn.Linear(30, 3),
    )  # fmt: skip


def data():
    torch.manual_seed(1)
    return torch.randn(N, 2, 6, 6), torch.randint(3, (N,))


def planned(bound, *, noise=0.5, steps=3, **settings):
    mechanism = Mechanism(bound, Gaussian(noise), **settings)
    return Plan(sampling=Poisson(examples=N, batch_size=N), mechanism=mechanism, steps=steps, delta=1e-5)


PINS = {"0.weight": "unfold", "3.weight": "grouped", "6.weight": "product"}


def gradients(ending, bound, rows, *, steps=3, noise=0.5, rate=0.1):
    """What is released step by step, of all examples each time."""
    model = network()
    plan = planned(bound, noise=noise, steps=steps)
    kernels = {name: way + ending for name, way in PINS.items()}
    private = attach(model, plan, seed=3, kernels=kernels)
    found = []
    for x, y in private.batches(rows):
        private.backward(F.cross_entropy(model(x), y, reduction="none"))
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        with torch.no_grad():
            for p in model.parameters():
                p -= rate * p.grad
    assert private.kernels == kernels
    return found


BOUNDS = {
    "clip": Clip(0.3),
    "each layer": PerLayerClip(0.2),
    "automatic": AutomaticClip(),
    "asks": AdaptiveClip(0.3, quantile=0.5),
}


@pytest.fixture
def few_at_a_time(monkeypatch):
    """Turns of some units, and not as many in the last; how many there were."""
    monkeypatch.setattr(base, "CHUNK_BYTES", 5 * 4 * (4 * 2 * 9 + 5 * 4 * 4 + 6 * 9))
    taken, real = [], Chunks.__iter__
    monkeypatch.setattr(Chunks, "__iter__", lambda chunks: taken.append(list(chunks.ranges)) or real(chunks))
    return taken


@pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)
def test_the_release_is_the_same(bound, few_at_a_time):
    expected = gradients("+keep", bound, data())
    assert not few_at_a_time
    found = gradients("+chunked", bound, data())
    assert few_at_a_time == 2 * [[(0, 5), (5, 10), (10, 12)]]  # the first step has no plan yet
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("value", [math.inf, math.nan])
@pytest.mark.parametrize("spoiled", [[0], [6, 11], [5, 6, 7, 8, 9], list(range(N))], ids=str)
def test_what_is_not_finite_counts_for_nothing_whoevers_turn_it_is(value, spoiled, few_at_a_time):
    """Also a whole turn of them, and where nobody is left."""
    x, y = data()
    rest = [i for i in range(N) if i not in spoiled]
    x[spoiled] = value
    found = gradients("+chunked", Clip(0.3), (x, y), noise=0.0, rate=0.0)
    assert few_at_a_time or not rest  # a bound that has met nobody is still to be checked, on all units
    model = network()
    expected = [torch.zeros_like(p) for p in model.parameters()]
    for i in rest:
        each = torch.autograd.grad(F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]), list(model.parameters()))
        norm = torch.cat([g.flatten() for g in each]).norm()
        expected = [e + g * (0.3 / norm).clamp(max=1) / N for e, g in zip(expected, each, strict=True)]
    for each in found:
        torch.testing.assert_close(each, torch.cat([e.flatten() for e in expected]), rtol=1e-4, atol=1e-6)


def test_losses_that_are_not_finite_count_for_nothing(few_at_a_time):
    def sums(lost):
        model, (x, y) = network(), data()
        private = attach(
            model, planned(Clip(0.3), noise=0.0), kernels={name: way + "+chunked" for name, way in PINS.items()}
        )
        for rows, labels in private.batches((x, y)):
            found = F.cross_entropy(model(rows), labels, reduction="none")
            zeros = torch.zeros(N).index_fill(0, torch.tensor(lost, dtype=torch.long), math.inf)
            private.backward(found + zeros)
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    whole, parts = sums([]), sums([3, 4]) + sums([i for i in range(N) if i not in (3, 4)])
    torch.testing.assert_close(whole, parts, rtol=1e-4, atol=1e-6)


def test_leaving_one_out_moves_the_sum_by_no_more_than_the_bound(few_at_a_time):
    """Whoever it is: the sums of all and of all others, of whom the one counts for nothing."""
    (x, y), norm = data(), 0.3

    def total(rows):
        return gradients("+chunked", Clip(norm), (rows, y), noise=0.0, rate=0.0)[-1] * N

    whole = total(x)
    for i in range(N):
        moved = float((whole - total(x.index_fill(0, torch.tensor([i]), math.nan))).norm())
        assert 0.5 * norm < moved <= norm * (1 + 1e-5)
    assert len(few_at_a_time) == 2 * (N + 1)


def test_no_more_than_a_turn_is_kept(few_at_a_time, monkeypatch):
    made, real = [], Stored.made.__func__

    def watched(cls, make, units, *rest):
        made.append(units)
        return real(cls, make, units, *rest)

    monkeypatch.setattr(Stored, "made", classmethod(watched))
    gradients("+chunked", Clip(0.3), data())
    assert max(made) == 5


def test_a_use_that_waits_answers_for_all_units_at_any_time():
    """As it is asked to by probes, and where sums are exact or sharded: no turn is needed, it is only slower."""
    model, (x, y) = network(), data()
    for ending in ("+keep", "+chunked"):
        engine = Engine(model, kernels={name: way + ending for name, way in PINS.items()})
        for _ in range(2):
            found = engine.gradients(F.cross_entropy(model(x), y, reduction="none"), N)
        norms = {name: n.clone() for name, n in found.norms().items()}
        if ending == "+keep":
            expected = norms
    for name, squared in norms.items():
        torch.testing.assert_close(squared, expected[name], rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("settings", [{"microbatch": 2}, {"hardening": "exact"}], ids=str)
def test_where_units_cannot_take_turns_none_is_planned(settings):
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Flatten(), nn.Linear(64 * 40, 2))
    x, y = torch.randn(N, 40, 64), torch.randint(2, (N,))
    private = attach(model, planned(Clip(0.3), **settings))
    for rows, labels in private.batches((x, y)):
        private.backward(F.cross_entropy(model(rows), labels, reduction="none"))
    assert private.kernels
    assert not any(kernel.endswith("+chunked") for kernel in private.kernels.values())


# --- one row an example, more of them than the cache holds ------------------------------------------------------------


@pytest.fixture
def small_cache(monkeypatch):
    """A cache that holds nobody's rows, turns of three of them, and a sum that stays in it."""
    monkeypatch.setattr(base, "CACHE_BYTES", 0)
    monkeypatch.setattr(base, "ROWS_BYTES", 3 * 4 * (300 + 3))

    def streams(use):
        return use._known[0 if use.left.shape[1] > use.right.shape[1] else 1] is None

    monkeypatch.setattr(OuterProduct, "_streams", property(streams))


def logistic(rows, *, fixed=False, steps=3):
    torch.manual_seed(0)
    model = nn.Linear(300, 3)
    private = attach(model, planned(Clip(0.3), noise=0.0, steps=steps))
    for x, y in private.batches(rows, fixed=fixed):
        private.backward(F.cross_entropy(model(x), y, reduction="none"))
    return private.kernels, torch.cat([p.grad.flatten() for p in model.parameters()])


def table():
    torch.manual_seed(2)
    return torch.randn(N, 300), torch.randint(3, (N,))


def test_rows_are_read_in_turns(small_cache, monkeypatch):
    taken, real = [], Chunks.__iter__
    monkeypatch.setattr(Chunks, "__iter__", lambda chunks: taken.append(list(chunks.ranges)) or real(chunks))
    kernels, found = logistic(table())
    assert kernels == {"weight": "rows+chunked"}
    assert taken == 2 * [[(0, 3), (3, 6), (6, 9), (9, 12)]]
    monkeypatch.undo()
    kernels, expected = logistic(table())
    assert kernels == {}
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-8)


def test_rows_whose_norms_are_known_wait_for_nothing(small_cache):
    assert logistic(table(), fixed=True)[0] == {}


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_rows_that_are_not_finite_count_for_nothing(small_cache, value):
    x, y = table()
    x[[4, 9, 10, 11]] = value
    _, found = logistic((x, y))
    rest = [0, 1, 2, 3, 5, 6, 7, 8]
    torch.manual_seed(0)
    model = nn.Linear(300, 3)
    expected = torch.zeros_like(found)
    for i in rest:
        each = torch.autograd.grad(F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]), list(model.parameters()))
        one = torch.cat([g.flatten() for g in each])
        expected += one * (0.3 / one.norm()).clamp(max=1) / N
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)


def test_rows_have_their_turn_only_where_no_gradients_have_theirs(small_cache):
    """Turns of gradients are of few units: the sum would be read and written for a few rows at a time."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Flatten(), nn.Linear(64 * 40, 2))
    engine = Engine(model)
    x = torch.randn(N, 40, 64)
    engine.gradients(model(x).square().sum(1), N)
    assert engine.kernels == {"0.weight": "product+chunked", "2.weight": "rows"}
    engine = Engine(model, kernels={"2.weight": "rows+chunked"})
    engine.gradients(model(x).square().sum(1), N)
    assert engine.kernels == {"0.weight": "product+chunked", "2.weight": "rows+chunked"}


@pytest.mark.parametrize(
    ("wide", "rows", "streams"), [(20_000, 8192, True), (20_000, 64, False), (100_000, 800, False)]
)
def test_which_rows_are_worth_a_turn(wide, rows, streams):
    """More than the cache holds, with a sum that stays in it."""
    one, other, known = torch.empty(1).expand(rows, 10), torch.empty(1).expand(rows, wide), torch.ones(rows)
    for left, right in ((one, other), (other, one)):
        use = OuterProduct(left, right)
        assert set(map(str, use.kernels())) == ({"rows", "rows+chunked"} if streams else set())
    assert bool(OuterProduct(one, other, (known, None)).kernels()) == streams
    assert not OuterProduct(one, other, (None, known)).kernels()
