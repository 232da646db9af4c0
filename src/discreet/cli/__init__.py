"""The command line: it parses, calls and prints. A command is a file that has its name.

app.py        the commands together, and exit codes
options.py    flags from the schema of a run's file
running.py    a run that is begun, shown, watched, reported
printing.py   tables and JSON
exits.py      how a command ends: exit codes, and one line of what is wrong

To add a command: a file of its name, and its name in app.py.
"""

from discreet.cli.app import main

__all__ = ["main"]
