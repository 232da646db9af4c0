"""The tests mirror the tree: src/discreet/<package>/<module>.py has tests/<package>/test_<module>.py.

A package of one subject, such as audit/canaries/, may have one file for all its modules: tests/audit/test_canaries.py.
"""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "discreet"
INDIRECT = (TESTS / "indirect.txt").read_text().split()  # modules that only tests of others try; a list that shrinks


def missing():
    """The modules whose test cannot be found by their name."""
    modules = [path.relative_to(SOURCE) for path in SOURCE.rglob("*.py") if path.name != "__init__.py"]
    return {m.as_posix() for m in modules if not any(place.exists() for place in places(m))}


def places(module):
    """Where the tests of a module may be."""
    package = module.parent
    own = TESTS / package / f"test_{module.stem.lstrip('_')}.py"
    return [own, TESTS / package.parent / f"test_{package.name}.py"] if package.name else [own]


def test_a_new_module_has_a_test_that_is_found_by_its_name():
    assert sorted(missing() - set(INDIRECT)) == []


def test_the_list_of_exceptions_only_shrinks():
    assert sorted(set(INDIRECT) - missing()) == [], "these have a test of their name: take them out of the list"
    assert sorted(INDIRECT) == INDIRECT
    assert len(INDIRECT) <= 73


def test_every_folder_of_tests_is_a_package_or_one_of_a_few():
    others = {"benchmarks", "by_hand", "device", "old_runs", "pinned", "theory", "zoo"}
    folders = {p.parent.relative_to(TESTS).as_posix() for p in TESTS.rglob("test_*.py")} - {"."}
    assert {f for f in folders if not (SOURCE / f / "__init__.py").exists()} <= others


LINE = re.compile(r"^ *((?:\w+(?:\.py|/)(?:, )?)+) +\S", re.MULTILINE)  # clip.py    what it is


@pytest.mark.parametrize(
    "package", sorted(p.parent.relative_to(SOURCE).as_posix() for p in SOURCE.rglob("*/__init__.py"))
)
def test_a_package_says_what_each_of_its_files_is(package):
    folder = SOURCE / package
    files = {p.name for p in folder.glob("*.py") if p.name != "__init__.py"}
    files |= {f"{p.name}/" for p in folder.iterdir() if (p / "__init__.py").exists()}
    named = LINE.findall(ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or "")
    listed = {name for names in named for name in names.split(", ")}
    if package == "cli":  # a command is a file that has its name
        files &= listed
    assert sorted(listed) == sorted(files)


def test_no_test_imports_from_another_test_file():
    for path in TESTS.rglob("*.py"):
        assert not re.search(r"^\s*(from|import) (\w+\.)*test_", path.read_text(), re.MULTILINE), path
