"""The command line: it parses, calls and prints.

app.py    the commands
demo.py   the demo's configuration
"""

from discreet.cli.app import main

__all__ = ["main"]
