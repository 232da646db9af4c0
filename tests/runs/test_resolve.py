import pytest

from discreet import AdaptiveClip, BoundedNetwork, ConfigError, Encode, Gaussian, Kalman, Poisson
from discreet.runs.config import from_dict
from discreet.stages.sampling import WeightedPoisson


def budget(**more):
    return {"budget": {"epsilon": 3.0, "epochs": 2.0, "batch_size": 100, **more}}


def test_the_noise_is_solved_for_the_budget():
    plan = from_dict(budget()).plan(1_000)
    assert plan.epsilon == 3.0
    assert 2.9 < plan.guarantee().epsilon <= 3.0
    assert plan.sampling == Poisson(examples=1_000, batch_size=100)
    assert plan.steps == 20


def test_a_preset_has_its_own_settings():
    made = from_dict(budget() | {"method": {"name": "adaptive_clipping", "settings": {"per_layer": True}}})
    assert made.plan(1_000).mechanism.bound == AdaptiveClip(1.0, per_layer=True)
    certified = from_dict(budget() | {"method": {"name": "belu", "settings": {"certified": True}}})
    assert isinstance(certified.plan(1_000).mechanism.bound, BoundedNetwork)


@pytest.mark.slow
def test_a_model_tells_a_preset_what_it_needs_to_know():
    from torch import nn

    made = from_dict(budget() | {"method": {"name": "encode_denoise"}})
    bound = made.plan(1_000, nn.Linear(4, 3)).mechanism.bound
    assert isinstance(bound, Encode)
    assert bound.size == 15
    published = {"method": {"name": "tanh_filter", "settings": {"form": "paper"}}, "budget": {"epochs": 2.0}}
    assert from_dict(published).plan(1_000, nn.Linear(4, 3)).mechanism.bound.size == 15


def test_strata_have_sizes_of_their_own():
    sampling = {"type": "WeightedPoisson", "sizes": [90, 10], "batch_sizes": [5, 5]}
    stages = {"sampling": sampling, "bound": {"type": "Clip", "norm": 0.5}, "noise": {"type": "Gaussian"}}
    plan = from_dict({"budget": {"noise": 2.0, "epochs": 2.0}, "stages": stages}).plan(100)
    assert plan.sampling == WeightedPoisson(sizes=(90, 10), batch_sizes=(5, 5))
    assert plan.steps == 20


def test_stages_one_by_one():
    stages = {
        "sampling": {"type": "Poisson"},
        "bound": {"type": "Clip", "norm": 0.5},
        "noise": {"type": "Gaussian"},
        "denoise": {"type": "Kalman", "gain": 0.4},
        "noise_schedule": [1.2, 0.8],
    }
    plan = from_dict(budget() | {"stages": stages}).plan(1_000)
    assert plan.mechanism.denoise == Kalman(gain=0.4)
    assert plan.noise_schedule == (1.2, 0.8)
    assert plan.steps == 20
    assert plan.guarantee().epsilon <= 3.0
    noisy = from_dict({"budget": {"noise": 2.0, "steps": 7}, "stages": stages}).plan(1_000)
    assert noisy.mechanism.noise == Gaussian(2.0)
    assert noisy.steps == 7


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "give one of them"),
        (budget(noise=1.0), "give one of them"),
        (budget() | {"method": {"name": "magic"}}, "the method 'magic' is not one of dp_sgd"),
        (budget() | {"method": {"settings": {"normm": 1}}}, "dp_sgd has no setting normm; it has form, norm"),
        (budget() | {"method": {"settings": {"epsilon": 1}}}, "no setting epsilon"),
        (budget() | {"method": {"settings": {"norm": -1}}}, "must be a finite number > 0"),
        (budget(batch_size=2_000), "batch"),
        (budget(epsilon=-1.0), "epsilon"),
        (budget(epochs=0.0), "epochs"),
        (
            budget() | {"method": {}, "stages": {"sampling": {"type": "Poisson"}, "bound": {}, "noise": {}}},
            r"both \[method\] and \[stages\]",
        ),
        (
            budget()
            | {"stages": {"sampling": {"type": "Poisson"}, "bound": {"type": "Cut"}, "noise": {"type": "Gaussian"}}},
            "'Cut' is not one of",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_made(values, words):
    with pytest.raises(ConfigError, match=words):
        from_dict(values).plan(1_000)
