"""What is said about the package is said once, or the same everywhere."""

import re
import tomllib
from pathlib import Path

import pytest

import discreet

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
SAID = [
    *(ROOT / "src").rglob("*.py"),
    *(ROOT / "docs").rglob("*.md"),
    ROOT / "README.md",
    *(ROOT / "tests").rglob("*.py"),
]


def test_the_version_is_in_one_place():
    assert "version" in PROJECT["dynamic"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", discreet.__version__)
    assert "version" not in (ROOT / "CITATION.cff").read_text().replace("cff-version", "")


def test_every_extra_that_a_message_or_a_page_names_is_there():
    named = {
        extra.strip()
        for path in SAID
        for extras in re.findall(r"discreet\[([a-z, ]+)\]", path.read_text())
        for extra in extras.split(",")
    }
    assert named >= {"data", "federated", "lightning", "plots", "sklearn", "tensorboard", "transformers"}
    assert named <= EXTRAS.keys()


def test_the_repository_is_the_same_everywhere():
    source = PROJECT["urls"]["Source"]
    for name in (".github/ISSUE_TEMPLATE/config.yml", "CITATION.cff"):
        assert source in (ROOT / name).read_text(), name
    assert all(url.startswith(source) for name, url in PROJECT["urls"].items() if name != "Documentation")


@pytest.mark.parametrize("job", ["tests", "wheel"])
def test_what_is_promised_of_python_is_tried(job):
    promised = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", c)]
    part = (ROOT / ".github/workflows/ci.yml").read_text().partition(f"\n  {job}:\n")[2]
    tried = re.search(r"python-version: \[(.*)\]", part)[1]
    assert re.findall(r"[\d.]+", tried) == promised
