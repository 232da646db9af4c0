import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import discreet
from discreet import (
    AdaptiveClip,
    Allocation,
    AutomaticClip,
    BandedGaussian,
    BLTGaussian,
    Clip,
    ConfigError,
    CyclicPoisson,
    FixedOrder,
    FixedSize,
    Gaussian,
    Laplace,
    Mechanism,
    PerLayerClip,
    Plan,
    Poisson,
    PrivacyError,
    Shuffled,
    attach,
)
from discreet.accounting import delta_curve
from discreet.audit.canaries import Examples, Filter, audit_run, directions, for_canaries, mislabelled, noise_images
from discreet.audit.canaries.joint import joint
from discreet.audit.guessing import guess
from discreet.gradients import Engine
from discreet.nn import BELU
from discreet.report.record import _audit

N, M = 30, 8


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def data(n=N):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (n,), generator=generator)


def plan(noise=0.0, steps=1, bound=None, sampling=None, allocation="joint"):
    sampling = sampling or Poisson(rate=1.0, batch_size=1)
    mechanism = Mechanism(bound or Clip(0.5), Gaussian(noise), allocation)
    return Plan(sampling=sampling, mechanism=mechanism, steps=steps, delta=1e-5)


def gradient(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])


# --- directions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 3, None])
def test_directions_are_orthonormal(width):
    made = directions(network(), plan(), M, width=width)
    rows = made.matrix(torch.arange(M), torch.float64)
    torch.testing.assert_close(rows @ rows.t(), torch.eye(M).double(), rtol=0, atol=1e-15)
    assert made.width == (width or 51 // M)
    vector = torch.randn(51, dtype=torch.float64)
    torch.testing.assert_close(made.along(vector), rows @ vector)


@pytest.mark.parametrize("width", [1, None])
def test_what_the_engine_sees_of_a_canary_is_its_direction(width):
    model, (x, y) = network(), data(M + 2)
    made = directions(model, plan(), M, width=width)
    numbers = torch.tensor([-1, *range(M), -1])
    usual = F.cross_entropy(model(x), y, reduction="none")
    losses = torch.where(numbers >= 0, made.losses(model, numbers), usual)
    found = Engine(model).gradients(losses, M + 2, probe=True).rows(0, M + 2)
    expected = made.length * made.matrix(torch.arange(M), torch.float64)
    torch.testing.assert_close(found[1:-1], expected, rtol=1e-14, atol=0)
    alone = torch.autograd.grad(F.cross_entropy(model(x[:1]), y[:1]), list(model.parameters()))
    torch.testing.assert_close(found[0], torch.cat([g.flatten() for g in alone]))


@pytest.mark.parametrize("bound", [Clip(0.5), Clip(2.0), AutomaticClip(0.5, stability=1e-6)], ids=str)
def test_the_sum_moves_by_exactly_the_direction_cut_to_the_norm(bound):
    model = network()
    made = directions(model, plan(bound=bound), M)

    def released(coins):
        private = attach(model, plan(bound=bound), preflight=False)
        x, y = data()
        inputs, targets = made.rows((x, y))
        numbers = torch.cat((torch.full((N,), -1), torch.arange(M)[coins]))
        rows = torch.cat((x, inputs[coins])), torch.cat((y, targets[coins])), numbers
        for inputs, targets, who in private.batches(rows):
            usual = F.cross_entropy(model(inputs), targets, reduction="none")
            private.backward(torch.where(who >= 0, made.losses(model, who), usual))
        private.detach()
        return gradient(model)

    nobody = torch.zeros(M, dtype=torch.bool)
    for i in range(M):
        moved = released(torch.arange(M) == i) - released(nobody)
        expected = bound.norm * made.matrix(torch.tensor([i]), torch.float64)[0]
        torch.testing.assert_close(moved, expected, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    ("bound", "allocation"),
    [(Clip(0.5), "joint"), (PerLayerClip(0.5), "joint"), (PerLayerClip(0.5), "each"), (PerLayerClip(0.5), "power")],
)
def test_the_likelihood_knows_how_far_a_canary_moves_each_block(bound, allocation):
    """Seen through the filter, the sum moves by mu, and noise has standard deviation 1."""
    model = network()
    noisy = plan(1.7, bound=bound, allocation=allocation)
    made = directions(model, noisy, M)
    made_filter = Filter.of(noisy, made)
    private = attach(model, plan(bound=bound), preflight=False)
    rows = *made.rows(data()), torch.arange(M)
    for _, _, who in private.batches(rows):
        private.backward(made.losses(model, who))
    seen = (gradient(model)[made.places] * made_filter.factors).sum(1)
    np.testing.assert_allclose(seen.numpy(), made_filter.mu, rtol=1e-6)
    if isinstance(bound, Clip):
        np.testing.assert_allclose(made_filter.mu, 1 / 1.7)
    scales = noisy.mechanism.scales(noisy.mechanism.contract_for(made.layout))
    blocks = noisy.mechanism.contract_for(made.layout).blocks
    std = torch.cat(
        [
            torch.full((size,), next(s for b, s in zip(blocks, scales, strict=True) if name in b.members))
            for name, size in zip(made.layout.names, made.layout.sizes, strict=True)
        ]
    ).double()
    torch.testing.assert_close((std[made.places] * made_filter.factors).square().sum(1), torch.ones(M).double())


def test_more_directions_than_parameters_are_refused():
    with pytest.raises(ConfigError, match="52 directions with 1 places each do not fit into 51 parameters"):
        directions(network(), plan(), 52)
    with pytest.raises(ConfigError, match="26 directions with 2 places"):
        directions(network(), plan(), 26, width=2)


# --- who is in -------------------------------------------------------------------------------------------------------


def trained(sampling, bound, canaries, seed=3, n=N):
    """Three steps without noise, and the coins."""
    model = network()
    run = audit_run(
        model, data(n), plan(0.0, 3, bound, sampling), canaries, guesses=(1, 1), score="sum", preflight=False, seed=seed
    )
    return torch.cat([p.detach().flatten() for p in model.parameters()]), run


@pytest.mark.parametrize("bound", [Clip(0.5), AdaptiveClip(0.5), AutomaticClip(0.5), PerLayerClip(0.5)], ids=str)
def test_an_empty_row_in_place_of_an_excluded_canary_is_as_if_it_were_not_there(bound):
    """Where rows are public, with everybody in every step: the same model as where excluded canaries are left out."""
    canaries = directions(network(), plan(bound=bound), M)
    kept, first = trained(Poisson(examples=N + M, batch_size=N + M), bound, canaries)
    left_out, second = trained(Poisson(rate=1.0, batch_size=N + M), bound, canaries)
    assert (first.coins == second.coins).all()
    assert 0 < first.coins.sum() < M
    torch.testing.assert_close(kept, left_out, rtol=1e-12, atol=1e-12)
    assert (first.guarantee.adjacency, second.guarantee.adjacency) == ("zero-out", "add-remove")


def test_in_a_bounded_network_too_an_excluded_example_contributes_nothing():
    def run(sampling):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), BELU(), nn.Linear(6, 3)).double()
        own = discreet.methods.belu(examples=N + M, batch_size=1, steps=3, noise=0.0, delta=1e-5, certified=True)
        x, y = data(N + M)
        canaries = mislabelled(x[N:], y[N:], 3)
        found = audit_run(model, (x[:N], y[:N]), replace(own, sampling=sampling), canaries, guesses=(1, 1), seed=3)
        return torch.cat([p.detach().flatten() for p in model.parameters()]), found.coins

    kept, coins = run(Poisson(examples=N + M, batch_size=N + M))
    left_out, same = run(Poisson(rate=1.0, batch_size=N + M))
    assert (coins == same).all()
    assert 0 < coins.sum() < M
    torch.testing.assert_close(kept, left_out, rtol=1e-12, atol=1e-12)


def test_a_bounded_network_refuses_losses_that_are_not_of_its_outputs():
    model = nn.Sequential(nn.Linear(4, 6), BELU(), nn.Linear(6, 3)).double()
    own = discreet.methods.belu(examples=N, batch_size=9, steps=3, noise=1.0, delta=1e-5, certified=True).fit_to(model)
    with pytest.raises(PrivacyError, match="past the model's outputs"):
        audit_run(model, data(), for_canaries(own), directions(model, own, M))


@pytest.mark.parametrize("sampling", [FixedSize(N + M, 10), Shuffled(N + M, 10), Poisson(examples=N + M, batch_size=9)])
def test_samplers_that_need_the_number_of_rows_take_data_and_canaries_together(sampling):
    canaries = directions(network(), plan(), M)
    _, run = trained(sampling, Clip(0.5), canaries)
    assert run.result.canaries == M
    with pytest.raises(ConfigError, match=f"the data has {N + M - 1} examples"):
        trained(sampling, Clip(0.5), canaries, n=N - 1)


def test_a_plan_for_its_data_is_made_one_that_takes_canaries_at_the_same_price():
    own = discreet.methods.dp_sgd(examples=N, batch_size=7, steps=20, epsilon=3, delta=1e-5)
    made = for_canaries(own)
    assert made.guarantee().epsilon == pytest.approx(own.guarantee().epsilon, rel=1e-9)
    assert made.guarantee().adjacency == "add-remove"
    made.sampling.check_length(N + 1000)
    for sampling in (Shuffled(N, 7), Poisson(examples=N, batch_size=7, cap=9)):
        with pytest.raises(ConfigError, match="make the plan for the data and canaries together"):
            for_canaries(replace(own, sampling=sampling))


def test_coins_are_fair_secret_and_independent_of_each_other():
    """The number of heads of 20 runs with 51 coins is Bin(1020, 1/2): outside with probability 1e-6 if they are fair,
    though the coins are not seeded. Two runs with equal coins have probability 2^-51."""
    canaries = directions(network(), plan(), 51)
    model = network()
    runs = [audit_run(model, data(), plan(1.0, 0), canaries, guesses=(1, 1), score="sum").coins for _ in range(20)]
    assert stats.binom.ppf(5e-7, 1020, 0.5) <= np.sum(runs) <= stats.binom.isf(5e-7, 1020, 0.5)
    assert len({coins.tobytes() for coins in runs}) == 20


def test_a_data_set_is_audited_like_its_tensors():
    canaries, sampling = directions(network(), plan(), M), Poisson(rate=0.4, batch_size=12)
    runs = [
        audit_run(network(), rows, plan(0.5, 4, sampling=sampling), canaries, guesses=(2, 2), seed=5)
        for rows in (data(), TensorDataset(*data()))
    ]
    assert (runs[0].coins == runs[1].coins).all()
    np.testing.assert_allclose(runs[0].scores, runs[1].scores, rtol=1e-9)


def test_chunks_change_nothing():
    canaries, sampling = directions(network(), plan(), M), Poisson(rate=0.4, batch_size=12)
    runs = [
        audit_run(network(), data(), plan(0.5, 4, sampling=sampling), canaries, guesses=(2, 2), seed=5, chunk=chunk)
        for chunk in (None, 5)
    ]
    np.testing.assert_allclose(runs[0].scores, runs[1].scores, rtol=1e-9)


# --- scores ----------------------------------------------------------------------------------------------------------


def test_without_noise_every_score_tells_who_was_in():
    for score in ("sum", "parameters"):
        canaries = directions(network(), plan(), M, width=1)
        run = audit_run(
            network(), (torch.zeros(2, 4).double(), torch.tensor([0, 1])), plan(1e-6, 3), canaries,
            guesses=(0, 0), score=score, preflight=False, seed=1,
        )  # fmt: skip
        assert run.scores[run.coins].min() > run.scores[~run.coins].max()
        assert math.isfinite(run.guarantee.epsilon)


def test_with_plain_gradient_descent_the_parameters_move_by_the_sum():
    runs = {}
    for score in ("sum", "parameters"):
        canaries, model = directions(network(), plan(), M), network()
        runs[score] = audit_run(
            model, data(), plan(1.0, 5), canaries, guesses=(1, 1), score=score, seed=2,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.25),
        ).scores  # fmt: skip
    np.testing.assert_allclose(runs["parameters"], 0.25 * runs["sum"], rtol=1e-9)


def test_knowing_the_data_takes_them_out_of_the_score():
    """Without noise to speak of, the likelihood's release less what the data add is what the canaries add: at rate 1
    the log-likelihood of each is exactly plus or minus half of mu^2 a step."""
    model = network()
    noisy = plan(0.01, 3)
    canaries = directions(model, noisy, M)
    run = audit_run(model, data(), noisy, canaries, guesses=(1, 1), seed=4)
    mu = 100.0
    np.testing.assert_allclose(run.scores, 3 * mu**2 / 2 * np.where(run.coins, 1, -1), atol=6 * mu * math.sqrt(3))


@pytest.mark.parametrize(
    ("changes", "fitting"),
    [
        ({"bound": AdaptiveClip(0.5)}, "sum, parameters"),
        ({"noise": Laplace(1.0)}, "sum, parameters"),
        ({"microbatch": 2}, "sum, parameters"),
    ],
)
def test_where_the_release_is_something_else_there_is_no_likelihood(changes, fitting):
    usual = plan(1.0, 2, sampling=Poisson(rate=0.5, batch_size=10))
    other = replace(usual, mechanism=replace(usual.mechanism, **changes))
    canaries = directions(network(), other, M)
    with pytest.raises(ConfigError, match=f"score 'likelihood' is not for Directions with this plan; .* {fitting}"):
        audit_run(network(), data(), other, canaries, score="likelihood")
    assert audit_run(network(), data(), other, canaries, preflight=False).result.guesses == 2


def test_a_report_reads_what_an_audit_writes():
    noisy = plan(1.0, 3)
    run = audit_run(network(), data(), noisy, directions(network(), noisy, 51), guesses=(10, 10), seed=1)
    values = json.loads(json.dumps(run.to_dict()))
    read = _audit(json.dumps(values))
    assert read.epsilon_lower_bound == run.result.epsilon_lower_bound
    said = guess(run.scores, 10, 10) == 1
    point = read.points[0]
    assert (point.false_positives, point.true_positives) == (said[~run.coins].mean(), said[run.coins].mean())
    assert values["mu_lower_bound"] == run.mu_lower_bound()


def test_only_poisson_s_draws_have_a_likelihood():
    shuffled = plan(1.0, 2, sampling=Shuffled(N + M, 10))
    with pytest.raises(ConfigError, match="use one of sum, parameters"):
        audit_run(network(), data(), shuffled, directions(network(), shuffled, M), score="likelihood")


@pytest.mark.parametrize("score", ["loss", "hunch"])
def test_a_score_that_does_not_fit_is_refused(score):
    with pytest.raises(ConfigError, match="use one of likelihood, sum, parameters"):
        audit_run(network(), data(), plan(1.0, 2), directions(network(), plan(1.0), M), score=score)


def test_guesses_are_checked_before_anything_is_trained():
    model = network()
    before = model[0].weight.clone()
    with pytest.raises(ConfigError, match=r"5 \+ 5 guesses about 8 canaries"):
        audit_run(model, data(), plan(1.0, 2), directions(model, plan(1.0), M), guesses=(5, 5))
    assert torch.equal(model[0].weight, before)


# --- steps that have something in common -----------------------------------------------------------------------------


def in_turn(noise, sampling, steps):
    """A plan for one canary, or many with the same turns: the last rows."""
    return Plan(sampling=sampling, mechanism=Mechanism(Clip(1.0), noise), steps=steps, delta=1e-5)


TOGETHER = {
    "bands": in_turn(BandedGaussian(1.5, bands=3), CyclicPoisson(examples=9, batch_size=1, groups=3), 6),
    "buffers": in_turn(BLTGaussian(2.0, buffers=2), FixedOrder(examples=9, batch_size=4), 7),
    "bands in order": in_turn(BandedGaussian(2.0, bands=4), FixedOrder(examples=9, batch_size=4), 7),
    "allocation": in_turn(Gaussian(1.5), Allocation(examples=9, batches=3), 6),
}


def ways(made, unit):
    """The ways in which a unit can take part, a row of steps each, and how likely each is, by enumeration."""
    sampling, steps = made.sampling, np.arange(made.steps)
    if isinstance(sampling, Allocation):
        picked = np.stack(np.meshgrid(*[range(3)] * (made.steps // 3), indexing="ij"), -1).reshape(-1, made.steps // 3)
        found = (picked[:, steps // 3] == steps % 3).astype(float)
        return found, np.full(len(found), 1 / len(found))
    if isinstance(sampling, FixedOrder):
        return (steps % sampling.steps_in_a_pass == unit // sampling.batch_size)[None].astype(float), np.ones(1)
    turns, rate = np.flatnonzero(steps % 3 == unit % 3), float(sampling.exact_rate)
    coins = np.stack(np.meshgrid(*[range(2)] * len(turns), indexing="ij"), -1).reshape(-1, len(turns))
    found = np.zeros((len(coins), made.steps))
    found[:, turns] = coins
    return found, np.prod(np.where(coins, rate, 1 - rate), 1)


def strategy(made):
    """C, with columns of length 1 at most."""
    noise = made.mechanism.noise
    column = [1.0] if isinstance(noise, Gaussian) else noise.strategy.column(made.steps) / noise.column_norm
    return sum(c * np.eye(made.steps, k=-k) for k, c in enumerate(column[: made.steps]))


@pytest.mark.parametrize("name", TOGETHER)
def test_the_likelihood_of_all_steps_is_that_of_the_densities(name):
    """All ways of taking part, one by one, by the covariance of the noise."""
    made, mu = TOGETHER[name], 0.7
    scored, rows = joint(made, np.full(2, mu)), np.random.default_rng(0).normal(0.3, 1, (made.steps, 2))
    for step, row in enumerate(rows):
        scored.note(step, row)
    moved, chances = ways(made, 8)
    inverse = np.linalg.inv(np.linalg.inv(strategy(made)) @ np.linalg.inv(strategy(made)).T)
    squares = [(rows[:, 1] - mu * way) @ inverse @ (rows[:, 1] - mu * way) for way in (0 * moved[0], *moved)]
    ratios = np.exp((squares[0] - np.array(squares[1:])) / 2)
    np.testing.assert_allclose(scored.scores()[1], math.log(chances @ ratios), rtol=1e-9)


@pytest.mark.parametrize("name", TOGETHER)
def test_a_game_of_many_units_comes_close_to_what_is_proven_and_never_above(name):
    """Each of 60,000 coordinates is a game of its own, with the noise that a run has, about the first unit, whose steps
    are as many as can be. Six standard errors."""
    made, games = TOGETHER[name], 60_000
    moved, chances = ways(made, 0)
    random = np.random.default_rng(1)
    way = moved[random.choice(len(chances), games, p=chances)]
    memory, scored = made.mechanism.start_noise(), joint(made, np.ones(1) / made.mechanism.noise.scale)
    scored.mu = np.full(games, scored.mu[0])
    if hasattr(scored, "first"):
        scored.first = np.zeros(games, int)
    for step in range(made.steps):
        noise = torch.from_numpy(random.normal(size=games))
        if memory is not None:
            memory.filter(noise, "all", 0)
            memory.advance()
        scored.note(step, way[:, step] / made.mechanism.noise.scale + noise.numpy())
    lost = scored.scores()
    for epsilon, proven in delta_curve(made.events(), 1e-3)[2:20:8]:
        seen = np.maximum(-np.expm1(epsilon - lost), 0)
        error = 6 * seen.std() / games**0.5
        assert seen.mean() <= proven + error
        assert seen.mean() >= 0.9 * proven - error, f"{name}, {epsilon}: {seen.mean():.4f} of {proven:.4f}"


@pytest.mark.parametrize("name", TOGETHER)
def test_runs_with_noise_that_remembers_are_audited_by_likelihood(name):
    """Canaries of a whole run: without noise to speak of, each is told, whatever else is in its batches."""
    few = {} if name == "allocation" else {"batch_size": 12}
    sampling = replace(TOGETHER[name].sampling, examples=N + M, **few)
    noisy = replace(TOGETHER[name], sampling=sampling, steps=6)
    noisy = replace(noisy, mechanism=noisy.mechanism.with_scale(0.01))
    run = audit_run(network(), data(), noisy, directions(network(), noisy, M), guesses=(1, 1), seed=4, preflight=False)
    there = run.scores > 0
    if not isinstance(sampling, CyclicPoisson):  # whose coins may all have come up tails
        assert (there == run.coins).all()
    assert not (there & ~run.coins).any()
    assert abs(run.scores[there]).min() > 1000


# --- examples --------------------------------------------------------------------------------------------------------


def test_mislabelled_examples_have_every_other_label_equally_often():
    x, y = torch.zeros(9000, 2), torch.arange(9000) % 3
    made = mislabelled(x, y, 3)
    assert not bool((made.targets == y).any())
    shifts = torch.bincount((made.targets - y) % 3, minlength=3)
    assert abs(int(shifts[1]) - 4500) < 5 * math.sqrt(9000) / 2
    assert set(made.targets.tolist()) == {0, 1, 2}


def test_noise_images_are_all_different():
    made = noise_images((3, 4), 50, 10)
    assert made.inputs.shape == (50, 3, 4)
    assert len(torch.unique(made.inputs, dim=0)) == 50
    assert 0 <= float(made.inputs.min()) < float(made.inputs.max()) < 1
    with pytest.raises(ConfigError, match="3 inputs and 2 targets"):
        Examples(torch.zeros(3, 2), torch.zeros(2))


def test_a_model_that_learns_by_heart_gives_example_canaries_away():
    """With hardly any noise the lower bound is well above what a private run would have; the seed is fixed."""
    generator = torch.Generator().manual_seed(2)
    canaries = noise_images((8,), 200, 2, seed=1)
    x, y = torch.rand(50, 8, generator=generator), torch.randint(2, (50,), generator=generator)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 2))
    weak = plan(0.05, 150, Clip(1.0), Poisson(rate=1.0, batch_size=150))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    run = audit_run(model, (x, y), weak, canaries, guesses=(10, 10), optimizer=optimizer, seed=3)
    assert run.result.correct >= 17
    assert 0.3 < run.result.epsilon_lower_bound < run.guarantee.epsilon


# --- the audit of DP-SGD ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits():
    datasets = pytest.importorskip("sklearn.datasets")
    found = datasets.load_digits()
    return torch.tensor(found.data / 16, dtype=torch.float32), torch.tensor(found.target)


def test_of_dp_sgd_on_digits_an_audit_shows_at_least_35_percent_of_what_is_proven(digits):
    """The seed is fixed; benchmarks/audit.py prints the same for several."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    own = discreet.methods.dp_sgd(examples=1797, batch_size=449, steps=50, epsilon=4, delta=1e-5)
    canaries = directions(model, own, 4000)
    run = audit_run(model, digits, for_canaries(own), canaries, seed=0)
    assert 0.35 * run.guarantee.epsilon < run.result.epsilon_lower_bound < run.guarantee.epsilon
    assert not run.result.disproves
    assert not run.refutes_curve()
    assert run.mu_lower_bound() > 0.3
