"""The presets: what they say of themselves, and that each trains the bundled digits at its proven epsilon."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from discreet import (
    AdaptiveClip,
    BoundedNetwork,
    Clip,
    ConfigError,
    Encode,
    FixedBatches,
    Gaussian,
    JamesStein,
    Kalman,
    KolmogorovSmirnov,
    Plan,
    RadialTanh,
    ScaledTanh,
    Score,
    StudentT,
    Tanh,
    attach,
    methods,
)
from discreet.nn import BELU

PRESETS = {
    "dp_sgd": methods.dp_sgd,
    "tanh_filter": methods.tanh_filter,
    "belu": methods.belu,
    "adaptive_clipping": methods.adaptive_clipping,
    "encode_denoise": methods.encode_denoise,
}


@pytest.fixture(scope="module")
def digits():
    """Scikit-learn's digits: 1,437 to train on and 360 to test on."""
    datasets = pytest.importorskip("sklearn.datasets")
    x, y = (torch.from_numpy(a) for a in datasets.load_digits(return_X_y=True))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = (x[order] / 16).float(), y[order]
    return x[360:], y[360:], x[:360], y[:360]


def accuracy(plan, digits, activation=nn.Tanh, lr=2.0, at_most=None):
    """Train a small network by the plan; its accuracy on held-out digits, and what is proven of the run."""
    x, y, held_out, labels = digits
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), activation(), nn.Linear(32, 10))
    if not plan.mechanism.fitted or plan.mechanism.contract_for(None) is not None:
        plan = plan.fit_to(model)
    private = attach(model, plan, seed=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for rows, targets in private.batches((x, y), at_most=at_most):
        if private.backward(F.cross_entropy(model(rows), targets, reduction="none")):
            optimizer.step()
    with torch.no_grad():
        right = float((model(held_out).argmax(1) == labels).float().mean())
    private.detach()
    return right, private.guarantee()


SMALL = {"examples": 1_437, "batch_size": 128, "epochs": 12, "delta": 1e-5}
SOUND = {
    "dp_sgd": (methods.dp_sgd, {}, nn.Tanh),
    "tanh_filter, radial": (methods.tanh_filter, {}, nn.Tanh),
    "tanh_filter, clipped": (methods.tanh_filter, {"variant": "clipped"}, nn.Tanh),
    "tanh_filter, scaled": (methods.tanh_filter, {"variant": "scaled", "k": 0.05}, nn.Tanh),
    "belu, clipped": (methods.belu, {}, lambda: BELU(1.0, 5.0)),
    "adaptive_clipping, quantile": (methods.adaptive_clipping, {}, nn.Tanh),
    "adaptive_clipping, per layer": (methods.adaptive_clipping, {"per_layer": True}, nn.Tanh),
    "adaptive_clipping, mean": (methods.adaptive_clipping, {"rule": "mean", "per_layer": True}, nn.Tanh),
    "encode_denoise": (methods.encode_denoise, {}, nn.Tanh),
    "encode_denoise, nearest": (methods.encode_denoise, {"encoder": "nearest"}, nn.Tanh),
    "encode_denoise, score": (methods.encode_denoise, {"denoise": Score()}, nn.Tanh),
    "encode_denoise, Kalman": (methods.encode_denoise, {"denoise": Kalman(gain=0.4), "law": Gaussian()}, nn.Tanh),
}


@pytest.mark.parametrize("name", SOUND)
def test_the_sound_form_learns_digits_at_its_proven_epsilon(name, digits):
    preset, settings, activation = SOUND[name]
    right, proven = accuracy(preset(**SMALL, **settings, epsilon=4), digits, activation)
    assert proven.epsilon <= 4
    assert right > 0.75


def test_the_certificate_learns_digits_without_a_gradient_of_its_own(digits):
    """No per-example gradient and no clip: a bound from the shape alone needs more noise, so a larger epsilon here."""
    plan = methods.belu(**SMALL, epsilon=8, certified=True, input_norm=1.0, weight_norm=1.0)
    right, proven = accuracy(plan, digits, lambda: BELU(0.5, 0.5), lr=1.0)
    assert proven.epsilon <= 8
    assert right > 0.5
    assert "weight matrices were projected" in str(proven)


@pytest.mark.parametrize("name", ["tanh_filter", "belu", "adaptive_clipping", "encode_denoise"])
def test_the_published_form_learns_and_says_what_is_really_proven(name, digits):
    settings = {"tanh_filter": {"k": 0.3}, "adaptive_clipping": {"tensors": 4}}.get(name, {})
    plan = PRESETS[name](**SMALL, **settings, form="paper")
    activation = (lambda: BELU(1.0, 5.0)) if name == "belu" else nn.Tanh
    rates = {"tanh_filter": 0.1, "belu": 0.5, "encode_denoise": 20.0}
    right, proven = accuracy(plan, digits, activation, lr=rates.get(name, 2.0))
    assert right > 0.6
    (claim,) = proven.claims
    if name == "encode_denoise":
        assert claim.verdict == "holds if"
        assert proven.epsilon <= claim.epsilon
    else:
        assert claim.verdict == "false"
        assert proven.epsilon > 2 * claim.epsilon


# --- what they say ---------------------------------------------------------------------------------------------------


def test_presets_have_the_papers_stages():
    bounds = {name: preset(epsilon=3).mechanism.bound for name, preset in PRESETS.items()}
    assert bounds == {
        "dp_sgd": Clip(1.0),
        "tanh_filter": RadialTanh(1.0, 1.0),
        "belu": Clip(1.0),
        "adaptive_clipping": AdaptiveClip(1.0),
        "encode_denoise": Encode(1.0),
    }
    assert methods.tanh_filter(noise=1, variant="clipped", c=2, k=3).mechanism.bound == Tanh(2, 3, clip=1.0)
    assert methods.tanh_filter(noise=1, variant="scaled", k=3).mechanism.bound == ScaledTanh(1.0, 3)
    assert isinstance(methods.belu(noise=1, certified=True).mechanism.bound, BoundedNetwork)
    assert methods.encode_denoise(noise=1).mechanism.denoise == KolmogorovSmirnov(rescale=True)
    assert methods.encode_denoise(noise=1, denoise=JamesStein()).mechanism.denoise == JamesStein()


@pytest.mark.parametrize("name", PRESETS)
def test_the_sound_form_never_exceeds_its_epsilon_and_has_no_false_claim(name):
    plan = PRESETS[name](epsilon=3)
    assert plan.epsilon == 3
    found = plan.guarantee()
    assert 2.9 < found.epsilon <= 3
    assert all(claim.verdict != "false" for claim in found.claims)
    assert Plan.from_dict(plan.to_dict()) == plan


def test_published_forms_prove_what_they_really_do():
    """The papers' own settings: THEORY's figures, from the presets alone."""
    tanh = methods.tanh_filter(form="paper")
    assert isinstance(tanh.sampling, FixedBatches)
    assert tanh.mechanism.noise == Gaussian(std=1.1)
    assert tanh.guarantee().epsilon > 1e5
    belu = methods.belu(form="paper", beta=2.0).guarantee()
    assert 5e3 < belu.epsilon < 2e4
    assert belu.claims[0].epsilon == pytest.approx(1.097, abs=1e-3)
    assert belu.claims[0].verdict == "false"
    adaptive = methods.adaptive_clipping(form="paper")
    assert adaptive.delta == pytest.approx(50_000**-1.1)
    assert adaptive.guarantee().epsilon == pytest.approx(480, abs=1)
    assert adaptive.guarantee().claims[0].epsilon == pytest.approx(19.45, abs=0.02)
    encode = methods.encode_denoise(form="paper", envelopes=1).guarantee()
    assert encode.epsilon == pytest.approx(2.399, abs=5e-3)
    assert encode.claims[0].epsilon == pytest.approx(3.029, abs=0.02)
    own = methods.dp_sgd(form="paper").guarantee()
    assert own.epsilon == pytest.approx(1.351, abs=2e-3)


def test_a_published_form_can_be_asked_for_the_epsilon_it_would_claim():
    plan = methods.tanh_filter(form="paper", epsilon=3.008)
    assert plan.mechanism.noise.std == pytest.approx(1.1, abs=1e-3)
    assert plan.epsilon is None
    assert plan.guarantee().epsilon > 1e5


def test_moments_that_were_added_up_are_what_is_solved_for():
    plan = methods.adaptive_clipping(form="paper", epsilon=19.45)
    assert plan.guarantee().claims[0].epsilon == pytest.approx(19.45, rel=1e-3)
    assert plan.guarantee().epsilon > 400
    law = methods.encode_denoise(form="paper", epsilon=3.029).mechanism.noise
    assert law.scale == pytest.approx(1.0, abs=5e-3)


def test_the_tensors_of_the_published_form_are_checked(digits):
    with pytest.raises(ConfigError, match="made for 10 tensors, and the model has 4"):
        accuracy(methods.adaptive_clipping(**SMALL, form="paper"), digits)


@pytest.mark.parametrize("name", PRESETS)
def test_bad_settings_are_refused(name):
    preset = PRESETS[name]
    for settings in ({}, {"epsilon": 1, "noise": 1}, {"epsilon": 1, "form": "honest"}, {"epsilon": -1}, {"noise": -1}):
        with pytest.raises(ConfigError):
            preset(**settings)
    with pytest.raises(ConfigError, match="twice"):
        preset(noise=1, epochs=1, steps=1)
    with pytest.raises(ConfigError, match="give one of them"):
        preset(form="paper", epsilon=1, noise=1)
    with pytest.raises(ConfigError):
        preset(form="paper", noise=-1)


@pytest.mark.parametrize("law", ["student", StudentT, StudentT(9, 2.0), Gaussian(1.0)])
def test_a_law_is_a_noise_without_a_scale(law):
    with pytest.raises(ConfigError, match="law is"):
        methods.encode_denoise(noise=1.0, law=law)


def test_limits_of_a_certificate_need_one():
    with pytest.raises(ConfigError, match="certified=True"):
        methods.belu(noise=1.0, input_norm=2.0)


def test_an_unknown_variant_is_refused():
    with pytest.raises(ConfigError, match="radial, clipped, scaled"):
        methods.tanh_filter(noise=1, variant="square")


def test_student_t_costs_less_noise_where_the_number_of_parameters_is_known():
    known = methods.encode_denoise(epsilon=3, parameters=1_000).mechanism.noise
    unknown = methods.encode_denoise(epsilon=3).mechanism.noise
    assert isinstance(known, StudentT)
    assert known.scale < unknown.scale < known.scale * 1.15
    assert math.isfinite(known.scale)


# --- correlated noise


def test_bands_as_published():
    made = methods.band_mf(examples=50_000, batch_size=256, steps=390, epsilon=3.0, bands=16)
    assert made.mechanism.noise.multiplier == pytest.approx(1.042, rel=3e-3)
    assert made.sampling.groups == 16
    best = methods.band_mf(examples=2_000, batch_size=50, steps=80, epsilon=4.0)
    assert best.mechanism.noise.bands == best.sampling.groups > 1
    open_ = methods.band_mf(examples=2_000, batch_size=50, steps=80, noise=1.0)
    with pytest.raises(ConfigError, match="still to be solved"):
        open_.guarantee()


def test_training_without_coins():
    made = methods.dp_ftrl(examples=1_000, batch_size=10, epochs=3, epsilon=4.0)
    assert (made.steps, made.charges(300)) == (300, 1)
    assert made.guarantee().epsilon <= 4.0


def test_federated_rounds_without_coins():
    settings = {"users": 1_000, "users_per_round": 20, "rounds": 200, "separation": 40, "most": 3}
    made = methods.dp_fedavg(**settings, epsilon=8.0)
    assert made.sampling.unit == "user"
    assert made.event().theorem == "C1"
    assert made.guarantee().epsilon <= 8.0
    banded = methods.dp_fedavg(**settings, noise=2.0, bands=40)
    assert banded.event().multiplier == pytest.approx(2 / 3**0.5)
    plain = {k: v for k, v in settings.items() if k not in ("separation", "most")}
    for wrong in ({"separation": 40}, {"most": 3}, {"bands": 4}):
        with pytest.raises(ConfigError, match="give"):
            methods.dp_fedavg(**plain, noise=1.0, **wrong)
