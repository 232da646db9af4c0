import subprocess
import sys
import tomllib

import pytest

from discreet import ConfigError
from discreet.runs.config import Config, assignments, from_dict, load, merged


def budget(**more):
    return {"budget": {"epsilon": 3.0, "epochs": 2.0, "batch_size": 100, **more}}


def test_a_resolved_config_reads_back_as_itself(tmp_path):
    made = from_dict(budget() | {"model": {"name": "mlp", "settings": {"hidden": [8, 8]}}})
    path = tmp_path / "config.toml"
    path.write_text(made.to_toml())
    assert load(path) == made
    assert tomllib.loads(made.to_toml())["budget"]["delta"] == 1e-5  # defaults are written down


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


def test_reading_a_config_needs_no_torch():
    code = (
        "import sys; from discreet import config\n"
        "config.from_dict({'budget': {'epsilon': 1}}).check()\n"
        "assert not {'torch', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
