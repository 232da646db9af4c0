"""Runs on features: the budget counts statistics and training, and a killed run asks for nothing twice."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from discreet import ConfigError, PrivacyError, verify
from discreet.accounting import gaussian as gdp
from discreet.audit import audit_run
from discreet.data.dataset import Data, validated
from discreet.features import Rehearsed, Scattering, Upright
from discreet.runs import config
from discreet.runs import run as runs

FEATURES: dict[str, Any] = {
    "extractors": {"fine": {"kind": "patches", "atoms": 16, "size": 3, "images": 20, "grid": 2}},
    "cache": False,
    "workers": 1,
}
RUN: dict[str, Any] = {
    "data": {"name": "digits"},
    "features": FEATURES,
    "model": {"name": "linear"},
    "budget": {"epsilon": 3.0, "steps": 12, "batch_size": 300},
    "method": {"settings": {"norm": 0.3}},
    "optimizer": {"learning_rate": 30.0, "momentum": 0.9},
    "schedule": {"name": "cosine"},
    "evaluation": {"every": 100.0},
}
RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))


def lines(folder):
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]


class Killed(Exception):
    pass


def test_a_run_on_features_proves_its_budget_for_everything(tmp_path):
    folder = tmp_path / "run"
    told: list[str] = []
    watch = runs.Watch(stage=told.append, count=lambda words, done, total: told.append(f"{words} {done}/{total}"))
    outcome = runs.train(config.from_dict(RUN), folder, watch)
    assert outcome.accuracy is not None
    assert outcome.accuracy > 0.5
    assert 2.99 < outcome.guarantee.epsilon <= 3.0
    assert verify(folder).runs[0].guarantee.epsilon == pytest.approx(outcome.guarantee.epsilon)
    assert "with no amplification by sampling" in str(outcome.guarantee)
    kinds = [line["kind"] for line in lines(folder)]
    assert kinds == ["query", "run", *["release"] * 12, "end"]
    assert len({line["run"] for line in lines(folder)}) == 1
    assert not (folder / "noise.json").exists()
    assert set(load_file(folder / "features.safetensors")) == {"fine.mean", "fine.by_channel", "fine.by_place"}
    assert "features of the training part 1437/1437" in told
    assert runs.resume(folder).already
    with pytest.raises(ConfigError, match="private statistics"):
        audit_run.audit(folder)


def test_a_killed_run_asks_for_its_statistics_once(tmp_path):
    folder = tmp_path / "run"

    def killed(step):
        if step == 5:
            raise Killed

    with pytest.raises(Killed):
        runs.train(config.from_dict(RUN), folder, runs.Watch(step=killed))
    first = load_file(folder / "features.safetensors")
    outcome = runs.resume(folder)
    assert outcome.finished
    assert outcome.guarantee.epsilon <= 3.0
    again = load_file(folder / "features.safetensors")
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert [line["kind"] for line in lines(folder)].count("query") == 1


def test_statistics_that_were_counted_and_lost_are_the_same_again_and_cost_nothing_more(tmp_path, monkeypatch):
    """A crash between the count and the file: the noise is on disk before, and the same answer is not a new one."""
    folder, made = tmp_path / "run", []

    def lost(fitted, path):
        made.append(fitted)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("discreet.runs.features.save_statistics", lost)
        for begin in (lambda: runs.train(config.from_dict(RUN), folder), lambda: runs.resume(folder)):
            with pytest.raises(Killed):
                begin()
    assert [line["kind"] for line in lines(folder)] == ["query"]
    assert (folder / "noise.json").stat().st_mode & 0o077 == 0
    with pytest.raises(ConfigError, match="is there already"):
        runs.train(config.from_dict(RUN), folder)
    outcome = runs.resume(folder)
    assert outcome.finished
    assert outcome.guarantee.epsilon <= 3.0
    assert [line["kind"] for line in lines(folder)].count("query") == 1
    kept = load_file(folder / "features.safetensors")
    for first in made:
        assert torch.equal(first["fine"].mean, kept["fine.mean"])
        assert torch.equal(first["fine"].by_channel, kept["fine.by_channel"])
    assert not (folder / "noise.json").exists()


def test_noise_that_was_drawn_for_other_data_is_not_used_again(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr("discreet.runs.features.save_statistics", lambda fitted, path: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            runs.train(config.from_dict(RUN), folder)
    load = runs.build.read_data

    def changed(*arguments):
        data = load(*arguments)
        data.train[0][7] += 1.0
        return data

    monkeypatch.setattr(runs.build, "read_data", changed)
    with pytest.raises(PrivacyError, match="the data is not what it was when its statistics were asked for"):
        runs.resume(folder)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"features": {"extractors": {}}}, "has no extractors"),
        ({"features": {"extractors": {"a": {"kind": "magic"}}}}, r"\[features.extractors.a\] kind is 'magic'"),
        ({"features": {"extractors": {"a": {"kind": "patches", "atom": 3}}}}, "no setting atom"),
        ({"features": FEATURES | {"mean_noise": 0.0}}, "mean_noise"),
        ({"features": FEATURES | {"share": 1.0}}, "between 0 and 1"),
        ({"features": FEATURES | {"leading": 3}}, "leading is of rehearsed directions"),
        ({"features": {"extractors": {"a": {"kind": "scattering", "rehearsed": 0.2}}}}, "it is a table"),
        (
            {"features": {"extractors": {"a": {"kind": "scattering", "upright": True}}}},
            "upright is True; it is a table",
        ),
        ({"features": {"extractors": {"a": {"kind": "scattering", "upright": {"turn": 1}}}}}, "no setting turn"),
        ({"federated": {"users": 10}}, "do not go with"),
        ({"audit": {"canaries": 10}}, "do not go with"),
        ({"augmentation": {"flip": True}}, "do not go with"),
    ],
)
def test_what_does_not_go_with_features_is_refused(more, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        runs.train(config.from_dict(RUN | more), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_statistics_get_their_share_of_any_budget():
    for epsilon in (0.5, 3.0):
        made = config.from_dict(
            RUN | {"features": FEATURES | {"share": 0.1}, "budget": RUN["budget"] | {"epsilon": epsilon}}
        )
        whitening = made.pipeline().whitening
        assert whitening.multiplier**-2 == pytest.approx(0.1 * gdp.mu(epsilon, 1e-5) ** 2)
        assert whitening.mean_noise == pytest.approx(4 * whitening.channel_noise)
    two = {**FEATURES["extractors"], "waves": {"kind": "scattering", "scales": 1}}
    both = config.from_dict(RUN | {"features": FEATURES | {"share": 0.1, "extractors": two}})
    assert 2 * both.pipeline().whitening.multiplier ** -2 == pytest.approx(0.1 * gdp.mu(3.0, 1e-5) ** 2)


def test_only_leading_directions_are_used_where_that_is_said():
    fine = FEATURES["extractors"]["fine"] | {"rehearsed": {"power": 0.2, "images": 10}}
    some = config.from_dict(RUN | {"features": FEATURES | {"extractors": {"fine": fine}, "leading": 5}}).pipeline()
    every = config.from_dict(RUN | {"features": FEATURES | {"extractors": {"fine": fine}}}).pipeline()
    images = torch.rand(3, 1, 8, 8)
    assert (some.width((1, 8, 8)), every.width((1, 8, 8))) == (4 * 5, 4 * 32)
    assert torch.equal(some.extract(images)["fine"][:], every.extract(images)["fine"][:, :, 27:])


def test_images_are_set_upright_before_features_are_rehearsed():
    table = {"kind": "scattering", "scales": 1, "rehearsed": {"power": 0.2}, "upright": {"spread": 0.5}}
    made = config.from_dict(RUN | {"features": FEATURES | {"extractors": {"a": table}}}).pipeline()
    assert made.extractors["a"] == Rehearsed(Upright(Scattering(1), spread=0.5), 0.2)


def test_a_validation_part_is_chosen_by_each_example_itself():
    x, y = torch.rand(200, 3, generator=torch.Generator().manual_seed(0)), torch.arange(200) % 2
    data = Data("made up", (x, y), (x[:5] + 1, y[:5]), (3,), 2)
    parted = validated(data, 0.2)
    assert isinstance(parted.test, tuple)
    assert 15 < len(parted.test[0]) < 65
    fewer = validated(Data("made up", (x[7:], y[7:]), None, (3,), 2), 0.2)
    held = {tuple(row) for row in parted.test[0].tolist()}
    assert {tuple(row) for row in fewer.test[0].tolist()} == held - {tuple(row) for row in x[:7].tolist()}
    assert "not on the test part" in parted.note
    with pytest.raises(ConfigError, match="validation is 1"):
        validated(data, 1.0)


@pytest.mark.parametrize("recipe", [r for r in RECIPES if "[features" in r.read_text()], ids=lambda path: path.stem)
def test_a_recipe_is_a_run_that_can_be_planned(recipe):
    made = config.load(recipe)
    runs.check(made)
    assert made.data.name in config.EXAMPLES
    assert made.stages is not None
    assert made.stages.sampling["type"] == "Poisson"
    assert made.stages.sampling["rate"] == made.budget.batch_size / config.EXAMPLES[made.data.name]
    assert made.budget.delta == 1e-5


def test_there_are_recipes():
    assert len(RECIPES) >= 3
