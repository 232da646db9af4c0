"""003, what its experiments share: which trainings are compared, and how large the paper's are."""

from collections.abc import Callable
from typing import Any

from discreet.papers.experiment import Case, Result, Results
from discreet.papers.three_tools.plans import NORM, PLANNED, SAID
from discreet.papers.verdicts import Extent, Verdict, reached
from discreet.report import Axis

ACCURACY = Axis("accuracy on the test set", "share", low=0.0)
SIZE = Extent(PLANNED, 50_000, 1_387_786)


def proven(results: Results) -> str:
    """What is said and what is proven, in a sentence."""
    parts = [
        f"{words} {max(results.where(form=form).all('epsilon')):.4g}"
        for form, words in (("paper", "as published up to"), ("sound", "in the sound form"))
        if results.where(form=form).all("epsilon")
    ]
    return f"Epsilon is said to be {SAID:g}; proven is {' and '.join(parts)}." if parts else ""


def longest_of_each(results: Results) -> Results:
    """Of every case the longest training: what is set beside the paper's figures."""
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for r in results:
        if not r.case.get("held_out") and r.case.get("norm", NORM) == NORM:
            groups.setdefault(tuple(sorted((k, v) for k, v in r.case.items() if k != "epochs")), []).append(r)
    return Results(r for group in groups.values() for r in longest(Results(group)))


def longest(results: Results) -> Results:
    """Those of the largest number of epochs, without those that are tested on held-out images."""
    some = Results(r for r in results if not r.case.get("held_out"))
    most = max((r.case["epochs"] for r in some), default=0)
    return Results(r for r in some if r.case["epochs"] == most)


def shorter(results: Results) -> tuple[Results, ...]:
    """The others, for their spread over seeds, grouped by length."""
    some = Results(r for r in results if not r.case.get("held_out"))
    lengths = sorted({r.case["epochs"] for r in some})[:-1]
    return tuple(some.where(epochs=epochs) for epochs in lengths)


def compared(theirs: float, fields: Case) -> Callable[[Results], Verdict]:
    """A figure of theirs beside ours: the longest training, with the spread of shorter ones."""

    def verdict(results: Results) -> Verdict:
        ours = results.where(**fields)
        return reached(longest(ours), theirs, *shorter(ours))

    return verdict


def said(case: Case) -> dict[str, float | None]:
    """The epsilon that the paper says of a case, if it is in the paper's form."""
    return {"claimed": SAID if case.get("form") == "paper" else None}
