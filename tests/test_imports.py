"""Accounting and planning start without torch, and dependencies point down the walk."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import discreet

SOURCE = Path(discreet.__file__).parent


def test_plans_and_guarantees_need_no_torch():
    code = (
        "import sys, discreet\n"
        "plan = discreet.methods.dp_sgd(examples=1000, batch_size=10, steps=100, noise=1.0, delta=1e-5)\n"
        "plan.guarantee(); discreet.calibrate(plan, 1.0)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_discreet_imports_nothing_heavy():
    code = "import sys, discreet; assert not {'torch', 'scipy', 'numpy', 'dp_accounting'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


PLAN = ["plan", "--examples", "500", "--batch-size", "50", "--epochs", "1", "--noise", "9"]


@pytest.mark.parametrize("arguments", [["plan", "--help"], PLAN])
def test_planning_on_the_command_line_needs_no_torch(arguments):
    code = (
        f"import sys; sys.argv = {['discreet', *arguments]!r}\n"
        "from discreet.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("name", discreet.__all__)
def test_every_public_name_is_there(name):
    assert getattr(discreet, name) is not None
    assert name in dir(discreet)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        discreet.nothing  # noqa: B018


def imports(path):
    """The modules of discreet that a file imports, wherever it does so, but not for types alone."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return found


FILES = {".".join(p.relative_to(SOURCE).with_suffix("").parts): p for p in SOURCE.rglob("*.py")}


TORCHLESS = ("accounting", "stages", "errors", "_check", "_moved")


def test_the_torchless_rooms_import_no_torch():
    for name, path in FILES.items():
        if name.split(".")[0] not in TORCHLESS:
            continue
        drawing = ("stages.bounds.gate", "stages.noise.random", "stages.noise.correlated.memory")
        if name in drawing:  # imported when there is a model, or noise is drawn
            continue
        tree = ast.parse(path.read_text())
        at_once = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        named = {getattr(node, "module", None) or node.names[0].name for node in at_once}
        assert not any(i == "torch" or i.startswith("torch.") for i in named), name


def rooms_of(path):
    """The packages of discreet that a file imports from, wherever it does so."""
    return {i.split(".")[1] for i in imports(path) if i.startswith("discreet.")}


def test_nobody_imports_the_command_line_and_only_who_draws_the_report():
    for name, path in FILES.items():
        room = name.split(".")[0]
        if room not in ("cli", "__init__"):
            assert "cli" not in rooms_of(path), name
        if room not in ("cli", "report", "papers", "audit"):
            assert "report" not in rooms_of(path), name
        if room not in ("cli", "papers", "__init__"):
            assert "papers" not in rooms_of(path), name


def test_bounds_noise_and_sampling_do_not_know_each_other():
    rooms = ("stages.bounds", "stages.noise", "stages.sampling")
    for name, path in FILES.items():
        for room in rooms:
            if name.startswith(room):
                others = [f"discreet.{other}" for other in rooms if other != room]
                assert not any(i.startswith(other) for i in imports(path) for other in others), name


OLD_PATHS = """
from importlib import import_module
from discreet import _moved
for old, new in _moved.MOVED.items():
    if " " not in new and old not in ("lightning", "transformers", "federated.flower"):
        assert import_module("discreet." + old) is import_module("discreet." + new), old
        assert import_module("discreet." + new).__spec__.name == "discreet." + new
from discreet.contracts import Blocks, Phase
from discreet.noise.source import Root
assert [c.__name__ for c in (Blocks, Phase, Root)] == ["Blocks", "Event", "KeyTree"]
"""


def test_old_paths_are_the_same_modules():
    subprocess.run([sys.executable, "-c", OLD_PATHS], check=True)
