"""Runs a notebook of examples/notebooks from top to bottom in this process, as Jupyter would."""

import ast
import json
import shlex
from pathlib import Path

from typer.testing import CliRunner

from discreet.cli.app import app

NOTEBOOKS = Path(__file__).parent.parent / "examples" / "notebooks"


def cells(name, kind):
    notebook = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text())
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


def run(name):
    """What the names of a notebook mean in the end; a command that fails is an error."""
    names = {"__name__": "__main__", "_called": called}
    for number, source in enumerate(cells(name, "code")):
        lines = [f"_called({line[1:]!r})" if line.startswith("!") else line for line in source.splitlines()]
        exec(compile(ast.parse("\n".join(lines)), f"{name}, cell {number}", "exec"), names)
    return names


def called(line):
    """A line that a notebook gives to the shell: a command of discreet."""
    program, *arguments = shlex.split(line)
    assert program == "discreet"
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
