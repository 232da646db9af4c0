import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from discreet import AdaptiveClip, BoundedNetwork, ConfigError, Encode, Gaussian, Kalman, Poisson, methods
from discreet.runs import config
from discreet.runs.config import Config, assignments, documented, from_dict, load, merged

DOCS = Path(__file__).parents[2] / "docs" / "config.md"


def budget(**more):
    return {"budget": {"epsilon": 3.0, "epochs": 2.0, "batch_size": 100, **more}}


def test_a_resolved_config_reads_back_as_itself(tmp_path):
    made = from_dict(budget() | {"model": {"name": "mlp", "settings": {"hidden": [8, 8]}}})
    path = tmp_path / "config.toml"
    path.write_text(made.to_toml())
    assert load(path) == made
    assert tomllib.loads(made.to_toml())["budget"]["delta"] == 1e-5  # defaults are written down


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


def test_a_model_tells_a_preset_what_it_needs_to_know():
    from torch import nn

    made = from_dict(budget() | {"method": {"name": "encode_denoise"}})
    bound = made.plan(1_000, nn.Linear(4, 3)).mechanism.bound
    assert isinstance(bound, Encode)
    assert bound.size == 15
    published = {"method": {"name": "tanh_filter", "settings": {"form": "paper"}}, "budget": {"epochs": 2.0}}
    assert from_dict(published).plan(1_000, nn.Linear(4, 3)).mechanism.bound.size == 15


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


def test_flags_replace_what_the_file_says():
    made = merged(from_dict(budget()), {"budget.epsilon": 1.0, "data.name": "mnist", "budget.noise": None})
    assert made.budget.epsilon == 1.0
    assert made.data.name == "mnist"
    deep = merged(Config(), assignments(["model.settings.hidden=[64, 64]", "data.folder=some/where"]))
    assert deep.model.settings == {"hidden": [64, 64]}
    assert deep.data.folder == "some/where"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"budgte": {}}, "the file: object contains unknown field `budgte`"),
        ({"budget": {"epsilom": 3}}, r"\[budget\]: object contains unknown field `epsilom`"),
        ({"budget": {"epsilon": "three"}}, r"\[budget\] epsilon: expected"),
        ({"optimizer": {"name": "sgdd"}}, r"\[optimizer\] name: invalid enum value 'sgdd'"),
        ({"stages": {"bound": {"type": "Clip"}}}, "missing required field"),
        ({"budget": 3}, r"\[budget\]"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(values, words):
    with pytest.raises(ConfigError, match=words):
        from_dict(values)


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


@pytest.mark.parametrize("text", ["a=1", "nothing", ".=", "budget.epsilon"])
def test_an_assignment_has_a_section_a_field_and_a_value(text):
    with pytest.raises(ConfigError):
        merged(Config(), assignments([text]))


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.toml cannot be read"):
        load(tmp_path / "nowhere.toml")
    path = tmp_path / "broken.toml"
    path.write_text("[budget\n")
    with pytest.raises(ConfigError, match=r"broken\.toml is not TOML"):
        load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"broken\.toml cannot be read"):
        load(path)


def test_every_field_is_documented_here_and_in_the_docs():
    fields = list(documented())
    assert len(fields) > 40
    text = DOCS.read_text()
    for field in fields:
        assert field.description
        assert f"`{field.name}`" in text.split(f"## [{field.section}]")[1].split("\n## ")[0], field


def test_reading_a_config_needs_no_torch():
    code = (
        "import sys; from discreet import config\n"
        "config.from_dict({'budget': {'epsilon': 1}}).check()\n"
        "assert not {'torch', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_methods_are_those_there_are():
    assert set(config.METHODS) == set(methods.__all__) - {"dp_fedavg"}  # which is dp_sgd with a [federated] table
