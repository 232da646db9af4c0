"""The public names: each is described, parameter by parameter, and a type checker knows it; and no file is long."""

import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import discreet

SOURCE = Path(discreet.__file__).parent
LONGEST = 450  # lines of a source file


def functions():
    """The public functions, by their full names: of `discreet`, and of what its packages name."""
    public = [getattr(discreet, name) for name in dir(discreet)]
    for module in [value for value in public if isinstance(value, ModuleType)]:
        public += [getattr(module, name) for name in getattr(module, "__all__", ())]
    ours = [f for f in public if inspect.isfunction(f) and f.__module__.startswith("discreet.")]
    return {f"{f.__module__}.{f.__name__}": f for f in ours}


def undescribed(function):
    """The parameters that stand in no line of their own under Args."""
    doc = inspect.getdoc(function) or ""
    return [name for name in inspect.signature(function).parameters if not re.search(rf"^ +\**{name}: ", doc, re.M)]


FUNCTIONS = functions()


def test_there_are_public_functions():
    assert len(FUNCTIONS) > 60
    assert "discreet.stages.presets.standard.dp_sgd" in FUNCTIONS


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_each_parameter_of_a_public_function_is_described(name):
    assert undescribed(FUNCTIONS[name]) == []


def test_a_parameter_without_a_line_is_found():
    def example(one, two):
        """Something.

        Args:
            one: the first, and not two: at all.
        """

    assert undescribed(example) == ["two"]


def test_a_type_checker_knows_every_public_name(tmp_path):
    (tmp_path / "uses.py").write_text("import discreet\n" + "".join(f"print(discreet.{n})\n" for n in dir(discreet)))
    (tmp_path / "misuses.py").write_text("import discreet\n\nprint(discreet.presets)\n")
    command = [Path(sys.executable).with_name("ty"), "check", "--python", sys.prefix, "--output-format", "concise"]
    said = subprocess.run([*command, "."], capture_output=True, text=True, cwd=tmp_path).stdout
    assert "misuses.py:3" in said
    assert "uses.py" not in said.replace("misuses.py", ""), said


def test_no_source_file_is_long():
    lengths = {path.relative_to(SOURCE).as_posix(): len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
    assert {name: n for name, n in lengths.items() if n > LONGEST} == {}
