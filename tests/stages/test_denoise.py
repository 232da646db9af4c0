"""Each denoiser against its formula, and against what it promises of the error.

Statistical tests use a fixed seed; with a fresh one each would raise a false alarm about once in a million runs.
"""

import copy
import inspect
import io
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from discreet import AirySquared, Cauchy, ConfigError, Gaussian, Laplace, Logistic, Sech, StudentT, VarianceGamma
from discreet.stages.denoise import Added, JamesStein, Kalman, KolmogorovSmirnov, Score, distance
from discreet.stages.noise.random import KeyTree
from discreet.stages.sensitivity import Layout

LAWS = [
    Gaussian(1.0),
    Laplace(1.0),
    StudentT(9, 1.0),
    StudentT(2.5, 1.0),
    Cauchy(1.0),
    Sech(1.0),
    Logistic(1.0),
    VarianceGamma(1.0),
    AirySquared(1.0),
]
DENOISERS = [
    KolmogorovSmirnov(),
    KolmogorovSmirnov(rescale=True),
    Score(),
    JamesStein(),
    JamesStein(each=False),
    Kalman(drift=0.3),
    Kalman(gain=0.3),
]
LAYOUT = Layout(("a", "b"), ((4, 5), (6,)))
SCALES = {"a": 2.0, "b": 0.5}

every_law = pytest.mark.parametrize("law", LAWS, ids=str)
every_denoiser = pytest.mark.parametrize("denoiser", DENOISERS, ids=str)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)


def drawn(law, count, seed=0):
    return law.draw(count, KeyTree(seed=seed).stream("test", 0))


def sums(dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = zip(LAYOUT.names, LAYOUT.shapes, strict=True)
    return {n: (3 * torch.randn(shape, generator=generator)).to(dtype) for n, shape in shapes}


def once(denoiser, tensors, noise):
    return denoiser.apply(tensors, noise, denoiser.start(LAYOUT))[0]


def one(denoiser, values, law, scale=1.0):
    """The denoised values of one parameter in float64."""
    tensor = torch.as_tensor(values, dtype=torch.float64)
    return once(denoiser, {"a": tensor}, Added(law, {"a": scale}))["a"].numpy()


# --- what all of them promise --------------------------------------------------------------------------------------


@every_denoiser
def test_a_denoiser_is_given_the_release_the_law_and_its_state_only(denoiser):
    assert list(inspect.signature(denoiser.apply).parameters) == ["released", "noise", "state"]
    assert list(inspect.signature(denoiser.start).parameters) == ["layout"]
    assert list(inspect.signature(denoiser.check).parameters) == ["law"]


@every_denoiser
def test_it_draws_nothing_and_gives_the_same_again(denoiser, monkeypatch):
    monkeypatch.setattr(StudentT, "draw", lambda *_: pytest.fail("a denoiser drew noise"))
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    noise = Added(StudentT(9, 1.0), SCALES)
    first, second = once(denoiser, sums(), noise), once(denoiser, sums(), noise)
    assert all(torch.equal(first[n], second[n]) for n in first)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])


@every_dtype
@every_denoiser
def test_tensors_keep_dtype_and_shape_and_are_close_to_those_of_float64(denoiser, dtype):
    noise = Added(StudentT(9, 1.0), SCALES)
    released, state, exact = sums(dtype), denoiser.start(LAYOUT), denoiser.start(LAYOUT)
    for _ in range(2):
        found, state = denoiser.apply(released, noise, state)
        expected, exact = denoiser.apply({n: t.double() for n, t in released.items()}, noise, exact)
        assert list(found) == list(released)
        for name, tensor in found.items():
            assert (tensor.dtype, tensor.device, tensor.shape) == (dtype, torch.device("cpu"), released[name].shape)
            torch.testing.assert_close(
                tensor.double(), expected[name], rtol=4 * torch.finfo(dtype).eps, atol=2 * torch.finfo(dtype).eps
            )
        released = sums(dtype, seed=1)


@pytest.mark.parametrize("scales", [SCALES, {"a": 0.0, "b": 0.0}], ids=["noise", "no noise"])
@every_dtype
@every_denoiser
def test_what_becomes_of_tensors_outside_does_not_matter(denoiser, dtype, scales):
    """Arguments stay as they are, and changing arguments and results in place changes nothing later on."""
    noise = Added(StudentT(9, 1.0), scales)
    state, kept_state = denoiser.start(LAYOUT), denoiser.start(LAYOUT)
    for seed in range(3):
        released, kept = sums(dtype, seed), sums(dtype, seed)
        before = copy.deepcopy(state)
        found, after = denoiser.apply(released, noise, state)
        expected, kept_state = denoiser.apply(kept, noise, kept_state)
        assert all(torch.equal(released[n], kept[n]) for n in released)
        assert same(before, state)
        inside = {t.data_ptr() for tensors in (released, *states(state), *states(after)) for t in tensors.values()}
        assert not inside & {t.data_ptr() for t in found.values()}
        for name in found:
            assert torch.equal(found[name], expected[name])
            found[name].zero_()
            released[name].fill_(7)
        state = after


def states(state):
    return [] if state is None else [state["estimates"]]


def same(left, right):
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    return torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right


@every_denoiser
def test_where_there_is_no_noise_nothing_changes(denoiser):
    released = sums()
    found = once(denoiser, released, Added(Gaussian(1.0), {"a": 0.0, "b": 0.0}))
    assert all(torch.equal(found[n], released[n]) for n in released)
    noise = Added(Laplace(1.0), {"a": 0.0, "b": 0.5})
    half, alone = once(denoiser, released, noise), once(denoiser, {"b": released["b"]}, noise)
    assert torch.equal(half["a"], released["a"])
    assert torch.equal(half["b"], alone["b"])  # the one without noise has no say in it


@every_denoiser
@pytest.mark.parametrize("shape", [(0,), (1,), (), (2,), (0, 3)], ids=str)
def test_small_tensors(denoiser, shape):
    tensor = torch.full(shape, 0.7)
    found = once(denoiser, {"a": tensor}, Added(Laplace(1.0), {"a": 1.0}))["a"]
    assert found.shape == tensor.shape
    assert found.isfinite().all()
    assert once(denoiser, {}, Added(Laplace(1.0), {})) == {}


@every_law
@every_denoiser
def test_what_is_not_finite_spoils_nothing_else(denoiser, law):
    if isinstance(denoiser, (JamesStein, Kalman)) and math.isinf(law.variance):
        law = Laplace(1.0)
    noise, state = Added(law, {"a": 1.0}), denoiser.start(LAYOUT)
    values = torch.tensor([math.nan, math.inf, -math.inf, 1e37, 0.5, -0.2, 1.5, -2.5])
    for _ in range(3):
        found, state = denoiser.apply({"a": values}, noise, state)
        assert found["a"][0].isnan()
        assert not found["a"][1:].isnan().any()
        assert found["a"][3:].isfinite().all()
        assert found["a"][1] >= 0 >= found["a"][2]


@every_denoiser
def test_all_nan(denoiser):
    found = once(denoiser, {"a": torch.full((3,), math.nan)}, Added(Laplace(1.0), {"a": 1.0}))["a"]
    assert found.isnan().all()


@every_denoiser
def test_values_that_are_huge_in_units_of_the_noise(denoiser):
    found = one(denoiser, [1e300, -1e300, 1.0, 2.0, -3.0], Laplace(1.0), scale=1e-20)
    assert np.isfinite(found).all()


@every_denoiser
def test_a_parameter_without_a_scale_is_refused(denoiser):
    with pytest.raises(ConfigError, match="scale on b is not known; give one"):
        once(denoiser, sums(), Added(Gaussian(1.0), {"a": 1.0}))


@pytest.mark.parametrize("scale", [-1.0, math.nan, math.inf])
def test_a_scale_that_makes_no_sense_is_refused(scale):
    with pytest.raises(ConfigError, match=r"the noise's scale on a is .*; it must be a finite number >= 0"):
        Added(Gaussian(1.0), {"a": scale})


@pytest.mark.parametrize("denoiser", [JamesStein(), JamesStein(each=False), Kalman(drift=0.1)], ids=str)
@pytest.mark.parametrize("law", [Cauchy(1.0), StudentT(2, 1.0)], ids=str)
def test_noise_without_a_variance_is_refused(denoiser, law):
    message = r"works with the noise's variance, which is inf for .*; use Score\(\), or noise of finite variance"
    with pytest.raises(ConfigError, match=message):
        denoiser.check(law)
    with pytest.raises(ConfigError, match=message):
        denoiser.apply(sums(), Added(law, SCALES), denoiser.start(LAYOUT))


@every_law
@every_denoiser
def test_every_other_pair_is_accepted(denoiser, law):
    if math.isinf(law.variance) and (isinstance(denoiser, JamesStein) or denoiser == Kalman(drift=0.3)):
        return
    denoiser.check(law)
    assert all(t.isfinite().all() for t in once(denoiser, sums(), Added(law, SCALES)).values())


def test_the_module_needs_no_torch():
    code = "import sys, discreet.stages.denoise as d; d.Kalman(0.1); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- Kolmogorov-Smirnov --------------------------------------------------------------------------------------------


@given(
    law=st.sampled_from(LAWS),
    values=st.lists(st.floats(-1e3, 1e3) | st.integers(-3, 3).map(float), min_size=1, max_size=60),
    shrunk=st.sampled_from([1.0, 1e-2, 1e-4]),
)
def test_the_distance_is_scipys(law, values, shrunk):
    x = np.array(values) * shrunk
    assert distance(x, law) == pytest.approx(stats.kstest(x, law.cdf).statistic, abs=1e-12)


@pytest.mark.parametrize("change", [lambda x: x, lambda x: x + 0.1, lambda x: 1.2 * x, np.round, np.abs])
@every_law
def test_the_distance_of_many_values_is_scipys(law, change):
    x = change(drawn(law, 20_011))
    assert distance(x, law) == pytest.approx(stats.kstest(x, law.cdf).statistic, abs=1e-12)


def test_the_distance_does_not_change_what_it_measures():
    x = np.array([[2.0, -1.0], [0.5, 0.0]])
    assert distance(x, Gaussian(1.0)) == pytest.approx(stats.kstest(x.ravel(), "norm").statistic, abs=1e-15)
    assert x.tolist() == [[2.0, -1.0], [0.5, 0.0]]


@every_law
def test_infinite_values_are_beyond_all_others_and_nan_is_left_out(law):
    far = law.far
    assert distance([math.inf, -math.inf, math.nan, 0.3], law) == distance([far, -far, 0.3], law) > 1 / 6
    with pytest.raises(ConfigError, match="at least one that is not nan"):
        distance([math.nan], law)


@pytest.mark.parametrize("denoiser", [KolmogorovSmirnov(), KolmogorovSmirnov(rescale=True), JamesStein()], ids=str)
def test_what_is_nan_is_not_counted(denoiser):
    values = [1.0, 2.0, -0.5, 3.0]
    found = one(denoiser, [math.nan, *values, math.nan], Laplace(1.0))
    assert found[1:5].tolist() == one(denoiser, values, Laplace(1.0)).tolist()


def test_the_distribution_function_is_evaluated_at_few_values():
    class Counting(Gaussian):
        asked = 0

        def cdf(self, x):
            Counting.asked += len(x)
            return super().cdf(x)

    for x in (drawn(Gaussian(1.0), 100_000), 1.3 * drawn(Gaussian(1.0), 100_000)):
        Counting.asked = 0
        distance(x, Counting(1.0))
        assert 0 < Counting.asked < 0.05 * len(x)


@every_law
def test_the_sum_is_scaled_by_the_distance_of_all_standardised_coordinates(law):
    noise, released = Added(law, SCALES), sums(torch.float64)
    joint = np.concatenate([released[n].flatten().numpy() / SCALES[n] for n in released])
    expected = stats.kstest(joint, law.cdf).statistic
    found = once(KolmogorovSmirnov(), released, noise)
    rescaled = once(KolmogorovSmirnov(rescale=True), released, noise)
    for name in released:
        torch.testing.assert_close(found[name], expected * released[name], rtol=1e-12, atol=0)
        factor = expected * math.sqrt(26) / (math.sqrt(math.pi / 2) * math.log(2))
        torch.testing.assert_close(rescaled[name], factor * released[name], rtol=1e-12, atol=0)


def test_float32_is_standardised_in_float64():
    x = torch.from_numpy(drawn(StudentT(9, 1.0), 5000)).float() * 0.3
    found = once(KolmogorovSmirnov(), {"a": x.double()}, Added(StudentT(9, 1.0), {"a": 0.3}))["a"] / x.double()
    expected = stats.kstest(x.double().numpy() / 0.3, stats.t(9).cdf).statistic
    torch.testing.assert_close(found, torch.full_like(found, expected), rtol=1e-11, atol=0)


def test_mere_noise_keeps_its_size_on_average_when_rescaled():
    """sqrt(n) times the distance has a standard deviation of 0.26 about 0.8687; five of its standard errors."""
    law, denoiser, repeats = Gaussian(1.0), KolmogorovSmirnov(rescale=True), 400
    noise = drawn(law, 1000 * repeats).reshape(repeats, 1000)
    factors = [one(denoiser, x, law)[0] / x[0] for x in noise]
    assert np.mean(factors) == pytest.approx(1, abs=5 * 0.26 / 0.8687 / math.sqrt(repeats))
    assert one(denoiser, noise[0] + 0.5, law)[0] / (noise[0, 0] + 0.5) > 3  # a signal makes longer steps


# --- the score -----------------------------------------------------------------------------------------------------


@every_law
def test_the_score_is_the_formula(law):
    x = np.linspace(-5, 5, 41)
    step = 1e-5
    slope = (law.log_density(x + step) - law.log_density(x - step)) / (2 * step)
    expected = -2.0 * slope / law.fisher
    assert one(Score(), 2.0 * x, law, scale=2.0) == pytest.approx(expected, abs=1e-6)


def test_gaussian_noise_leaves_nothing_to_gain_by_the_score():
    x = np.append(drawn(Gaussian(1.0), 1000), [math.inf, 1e200])
    assert np.array_equal(one(Score(), x, Gaussian(1.0), scale=0.3), x)


def test_tensors_of_more_than_one_chunk_and_of_any_order():
    x = torch.from_numpy(drawn(Laplace(1.0), 600_000)).reshape(600, 1000).T
    found = once(Score(), {"a": x}, Added(StudentT(3, 1.0), {"a": 1.0}))["a"]
    torch.testing.assert_close(found, 2 * x * 3 / (3 + x * x), rtol=1e-12, atol=0)


@pytest.mark.parametrize("law", [StudentT(3, 1.0), Laplace(1.0), Cauchy(1.0), Sech(1.0)], ids=str)
def test_a_small_signal_is_seen_as_well_as_the_fisher_information_allows(law):
    """Mean over standard deviation, of a million values: five standard errors, and the bias of order signal^2."""
    count, scale, signal = 1_000_000, 3.0, 0.05
    released = scale * (signal + drawn(law, count))
    found = one(Score(), released, law, scale)
    slack = 5 / math.sqrt(count)
    assert found.mean() == pytest.approx(scale * signal, abs=scale * (slack / math.sqrt(law.fisher) + signal**2 / 2))
    ratio, raw = found.mean() / found.std(), released.mean() / released.std()
    assert ratio == pytest.approx(signal * math.sqrt(law.fisher), abs=slack + signal**2 / 2)
    assert ratio - raw > 0.75 * signal * (math.sqrt(law.fisher) - 1 / math.sqrt(law.variance)) > 0


# --- James and Stein -----------------------------------------------------------------------------------------------


def test_james_stein_is_the_formula():
    released, law = sums(torch.float64), Laplace(1.0)
    found = once(JamesStein(), released, Added(law, SCALES))
    for name, scale in SCALES.items():
        factor = max(0.0, 1 - (released[name].numel() - 2) * 2 * scale**2 / float(released[name].square().sum()))
        torch.testing.assert_close(found[name], factor * released[name], rtol=1e-12, atol=0)
    joint = sum(float((released[n] / s).square().sum()) for n, s in SCALES.items())
    found = once(JamesStein(each=False), released, Added(law, SCALES))
    for name in released:
        torch.testing.assert_close(found[name], (1 - 24 * 2 / joint) * released[name], rtol=1e-12, atol=0)
        assert 0 < 1 - 24 * 2 / joint < 1


def test_a_sum_shorter_than_the_noise_becomes_zero_and_never_turns_round():
    assert one(JamesStein(), [0.1, -0.2, 0.3, 0.1], Gaussian(1.0)).tolist() == [0, 0, 0, 0]
    assert one(JamesStein(), [0.0, 0.0, 0.0], Gaussian(1.0)).tolist() == [0, 0, 0]
    assert one(JamesStein(), [0.1, -0.2, 0.3, math.inf], Gaussian(1.0)).tolist() == [0, 0, 0, math.inf]


def test_two_coordinates_are_not_shrunk():
    assert one(JamesStein(), [0.1, -0.2], Gaussian(1.0)).tolist() == [0.1, -0.2]
    assert one(JamesStein(), [0.1, -0.2, math.nan], Gaussian(1.0))[:2].tolist() == [0.1, -0.2]


@pytest.mark.parametrize("each", [True, False])
@pytest.mark.parametrize("length", [0.0, 2.0, 5.0])
@pytest.mark.parametrize("law", [Gaussian(1.0), Laplace(1.0)], ids=str)
def test_the_squared_error_is_below_that_of_the_sum(law, length, each):
    """The mean of the gain over 600 releases of 12 coordinates, in units of the noise: five standard errors."""
    denoiser, noise = JamesStein(each), Added(law, {"a": 2.0, "b": 0.1})
    signal = torch.ones(12, dtype=torch.float64) * length * math.sqrt(law.variance / 12)
    errors = torch.from_numpy(drawn(law, 600 * 12)).reshape(600, 12)
    gains = []
    for error in errors:
        raw = signal + error
        found = once(denoiser, {"a": 2.0 * raw[:6], "b": 0.1 * raw[6:]}, noise)
        estimate = torch.cat((found["a"] / 2.0, found["b"] / 0.1))
        gains.append(float(error.square().sum() - (estimate - signal).square().sum()))
    assert np.mean(gains) > 5 * np.std(gains) / math.sqrt(len(gains))


# --- Kalman --------------------------------------------------------------------------------------------------------


def textbook(measurements, drifts, noises):
    """x_t = x_{t-1} + w_t, z_t = x_t + v_t, with Var w = drifts and Var v = noises; nothing is known at first."""
    estimate, covariance, found = measurements[0], noises[0], [measurements[0]]
    for z, q, r in zip(measurements[1:], drifts[1:], noises[1:], strict=True):
        predicted = covariance + q
        innovation = z - estimate
        gain = predicted / (predicted + r)
        estimate = estimate + gain * innovation
        covariance = (1 - gain) ** 2 * predicted + gain**2 * r
        found.append(estimate)
    return np.array(found)


def followed(denoiser, law, scales, releases):
    """The denoised values of step after step."""
    state, found = denoiser.start(LAYOUT), []
    for scale, values in zip(scales, releases, strict=True):
        out, state = denoiser.apply(
            {"a": torch.as_tensor(values, dtype=torch.float64)}, Added(law, {"a": scale}), state
        )
        found.append(out["a"].numpy())
    return np.array(found), state


@pytest.mark.parametrize("law", [Gaussian(1.0), Laplace(1.0), StudentT(3, 1.0)], ids=str)
@pytest.mark.parametrize("drift", [0.0, 0.05, 1.0, 30.0])
def test_the_filter_is_the_textbooks(law, drift):
    scales = np.array([2.0, 2.0, 1.0, 3.0, 3.0, 0.5, 0.5, 2.0])
    releases = drawn(law, 8 * 5).reshape(8, 5) * scales[:, None]
    noises = scales**2 * law.variance
    expected = np.array([textbook(column, drift**2 * noises, noises) for column in releases.T]).T
    found, _ = followed(Kalman(drift), law, scales, releases)
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("drift", [0.01, 0.3, 2.0])
def test_the_gain_falls_from_one_to_its_steady_value(drift):
    """The answer to a sum of 1 after zeros is the gain of that step."""

    def gain(step):
        releases = [[0.0]] * (step - 1) + [[1.0]]
        return followed(Kalman(drift), Gaussian(1.0), [1.0] * step, releases)[0][-1, 0]

    steady = gain(1500)
    assert 1 == gain(1) > gain(2) > gain(3) > steady
    assert steady**2 == pytest.approx(drift**2 * (1 - steady), rel=1e-9)


def test_a_fixed_gain_holds_after_the_first_step():
    found, _ = followed(Kalman(gain=0.25), Cauchy(1.0), [1.0] * 3, [[4.0], [8.0], [1.0]])
    assert found.ravel().tolist() == [4.0, 5.0, 4.0]
    forgetful, _ = followed(Kalman(gain=1), Gaussian(1.0), [1.0] * 3, [[0.1], [0.7], [0.3]])
    assert forgetful.ravel().tolist() == [0.1, 0.7, 0.3]


def test_the_variance_of_a_constant_signal_falls_as_promised():
    """To 1 / t with no drift, and to the steady gain's; 20,000 coordinates, five standard errors of a variance."""
    count, steps = 20_000, 25
    releases = 0.4 + 2 * drawn(Gaussian(1.0), count * steps).reshape(steps, count)
    slack = 5 * math.sqrt(2 / count)
    found, _ = followed(Kalman(drift=0.0), Gaussian(1.0), [2.0] * steps, releases)
    assert found[-1].var() / 4 == pytest.approx(1 / steps, rel=slack)
    assert found[-1].mean() == pytest.approx(0.4, abs=5 * 2 / math.sqrt(count * steps))
    gain = 0.3
    found, _ = followed(Kalman(gain=gain), Gaussian(1.0), [2.0] * steps, releases)
    assert found[-1].var() / 4 == pytest.approx(gain / (2 - gain), rel=slack)


def test_a_drifting_signal_is_estimated_better_than_by_the_sum_and_than_by_other_drifts():
    """Squared error of 20,000 coordinates after 40 steps; the error of the best filter is its gain."""
    count, steps, drift = 20_000, 40, 0.3
    moves, errors = drawn(Gaussian(1.0), 2 * count * steps).reshape(2, steps, count)
    signal = np.cumsum(drift * moves, axis=0)
    error = {
        d: np.square(followed(Kalman(d), Gaussian(1.0), [1.0] * steps, signal + errors)[0][-1] - signal[-1]).mean()
        for d in (drift, drift / 4, drift * 4)
    }
    gain = (-(drift**2) + drift * math.sqrt(drift**2 + 4)) / 2
    assert error[drift] == pytest.approx(gain, rel=5 * math.sqrt(2 / count))
    assert error[drift] < 0.9 * min(error[drift / 4], error[drift * 4])


@every_dtype
@pytest.mark.parametrize("denoiser", [Kalman(drift=0.2), Kalman(gain=0.4)], ids=str)
def test_a_resumed_filter_goes_on_as_an_uninterrupted_one(denoiser, dtype):
    noise, state, resumed = Added(Laplace(1.0), SCALES), denoiser.start(LAYOUT), denoiser.start(LAYOUT)
    for seed in range(6):
        expected, state = denoiser.apply(sums(dtype, seed), noise, state)
        file = io.BytesIO()
        torch.save(resumed, file)
        file.seek(0)
        found, resumed = denoiser.apply(sums(dtype, seed), noise, torch.load(file, weights_only=True))
        assert all(torch.equal(found[n], expected[n]) for n in expected)
    assert same(state, resumed)
    assert not same(state, denoiser.start(LAYOUT))


def test_the_state_is_plain_values_and_tensors():
    _, state = Kalman(drift=0.2).apply(sums(torch.bfloat16), Added(Laplace(1.0), SCALES), Kalman(0.2).start(LAYOUT))
    assert state.keys() == {"estimates", "variances"}
    assert {n: t.dtype for n, t in state["estimates"].items()} == {"a": torch.float32, "b": torch.float32}
    assert state["variances"] == {"a": 8.0, "b": 0.5}
    assert all(type(v) is float for v in state["variances"].values())


def test_half_precision_does_not_stop_the_estimate():
    """Steps of a thousandth of the distance are lost in bfloat16, but not in what is remembered."""
    denoiser, noise = Kalman(gain=1e-3), Added(Gaussian(1.0), {"a": 1.0})
    first, second = (torch.full((1,), x, dtype=torch.bfloat16) for x in (1.0, 2.0))
    found, state = denoiser.apply({"a": first}, noise, denoiser.start(LAYOUT))
    for _ in range(1000):
        found, state = denoiser.apply({"a": second}, noise, state)
    assert found["a"].item() == pytest.approx(2 - 0.999**1000, abs=2**-7)


def test_a_coordinate_that_was_not_finite_is_followed_again():
    releases = [[1.0, math.nan], [math.nan, 6.0], [3.0, 8.0], [math.inf, -math.inf], [4.0, 7.0]]
    found, state = followed(Kalman(gain=0.5), Gaussian(1.0), [1.0] * 5, releases)
    expected = [[1.0, math.nan], [math.nan, 6.0], [2.0, 7.0], [math.inf, -math.inf], [3.0, 7.0]]
    assert np.array_equal(found, expected, equal_nan=True)
    assert state["estimates"]["a"].tolist() == [3.0, 7.0]


def test_a_step_without_noise_is_the_new_estimate():
    found, state = followed(Kalman(drift=0.5), Gaussian(1.0), [1.0, 0.0], [[4.0], [9.0]])
    assert found.ravel().tolist() == [4.0, 9.0]
    assert state["variances"] == {"a": 0.0}
    found, _ = followed(Kalman(drift=0.5), Gaussian(1.0), [1.0, 0.0, 2.0], [[4.0], [9.0], [19.0]])
    assert found[-1, 0] == pytest.approx(9 + 0.25 / 1.25 * 10)
    found, _ = followed(Kalman(gain=0.5), Gaussian(1.0), [1.0, 0.0, 2.0], [[4.0], [9.0], [19.0]])
    assert found.ravel().tolist() == [4.0, 9.0, 14.0]


def test_a_state_of_another_shape_is_refused():
    denoiser, noise = Kalman(gain=0.5), Added(Gaussian(1.0), {"a": 1.0})
    _, state = denoiser.apply({"a": torch.ones(1)}, noise, denoiser.start(LAYOUT))
    with pytest.raises(ConfigError, match=r"a has shape \(3,\), but its earlier estimate has \(1,\); start anew"):
        denoiser.apply({"a": torch.ones(3)}, noise, state)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "needs one of the two"),
        ({"drift": 0.1, "gain": 0.1}, "needs one of the two"),
        ({"drift": -0.1}, "Kalman's drift is -0.1; it must be a finite number >= 0"),
        ({"drift": math.nan}, "Kalman's drift is nan"),
        ({"drift": math.inf}, "Kalman's drift is inf"),
        ({"gain": 0}, "Kalman's gain is 0; it must be a finite number > 0"),
        ({"gain": 1.5}, "Kalman's gain is 1.5; it must be above 0 and at most 1"),
        ({"gain": math.nan}, "Kalman's gain is nan"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Kalman(**settings)
