"""Every block in README and docs is what it says: Python runs, commands parse, configs load; and the site builds."""

import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer

import discreet
from discreet.cli import app as cli
from discreet.data.schema import rules_of
from discreet.gradients.rules import registry
from discreet.runs import config

ROOT = Path(__file__).parent.parent
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES = [*TOP, *sorted((ROOT / "docs").rglob("*.md"))]
EXTRAS = {
    "flwr": "federated",
    "lightning": "lightning",
    "accelerate": "transformers",
    "transformers": "transformers",
    "sklearn": "data",
}


def blocks(opening):
    return [
        pytest.param(block, id=f"{path.name}-{i}")
        for path in PAGES
        for i, block in enumerate(re.findall(rf"^{opening}\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE))
    ]


def commands():
    """The lines that call the command line, continuations joined, without their comments."""
    for path in PAGES:
        for fence in re.findall(r"^```\w*\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE):
            for line in fence.replace("\\\n", " ").splitlines():
                if line.startswith("discreet "):
                    yield pytest.param(shlex.split(line, comments=True)[1:], id=f"{path.name}: {line.split('#')[0]}")


@pytest.mark.parametrize("block", blocks("```python"))
def test_a_block_of_the_docs_runs(block, monkeypatch, tmp_path):
    for package, extra in EXTRAS.items():
        if re.search(rf"^(import|from) {package}\b", block, re.MULTILINE) and find_spec(package) is None:
            if os.environ.get("CI"):
                continue
            pytest.skip(reason=f"{package} is not installed: pip install 'discreet[{extra}]'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "RULES", dict(registry.RULES))
    monkeypatch.setattr("discreet.gradients.structure.RULES", registry.RULES)
    exec(compile(block, "docs", "exec"), {"__name__": "docs"})
    if "accelerate" in block:  # which remembers its first settings for the whole process
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)


def test_there_are_blocks_to_run():
    assert len(blocks("```python")) >= 30


@pytest.mark.parametrize("block", blocks('```python title="Opacus"'))
def test_a_block_of_another_library_compiles(block):
    compile(block, "docs", "exec")


def test_every_python_block_is_one_or_the_other():
    every = sum(len(re.findall(r"^```py", path.read_text(), re.MULTILINE)) for path in PAGES)
    assert every == len(blocks("```python")) + len(blocks('```python title="Opacus"'))


@pytest.mark.parametrize("arguments", list(commands()))
def test_a_command_of_the_docs_has_words_that_it_knows(arguments):
    command = typer.main.get_command(cli.app).commands[arguments[0]]
    with command.make_context(arguments[0], arguments[1:], resilient_parsing=True):
        pass
    known = {name for parameter in command.params for name in parameter.opts}
    assert {word.split("=")[0] for word in arguments if re.match("--?[a-z]", word)} <= known


@pytest.mark.parametrize("block", blocks("```toml"))
def test_a_toml_block_is_a_config_or_a_schema(block):
    content = tomllib.loads(block)
    if {"data", "statement"} & content.keys():
        config.from_dict(content)
    else:
        rules_of("docs", content)


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_links_within_the_repo_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_the_architecture_links_to_every_package():
    linked = set(re.findall(r"\]\(\.\./src/discreet/(\w+)\)", (ROOT / "docs" / "architecture.md").read_text()))
    assert linked >= {path.parent.name for path in (ROOT / "src" / "discreet").glob("*/__init__.py")}


def test_the_picture_of_the_walk_is_what_its_script_draws():
    script = runpy.run_path(str(ROOT / "docs" / "assets" / "walk.py"))
    assert (ROOT / "docs" / "assets" / "walk.svg").read_text() == script["picture"]()


def test_readme_is_short_and_has_no_command_of_a_benchmark():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert max(map(len, lines)) <= 150
    assert len(lines) <= 130


def test_every_public_name_is_in_the_reference():
    page = (ROOT / "docs" / "api.md").read_text()
    missing = [
        name for name in discreet.__all__ if not re.search(rf"^::: discreet\.(\w+\.)*{name}$", page, re.MULTILINE)
    ]
    assert missing == []


# --- the site --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if find_spec("mkdocs") is None and not os.environ.get("CI"):
        pytest.skip(reason="mkdocs is not installed: pip install 'discreet[docs]'")
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def test_every_page_is_built_and_in_the_navigation(site):
    home = (site / "index.html").read_text()
    for path in (ROOT / "docs").rglob("*.md"):
        name = str(path.relative_to(ROOT / "docs").with_suffix(".html")).replace("README", "index")
        assert (site / name).exists()
        assert f'href="{name}"' in home, name


def test_the_site_loads_nothing_from_elsewhere(site):
    """No script, style, font, image or frame has an address of its own host; links that a reader follows may."""
    for page in site.rglob("*.html"):
        text = page.read_text()
        loaded = re.findall(r"<(?:script|link|img|iframe|source|audio|video|embed|object)\b[^>]*>", text)
        outside = [tag for tag in loaded if re.search(r"""(?:src|href|data|srcset)=["']?(?:https?:)?//""", tag)]
        assert outside == [], page.name
        assert 'class="mermaid"' not in text, f"{page.name}: the theme would fetch what draws it"
        assert not re.search(r"""(?:@import|url\()\s*["']?(?:https?:)?//""", text), page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"""(?:@import|url\()\s*["']?(?:https?:)?//""", style.read_text()), style.name


def test_the_reference_shows_signatures_and_docstrings(site):
    page = re.sub("<[^>]+>", "", (site / "api.html").read_text())
    assert "Attach a plan to an unmodified model" in page
    assert "A classifier of which each fit is (epsilon, delta)-differentially private" in page
    assert "batch_size" in page
