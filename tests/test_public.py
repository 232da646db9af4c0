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


MODULES = [discreet, *(value for name in dir(discreet) if isinstance(value := getattr(discreet, name), ModuleType))]


def names_of(module):
    return dir(module) if module is discreet else getattr(module, "__all__", ())


def functions():
    """The public functions, by their full names: of `discreet`, and of what its packages name."""
    public = [getattr(module, name) for module in MODULES for name in names_of(module)]
    ours = [f for f in public if inspect.isfunction(f) and f.__module__.startswith("discreet.")]
    return {f"{f.__module__}.{f.__name__}": f for f in ours}


# what every bound, noise, sampler, denoiser or public feature has is described once, where their package lists it
STAGES = {"start", "contract", "apply", "ask", "learn", "install", "claims", "fit_to", "check", "scaled", "resolved"}
STAGES |= {"log_density", "upper", "score", "loss", "largest_loss", "where", "cdf", "masses_above", "draw", "sample"}
STAGES |= {"participations", "steps_for", "epochs_in", "with_batch_size", "check_length", "attend", "for_run"}
STAGES |= {"shape", "encoder", "encoder_of"}
# classes that are torch's modules, or that nobody holds but the library itself
INSIDE = ("gradients.", "ledger.account.", "ledger.file.LedgerFile", "ledger.state.", "models.", "nn.", "papers.")


def methods():
    """The methods of public classes, by their full names, but for those that another library or a stage asks for."""
    public = [getattr(module, name) for module in MODULES for name in names_of(module)]
    classes = {base for kind in public if inspect.isclass(kind) for base in kind.__mro__}
    found = {}
    for kind in classes:
        package, _, place = f"{kind.__module__}.{kind.__name__}".partition(".")
        if package != "discreet" or place.startswith(INSIDE):
            continue
        theirs = [base for base in kind.__mro__ if not base.__module__.startswith("discreet.")]
        for name, member in vars(kind).items():
            method = getattr(member, "__func__", member)  # of class methods and static ones
            field = name in getattr(kind, "__dataclass_fields__", ())
            asked_for = name in STAGES or field or any(hasattr(base, name) for base in theirs)
            if inspect.isfunction(method) and name[0] != "_" and not asked_for:
                found[f"{place}.{name}"] = getattr(kind, name)
    return found


def undescribed(function):
    """The parameters that stand in no line of their own under Args."""
    doc = inspect.getdoc(function) or ""
    names = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    return [name for name in names if not re.search(rf"^ +\**{name}: ", doc, re.M)]


FUNCTIONS, METHODS = functions(), methods()


def test_there_are_public_functions():
    assert len(FUNCTIONS) > 60
    assert "discreet.stages.presets.standard.dp_sgd" in FUNCTIONS


def test_every_package_but_the_command_line_is_reachable():
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert packages - set(dir(discreet)) == {"cli"}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_each_parameter_of_a_public_function_is_described(name):
    assert undescribed(FUNCTIONS[name]) == []


@pytest.mark.parametrize("name", sorted(METHODS))
def test_each_parameter_of_a_public_method_is_described(name):
    assert undescribed(METHODS[name]) == []


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
