"""Old module paths lead to the same modules."""

from importlib import import_module


def test_old_paths_are_the_same_modules():
    for old, new in _moved.MOVED.items():
        if (
            " " not in new
            and SOURCE.joinpath(*new.split(".")).with_suffix(".py").is_file()
            and old not in ("lightning", "transformers", "federated.flower")
        ):
            assert import_module(f"discreet.{old}") is import_module(f"discreet.{new}")
            assert import_module(f"discreet.{new}").__spec__.name == f"discreet.{new}"
    from discreet.contracts import Blocks, Phase

    assert (Blocks.__name__, Phase.__name__) == ("Blocks", "Event")
