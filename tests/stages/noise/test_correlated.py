"""Noise that remembers: the filters, what a plan makes of them, and what is refused by name."""

import math

import numpy as np
import pytest
import torch

from discreet import (
    AdaptiveClip,
    BandedGaussian,
    BLTGaussian,
    Clip,
    ConfigError,
    CyclicPoisson,
    FixedBatches,
    FixedOrder,
    FixedSize,
    Gaussian,
    JamesStein,
    Kalman,
    KolmogorovSmirnov,
    Laplace,
    Mechanism,
    MinSeparation,
    Plan,
    Poisson,
    PrivacyError,
    Shuffled,
    calibrate,
)
from discreet.accounting.events import Event
from discreet.stages.noise.correlated import Pattern, sensitivity
from discreet.stages.noise.correlated.memory import BandMemory, BufferMemory
from discreet.stages.noise.correlated.toeplitz import dense

SIXTEEN = CyclicPoisson(examples=1600, batch_size=10, groups=16)
ORDER = FixedOrder(examples=100, batch_size=10)


def plan(noise, sampling=SIXTEEN, steps=40, bound=None, **settings):
    more = {k: settings.pop(k) for k in ("noise_schedule",) if k in settings}
    mechanism = Mechanism(bound or Clip(1.0), noise, **settings)
    return Plan(sampling=sampling, mechanism=mechanism, steps=steps, delta=1e-5, **more)


def streamed(memory, drawn, pieces=None):
    """Noise through a filter, step by step; in pieces of these sizes."""
    made = drawn.clone()
    for step in made:
        first = 0
        for size in pieces() if pieces else [len(step)]:
            memory.filter(step[first : first + size], "key", first)
            first += size
        memory.advance()
    return made


# --- filters


@pytest.mark.parametrize("coefficients", [(1.0, 0.8, 0.6, 0.4), (2.0, -0.5), (1.0, 0.9, 0.0), (1.0, *[0.3] * 12)])
def test_a_stream_is_the_dense_solution(coefficients):
    drawn = torch.randn(9, 5, dtype=torch.float64)
    c = np.zeros(9)
    c[: len(coefficients)] = coefficients[:9]
    for scale in (1.0, 1.7):
        made = streamed(BandMemory(coefficients, scale), drawn)
        assert made.numpy() == pytest.approx(scale * np.linalg.solve(dense(c), drawn.numpy()), abs=1e-12)
        assert dense(c) @ made.numpy() / scale == pytest.approx(drawn.numpy(), abs=1e-12)


def test_a_stream_by_hand():
    drawn = torch.tensor([[1.0], [2.0], [3.0], [4.0]], dtype=torch.float64)
    assert streamed(BandMemory((1.0, 0.8, 0.6, 0.4), 1.0), drawn).flatten().tolist() == pytest.approx(
        [1, 1.2, 1.44, 1.728]
    )


def test_buffers_are_the_dense_solution():
    noise = plan(BLTGaussian(1.0, buffers=2), ORDER).mechanism.noise
    drawn = torch.randn(40, 3, dtype=torch.float64)
    c = noise.strategy.column(40)
    made = streamed(BufferMemory(noise.decay, noise.weight, noise.column_norm), drawn)
    assert made.numpy() == pytest.approx(np.linalg.norm(c) * np.linalg.solve(dense(c), drawn.numpy()), abs=1e-11)


@pytest.mark.parametrize(
    "make", [lambda: BandMemory((1.0, 0.8, 0.6), 1.3), lambda: BufferMemory((0.9, 0.5), (0.2, 0.1), 1.3)]
)
def test_pieces_may_change_from_step_to_step(make):
    drawn = torch.randn(8, 12, dtype=torch.float64)
    turns = iter([[5, 7], [12], [1, 2, 9], [4, 4, 4], [11, 1], [6, 6], [12], [3, 9]])
    assert torch.allclose(streamed(make(), drawn), streamed(make(), drawn, lambda: next(turns)), atol=1e-14)
    with pytest.raises(ValueError, match="came before"):
        make().filter(drawn[0], "key", 3)


def test_float32_is_kept_and_close():
    drawn = torch.randn(200, 50)
    coefficients = plan(BandedGaussian(1.0, bands=16)).mechanism.noise.coefficients
    single = streamed(BandMemory(coefficients, 1.5), drawn)
    assert single.dtype == torch.float32
    double = streamed(BandMemory(coefficients, 1.5), drawn.double())
    assert (single - double).abs().max() < 1e-5


@pytest.mark.parametrize("noise", [BandedGaussian(1.0, bands=4), BLTGaussian(1.0, buffers=2)], ids=repr)
def test_the_covariance_of_the_noise(noise):
    """400,000 coordinates: each entry is off by 4 standard errors with a chance of 7e-5, there are 21."""
    sampling = CyclicPoisson(examples=80, batch_size=10, groups=4) if isinstance(noise, BandedGaussian) else ORDER
    noise = plan(noise, sampling, steps=6).mechanism.noise
    torch.manual_seed(0)
    made = streamed(noise.start(), torch.randn(6, 400_000)).double().numpy()
    c = noise.strategy.matrix(6) / noise.column_norm
    assert np.linalg.norm(c, axis=0).max() == pytest.approx(1)
    expected = np.linalg.inv(c) @ np.linalg.inv(c).T
    spread = np.sqrt(np.outer(np.diag(expected), np.diag(expected)) + expected**2) / math.sqrt(400_000)
    assert np.all(np.abs(made @ made.T / 400_000 - expected) < 4 * spread)


def test_one_band_remembers_nothing():
    assert plan(BandedGaussian(1.0, bands=1), Poisson(examples=50, batch_size=5)).mechanism.noise.start() is None
    assert not BandedGaussian(1.0, bands=1).correlated


# --- what a plan makes of them


def test_bands_with_groups_are_rounds_of_poisson_steps():
    made = plan(BandedGaussian(1.3, bands=16))
    assert made.charges(40) == 3  # of 16, 16 and 8 steps
    assert [made.charges(1, after=t) for t in range(40)] == [int(t % 16 == 0) for t in range(40)]
    event = made.event()
    assert event == Event(rate=0.1, multiplier=1.3, steps=3, adjacency="zero-out", theorem="C4")
    poisson = Plan(
        sampling=Poisson(rate=0.1, batch_size=10), mechanism=Mechanism(Clip(1.0), Gaussian(1.3)), steps=3, delta=1e-5
    )
    assert made.guarantee().epsilon == poisson.guarantee().epsilon
    fewer = plan(BandedGaussian(1.3, bands=3))
    assert fewer.event() == event  # more groups than bands


def test_one_group_and_band_is_poisson():
    one = plan(BandedGaussian(1.3, bands=1), CyclicPoisson(examples=1600, batch_size=10))
    poisson = plan(Gaussian(1.3), Poisson(examples=1600, batch_size=10))
    assert one.event() == poisson.event()


@pytest.mark.parametrize(
    ("noise", "sampling", "pattern"),
    [
        (BLTGaussian(2.0, buffers=2), ORDER, Pattern(10)),
        (BandedGaussian(2.0, bands=4), ORDER, Pattern(10)),
        (BandedGaussian(2.0, bands=25), ORDER, Pattern(10)),
        (BLTGaussian(2.0), MinSeparation(examples=100, batch_size=5, separation=7, most=3), Pattern(7, 3)),
        (BandedGaussian(2.0, bands=7), MinSeparation(examples=100, batch_size=5, separation=7, most=3), Pattern(7, 3)),
        (BandedGaussian(2.0, bands=2), CyclicPoisson(examples=100, batch_size=25, groups=4), Pattern(4)),
    ],
    ids=repr,
)
def test_a_whole_run_is_one_release(noise, sampling, pattern):
    made = plan(noise, sampling, steps=43)
    noise = made.mechanism.noise
    c = noise.strategy.matrix(43)
    c /= np.linalg.norm(c, axis=0).max()
    times = pattern.times(43)
    worst = c[:, [i * pattern.separation for i in range(times)]].sum(1)
    event = made.event()
    assert (event.rate, event.steps, event.theorem) == (1.0, 1, "C1")
    assert event.multiplier == pytest.approx(2.0 / np.linalg.norm(worst))
    assert [made.charges(1, after=t) for t in range(43)] == [1] + [0] * 42
    bands = getattr(noise, "bands", math.inf)
    if bands <= pattern.separation:
        assert event.multiplier == pytest.approx(2.0 / math.sqrt(times), rel=0.05)  # the last columns are cut
    assert "one Gaussian release" in str(made.guarantee())


def test_independent_noise_is_as_before_where_participations_are_declared():
    sampling = MinSeparation(examples=100, batch_size=5, separation=7, most=3)
    one, many = plan(Gaussian(2.0), sampling), plan(Gaussian(2.0), FixedOrder(examples=14, batch_size=1), steps=40)
    assert one.event().multiplier == pytest.approx(2 / math.sqrt(3))
    assert one.guarantee().epsilon == pytest.approx(many.guarantee().epsilon)
    assert many.charges(40) == 3
    assert plan(Gaussian(2.0), sampling, steps=8).event().multiplier == pytest.approx(2 / math.sqrt(2))


def test_a_plan_keeps_its_strategy_in_its_file(tmp_path):
    for made in (plan(BandedGaussian(1.3, bands=4)), plan(BLTGaussian(2.0), ORDER)):
        made.save(tmp_path / "plan.toml")
        assert Plan.load(tmp_path / "plan.toml") == made
        described = made.to_dict()["noise"]
        assert len(described.get("coefficients", described.get("decay"))) in (3, 4)


def test_given_coefficients_are_kept():
    own = plan(BandedGaussian(1.0, bands=2, coefficients=(1.0, -0.4)))
    assert own.mechanism.noise.coefficients == (1.0, -0.4)
    assert own.event().multiplier == 1.0
    whole = plan(BandedGaussian(1.0, bands=2, coefficients=(1.0, -0.4)), FixedOrder(examples=4, batch_size=2))
    matrix = whole.mechanism.noise.strategy.matrix(40) / math.hypot(1, 0.4)
    assert whole.event().multiplier <= 1 / sensitivity.of_fixed_order(matrix, 2) + 1e-12


def test_calibration_is_never_above_its_target():
    for noise, sampling in (
        (BandedGaussian(bands=16), SIXTEEN),
        (BLTGaussian(), ORDER),
        (BandedGaussian(bands=5), MinSeparation(examples=100, batch_size=5, separation=7, most=3)),
    ):
        made = calibrate(plan(noise, sampling), 3.0)
        assert 2.95 < made.guarantee().epsilon <= 3.0
    longer = calibrate(plan(BandedGaussian(2.0, bands=16), steps=40), 3.0, "steps")
    assert (
        longer.guarantee().epsilon
        <= 3.0
        < plan(BandedGaussian(2.0, bands=16), steps=longer.steps + 16).guarantee().epsilon
    )
    assert longer.steps % 16 == 0  # a round that is begun is paid
    assert longer == longer.solved_anew(longer)
    larger = calibrate(plan(BandedGaussian(2.0, bands=16)), 3.0, "batch_size")
    assert larger.guarantee().epsilon <= 3.0
    assert larger.sampling.batch_size > 10


def test_the_published_calibration():
    """CORRELATED.md, section 5: N 50,000, B 256, T 390, delta 1e-5, to 0.3 %."""
    sampling = CyclicPoisson(examples=50_000, batch_size=256, groups=16)
    made = calibrate(plan(BandedGaussian(bands=16), sampling, steps=390), 3.0)
    assert made.mechanism.noise.multiplier == pytest.approx(1.042, rel=3e-3)
    assert made.rms_error == pytest.approx(0.0174, rel=5e-3)
    plain = calibrate(plan(Gaussian(), Poisson(examples=50_000, batch_size=256), steps=390), 3.0)
    assert plain.mechanism.noise.multiplier == pytest.approx(0.625, rel=3e-3)
    assert plain.rms_error == pytest.approx(0.0341, rel=5e-3)


def test_the_best_bands_are_solved_with_the_noise():
    one = plan(BandedGaussian(), Poisson(examples=20_000, batch_size=100), steps=200)
    assert not one.mechanism.noise.solved
    with pytest.raises(ConfigError, match="calibrate"):
        one.guarantee()
    best = calibrate(one, 4.0)
    bands = best.mechanism.noise.bands
    assert best.sampling == CyclicPoisson(examples=20_000, batch_size=100, groups=bands)
    assert best.guarantee().epsilon <= 4.0
    for other in (1, 2 * bands):
        sampling = CyclicPoisson(examples=20_000, batch_size=100, groups=other)
        assert calibrate(plan(BandedGaussian(bands=other), sampling, steps=200), 4.0).rms_error >= best.rms_error
    epoch = calibrate(plan(BandedGaussian(), Poisson(examples=400, batch_size=10), steps=40), 8.0)
    assert epoch.sampling.contract().rate == 1  # as many groups as batches: nothing is sampled, and that is best
    large = calibrate(plan(BandedGaussian(), Poisson(examples=200, batch_size=100), steps=30), 0.5)
    assert large.mechanism.noise.bands == 1  # where nothing is gained
    ordered = calibrate(plan(BandedGaussian(), ORDER), 4.0)
    assert 1 < ordered.mechanism.noise.bands <= 10
    given = calibrate(plan(BandedGaussian(), SIXTEEN), 4.0)
    assert given.mechanism.noise.bands == given.sampling.groups == 16


# --- what is refused by name


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: plan(BandedGaussian(1.0, bands=17)), "17 bands, and CyclicPoisson 16 groups"),
        (lambda: plan(BandedGaussian(1.0, bands=2), Poisson(examples=50, batch_size=5)), "as many groups as bands"),
        (lambda: plan(BLTGaussian(1.0)), "BLTGaussian has no end of bands"),
        (lambda: plan(BandedGaussian(1.0, bands=2), Shuffled(examples=50, batch_size=5)), "does not say"),
        (lambda: plan(BLTGaussian(1.0), Poisson(examples=50, batch_size=50)), "does not say"),
        (lambda: plan(BandedGaussian(1.0, bands=2), FixedSize(examples=50, batch_size=5)), "replaced by another"),
        (lambda: plan(BandedGaussian(1.0, bands=2), FixedBatches(examples=50, batch_size=5)), "own coin"),
        (
            lambda: plan(BLTGaussian(1.0), Poisson(examples=50, batch_size=5, adjacency="replace")),
            "replaced by another",
        ),
        (lambda: plan(BandedGaussian(1.0, bands=4), hardening="exact"), "exact"),
        (lambda: plan(BandedGaussian(1.0, bands=4), microbatch=2), "microbatch"),
        (lambda: plan(BandedGaussian(1.0, bands=4), noise_schedule=(1.0, 0.5)), "noise_schedule"),
        (lambda: plan(BLTGaussian(1.0), ORDER, noise_schedule=(1.0, 0.5)), "noise_schedule"),
        (lambda: plan(BandedGaussian(1.0, bands=4), denoise=Kalman(drift=0.1)), "Kalman takes each step's noise"),
        (lambda: plan(BandedGaussian(1.0, bands=4), denoise=KolmogorovSmirnov()), "KolmogorovSmirnov takes"),
        (lambda: plan(BLTGaussian(1.0), ORDER, denoise=JamesStein()), "JamesStein takes"),
        (lambda: plan(Laplace(1.0), MinSeparation(examples=9, batch_size=1)), "Gaussian noise is needed"),
        (lambda: plan(Gaussian(1.0), MinSeparation(examples=9, batch_size=1), hardening="exact"), "real numbers"),
        (lambda: plan(BandedGaussian(1.0, bands=4)).guarantee(group=2), "groups of 2"),
        (lambda: BandedGaussian(1.0, bands=0), "bands"),
        (lambda: BandedGaussian(-1.0, bands=2), "multiplier"),
        (lambda: BandedGaussian(1.0, bands=3, coefficients=(1.0, 0.5)), "one a band"),
        (lambda: BandedGaussian(1.0, bands=2, coefficients=(0.0, 0.5)), "not 0"),
        (lambda: BLTGaussian(1.0, buffers=1, decay=(1.5,), weight=(0.1,)), "below 1"),
        (lambda: BLTGaussian(1.0, buffers=2, decay=(0.5,), weight=(0.1,)), "one each"),
        (lambda: CyclicPoisson(examples=100, batch_size=10, groups=11), "the most groups are 10"),
        (lambda: MinSeparation(examples=10, batch_size=1, separation=0), "separation"),
    ],
)
def test_what_is_refused(make, said):
    with pytest.raises((ConfigError, PrivacyError), match=said):
        make()


def test_adaptive_bounds_and_several_blocks_are_filtered_in_units_of_their_noise():
    assert plan(BandedGaussian(1.0, bands=4), bound=AdaptiveClip(1.0)).event().multiplier == 1.0


# --- samplers


class Stream:
    """Coins that all come up."""

    def chosen(self, count, rate):
        self.rate = rate
        return np.arange(count)


def test_the_groups_have_their_turns():
    sampling, stream = CyclicPoisson(examples=103, batch_size=5, groups=4), Stream()
    drawn = [sampling.draw(103, t, 0, lambda _: stream).tolist() for t in range(9)]
    assert stream.rate == sampling.exact_rate == pytest.approx(20 / 103)
    for t, indices in enumerate(drawn):
        assert indices == [i for i in range(103) if i % 4 == t % 4]
    assert sampling.steps_for(2) == 41
    assert sampling.epochs_in(103) == 5
    assert sampling.largest_batch_size == 25
    assert sampling.with_batch_size(9).exact_rate == pytest.approx(36 / 103)


def test_fixed_order_is_by_place():
    sampling = FixedOrder(examples=10, batch_size=4)
    drawn = [sampling.draw(10, t, 0, None).tolist() for t in range(5)]
    assert drawn == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [0, 1, 2, 3], [4, 5, 6, 7]]
    assert sampling.contract().separation == 3
