"""The command line: it parses, calls and prints. A command is a file that has its name.

app.py        the commands together, and exit codes
options.py    flags from the schema of a run's file
running.py    a run that is begun, shown, watched, reported
printing.py   tables and JSON
"""

from discreet.cli.app import main

__all__ = ["main"]
