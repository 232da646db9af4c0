import json
import math

import pytest
import torch
from safetensors.torch import load_file
from small_runs import SIZE, config, stopping
from torch import nn

from discreet import ConfigError, Plan
from discreet.runs.build import lowered, make_optimizer, make_schedule, noise_length
from discreet.runs.config import from_dict
from discreet.runs.run import resume, train
from discreet.stages.presets import dp_sgd


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("section", "kind", "settings"),
    [
        ({}, torch.optim.SGD, {"lr": 0.5, "momentum": 0}),
        ({"momentum": 0.9, "weight_decay": 0.1}, torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
        ({"name": "adam", "settings": {"betas": [0.5, 0.6]}}, torch.optim.Adam, {"betas": (0.5, 0.6)}),
        ({"name": "adamw", "learning_rate": 0.01}, torch.optim.AdamW, {"lr": 0.01}),
        ({"name": "rmsprop", "momentum": 0.3}, torch.optim.RMSprop, {"momentum": 0.3}),
        ({"name": "adagrad"}, torch.optim.Adagrad, {"lr": 0.5}),
    ],
)
def test_optimizers_are_torchs(section, kind, settings):
    made = make_optimizer(from_dict({"optimizer": section}), nn.Linear(2, 2))
    assert type(made) is kind
    assert {k: made.param_groups[0][k] for k in settings} == settings


@pytest.mark.parametrize(
    "section",
    [
        {"learning_rate": 0.0},
        {"learning_rate": math.nan},
        {"learning_rate": math.inf},
        {"momentum": -0.5},
        {"weight_decay": -1.0},
        {"name": "adam", "momentum": 0.9},
        {"name": "adam", "settings": {"betas": [2.0, 3.0]}},
        {"settings": {"speed": 1}},
        {"settings": {"lr": "fast"}},
    ],
)
def test_optimizers_that_cannot_be_are_refused(section):
    with pytest.raises(ConfigError, match="optimizer"):
        make_optimizer(from_dict({"optimizer": section}), nn.Linear(2, 2))


def test_noise_moves_a_model_as_far_as_it_is_said():
    """The length of a sum of T draws of noise on d parameters, its square averaged over 200 sums: within 5 % of it,
    of which the standard error is 0.6 %."""
    plan, model = dp_sgd(examples=100, batch_size=20, steps=30, noise=2.0, norm=0.5), nn.Linear(9, 30)
    draws = torch.randn(200, 30, 300, generator=torch.Generator().manual_seed(0)) * 2.0 * 0.5 / 20
    length = draws.sum(1).square().sum(1).mean().sqrt()
    assert noise_length(plan, model) == pytest.approx(float(length), rel=0.05)


@pytest.mark.parametrize(("most", "lower"), [(1e9, False), (3.0, True), (1.5, True)])
def test_the_learning_rate_is_so_low_that_noise_does_not_move_the_model_farther(most, lower):
    plan, model = dp_sgd(examples=100, batch_size=20, steps=30, noise=2.0), nn.Linear(9, 30)
    section = {"noise_walk": most, "momentum": 0.9, "learning_rate": 2.0}
    made = make_optimizer(from_dict({"optimizer": section}), model, plan)
    wanted = most * (1 - 0.9) / noise_length(plan, model) if lower else 2.0
    assert made.param_groups[0]["lr"] == pytest.approx(wanted)
    assert bool(lowered(from_dict({"optimizer": section}), made)) is lower


@pytest.mark.parametrize("section", [{"noise_walk": 0.0}, {"noise_walk": 1.0, "name": "adam"}])
def test_a_noise_walk_that_cannot_be_is_refused(section):
    with pytest.raises(ConfigError, match="noise_walk"):
        make_optimizer(from_dict({"optimizer": section}), nn.Linear(2, 2))


def rates(section, steps):
    made = from_dict({"schedule": section, "optimizer": {"learning_rate": 2.0}})
    optimizer = make_optimizer(made, nn.Linear(2, 2))
    schedule = make_schedule(made, optimizer, steps)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return found


def test_schedules_go_to_zero_by_a_line_or_a_cosine_after_a_warmup():
    assert rates({}, 3) == [2.0, 2.0, 2.0]
    assert rates({"name": "linear"}, 4) == pytest.approx([2.0, 1.5, 1.0, 0.5])
    assert rates({"name": "cosine"}, 4) == pytest.approx([1 + math.cos(math.pi * i / 4) for i in range(4)])
    assert rates({"name": "constant", "warmup": 0.5}, 4) == pytest.approx([2 / 3, 4 / 3, 2.0, 2.0])
    assert rates({"name": "linear", "warmup": 0.5}, 4) == pytest.approx([2 / 3, 4 / 3, 2.0, 1.0])
    assert rates({"name": "cosine", "warmup": 0.2}, 5)[:2] == pytest.approx([1.0, 2.0])


@pytest.mark.parametrize("warmup", [-0.1, 1.0, math.nan])
def test_a_warmup_is_a_part_of_the_run(warmup):
    with pytest.raises(ConfigError, match="warmup"):
        rates({"warmup": warmup}, 4)


def test_functions_of_ones_own_make_data_and_model(tmp_path):
    made = config(
        "small_runs:clouds",
        data={"settings": {"rows": 50}, "test_fraction": 0.0},
        model={"name": "small_runs:narrow", "settings": {"width": 7}},
    )
    train(made, tmp_path / "a", stopping(2))
    outcome = resume(tmp_path / "a")
    assert outcome.accuracy is None  # nothing was held out
    assert load_file(tmp_path / "a" / "model.safetensors")["0.weight"].shape == (7, SIZE)
    assert Plan.load(tmp_path / "a" / "plan.toml").sampling.examples == 50


def test_numbers_are_predicted(tmp_path):
    outcome = train(config("small_runs:numbers", data={"settings": {"rows": 50}}), tmp_path / "a")
    assert outcome.finished
    assert outcome.accuracy is None
    assert lines(tmp_path / "a")[-1]["loss"] > 0


def test_tied_weights_are_saved(table, tmp_path):
    assert train(config(table, model={"name": "small_runs:tied"}), tmp_path / "a").finished
    saved = load_file(tmp_path / "a" / "model.safetensors")
    assert torch.equal(saved["0.weight"], saved["2.weight"])


def test_images_are_augmented(tmp_path):
    data = {"settings": {"rows": 50, "pixels": 6}}
    made = config("small_runs:clouds", data=data, augmentation={"copies": 3, "flip": True, "shift": 1})
    assert train(made, tmp_path / "a").finished


@pytest.mark.parametrize("name", ["small_runs:wide", "small_runs:few"])
def test_a_model_that_does_not_fit_the_data_is_refused_before_anything_is_counted(table, tmp_path, name):
    with pytest.raises(ConfigError, match="the model"):
        train(config(table, model={"name": name}), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_the_seed_is_that_of_the_first_weights(table, tmp_path):
    runs = {}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train(config(table, run={"seed": seed}, budget={"steps": 0}), tmp_path / name)
        runs[name] = load_file(tmp_path / name / "model.safetensors")["1.weight"]
    assert torch.equal(runs["a"], runs["b"])
    assert not torch.equal(runs["a"], runs["c"])
