"""What a guarantee rests on by what the ledger's lines say of how releases were made."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from discreet.accounting.guarantee import Condition

STATUSES = ("proven", "checked", "assumed", "broken")

SEEDED = Condition(
    "noise and sampling came from a fixed seed, so whoever knows it can take the noise off again", "broken"
)


ALONE = Condition(
    "this run is counted alone, as it asked to be: what others have spent of the same data is not known to its ledger, "
    "and adds to this",
    "assumed",
)


def together(ranks: int, shares: bool) -> tuple[Condition, ...]:
    """What a guarantee rests on where so many processes trained together, with noise in shares or not.

    Args:
        ranks: how many processes there are.
        shares: whether each draws a share of the noise.
    """
    if ranks == 1:
        return ()
    who = f"{ranks} processes trained together"
    if shares:
        words = (
            f"{who}, each of which added Gaussian noise with 1/{ranks} of the variance to its sum before it left; this "
            "is for whoever sees what is released and knows none of these shares. For ranks that pool what they know "
            "(shares, the draw, what passes between ranks) only another rank's share hides that rank's examples: the "
            f"noise's multiplier over the square root of {ranks}, and no sampling"
        )
    else:
        words = (
            f"{who}; rank 0 drew the noise (of a sharded model, each its own shard's), and all of them and the network "
            "between them are trusted: they see the draw and sums before the noise"
        )
    return (Condition(words, "assumed"),)


_ROWS: dict[str, Condition] = {
    "all": Condition(
        "all ranks had the same {unit}s in the same order: keyed digests of all rows were equal when they were first "
        "used, and those of 256 secret rows whenever a later loop began",
        "checked",
    ),
    "some": Condition(
        "all ranks had the same {unit}s in the same order: keyed digests of 256 rows, chosen in secret (of all rows "
        "where there are fewer), were equal whenever a loop began",
        "checked",
    ),
    "parts": Condition("each {unit} is in the part of the data of one rank alone (sharded=True)", "assumed"),
    "none": Condition(
        "all ranks had the same {unit}s in the same order, which was not compared, or could not be (rows that differ "
        "when they are read twice, or that hold what cannot be looked into)",
        "assumed",
    ),
}


def same_rows(ranks: int, kinds: AbstractSet[str], unit: str) -> tuple[Condition, ...]:
    """What is known of the rows that ranks drew from.

    Args:
        ranks: how many processes there are.
        kinds: how far their rows were compared (data_digest.py).
        unit: what the data holds one of for each index.
    """
    if ranks == 1:
        return ()
    found = (kinds & _ROWS.keys()) or {"none"}
    weak = [kind for kind in ("parts", "none") if kind in found]
    shown = weak or (["some"] if "some" in found else ["all"])
    return tuple(replace(_ROWS[kind], text=_ROWS[kind].text.format(unit=unit)) for kind in shown)


def at_most(unit: str, rows: int, what: str) -> Condition:
    """That no unit has more rows than were declared in a query that was counted for it."""
    return Condition(f"no {unit} has more than {rows:,} rows in what was asked beside the training: {what}", "assumed")


def recorded(conditions: Sequence[Condition]) -> list[list[str]]:
    """Conditions as a line of the ledger holds them."""
    return [[c.text, c.status] for c in conditions]


def read_conditions(values: Any) -> tuple[Condition, ...]:
    """The conditions that a line holds; a ValueError if these are none."""
    found = []
    for text, status in values:
        if not isinstance(text, str) or status not in STATUSES:
            raise ValueError(f"{[text, status]!r} is no condition")
        found.append(Condition(text, status))
    return tuple(found)
