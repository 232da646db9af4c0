import math

import pytest

from discreet import (
    AutomaticClip,
    Clip,
    ConfigError,
    Gaussian,
    Mechanism,
    PerLayerClip,
    Plan,
    Poisson,
    calibrate,
    methods,
)

SAMPLING, MECHANISM = Poisson(examples=1000, batch_size=10), Mechanism(Clip(1.0), Gaussian(1.0))


def test_epochs_become_steps():
    assert Plan(sampling=SAMPLING, mechanism=MECHANISM, epochs=2.5, delta=1e-5).steps == 250
    secret = Poisson(rate=0.01, batch_size=10)
    assert Plan(sampling=secret, mechanism=MECHANISM, epochs=3, delta=1e-5).steps == 300
    big = Poisson(examples=60_000, batch_size=256)
    assert Plan(sampling=big, mechanism=MECHANISM, epochs=60, delta=1e-5).steps == 14_062


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"delta": 0}, "delta is 0"),
        ({"delta": -1e-5}, "delta is -1e-05"),
        ({"delta": 1.0}, "below 1"),
        ({"delta": 1e-320}, "from 1e-100"),
        ({"epsilon": 10**400}, "whole number of 1,329 bits"),
        ({"delta": math.nan}, "delta is nan"),
        ({"steps": -3}, "steps is -3"),
        ({"steps": 1.5}, "whole number"),
        ({"steps": True}, "whole number"),
        ({"steps": 3, "epochs": 2}, "say the length twice"),
        ({"steps": -1}, "give steps= or epochs="),
        ({"epochs": 0, "steps": -1}, "epochs is 0"),
        ({"epsilon": 0}, "epsilon is 0"),
        ({"sampling": 0.01}, "not a sampler"),
        ({"mechanism": Clip(1.0)}, "not a mechanism"),
    ],
)
def test_bad_plans_give_one_clear_error(change, message):
    with pytest.raises(ConfigError, match=message):
        Plan(**({"sampling": SAMPLING, "mechanism": MECHANISM, "steps": 3, "delta": 1e-5} | change))


@pytest.mark.parametrize(
    "mechanism",
    [
        MECHANISM,
        Mechanism(PerLayerClip({"conv1": 0.5, "fc.weight": 1.5}), Gaussian(2.0), "power"),
        Mechanism(PerLayerClip({"größe": 1.0, "a.😀": 2.0}), Gaussian(2.0)),
        Mechanism(PerLayerClip(0.25), Gaussian(std=0.5)),
        Mechanism(AutomaticClip(stability=0.1), Gaussian(), "each"),
    ],
)
@pytest.mark.parametrize("sampling", [SAMPLING, Poisson(rate=0.1, batch_size=7)])
def test_a_saved_plan_is_read_back_equal(tmp_path, mechanism, sampling):
    plan = Plan(sampling=sampling, mechanism=mechanism, steps=12, delta=1e-6, epsilon=2.5)
    plan.save(tmp_path / "plan.toml")
    assert Plan.load(tmp_path / "plan.toml") == plan


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("steps = 12", "steps = 12\nseteps = 13", "unknown seteps"),
        ("steps = 12\n", "", "missing steps"),
        ("steps = 12", 'steps = "twelve"', "whole number"),
        ("steps = 12", "steps = 12.5", "whole number"),
        ("delta = 1e-06", "delta = true", "delta is True"),
        ('type = "Clip"', 'type = "Clap"', "'Clap' is not one of"),
        ('type = "Clip"', "", "needs a table with a type"),
        ('type = "Clip"', 'type = ["Clip"]', "needs a table with a type"),
        ("norm = 1.0", "norm = -1.0", "must be a finite number > 0"),
        ("norm = 1.0", "norm = 1.0\nnrom = 2.0", "no setting nrom"),
        ("batch_size = 10", "batch_size = [10]", "whole number"),
        ('allocation = "joint"', 'allocation = "fair"', "one of joint, each, power"),
        ("[noise]", "[noise", "cannot be read as a plan"),
        ("discreet-plan/1", "discreet-plan/9", "this version reads"),
    ],
)
def test_a_plan_file_is_read_strictly(tmp_path, old, new, message):
    path = tmp_path / "plan.toml"
    Plan(sampling=SAMPLING, mechanism=MECHANISM, steps=12, delta=1e-6).save(path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        Plan.load(path)


@pytest.mark.parametrize("values", [None, 3, [1], {1: 2}])
def test_a_plan_is_made_of_a_table(values):
    with pytest.raises(ConfigError, match="a table of named fields"):
        Plan.from_dict(values)


def test_a_plan_that_cannot_be_written_is_a_clear_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot be written"):
        Plan(sampling=SAMPLING, mechanism=MECHANISM, steps=12, delta=1e-6).save(tmp_path / "none" / "plan.toml")


def test_a_missing_file_is_a_clear_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read as a plan"):
        Plan.load(tmp_path / "none.toml")


def test_dp_sgd_in_one_line_is_the_same_as_calibrate():
    preset = methods.dp_sgd(examples=60_000, batch_size=256, epochs=60, epsilon=3, delta=1e-5)
    sampling = Poisson(examples=60_000, batch_size=256)
    plan = Plan(sampling=sampling, mechanism=Mechanism(Clip(1.0), Gaussian()), epochs=60, delta=1e-5)
    assert preset == calibrate(plan, epsilon=3)
    with pytest.raises(ConfigError, match="give one of them"):
        methods.dp_sgd(examples=10, batch_size=1, epochs=1, delta=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("clip", Gaussian(1.0)), "'clip' is not a bound"),
        ((Clip, Gaussian(1.0)), "not a bound"),
        ((Clip(1.0), 1.1), "1.1 is not a noise"),
        ((Clip(1.0), Gaussian(1.0), "fair"), "allocation is 'fair'"),
    ],
)
def test_bad_mechanisms_give_one_clear_error(settings, message):
    with pytest.raises(ConfigError, match=message):
        Mechanism(*settings)


@pytest.mark.parametrize("settings", [{"multiplier": -1}, {"multiplier": math.nan}, {"std": -1}, {"multiplier": "1"}])
def test_bad_noise_gives_one_clear_error(settings):
    with pytest.raises(ConfigError, match="must be a finite number >= 0"):
        Gaussian(**settings)


def test_noise_said_twice_is_refused():
    with pytest.raises(ConfigError, match="says the noise twice"):
        Gaussian(1.0, std=2.0)


def test_an_absolute_deviation_needs_the_bound_or_the_model():
    flat = Plan(sampling=SAMPLING, mechanism=Mechanism(Clip(2.0), Gaussian(std=3.0)), steps=5, delta=1e-5)
    relative = Plan(sampling=SAMPLING, mechanism=Mechanism(Clip(2.0), Gaussian(1.5)), steps=5, delta=1e-5)
    assert flat.guarantee().epsilon == relative.guarantee().epsilon
    layered = Plan(sampling=SAMPLING, mechanism=Mechanism(PerLayerClip(2.0), Gaussian(std=3.0)), steps=5, delta=1e-5)
    with pytest.raises(ConfigError, match="depends on the model"):
        layered.guarantee()
