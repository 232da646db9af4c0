import math
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats

from discreet import (
    Allocation,
    Clip,
    ConfigError,
    FixedBatches,
    FixedSize,
    Gaussian,
    Mechanism,
    Plan,
    Poisson,
    Shuffled,
    WeightedPoisson,
    calibrate,
    fit,
    verify,
)
from discreet.accounting import cost
from discreet.stages.noise.random import KeyTree


def streams(root):
    return partial(root.stream, "sampling")


def test_the_rate_is_exactly_batch_size_over_examples():
    assert Poisson(examples=60_000, batch_size=256).exact_rate == Fraction(256, 60_000)
    assert Poisson(rate=0.1, batch_size=5).exact_rate == Fraction(0.1)


def test_adjacency_follows_from_what_is_public():
    assert Poisson(examples=10, batch_size=2).contract().adjacency == "zero-out"
    assert Poisson(rate=0.2, batch_size=2).contract().adjacency == "add-remove"


def test_sizes_are_binomial_and_members_equally_likely():
    """2,000 draws of 100 examples: chi-square of the sizes, and of the members; false-alarm rate 1e-6 each."""
    sampler, root = Poisson(examples=100, batch_size=7), KeyTree(seed=1)
    draws = [sampler.draw(100, i, 0, streams(root)) for i in range(2000)]
    sizes = np.bincount([len(d) for d in draws], minlength=101)
    edges = list(range(3, 12))
    expected = stats.binom.pmf(np.arange(101), 100, 0.07) * 2000
    grouped = [np.add.reduceat(a, [0, *edges]) for a in (sizes, expected)]
    assert stats.chisquare(grouped[0], grouped[1] * grouped[0].sum() / grouped[1].sum()).pvalue > 1e-6
    members = np.bincount(np.concatenate(draws), minlength=100)
    chi = ((members - 140) ** 2 / (2000 * 0.07 * 0.93)).sum()
    assert stats.chi2.sf(chi, 100) > 1e-6
    assert all((np.diff(d) > 0).all() for d in draws)  # no example twice


def test_rate_one_draws_everything_and_small_rates_may_draw_nothing():
    root = KeyTree(seed=2)
    assert len(Poisson(examples=50, batch_size=50).draw(50, 0, 0, streams(root))) == 50
    empty = [len(Poisson(examples=50, batch_size=1).draw(50, i, 0, streams(root))) == 0 for i in range(400)]
    share = sum(empty) / 400  # (1 - 1/50)^50 = 0.364; six standard deviations of 0.024
    assert abs(share - 0.98**50) < 6 * math.sqrt(0.364 * 0.636 / 400)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"examples": 10, "batch_size": 11}, "larger than the 10 examples"),
        ({"examples": 10, "batch_size": 0}, "batch_size is 0"),
        ({"examples": 0, "batch_size": 1}, "examples is 0"),
        ({"examples": 10.5, "batch_size": 1}, "whole number"),
        ({"examples": 10, "batch_size": 2, "rate": 0.2}, "not both"),
        ({"batch_size": 2}, "not both"),
        ({"rate": 0.0, "batch_size": 2}, r"rate is 0\.0"),
        ({"rate": 1.5, "batch_size": 2}, r"rate is 1\.5"),
        ({"rate": math.nan, "batch_size": 2}, "rate is nan"),
        ({"rate": 0.5}, "batch_size is 0"),
    ],
)
def test_bad_settings_give_one_clear_error(settings, message):
    with pytest.raises(ConfigError, match=message):
        Poisson(**settings)


def test_another_batch_size_keeps_the_data():
    assert Poisson(examples=100, batch_size=10).with_batch_size(20) == Poisson(examples=100, batch_size=20)
    assert Poisson(rate=0.1, batch_size=10).with_batch_size(20) == Poisson(rate=0.2, batch_size=20)


def test_fixed_size_draws_sets_of_that_size_uniformly():
    sampler, root = FixedSize(examples=20, batch_size=5), KeyTree(seed=4)
    draws = [sampler.draw(20, i, 0, streams(root)) for i in range(4000)]
    assert all(len(set(d)) == 5 for d in draws)
    counts = np.bincount(np.concatenate(draws), minlength=20)
    assert stats.chisquare(counts).pvalue > 1e-6  # one false alarm in a million fresh seeds
    pairs = np.zeros((20, 20))
    for d in draws:
        pairs[np.ix_(d, d)] += 1
    above = pairs[np.triu_indices(20, 1)]
    assert above.std() < 1.3 * math.sqrt(4000 * 5 * 4 / (20 * 19))


def test_shuffled_takes_everyone_once_in_a_pass():
    sampler, root = Shuffled(examples=23, batch_size=5), KeyTree(seed=4)
    assert sampler.steps_in_a_pass == 5
    for first in (0, 5, 10):
        taken = np.concatenate([sampler.draw(23, first + i, 0, streams(root)) for i in range(5)])
        assert sorted(taken) == list(range(23))
    one, two = (np.concatenate([sampler.draw(23, f + i, 0, streams(root)) for i in range(5)]) for f in (0, 5))
    assert not np.array_equal(one, two)
    assert [sampler.participations(n) for n in (0, 1, 5, 6, 10, 11)] == [0, 1, 1, 2, 2, 3]


def test_allocation_takes_everyone_once_in_an_epoch_each_by_its_own_draw():
    sampler, root = Allocation(examples=300, batches=7), KeyTree(seed=4)
    sizes, places = [], []
    for epoch in range(200):
        taken = [sampler.draw(300, 7 * epoch + i, 0, streams(root)) for i in range(7)]
        assert sorted(np.concatenate(taken)) == list(range(300))
        sizes.append([len(batch) for batch in taken])
        places.append([next(i for i, batch in enumerate(taken) if who in batch) for who in (0, 1)])
    # each of 1e-6: one false alarm in a million fresh seeds
    assert stats.chisquare(np.sum(sizes, 0)).pvalue > 1e-6
    squares = np.sum((np.array(sizes) - 300 / 7) ** 2) / (300 / 7)  # sizes of an epoch are multinomial
    assert 1e-6 < stats.chi2.sf(squares, 200 * 6) < 1 - 1e-6
    pairs = np.zeros((7, 7))
    np.add.at(pairs, tuple(np.array(places).T), 1)  # two examples pick independently
    assert stats.chisquare(pairs.ravel()).pvalue > 1e-6
    assert [sampler.participations(n) for n in (0, 1, 7, 8, 14, 15)] == [0, 1, 1, 2, 2, 3]


def test_allocation_draws_anew_where_a_process_takes_over():
    sampler, root = Allocation(examples=300, batches=7), KeyTree(seed=4)
    before = [sampler.draw(300, i, 0, streams(root)) for i in range(7)]
    after = [sampler.draw(300, 3 + i, 3, streams(root)) for i in range(7)]
    assert sorted(np.concatenate(after)) == list(range(300))
    assert all(len(set(a) & set(b)) < min(len(a), len(b)) for a, b in zip(before, after, strict=True))


def test_allocation_divides_by_a_constant_that_need_not_be_whole():
    assert Allocation(examples=300, batches=7).batch_size == pytest.approx(300 / 7)
    assert Allocation(examples=300, batches=10).batch_size == 30
    assert Allocation(examples=300, batches=7).with_batch_size(30) == Allocation(examples=300, batches=10)
    assert Allocation(examples=300, batches=7).with_batch_size(300).batches == 1


def test_fixed_batches_are_the_same_few_sets_again_and_again():
    sampler, root = FixedBatches(examples=23, batch_size=5), KeyTree(seed=4)
    draws = {tuple(sampler.draw(23, i, 0, streams(root))) for i in range(200)}
    assert len(draws) == 5
    assert sorted(i for d in draws for i in d) == list(range(23))


def test_a_cap_cuts_large_draws_at_random():
    sampler, root = Poisson(examples=40, batch_size=20, cap=22), KeyTree(seed=9)
    draws = [sampler.draw(40, i, 0, streams(root)) for i in range(3000)]
    assert max(len(d) for d in draws) == 22
    assert stats.chisquare(np.bincount(np.concatenate(draws), minlength=40)).pvalue > 1e-6
    cut = sum(len(d) == 22 for d in draws) / 3000
    assert cut > stats.binom.sf(22, 40, 0.5)  # those of exactly 22 too
    assert sampler.contract().overflow == pytest.approx(stats.binom.sf(22, 40, 0.5))
    assert Poisson(examples=40, batch_size=20, cap=40).contract().overflow == 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FixedSize(examples=10, batch_size=2, replacement=True), "drawn several times into one batch"),
        (lambda: FixedSize(examples=10, batch_size=11), "larger than the 10 examples"),
        (lambda: Allocation(examples=10, batches=11), "more than the 10 examples"),
        (lambda: Allocation(examples=10, batches=0), "batches is 0"),
        (lambda: Allocation(examples=10, batches=2, unit=""), "unit is ''"),
        (lambda: Shuffled(examples=10, batch_size=2, adjacency="add-remove"), "one of zero-out, replace"),
        (lambda: Poisson(rate=0.1, batch_size=2, adjacency="zero-out"), "public number"),
        (lambda: Poisson(rate=0.1, batch_size=2, cap=5), "public number"),
        (lambda: Poisson(examples=10, batch_size=4, cap=2), "cap is 2"),
        (lambda: Poisson(examples=10, batch_size=4, adjacency="sideways"), "must be one of"),
        (lambda: Poisson(examples=10, batch_size=4, unit=""), "unit is ''"),
    ],
)
def test_what_makes_no_sense_is_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


@pytest.mark.parametrize(
    ("sampler", "adjacency"),
    [
        (Poisson(examples=10, batch_size=2), "zero-out"),
        (Poisson(examples=10, batch_size=2, adjacency="replace"), "replace"),
        (FixedSize(examples=10, batch_size=2), "replace"),
        (Shuffled(examples=10, batch_size=2), "zero-out"),
        (Shuffled(examples=10, batch_size=2, adjacency="replace"), "replace"),
        (Allocation(examples=10, batches=5), "zero-out"),
        (FixedBatches(examples=10, batch_size=2), "zero-out"),
    ],
)
def test_each_says_under_which_relation_it_is_analysed(sampler, adjacency):
    assert sampler.contract().adjacency == adjacency
    plan = Plan(sampling=sampler, mechanism=Mechanism(Clip(1.0), Gaussian(2.0)), steps=5, delta=1e-5)
    found = plan.guarantee()
    assert found.adjacency == adjacency
    assert math.isfinite(found.epsilon)
    assert found.epsilon == pytest.approx(cost([plan.event()], 1e-5).epsilon)


def test_permutations_and_whole_numbers_are_uniform():
    source = KeyTree(seed=8).stream("test", 0)
    firsts = np.array([source.permutation(6)[0] for _ in range(6000)])
    assert stats.chisquare(np.bincount(firsts, minlength=6)).pvalue > 1e-6
    drawn = source.below(7, 70_000)
    assert drawn.min() == 0
    assert drawn.max() == 6
    assert stats.chisquare(np.bincount(drawn)).pvalue > 1e-6
    assert source.below(1, 3).tolist() == [0, 0, 0]


# --- chances that differ ---------------------------------------------------------------------------------------------


def weighted(noise=1.0, steps=20, sampling=None, **changes):
    sampling = sampling or WeightedPoisson(sizes=(60, 20, 10), batch_sizes=(6, 4, 0), **changes)
    return Plan(sampling=sampling, mechanism=Mechanism(Clip(1.0), Gaussian(noise)), steps=steps, delta=1e-5)


def test_each_stratum_has_its_own_chance():
    """2,000 draws: each one's count within six standard deviations, and no coin has to do with another's."""
    sampler, root = weighted().sampling, KeyTree(seed=8)
    there = np.zeros((2000, 90))
    for step in range(2000):
        drawn = sampler.draw(90, step, 0, streams(root))
        assert (np.diff(drawn) > 0).all()
        there[step, drawn] = 1
    rates = np.repeat([0.1, 0.2, 0.0], [60, 20, 10])
    assert (np.abs(there.mean(0) - rates) <= 6 * np.sqrt(rates * (1 - rates) / 2000)).all()
    together = (there[:, :80] - rates[:80]).T @ (there[:, :80] - rates[:80]) / 2000
    assert np.abs(together - np.diag(np.diag(together))).max() < 6 * 0.16 / 2000**0.5


def test_one_stratum_is_poisson():
    one, plain = WeightedPoisson(sizes=(90,), batch_sizes=(9,)), Poisson(examples=90, batch_size=9)
    root = KeyTree(seed=3)
    for step in range(9):
        assert np.array_equal(one.draw(90, step, 0, streams(root)), plain.draw(90, step, 0, streams(root)))
    assert one.contract() == plain.contract()
    assert (one.steps_for(7.0), one.epochs_in(70), one.largest_batch_size) == (70, 7.0, 90)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace"])
def test_the_largest_chance_is_charged_and_is_what_its_stratum_spends(adjacency):
    made = weighted(adjacency=adjacency)
    plain = weighted(sampling=Poisson(examples=20, batch_size=4, adjacency=adjacency)).guarantee()
    strata = [weighted(sampling=made.sampling.of_stratum(j)).guarantee().epsilon for j in (0, 1)]
    assert made.guarantee().epsilon == plain.epsilon == strata[1] > strata[0]
    with pytest.raises(ConfigError, match="nobody of stratum 2 ever takes part"):
        made.sampling.of_stratum(2)


def test_a_smaller_chance_is_no_easier_to_tell_at_any_point_of_the_curve():
    """The mixture of P1 and Q at a smaller rate, both ways, of a pair that is neither Gaussian nor symmetric."""
    random = np.random.default_rng(0)
    first, without = random.dirichlet(np.ones(9), 2)
    for low, high in ((0.05, 0.2), (0.3, 0.31), (0.6, 1.0)):
        small, large = ((1 - q) * without + q * first for q in (low, high))
        for a in np.geomspace(0.05, 20, 60):
            assert np.maximum(small - a * without, 0).sum() <= np.maximum(large - a * without, 0).sum() + 1e-15
            assert np.maximum(without - a * small, 0).sum() <= np.maximum(without - a * large, 0).sum() + 1e-15


def test_another_batch_size_is_shared_in_proportion():
    sampler = WeightedPoisson(sizes=(60, 20, 10), batch_sizes=(6, 4, 1))
    assert [sampler.with_batch_size(b).batch_sizes for b in (22, 1, 12)] == [(12, 8, 2), (1, 0, 0), (7, 4, 1)]
    assert sampler.with_batch_size(sampler.largest_batch_size).contract().rate == 1
    found = calibrate(weighted(noise=2.0, sampling=sampler), epsilon=3, solve_for="batch_size")
    assert found.guarantee().epsilon <= 3
    assert found.sampling.batch_size > 11


def test_a_run_with_strata_is_counted_verified_and_resumed(tmp_path):
    made, x = weighted(), torch.randn(90, 3)
    rows = x, (x[:, 0] > 0).long()
    settings = {"ledger": tmp_path / "ledger.jsonl", "checkpoint": tmp_path / "checkpoint"}
    first = fit(torch.nn.Linear(3, 2), rows, made, stop=lambda: True, **settings)
    assert not first.finished
    done = fit(torch.nn.Linear(3, 2), rows, made, **settings)
    (run,) = verify(tmp_path / "ledger.jsonl").runs
    assert run.released == 20
    assert run.guarantee.epsilon == done.guarantee.epsilon == made.guarantee().epsilon
    assert "which stratum each example is in is public" in str(done.guarantee)
    made.save(tmp_path / "plan.toml")
    assert Plan.load(tmp_path / "plan.toml") == made
    with pytest.raises(ConfigError, match="the data has 80 examples, the plan says 90"):
        fit(torch.nn.Linear(3, 2), (x[:80], rows[1][:80]), made)


@pytest.mark.parametrize(
    ("sizes", "batch_sizes", "words"),
    [
        ((), (), "a number for each stratum"),
        ((5, 5), (1,), "2 sizes and 1 batch_sizes"),
        ((5, 5), (6, 1), "6 of a stratum of 5 examples; the most is 5"),
        ((5, 5), (0, 0), "are all 0"),
        ((5, 0), (1, 0), "sizes is 0"),
        ((5, 5), (-1, 2), "batch_sizes is -1"),
    ],
)
def test_strata_that_make_no_sense_are_refused(sizes, batch_sizes, words):
    with pytest.raises(ConfigError, match=words):
        WeightedPoisson(sizes=sizes, batch_sizes=batch_sizes)
