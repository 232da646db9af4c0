"""Old module paths lead to the same modules, for one release."""

from importlib import import_module
from pathlib import Path

import discreet
from discreet import _moved

SOURCE = Path(discreet.__file__).parent
OPTIONAL = ("lightning", "transformers", "federated.flower")


def test_old_paths_are_the_same_modules():
    for old, new in _moved.MOVED.items():
        file = SOURCE.joinpath(*new.split(".")).with_suffix(".py")
        if " " not in new and file.is_file() and old not in OPTIONAL:
            assert import_module(f"discreet.{old}") is import_module(f"discreet.{new}")
            assert import_module(f"discreet.{new}").__spec__.name == f"discreet.{new}"


def test_a_module_that_became_two_has_the_names_of_both():
    from discreet.contracts import Blocks, Phase

    assert (Blocks.__name__, Phase.__name__) == ("Blocks", "Event")
