"""The papers are a room of their own: they import public names alone, and nobody imports them but the command line."""

import ast
import importlib
from pathlib import Path

import pytest

import discreet

SOURCE = Path(discreet.__file__).parent
ROOM = SOURCE / "papers"
# packages whose public names are those in their __all__
PACKAGES = {
    "discreet.accounting",
    "discreet.data",
    "discreet.features",
    "discreet.federated",
    "discreet.models",
    "discreet.nn",
    "discreet.report",
    "discreet.training",
}
# rooms whose documented modules are public, too
ROOMS = ("discreet.accounting.", "discreet.audit.", "discreet.stages.")


def imports(path):
    """Every module and name that a file imports of discreet, wherever it does so, for types as well."""
    imported = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            imported += [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            imported += [(alias.name, None) for alias in node.names]
    return [(module, name) for module, name in imported if module.split(".")[0] == "discreet"]


def is_public(module, name):
    whole = module if name is None else f"{module}.{name}"
    if f"{whole}.".startswith("discreet.papers."):
        return True
    if any(part.startswith("_") for part in whole.split(".")):
        return False
    if module == "discreet":
        return name is None or name in discreet.__all__
    if module in PACKAGES and name in importlib.import_module(module).__all__:
        return True
    if not whole.startswith(ROOMS):
        return False
    if is_module(whole):
        return True
    names = vars(importlib.import_module(module))
    return module not in PACKAGES and name in names.get("__all__", names)


def is_module(path):
    file = SOURCE / Path(*path.split(".")[1:])
    return file.is_dir() or file.with_suffix(".py").is_file()


FILES = sorted(ROOM.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(ROOM).as_posix())
def test_the_papers_import_public_names_alone(path):
    private = [f"{module}.{name}" for module, name in imports(path) if not is_public(module, name)]
    assert not private


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("discreet.ledger.storage", "replace"),
        ("discreet", "_documents"),
        ("discreet", "release"),
        ("discreet.training.loop", "OPTIMIZERS"),
        ("discreet.report.files", "csv_table"),
        ("discreet.release.session", "Private"),
        ("discreet.models.networks", "build"),
        ("discreet.accounting", "cost_for_search"),
        ("discreet.stages.bounds.envelope", "_edges"),
        ("discreet.report", "page_of_my_own"),
    ],
)
def test_what_is_private_is_told_apart(module, name):
    assert not is_public(module, name)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(ROOM).as_posix())
def test_one_paper_does_not_read_private_names_of_another(path):
    assert not [name for module, name in imports(path) if module.startswith("discreet.papers") and name[0] == "_"]


def test_nobody_imports_the_papers_but_the_command_line():
    for path in SOURCE.rglob("*.py"):
        if ROOM in path.parents or SOURCE / "cli" in path.parents:
            continue
        names = [f"{module}.{name}" for module, name in imports(path)]
        assert not [n for n in names if f"{n}.".startswith("discreet.papers.")], path


def test_the_command_line_imports_the_papers_only_when_they_are_asked_for():
    for path in (SOURCE / "cli").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        top = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        assert "discreet.papers" not in " ".join(map(ast.unparse, top)), path
