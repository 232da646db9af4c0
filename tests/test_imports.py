"""Accounting and planning start without torch, and dependencies point down the walk."""

import ast
import re
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
        found |= named(node)
    return found


def named(node):
    """What one statement imports, if it does."""
    if isinstance(node, ast.ImportFrom) and node.module:
        whole = {f"{node.module}.{alias.name}" for alias in node.names}
        return whole if node.module == "discreet" else whole | {node.module}
    return {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()


FILES = {".".join(p.relative_to(SOURCE).with_suffix("").parts): p for p in SOURCE.rglob("*.py")}


TORCHLESS = ("accounting", "stages", "errors", "_check", "_documents", "_moved")


def test_the_torchless_rooms_import_no_torch():
    for name, path in FILES.items():
        if name.split(".")[0] not in TORCHLESS:
            continue
        noise = ("chacha", "random", "correlated.memory")
        drawing = ("stages.bounds.gate", *(f"stages.noise.{part}" for part in noise))
        if name in drawing:  # imported when there is a model, or noise is drawn
            continue
        tree = ast.parse(path.read_text())
        at_once = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        named = {getattr(node, "module", None) or node.names[0].name for node in at_once}
        assert not any(i == "torch" or i.startswith("torch.") for i in named), name


# --- which package may import which: docs/architecture.md draws it ----------------------------------------------------

LEAVES = {"errors", "_check", "_documents", "_moved"}
WALK = {"stages", "accounting", "gradients", "ledger", "distributed", "release"}
TRAINED = WALK | {"training", "data", "models", "features"}
ALLOWED = {  # besides leaves and itself, wherever in a file it does so
    "accounting": set(),
    "stages": {"accounting"},
    "gradients": set(),
    "ledger": {"stages", "accounting"},
    "distributed": {"stages", "gradients", "release"},  # release and distributed are one floor
    "release": WALK,
    "training": WALK,
    "nn": {"gradients"},
    "models": {"nn"},
    "data": {"stages", "accounting", "ledger", "release"},
    "features": {"stages", "accounting", "ledger", "data", "models"},
    "federated": WALK | {"training"},
    "integrations": WALK | {"training", "models", "federated"},
    "runs": TRAINED | {"federated", "audit"},
    "audit": TRAINED | {"nn", "federated", "runs", "report"},
    "report": {"stages", "accounting", "ledger"},
    "papers": TRAINED | {"nn", "federated", "audit", "report"},
    "tuning": {"stages", "accounting", "ledger", "distributed", "release", "data", "runs", "report"},
    "cli": TRAINED | {"federated", "audit", "runs", "report", "papers", "tuning"},
}
BESIDES = {  # single places; there may be fewer, and no more
    ("accounting.event_serialization", "stages"),  # a saved guarantee names a noise of the user's own
    ("stages.bounds", "gradients"),  # once there is a model
    ("stages.bounds", "nn"),
    ("features.pipeline", "runs"),  # the section of a config
}


def home(name):
    """The package of discreet that an imported name comes from: of a public name, where it really is."""
    first = name.split(".")[1]
    if (SOURCE / first).is_dir() or (SOURCE / f"{first}.py").is_file():
        return first
    if first in discreet._HOMES:
        package, original = discreet._HOMES[first]
        return home(f"{package}.{original}")
    return None  # __version__


def rooms_of(path):
    """The packages of discreet that a file imports from, wherever it does so."""
    return {home(i) for i in imports(path) if i.startswith("discreet.")} - {None}


def test_every_package_is_in_the_table():
    packages = {p.parent.name for p in SOURCE.glob("*/__init__.py")}
    assert packages == ALLOWED.keys()
    assert {p.stem for p in SOURCE.glob("*.py")} == LEAVES | {"__init__"}
    assert len(packages | LEAVES) <= 20 + 3  # what a reader of the tree meets first; three begin with an underscore


@pytest.mark.parametrize("name", [name for name in FILES if name.split(".")[0] in ALLOWED])
def test_a_module_imports_only_what_its_package_may(name):
    room = name.split(".")[0]
    beside = {target for place, target in BESIDES if f"{name}.".startswith(f"{place}.")}
    assert rooms_of(FILES[name]) <= ALLOWED[room] | LEAVES | {room} | beside


def test_every_exception_is_still_needed():
    for place, target in BESIDES:
        files = [path for name, path in FILES.items() if f"{name}.".startswith(f"{place}.")]
        assert any(target in rooms_of(path) for path in files), (place, target)


def test_what_planning_needs_imports_models_only_when_there_is_one():
    """The exceptions of stages are inside functions: a plan is made without torch."""
    for name, path in FILES.items():
        if name.startswith("stages."):
            at_once = {i for node in ast.parse(path.read_text()).body for i in named(node)}
            assert not {home(i) for i in at_once if i.startswith("discreet.")} & {"gradients", "nn"}, name


def test_the_page_of_the_architecture_has_the_table():
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text()
    rows = dict(re.findall(r"^\| \[`(\w+)/`\]\([^)]*\) \|.*\| ([^|]*) \|$", page, re.MULTILINE))
    assert rows.keys() == ALLOWED.keys()
    for room, words in rows.items():
        assert set(re.findall(r"\w+", words)) - {"nothing"} == ALLOWED[room] - {room}, room


def test_bounds_noise_and_sampling_do_not_know_each_other():
    rooms = ("stages.bounds", "stages.noise", "stages.sampling")
    for name, path in FILES.items():
        for room in rooms:
            if name.startswith(room):
                others = [f"discreet.{other}" for other in rooms if other != room]
                assert not any(i.startswith(other) for i in imports(path) for other in others), name
