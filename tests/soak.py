"""How much a test of random cases does: some of them in `make test`, all that it is worth in `make soak`."""

import os

SOAK = bool(os.environ.get("DISCREET_SOAK"))


def some(few, all_of_them):
    """So many in `make test`, and so many in `make soak`; or those chosen of a list, and the list."""
    return all_of_them if SOAK else few
