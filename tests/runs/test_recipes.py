import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from discreet import ConfigError
from discreet.cli.app import app
from discreet.runs import recipes
from discreet.runs.config import load

ROOT = Path(__file__).parents[2]


def test_every_recipe_is_a_config_and_goes_into_the_wheel():
    assert set(recipes.names()) == {path.stem for path in (ROOT / "recipes").glob("*.toml")}
    for name in recipes.names():
        load(recipes.path(name)).check()
    with pytest.raises(ConfigError, match="there is no recipe 'nope'; there are adult, cifar10"):
        recipes.path("nope")
    hatch = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert hatch["force-include"] == {"recipes": "discreet/runs/recipe-files"}


def test_a_budget_alone_means_the_datas_recipe():
    assert recipes.usual("mnist", 3.0) == "mnist"
    assert recipes.usual("cifar10", 1.0) == "cifar10-epsilon-1"
    assert recipes.usual("mnist", None) is None
    assert recipes.usual("digits", 3.0) is None


def shown(*arguments):
    done = CliRunner().invoke(app, ["train", *arguments, "--show"])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_flag_more_and_it_is_ones_own_run():
    assert "scattering" in shown("--data", "mnist", "--epsilon", "3")
    assert "scattering" in shown("--recipe", "mnist", "--epsilon", "2")
    assert "scattering" not in shown("--data", "mnist", "--epsilon", "3", "--model", "linear", "--steps", "4")


@pytest.mark.parametrize("arguments", [["a.toml", "--recipe", "mnist"], ["--recipe", "nope"], ["--recipe", ""]])
def test_bad_input(arguments):
    assert isinstance(CliRunner().invoke(app, ["train", *arguments]).exception, ConfigError)
