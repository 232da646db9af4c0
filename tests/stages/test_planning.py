import pytest

from discreet import ConfigError, StudentT
from discreet.accounting import rdp
from discreet.accounting.events import Event
from discreet.stages.planning import advice, correlated, over_epochs, sizes, solve

BASE = {"examples": 60_000, "delta": 1e-5}


def test_any_three_give_the_fourth_and_they_agree():
    found = solve(**BASE, batch_size=256, epochs=60, noise=1.1).guarantee().epsilon
    assert found == pytest.approx(2.382, abs=1e-3)
    noise = solve(**BASE, batch_size=256, epochs=60, epsilon=found)
    assert noise.mechanism.noise.multiplier == pytest.approx(1.1, rel=2e-3)
    steps = solve(**BASE, batch_size=256, noise=1.1, epsilon=found)
    assert steps.steps == pytest.approx(14_062, rel=2e-3)
    size = solve(**BASE, steps=14_062, noise=1.1, epsilon=found)
    assert size.sampling.batch_size == pytest.approx(256, abs=1)
    for plan in (noise, steps, size):
        assert plan.guarantee().epsilon <= found
        assert plan.epsilon == found


def test_the_batch_size_at_a_fixed_number_of_epochs():
    plan = solve(**BASE, epochs=10, noise=1.0, epsilon=1.5)
    assert plan.guarantee().epsilon <= 1.5
    assert plan.steps == round(10 * 60_000 / plan.sampling.batch_size)
    larger = solve(**BASE, epochs=10, noise=1.0, batch_size=plan.sampling.batch_size + 1)
    assert larger.guarantee().epsilon > 1.5


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_size": 256, "epochs": 60}, "Missing: noise, epsilon"),
        ({"batch_size": 256, "epochs": 60, "noise": 1.0, "epsilon": 2.0}, "All four were given"),
        ({"batch_size": 256, "epochs": 60, "steps": 3, "noise": 1.0}, "say the length twice"),
        ({"batch_size": 256, "epochs": 60, "noise": 1.0, "sampling": "magic"}, "one of poisson"),
        ({"epochs": 60, "noise": 0.01, "epsilon": 0.1}, "not even batch size 1"),
    ],
)
def test_what_cannot_be_solved_is_one_clear_error(settings, words):
    with pytest.raises(ConfigError, match=words):
        solve(**BASE, **settings)


def test_noise_an_example_falls_with_the_batch_size_and_the_learning_rate_follows_it():
    """N = 60,000, 10 epochs, epsilon 2. THEORY 4.3 has the noise Rényi accounting asks for; PLD asks for less."""
    plan = solve(**BASE, batch_size=512, epochs=10, epsilon=2)
    found = {s.batch_size: s for s in sizes(plan, 2, learning_rate=0.1)}
    for size, noise in ((128, 0.769), (512, 0.983), (2048, 1.536), (8192, 2.784)):
        by_moments = rdp.improved(rdp.divergences([Event(size / 60_000, noise, found[size].steps)]), rdp.ORDERS, 1e-5)
        assert by_moments == pytest.approx(2, abs=6e-3)
        assert 0.88 * noise < found[size].noise < noise
        assert found[size].learning_rate == pytest.approx(0.1 * size / 512)
    each = [s.noise_per_example for s in found.values()]
    assert each == sorted(each, reverse=True)
    with pytest.raises(ConfigError, match="learning rate is nan"):
        next(sizes(plan, 2, learning_rate=float("nan")))


def test_groups_are_solved_for_as_groups():
    plan = solve(examples=2_000, delta=1e-5, batch_size=200, epochs=2, epsilon=3, group=3)
    assert 2.9 < plan.guarantee(group=3).epsilon <= 3
    assert next(s for s in sizes(plan, 3, group=3) if s.batch_size == 200).noise == plan.mechanism.noise.multiplier


def test_epsilon_grows_over_the_epochs_to_the_plans():
    plan = solve(**BASE, batch_size=256, epochs=60, noise=1.1)
    curve = list(over_epochs(plan, points=4))
    assert [round(e) for e, _ in curve] == [15, 30, 45, 60]
    assert [e for _, e in curve] == sorted(e for _, e in curve)
    assert curve[0][1] == pytest.approx(1.134, abs=1e-3)
    assert curve[-1][1] == pytest.approx(plan.guarantee().epsilon)


def test_other_laws_and_samplings():
    heavy = solve(**BASE, batch_size=256, epochs=1, epsilon=3, law=StudentT(9))
    assert heavy.mechanism.noise.df == 9
    assert heavy.guarantee().epsilon <= 3
    for sampling, adjacency in (("fixed-size", "replace"), ("shuffled", "zero-out"), ("fixed-batches", "zero-out")):
        plan = solve(**BASE, batch_size=256, epochs=1, epsilon=3, sampling=sampling, unit="user")
        assert plan.guarantee().epsilon <= 3
        assert (plan.guarantee().adjacency, plan.guarantee().unit) == (adjacency, "user")


def test_what_correlated_noise_would_gain():
    plan = solve(examples=20_000, batch_size=100, steps=400, epsilon=3.0, delta=1e-5)
    sgd, bands, blt = correlated(plan, 3.0)
    assert sgd.plan.mechanism.noise.multiplier == pytest.approx(plan.mechanism.noise.multiplier, rel=2e-3)
    assert sgd.ratio == 1
    assert bands.ratio < 0.9
    assert bands.ratio < blt.ratio
    assert bands.ratio == pytest.approx(bands.plan.rms_error / sgd.plan.rms_error)
    for one in (sgd, bands, blt):
        assert 2.9 < one.plan.guarantee().epsilon <= 3.0
        assert (one.plan.steps, one.plan.sampling.batch_size) == (400, 100)
    assert "has 0." in advice((sgd, bands, blt))
    assert bands.row()[0].endswith("bands")
    assert bands.to_dict()["plan"]["noise"]["type"] == "BandedGaussian"


def test_where_correlated_noise_gains_nothing():
    plan = solve(examples=1_000, batch_size=400, steps=50, epsilon=0.5, delta=1e-5)
    assert "gains nothing" in advice(correlated(plan, 0.5))
    fixed = solve(examples=1_000, batch_size=400, steps=50, epsilon=0.5, delta=1e-5, sampling="fixed-size")
    assert correlated(fixed, 0.5) == ()
    assert advice(()) == ""
