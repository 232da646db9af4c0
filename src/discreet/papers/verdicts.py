"""Verdicts: four words, what they rest on, and the rule that nothing much smaller than the paper's own size decides.

    reproduces           in the paper's form, at its own settings or at the best ones for each method
    holds only untuned   at one learning rate for all; not once each method has the rate that suits it
    refuted              not so, at the paper's size, by more than the seeds' spread
    undecided            the network or the data is smaller than the paper's, the training is shorter than half of its
                         epochs, the difference lies within the seeds' spread, or nothing has been run yet

One training of full length counts, with the spread of three shorter ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from discreet.papers.experiment import Results

Word = Literal["reproduces", "holds only untuned", "refuted", "undecided"]
LEAST = 0.5  # of the paper's epochs
SEEDS = 3  # for a spread


@dataclass(frozen=True)
class Extent:
    """How large the paper's own trainings are; `note` says where a figure is from that the paper does not have."""

    epochs: float | None = None
    examples: int | None = None
    parameters: int | None = None
    note: str = ""

    def __str__(self) -> str:
        told = [] if self.epochs is None else [f"{self.epochs:,.4g} epochs"]
        sizes = ((self.examples, "examples"), (self.parameters, "parameters"))
        told += [f"{value:,} {unit}" for value, unit in sizes if value is not None]
        return ", ".join(told) + (f" ({self.note})" if self.note else "")


@dataclass(frozen=True)
class Verdict:
    """One of the four words, why, and the arms that it rests on: those of one method each."""

    word: Word
    why: str
    arms: "tuple[Results, ...]" = ()

    def __str__(self) -> str:
        return f"{self.word}: {self.why}" if self.why else self.word


QUEUED = Verdict("undecided", "not run yet")


def settled(verdict: Verdict, theirs: Extent | None) -> Verdict:
    """The verdict, or "undecided" where what it rests on is too small; without a size of theirs nothing is trained."""
    if theirs is None or verdict.word == "undecided":
        return verdict
    lacking = next((words for arm in verdict.arms for words in [too_small(arm, theirs)] if words), "")
    if not verdict.arms or lacking:
        leaning = {"reproduces": "so far as the paper says", "refuted": "so far not as the paper says"}
        so_far = leaning.get(verdict.word, "so far only untuned")
        return Verdict("undecided", f"{lacking or 'nothing to rest on'}; {so_far}: {verdict.why}", verdict.arms)
    return verdict


def too_small(arm: "Results", theirs: Extent) -> str:
    """What even the largest training of an arm lacks, in words; nothing where one is large enough."""
    best = ""
    for result in arm:
        sizes = [result.measured.get(name) for name in ("epochs", "examples", "parameters")]
        if any(value is None for value in sizes):
            best = best or "run at a smaller size"
            continue
        epochs, examples, parameters = (float(value) for value in sizes if value is not None)
        if theirs.parameters is not None and parameters < theirs.parameters:
            best = f"{parameters:,.0f} of {theirs.parameters:,} parameters"
        elif theirs.examples is not None and examples < theirs.examples:
            best = f"{examples:,.0f} of {theirs.examples:,} examples"
        elif theirs.epochs is not None and epochs < LEAST * theirs.epochs - 1e-3:
            best = f"{epochs:.3g} of {theirs.epochs:g} epochs"
        else:
            return ""
    return best or "not run yet"


def our_size(arms: "Sequence[Results]") -> str:
    """Epochs, examples, parameters and seeds of what a verdict rests on."""
    every = [r for arm in arms for r in arm]
    if not every:
        return ""
    told = []
    for name, unit in (("epochs", "epochs"), ("examples", "examples"), ("parameters", "parameters")):
        values = sorted({round(float(r.measured[name]), 2) for r in every if r.measured.get(name) is not None})
        if values:
            ends = [f"{v:,.4g}" if name == "epochs" else f"{v:,.0f}" for v in (values[0], values[-1])]
            told.append(f"{ends[0] if len(values) == 1 else ' to '.join(ends)} {unit}")
    seeds = sorted({len({r.seed for r in arm}) for arm in arms if arm})
    told.append(f"{seeds[0]}{'' if len(seeds) == 1 else f' to {seeds[-1]}'} seed{'' if seeds[-1] == 1 else 's'}")
    return ", ".join(told)


def spread_of(*groups: "Results", name: str = "accuracy") -> float:
    """The largest deviation over three seeds or more of any group; nan where none has so many."""
    deviations = [group.deviation(name) for group in groups if len(group.values(name)) >= SEEDS]
    return max((d for d in deviations if math.isfinite(d)), default=math.nan)


def apart(ours: "Results", base: "Results", *shorter: "Results", name: str = "accuracy") -> bool | None:
    """Whether two means differ by more than two standard errors of the seeds' spread; None where no spread is known.

    The spread is that of either group or of `shorter` trainings, whichever is largest.
    """
    spread = spread_of(ours, base, *shorter, name=name)
    counts = [len(group.values(name)) for group in (ours, base)]
    if math.isnan(spread) or not all(counts):
        return None
    error = spread * math.sqrt(sum(1 / count for count in counts))
    return abs(ours.mean(name) - base.mean(name)) > 2 * error


def above(ours: "Results", base: "Results", *shorter: "Results", name: str = "accuracy") -> bool | None:
    """Whether a mean lies above another by more than the spread; None where it is not apart, or no spread is known."""
    if apart(ours, base, *shorter, name=name) is not True:
        return None
    return ours.mean(name) > base.mean(name)


def reached(ours: "Results", theirs: float, *shorter: "Results", name: str = "accuracy") -> Verdict:
    """A printed figure beside ours: reproduced within a point or two deviations, refuted where it lies further off."""
    mean = ours.mean(name)
    if math.isnan(mean):
        return QUEUED
    spread = spread_of(ours, *shorter, name=name)
    off = mean - theirs
    within = max(0.01, 0.0 if math.isnan(spread) else 2 * spread)
    if abs(off) <= within:
        return Verdict("reproduces", f"{mean:.1%}{'' if len(ours) > 1 else ', one seed'}", (ours,))
    words = f"ours is {abs(off) * 100:.1f} points {'higher' if off > 0 else 'lower'}"
    if math.isnan(spread):
        return Verdict("undecided", f"{words}, and there are no three seeds to tell a spread by", (ours,))
    return Verdict("refuted", words, (ours,))


def points(share: float) -> str:
    """A difference of accuracies in words, with its sign.

    >>> points(-0.0123)
    '-1.2 points'
    """
    return f"{100 * share:+.1f} points"


def two_ways(
    what: str,
    untuned: "tuple[Results, Results, Sequence[Results]]",
    tuned: "tuple[Results, Results, Sequence[Results]]",
    names: tuple[str, str],
    where: tuple[str, str],
) -> Verdict:
    """Whether one method is above another: at one rate for both, and at the rate chosen for each on held-out rows.

    Each way is (ours, base, shorter trainings that show the spread). `names` are the two methods, `where` says which
    rates. The paper compares at one rate, so both ways must be known for a firm word.
    """
    told, outcomes = [], []
    for (ours, base, shorter), how in zip((untuned, tuned), where, strict=True):
        if not ours or not base:
            outcomes.append("missing")
            told.append(f"{how}: queued")
            continue
        gain = ours.mean() - base.mean()
        outcomes.append({True: "above", False: "below", None: "level"}[above(ours, base, *shorter)])
        note = "" if outcomes[-1] != "level" else (
            " (within the seeds' spread)" if apart(ours, base, *shorter) is False else " (one seed, no spread known)"
        )  # fmt: skip
        told.append(f"{how}: {names[0]} {ours.mean():.1%}, {names[1]} {base.mean():.1%}, {points(gain)}{note}")
    arms = tuple(arm for way in (untuned, tuned) for arm in way[:2] if arm)
    unknown = "no spread known" in " ".join(told)
    words = f"{what}; {'; '.join(told)}"
    if "missing" in outcomes or unknown:
        return Verdict("undecided", words, arms)
    if outcomes[1] == "above":
        return Verdict("reproduces", words, arms)
    if outcomes[0] == "above":
        return Verdict("holds only untuned", words, arms)
    if outcomes[1] == "level" and outcomes[0] == "level":
        return Verdict("undecided", words, arms)
    return Verdict("refuted", words, arms)


__all__ = [
    "QUEUED",
    "Extent",
    "Verdict",
    "above",
    "apart",
    "our_size",
    "points",
    "reached",
    "settled",
    "spread_of",
    "too_small",
    "two_ways",
]
