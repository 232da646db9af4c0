"""Old module paths lead to the same modules, for one release; tried in a process of its own."""

import subprocess
import sys

SAME = """
from importlib import import_module
from discreet import _moved
for old, new in _moved.MOVED.items():
    if " " not in new and old not in ("lightning", "transformers", "federated.flower"):
        assert import_module("discreet." + old) is import_module("discreet." + new), old
        assert import_module("discreet." + new).__spec__.name == "discreet." + new
"""
RENAMED = """
from discreet.contracts import Blocks, Phase
from discreet.noise.source import Root
assert [c.__name__ for c in (Blocks, Phase, Root)] == ["Blocks", "Event", "KeyTree"]
"""


def test_old_paths_are_the_same_modules_and_have_their_old_names():
    subprocess.run([sys.executable, "-c", SAME + RENAMED], check=True)
