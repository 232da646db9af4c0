"""Strategies of correlated noise: published and independently computed figures, and brute force beside every formula.

The figures of the tables agree with jax_privacy's to the digits shown where that has them.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import ConfigError
from discreet.stages.noise.correlated import (
    BLT,
    BandedInverse,
    Dense,
    Pattern,
    Toeplitz,
    Workload,
    bisr,
    lambda_cgd,
    optimised_bands,
    optimised_blt,
    optimised_inverse,
    optimum,
    sensitivity,
    square_root,
)
from discreet.stages.noise.correlated.banded import matrix_of
from discreet.stages.noise.correlated.blt import _interlaced, _Measure, _weights
from discreet.stages.noise.correlated.dense import of_form
from discreet.stages.noise.correlated.toeplitz import divide, loss

ONCE = Pattern(most=1)


def sets(steps, pattern):
    """All sets of steps that a pattern allows."""
    most = steps if pattern.most is None else pattern.most
    for size in range(1, min(steps, most) + 1):
        for chosen in itertools.combinations(range(steps), size):
            if all(b - a >= pattern.separation for a, b in itertools.pairwise(chosen)):
                yield list(chosen)


def true_sensitivity(matrix, every):
    """The largest ||C u|| over the sets and all signs: a convex function is largest at a corner."""
    best = 0.0
    for chosen in every:
        signs = np.array([(1, *rest) for rest in itertools.product((1, -1), repeat=len(chosen) - 1)]).T
        best = max(best, np.linalg.norm(matrix[:, chosen] @ signs, axis=0).max(initial=0))
    return best


# --- workloads


def test_workloads_by_hand():
    assert Workload(momentum=0.5).coefficients(3) == pytest.approx([0.5, 0.75, 0.875])
    assert Workload(shrinkage=0.9).coefficients(3) == pytest.approx([1, 0.9, 0.81])
    assert Workload(schedule=(1.0, 0.5, 0.25)).matrix(3)[2] == pytest.approx([1, 0.5, 0.25])
    assert Workload(averaging=2).matrix(3) == pytest.approx(np.array([[1, 0, 0], [1, 0.5, 0], [1, 1, 0.5]]))


@pytest.mark.parametrize(
    "workload",
    [
        Workload(),
        Workload(momentum=0.9),
        Workload(momentum=0.7, shrinkage=0.95),
        Workload(momentum=0.5, schedule=(1.0, 0.9, 0.5, 0.5, 0.1)),
        Workload(shrinkage=0.9, averaging=3),
    ],
)
def test_a_workload_is_what_the_optimiser_does(workload):
    gradients = np.random.default_rng(0).normal(size=5)
    velocity, model, models = 0.0, 0.0, []
    for t, g in enumerate(gradients):
        velocity = workload.momentum * velocity + (1 - workload.momentum) * g
        rate = workload.schedule[t] if workload.schedule else 1.0
        model = workload.shrinkage * model + rate * velocity
        models.append(model)
    averaged = [np.mean(models[max(0, t + 1 - workload.averaging) : t + 1]) for t in range(5)]
    assert workload.matrix(5) @ gradients == pytest.approx(np.array(averaged))
    if workload.toeplitz:
        assert workload.matrix(5)[:, 0] == pytest.approx(workload.coefficients(5))


@pytest.mark.parametrize("wrong", [{"momentum": 1.0}, {"shrinkage": 0.0}, {"schedule": "abc"}, {"averaging": 0}])
def test_what_is_no_workload(wrong):
    with pytest.raises(ConfigError):
        Workload(**wrong)


# --- sensitivity


@pytest.mark.parametrize(
    ("values", "separation", "most", "expected"),
    [
        ([1, 0.5, 0.5, 0.5, 0.1], 1, None, 2.6),
        ([1, 1, 0, 1, 0, 1], 1, None, 4),
        ([1, 1, 1, 1], 2, 2, 2),
        ([3, 1, 4], 1, 0, 0),
        ([-3, -1], 1, None, 0),
        ([0, 9, 0, 1, 4], 2, None, 13),
    ],
)
def test_spread(values, separation, most, expected):
    assert sensitivity.spread(values, separation, most) == pytest.approx(expected)


@given(
    st.lists(st.floats(-2, 3), min_size=1, max_size=8),
    st.integers(1, 4),
    st.one_of(st.none(), st.integers(0, 4)),
)
@settings(max_examples=60, deadline=None)
def test_spread_is_the_best_of_all_sets(values, separation, most):
    best = max((sum(values[i] for i in chosen) for chosen in sets(len(values), Pattern(separation, most))), default=0)
    assert sensitivity.spread(values, separation, most) == pytest.approx(max(0, best))


@pytest.mark.parametrize(
    ("steps", "separation", "most", "expected"),
    [(5, 2, None, 3), (5, 3, None, 2), (5, 4, None, 2), (5, 5, None, 1), (5, 2, 4, 3)],
)
def test_how_often_a_unit_can_take_part(steps, separation, most, expected):
    assert Pattern(separation, most).times(steps) == expected


def test_sensitivities_by_hand():
    diagonal = np.diag([1e-9, 3, 1e-9, 1, 2])
    assert sensitivity.of_matrix(diagonal, Pattern(2)) == pytest.approx(math.sqrt(13))
    assert sensitivity.of_matrix(diagonal, ONCE) == pytest.approx(3)
    c = np.array([[1, 0, 0, 0], [2, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, -6.0]])
    assert sensitivity.of_matrix(c, ONCE) == pytest.approx(6)
    assert sensitivity.of_matrix(c, Pattern(2)) == sensitivity.of_matrix(c, Pattern(3)) == pytest.approx(math.sqrt(41))
    sensitivity.at_right_angles(c, 2)
    with pytest.raises(ConfigError, match="right angles"):
        sensitivity.at_right_angles(c, 1)
    assert sensitivity.of_matrix(np.eye(6), Pattern(most=4)) == pytest.approx(2)
    prefix = np.tril(np.ones((5, 5)))
    assert sensitivity.of_toeplitz(np.ones(5), 5, Pattern(most=3)) ** 2 == pytest.approx(
        np.square(prefix[:, :3].sum(1)).sum()
    )
    three = Toeplitz((1, 0.5, 0.25))
    assert three.sensitivity(6, Pattern(2, 2)) ** 2 == pytest.approx(3.125)
    assert three.sensitivity(6, Pattern(2, 3)) ** 2 == pytest.approx(4.875)
    assert Toeplitz((1, 0.5, 0.8)).sensitivity(6, Pattern(1, 2)) ** 2 == pytest.approx(7.44)  # a majorant, no minorant
    root = square_root(7)
    assert root.sensitivity(7, Pattern()) == pytest.approx(np.linalg.norm(root.matrix(7).sum(1)))


patterns = st.builds(Pattern, st.integers(1, 4), st.one_of(st.none(), st.integers(1, 3)))


@given(st.lists(st.floats(0.05, 1), min_size=1, max_size=6), st.integers(1, 8), patterns)
@settings(max_examples=60, deadline=None)
def test_the_formula_for_monotone_strategies_is_exact(ratios, steps, pattern):
    strategy = Toeplitz((1.0, *np.cumprod(ratios)))
    expected = true_sensitivity(strategy.matrix(steps), sets(steps, pattern))
    assert strategy.sensitivity(steps, pattern) == pytest.approx(expected, rel=1e-9)
    assert sensitivity.of_matrix(strategy.matrix(steps), pattern) >= expected * (1 - 1e-9)


@given(st.integers(0, 10**6), st.integers(1, 7), patterns)
@settings(max_examples=80, deadline=None)
def test_every_other_formula_is_a_bound(seed, steps, pattern):
    random = np.random.default_rng(seed)
    c = random.normal(size=steps)
    c[0] = 1.0
    toeplitz = Toeplitz(tuple(c))
    truth = true_sensitivity(toeplitz.matrix(steps), sets(steps, pattern))
    assert toeplitz.sensitivity(steps, pattern) >= truth * (1 - 1e-9)
    matrix = np.tril(random.normal(size=(steps, steps))) + 3 * np.eye(steps)
    every = list(sets(steps, pattern))
    assert sensitivity.of_matrix(matrix, pattern) >= true_sensitivity(matrix, every) * (1 - 1e-9)
    orders = [list(range(j, steps, pattern.separation)) for j in range(min(steps, pattern.separation))]
    bound = sensitivity.of_fixed_order(np.abs(matrix), pattern.separation)
    assert bound == pytest.approx(true_sensitivity(np.abs(matrix), orders))
    assert sensitivity.of_fixed_order(matrix, pattern.separation) >= true_sensitivity(matrix, orders) * (1 - 1e-9)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=5), st.lists(st.integers(1, 7), max_size=3), patterns)
@settings(max_examples=60, deadline=None)
def test_a_restart_with_an_empty_memory_costs_nothing(tail, seams, pattern):
    strategy = Toeplitz((1.0, *tail))
    matrix, cut = strategy.matrix(8), np.zeros((8, 8))
    for start, stop in itertools.pairwise([0, *sorted(set(seams)), 8]):
        cut[start:stop, start:stop] = matrix[start:stop, start:stop]
    assert true_sensitivity(cut, sets(8, pattern)) <= true_sensitivity(matrix, sets(8, pattern)) * (1 + 1e-9)


# --- strategies

ROOT = {
    1: (1.0, 1.0),
    2: (1.25, 1.185854),
    4: (1.488281, 1.381417),
    8: (1.718379, 1.585857),
    16: (1.943879, 1.796814),
    64: (2.388848, 2.229676),
    128: (2.610104, 2.448826),
    256: (2.831050, 2.668782),
    512: (3.051841, 2.889173),
    1024: (3.272554, 3.109790),
    4096: (3.713884, 3.551293),
}


def test_the_square_root():
    known = (1, 0.5, 0.375, 0.3125, 0.2734375, 0.24609375, 0.22558594, 0.20947266)
    assert square_root(8).coefficients == pytest.approx(known)
    matrix = square_root(6).matrix(6)
    assert matrix @ matrix == pytest.approx(np.tril(np.ones((6, 6))))
    assert square_root(5).inverse(5) == pytest.approx([1, -1 / 2, -1 / 8, -1 / 16, -5 / 128])
    workload = Workload(momentum=0.9, shrinkage=0.99)
    root = square_root(6, workload=workload).matrix(6)
    assert root @ root == pytest.approx(workload.matrix(6))
    for steps, (largest, mean) in ROOT.items():
        strategy = square_root(steps)
        assert loss(strategy, steps, kind="max") == pytest.approx(largest, abs=1e-6)
        assert loss(strategy, steps) == pytest.approx(mean, abs=1e-6)


BANDED = {
    16: (2.91548, 2.28291, 1.93753, 1.78594, 1.75043),
    64: (5.70088, 4.20176, 3.24059, 2.66397, 2.35005, 2.21103, 2.17904),
    128: (8.03119, 5.82821, 4.36408, 3.43282, 2.87255, 2.56528, 2.42856),
    256: (11.33578, 8.14630, 5.97801, 4.54766, 3.63757, 3.08681, 2.78307),
    512: (16.01562, 11.43930, 8.28312, 6.15107, 4.74678, 3.84971, 3.30413),
    1024: (22.63846, 16.10840, 11.56329, 8.44430, 6.34279, 4.95563, 4.06591),
}


@pytest.mark.parametrize("steps", BANDED)
def test_optimised_bands(steps):
    losses = [loss(optimised_bands(steps, 2**i), steps) for i in range(len(BANDED[steps]))]
    assert losses == pytest.approx(BANDED[steps], abs=1e-5)
    assert losses == sorted(losses, reverse=True)  # more bands are never worse
    assert losses[0] == pytest.approx(math.sqrt((steps + 1) / 2))
    four = optimised_bands(steps, 4)
    assert loss(four, steps, Pattern(8, 2)) == pytest.approx(math.sqrt(2) * loss(four, steps))


def test_optimised_bands_of_long_runs():
    assert loss(optimised_bands(10_000, 4), 10_000) == pytest.approx(35.52108, abs=1e-5)
    assert loss(optimised_bands(10_000, 32), 10_000) == pytest.approx(13.24273, abs=1e-5)
    assert loss(optimised_bands(100_000, 32), 100_000) == pytest.approx(40.07125, abs=1e-5)


@pytest.mark.parametrize(
    ("steps", "bands", "start"),
    [
        (16, 2, (1, 0.602519)),
        (16, 4, (1, 0.551575, 0.414246, 0.326922)),
        (128, 4, (1, 0.726440, 0.630946, 0.549763)),
        (1024, 2, (1, 0.882384)),
        (1024, 8, (1, 0.774315, 0.713825, 0.677497)),
        (1024, 16, (1, 0.667933, 0.588830, 0.548939)),
    ],
)
def test_coefficients_of_optimised_bands(steps, bands, start):
    found = optimised_bands(steps, bands).coefficients
    assert found[: len(start)] == pytest.approx(start, abs=1e-5)
    assert all(a >= b > 0 for a, b in itertools.pairwise(found))


def test_bands_for_momentum():
    workload = Workload(momentum=0.9)
    one, sixteen = optimised_bands(390, 1, workload), optimised_bands(390, 16, workload)
    assert loss(one, 390, workload=workload) == pytest.approx(13.4956, abs=1e-4)
    assert loss(sixteen, 390, workload=workload) == pytest.approx(3.5064, abs=1e-4)
    assert loss(optimised_bands(390, 16), 390) == pytest.approx(4.2622, abs=1e-4)


@pytest.mark.parametrize("workload", [Workload(schedule=tuple(np.linspace(1, 0.1, 40))), Workload(0.9, averaging=8)])
def test_bands_for_any_workload(workload):
    own, of_sgd = optimised_bands(40, 4, workload), optimised_bands(40, 4)
    best = loss(own, 40, workload=workload)
    assert best < loss(of_sgd, 40, workload=workload) < loss(optimised_bands(40, 1), 40, workload=workload)
    for i in (1, 2, 3):  # and no neighbour is better
        for by in (0.99, 1.01):
            near = list(own.coefficients)
            near[i] *= by
            assert loss(Toeplitz(tuple(near)), 40, workload=workload) >= best * (1 - 1e-9)


def test_the_quadratic_form_agrees_with_the_adjoint():
    plain, general = optimised_bands(30, 5), optimised_bands(30, 5, Workload(schedule=(1.0,) * 30))
    assert general.coefficients == pytest.approx(plain.coefficients, abs=1e-5)


def test_columns_made_alike_are_of_one_length_and_no_worse():
    strategy = optimised_bands(12, 4)
    normalised = matrix_of(strategy, 12, normalised=True)
    lengths = np.linalg.norm(normalised, axis=0)
    assert lengths == pytest.approx(np.full(12, lengths[0]))
    assert loss(Dense(normalised), 12) < loss(strategy, 12)


BLTS = {
    (1000, 1000, 1, "max"): (3.85020, 3.32126, 3.26992, 3.26538),
    (1000, 1000, 1, "rms"): (3.44369, 3.07584, 3.05108, 3.04983),
    (1000, 100, 10, "max"): (15.26156, 14.95297, 14.88426),
    (1000, 100, 10, "rms"): (12.44944, 12.19385),
    (2000, 333, 6, "max"): (11.53212, 10.78784, 10.73244, 10.71593),
    (500, 50, 10, "rms"): (11.58300, 11.49818),
}


@pytest.mark.parametrize("setting", BLTS, ids=str)
def test_blt(setting):
    steps, separation, most, kind = setting
    pattern = Pattern(separation, most)
    for buffers, expected in enumerate(BLTS[setting], 1):
        found = optimised_blt(steps, buffers, pattern, kind)
        assert loss(found, steps, pattern, kind=kind) == pytest.approx(expected, abs=1e-5)
        assert all(weight >= 0 for weight in found.weight)


def test_blt_of_long_runs():
    found = optimised_blt(100_000, 2, ONCE, "max")
    assert found.weight == pytest.approx((0.0122853238, 0.1878393665), rel=1e-4)
    assert found.decay == pytest.approx((0.9999528892, 0.9857068667), rel=1e-6)
    assert loss(found, 100_000, kind="max") == pytest.approx(5.29675, abs=1e-5)
    assert loss(optimised_blt(10_000, 4, ONCE, "max"), 10_000, kind="max") <= 1.03 * (1 + math.log(10_000) / math.pi)


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_blt_of_the_shortest_runs(steps):
    for pattern in (ONCE, Pattern(2), Pattern()):
        found = optimised_blt(steps, 2, pattern)
        assert (
            loss(found, steps, pattern)
            <= Toeplitz((1.0,)).sensitivity(steps, pattern) * math.sqrt((steps + 1) / 2) + 1e-6
        )


def test_blt_where_all_take_part_always_is_the_identity():
    assert optimised_blt(20, 2, Pattern()).column(20) == pytest.approx([1] + [0] * 19)


@pytest.mark.parametrize(("steps", "separation", "most"), [(37, 5, 3), (40, 7, 6), (30, 30, 1), (12, 1, 3), (9, 4, 2)])
def test_the_closed_forms_of_blt(steps, separation, most):
    decay, inverse = _interlaced(np.array([2.0, 1.5, 0.3, 0.2]))
    weight = _weights(decay, inverse)
    blt = BLT(tuple(decay), tuple(weight))
    assert blt.inverse(steps) == pytest.approx(divide(blt.column(steps), np.eye(steps)[0]), abs=1e-12)
    assert BLT(tuple(inverse), tuple(_weights(inverse, decay))).column(steps) == pytest.approx(blt.inverse(steps))
    pattern = Pattern(separation, most)
    for kind in ("rms", "max"):
        squared = _Measure(steps, pattern, kind)(decay, inverse)
        assert math.sqrt(squared) == pytest.approx(loss(blt, steps, pattern, kind=kind), rel=1e-12)


INVERSE = {  # separation n / k: BSR, BISR, at most BandInvMF, with 4 and with 16 bands; lambda-CGD; the full root
    (128, 1): (4.6024, 3.4637, 2.6177, 2.9461, 2.4918, 2.4154, 2.91279, 2.4488),
    (128, 4): (9.2048, 6.9283, 5.4398, 5.8922, 5.3867, 5.3172, 5.89092, 6.1735),
    (128, 8): (13.0176, 9.8998, 8.6001, 8.3328, 9.0459, 8.5373, 8.91106, 10.9322),
}


@pytest.mark.parametrize("setting", INVERSE, ids=str)
def test_banded_inverses(setting):
    steps, most = setting
    pattern, expected = Pattern(steps // most, most), INVERSE[setting]
    made = (
        square_root(steps, 4),
        bisr(steps, 4),
        optimised_inverse(steps, 4, pattern),
        square_root(steps, 16),
        bisr(steps, 16),
        optimised_inverse(steps, 16, pattern),
        lambda_cgd(steps, pattern),
        square_root(steps),
    )
    losses = [loss(strategy, steps, pattern) for strategy in made]
    solved = (2, 5)
    assert [x for i, x in enumerate(losses) if i not in solved] == pytest.approx(
        [x for i, x in enumerate(expected) if i not in solved], abs=1e-4
    )
    assert all(0.99 * expected[i] < losses[i] <= expected[i] + 1e-4 for i in solved)


def test_lambda_cgd_in_closed_form():
    share = 0.7
    strategy = lambda_cgd(50, share=share)
    assert strategy.sensitivity(50) ** 2 == pytest.approx((1 - share**100) / (1 - share**2))
    assert strategy.error(50, kind="max") ** 2 == pytest.approx(1 + 49 * (1 - share) ** 2)
    pattern = Pattern(100, 10)
    best = lambda_cgd(1000, pattern)
    assert loss(best, 1000, pattern) == pytest.approx(15.24862, abs=1e-5)
    assert -best.coefficients[1] == pytest.approx(0.95305, abs=1e-5)


DENSE = {
    (8, 1): 1.49441,
    (16, 1): 1.68940,
    (16, 2): 2.40774,
    (16, 4): 3.67061,
    (32, 1): 1.89209,
    (32, 4): 4.02729,
    (64, 1): 2.09986,
    (64, 8): 7.00855,
}


@pytest.mark.parametrize("setting", DENSE, ids=str)
def test_the_optimum(setting):
    steps, most = setting
    batches = steps // most
    found = optimum(steps, batches=batches)
    assert sensitivity.of_fixed_order(found.rows, batches) == pytest.approx(1, abs=1e-9)
    assert found.error(steps) == pytest.approx(DENSE[setting], abs=1e-5)


def test_the_optimum_of_bands():
    assert loss(optimum(16, bands=4, equal=True), 16) == pytest.approx(1.90290, abs=1e-5)
    eight = optimum(64, bands=8, equal=True)
    assert loss(eight, 64) == pytest.approx(2.62052, abs=1e-5)
    assert np.abs(np.linalg.norm(eight.rows, axis=0) - 1).max() < 1e-9  # columns, not rows
    assert not np.any(np.tril(eight.rows, -8))
    first = (0.73393, 0.42541, 0.32806, 0.26749, 0.21957, 0.17558, 0.12971, 0.07305)
    eight = optimum(8).rows
    assert eight[:, 0] == pytest.approx(first, abs=1e-5)
    diagonal = (0.73393, 0.78209, 0.81242, 0.83848, 0.86516, 0.89668, 0.93977, 1)
    assert np.diag(eight) == pytest.approx(diagonal, abs=1e-5)


def test_a_strategy_from_its_form():
    x = np.array([[2.0, 0.5, 0.1], [0.5, 1.0, 0.3], [0.1, 0.3, 1.5]])
    c = of_form(x)
    assert c.T @ c == pytest.approx(x)
    assert not np.any(np.triu(c, 1))
    assert not np.allclose(c @ c.T, x)


def test_errors_by_hand():
    made = np.tril(np.ones((2, 2))) @ np.linalg.inv([[1, 0], [0.5, 1]])
    assert np.square(made).sum(1) == pytest.approx([1, 1.25])
    assert Toeplitz((1, 0.5)).error(2, kind="max") ** 2 == pytest.approx(1.25)
    for strategy in (Toeplitz((1, 0.4, 0.3)), BLT((0.9, 0.4), (0.2, 0.1)), BandedInverse((1, -0.4, -0.1))):
        for workload in (
            Workload(),
            Workload(momentum=0.9),
            Workload(schedule=(1, 1, 0.5, 0.2)),
            Workload(averaging=2),
        ):
            rows = np.square(workload.matrix(4) @ np.linalg.inv(strategy.matrix(4))).sum(1)
            assert strategy.error(4, workload) ** 2 == pytest.approx(rows.mean())
            if workload.toeplitz:
                assert strategy.error(4, workload, "max") ** 2 == pytest.approx(rows.max())
            dense = Dense(strategy.matrix(4))
            assert dense.error(4, workload, "max") ** 2 == pytest.approx(rows.max())


@pytest.mark.parametrize(
    "make",
    [
        lambda: Toeplitz(()),
        lambda: Toeplitz((0.0, 1.0)),
        lambda: Toeplitz((1.0, math.nan)),
        lambda: Toeplitz("1"),
        lambda: BLT((1.0,), (0.1,)),
        lambda: BLT((0.5, 0.2), (0.1,)),
        lambda: Dense(np.ones((2, 2))),
        lambda: Dense(np.tril(np.ones((3, 3)))).matrix(4),
        lambda: optimum(5000),
        lambda: Toeplitz((1.0,)).error(3, kind="mean"),
        lambda: lambda_cgd(10, share=1.0),
    ],
)
def test_what_is_no_strategy(make):
    with pytest.raises(ConfigError):
        make()
