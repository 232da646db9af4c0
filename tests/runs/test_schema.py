import runpy
from pathlib import Path

from discreet import methods
from discreet.runs import config
from discreet.runs.config import documented

DOCS = Path(__file__).parents[2] / "docs" / "config.md"


def test_every_field_is_documented_here_and_in_the_docs():
    fields = list(documented())
    assert len(fields) > 40
    text = DOCS.read_text()
    for field in fields:
        assert field.description
        assert f"`{field.name}`" in text.split(f"## [{field.section}]")[1].split("\n## ")[0], field


def test_the_page_is_what_its_script_prints(capsys):
    runpy.run_path(str(DOCS.parents[1] / "benchmarks" / "config_page.py"), run_name="__main__")
    assert DOCS.read_text() == capsys.readouterr().out, "python benchmarks/config_page.py > docs/config.md"


def test_the_methods_are_those_there_are():
    assert set(config.METHODS) == set(methods.__all__) - {"dp_fedavg"}  # which is dp_sgd with a [federated] table
