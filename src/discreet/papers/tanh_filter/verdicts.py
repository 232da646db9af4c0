"""000, what figures 2 to 5 say of the filter, judged; learning rates are constant, so trainings are read at one epoch.

The paper names neither its epochs nor its learning rate nor its network. The TensorFlow Privacy tutorial that has Table
I's other values stands in: 60 epochs, learning rate 0.15, two convolutions.
"""

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise

from discreet.papers.experiment import Result, Results
from discreet.papers.verdicts import QUEUED, Extent, Verdict, above, points, spread_of, two_ways

SIZES = {
    "mnist": Extent(60, 60_000, 26_010, "the tutorial's; the paper names none"),
    "cifar10": Extent(60, 50_000, 37_274, "the tutorial's; the paper names none"),
}
RATE, LENGTH = 0.15, 30.0
RANGES, ACTIVE = (1.0, 2.0, 4.0), (1.0, 2.0, 4.0, 8.0)


def swing(accuracies: Sequence[float]) -> float:
    """By how much the accuracy falls from one evaluation to the next, on average over the second half of a training.

    >>> swing([0.0, 0.5, 0.9, 0.8, 0.9])
    0.05
    """
    late = accuracies[len(accuracies) // 2 :]
    return round(statistics.fmean(max(0.0, a - b) for a, b in pairwise(late)), 6) if len(late) > 1 else math.nan


def trend(accuracies: Sequence[float]) -> float:
    """How much is gained over the last third of a training: the mean of its second half less that of its first.

    >>> trend([0.1, 0.5, 0.6, 0.7, 0.80, 0.80, 0.84, 0.84, 0.8, 0.8, 0.9, 0.9])
    0.1
    """
    late = accuracies[-max(2, len(accuracies) // 3) :]
    middle = len(late) // 2
    return round(statistics.fmean(late[middle:]) - statistics.fmean(late[:middle]), 6)


def at_epoch(results: Results, epochs: float) -> Results:
    """The same trainings as they were after so many epochs; shorter ones are left out."""
    cut = []
    for r in results:
        curve = [row for row in r.measured.get("curve", ()) if row[0] <= epochs + 0.01]
        if not curve or r.measured["curve"][-1][0] < epochs - 0.51:
            continue
        course = [float(row[1]) for row in curve]
        seen = {"accuracy": course[-1], "epochs": curve[-1][0], "curve": curve, "swing": swing(course)}
        seen["trend"] = trend(course) if len(course) > 5 else math.nan
        cut.append(Result(r.case, r.seed, {**r.measured, **seen}, r.seconds))
    return Results(cut)


def on_all(results: Results) -> Results:
    """Trainings on all examples, as they were after the length that all have."""
    long = Results(r for r in results if not r.case.get("held_out"))
    if not long:
        return long
    return at_epoch(long, min(LENGTH, min(r.measured["curve"][-1][0] for r in long)))


def held(results: Results, method: str, rate: float | None = None) -> Results:
    """Short trainings with held-out rows of a method: for the choice of rates, and for the spread."""
    some = results.where(method=method, held_out=True)
    return some if rate is None else some.where(learning_rate=rate)


def own_rate(results: Results, method: str) -> float | None:
    """The rate of a method that did best on held-out rows."""
    some = held(results, method)
    tried = some.settings("learning_rate")
    return max(tried, key=lambda rate: some.where(learning_rate=rate).held_out(), default=None)


def of(results: Results, method: str, *, rate: float = RATE, c: float = 1.0, k: float = 1.0) -> Results:
    """A method on all examples."""
    some = on_all(results).where(method=method, learning_rate=rate)
    return some if method == "dp-sgd" else some.where(c=c, k=k)


def improves(results: Results, method: str = "paper", name: str = "the filter") -> Verdict:
    """Whether a filter is above DP-SGD, at one rate and at the rate chosen for each."""
    ways = []
    rates = [own_rate(results, m) for m in (method, "dp-sgd")]
    for ours, base in ((RATE, RATE), rates):
        if ours is None or base is None:
            ways.append((Results(), Results(), ()))
            continue
        shorter = [held(results, m, r) for m, r in ((method, ours), ("dp-sgd", base))]
        ways.append((of(results, method, rate=ours), of(results, "dp-sgd", rate=base), shorter))
    told = "each tuned" if None in rates else f"each tuned ({rates[0]:g} and {rates[1]:g})"
    where = (f"both at learning rate {RATE:g}", told)
    return two_ways(f"{name} against DP-SGD", ways[0], ways[1], (name, "DP-SGD"), where)


def radial_improves(results: Results) -> Verdict:
    """The same of the sound form, which has DP-SGD's epsilon."""
    return improves(results, "radial", "radial tanh")


def no_effect_of_range(results: Results) -> Verdict:
    """Whether c makes no difference."""
    by_range = [of(results, "paper", c=c) for c in RANGES]
    if not all(by_range):
        return QUEUED
    means = [some.mean() for some in by_range]
    spread = spread_of(*by_range, held(results, "paper", RATE))
    told = ", ".join(f"{m:.1%} at c = {c:g}" for c, m in zip(RANGES, means, strict=True))
    words = f"{told}; c multiplies the steps, and what is unproven"
    if math.isnan(spread):
        return Verdict("undecided", f"{words}; no three seeds to tell a spread by", tuple(by_range))
    same = max(means) - min(means) <= max(0.01, 2 * math.sqrt(2) * spread)
    return Verdict("reproduces" if same else "refuted", words, tuple(by_range))


def less_stable(results: Results) -> Verdict:
    """Whether the filter swings more than DP-SGD at the same rate."""
    ours, base = of(results, "paper"), of(results, "dp-sgd")
    if not ours or not base:
        return QUEUED
    words = (
        f"from epoch to epoch accuracy falls by {100 * ours.mean('swing'):.2f} points on average over the second half, "
        f"DP-SGD's by {100 * base.mean('swing'):.2f}"
    )
    more, much = ours.mean("swing") > base.mean("swing"), abs(ours.mean("swing") - base.mean("swing")) > 0.001
    if not much:
        return Verdict("undecided", f"{words}: no difference that can be seen", (ours, base))
    return Verdict("reproduces" if more else "refuted", words, (ours, base))


def stabler_with_k(results: Results) -> Verdict:
    """Whether a larger k is more stable and less accurate."""
    by_k = [of(results, "paper", k=k) for k in ACTIVE]
    if not all(by_k):
        return QUEUED
    first, last = by_k[0], by_k[-1]
    stabler = last.mean("swing") < first.mean("swing") - 0.001
    lower = above(first, last, held(results, "paper", RATE))
    words = (
        f"from k = 1 to {ACTIVE[-1]:g} falls between epochs go from {100 * first.mean('swing'):.2f} to "
        f"{100 * last.mean('swing'):.2f} points, accuracy from {first.mean():.1%} to {last.mean():.1%}; "
        "k divides the steps"
    )
    if lower is None:
        return Verdict("undecided", words, (first, last))
    return Verdict("reproduces" if stabler and lower else "refuted", words, (first, last))


def keeps_rising(results: Results) -> Verdict:
    """Whether accuracy saturates at k = 1 and keeps its ascending trend at larger k."""
    first, others = of(results, "paper"), [of(results, "paper", k=k) for k in ACTIVE[1:]]
    if not first or not all(others):
        return QUEUED
    gains = [some.mean("trend") for some in (first, *others)]
    told = ", ".join(f"{points(g)} at k = {k:g}" for k, g in zip(ACTIVE, gains, strict=True))
    words = f"gained over the last third of {first[0].measured['epochs']:.0f} epochs: {told}"
    holds = gains[0] < 0.005 and max(gains[1:]) > gains[0] + 0.002
    return Verdict("reproduces" if holds else "refuted", words, (first, *others))


def other_reading(results: Results) -> str:
    """What k tanh(g / k) does, which keeps the slope at zero."""
    told = [
        f"{of(results, 'paper', c=k, k=k).mean():.1%} at k = {k:g}"
        for k in ACTIVE[1:]
        if of(results, "paper", c=k, k=k)
    ]
    return f"Read as k tanh(g / k), which leaves small gradients as they are: {', '.join(told)}." if told else ""


def near_one(results: Results) -> Verdict:
    """Whether no filtered gradient is much longer than 1."""
    ours = of(results, "paper")
    norms = ours.values("largest")
    if not norms:
        return QUEUED
    words = f"the longest of 2,000 filtered gradients has norm {max(norms):.1f} at the end of the training"
    return Verdict("reproduces" if max(norms) <= 1.5 else "refuted", words, (ours,))
