"""Every Python block in README and docs runs."""

import os
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from discreet.gradients import rules

ROOT = Path(__file__).parent.parent
BLOCKS = [
    pytest.param(block, id=f"{path.name}-{i}")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    for i, block in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_of_the_docs_runs(block, monkeypatch, tmp_path):
    for library, extra in (("flwr", "federated"), ("transformers", "transformers")):
        if f"from {library}" in block and find_spec(library) is None and not os.environ.get("CI"):
            pytest.skip(reason=f"{library} is not installed: pip install 'discreet[{extra}]'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rules, "RULES", dict(rules.RULES))
    exec(compile(block, "docs", "exec"), {"__name__": "docs"})


def test_there_are_blocks_to_run():
    assert len(BLOCKS) >= 5


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda p: p.name)
def test_links_within_the_repo_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target
