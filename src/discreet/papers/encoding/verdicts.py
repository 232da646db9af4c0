"""004, what its figures say, judged: at one learning rate for all methods, as the paper has it, and at each one's own.

The paper compares "comparable noise parameters" at one learning rate that it does not name; the tutorial that it points
to has 0.15. Learning rates are constant, so trainings are read at the epoch that all of them have.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from discreet.papers.experiment import Results
from discreet.papers.tanh_filter.verdicts import at_epoch
from discreet.papers.verdicts import QUEUED, Extent, Verdict, above, points, spread_of, two_ways

SIZES = {
    "mnist": Extent(60, 60_000, 26_010),
    "cifar10": Extent(100, 50_000, 37_274, "its CIFAR-10 network is not described; the same convolutions"),
}
COMMON = 0.15
BASE, ENCODED = "DP-SGD", "Student-t, encoded, KS"


def whole(results: Results) -> Results:
    """Trainings on all examples."""
    return Results(r for r in results if r.case.get("held_out") is False)


def own_rate(results: Results, method: str) -> float | None:
    """The rate of a method that did best on held-out rows; those without such rows say nothing."""
    some = Results(r for r in results.where(method=method) if r.case.get("held_out", True))
    tried = [r for r in some.settings("learning_rate") if math.isfinite(some.where(learning_rate=r).held_out())]
    return max(tried, key=lambda rate: some.where(learning_rate=rate).held_out(), default=None)


def at_edge(results: Results, method: str) -> bool:
    """Whether that is the lowest or highest rate that was tried: a better one may lie beyond."""
    tried = results.where(method=method).settings("learning_rate")
    return own_rate(results, method) in (min(tried, default=None), max(tried, default=None))


def group(results: Results, method: str, rate: float | None) -> Results:
    """A method on all examples at a rate; below the full size those with held-out rows are all there are."""
    if rate is None:
        return Results()
    some = results.where(method=method, learning_rate=rate)
    return whole(some) if whole(results) else some


def level(*groups: Results) -> list[Results]:
    """The same trainings as they were at the last epoch that all of them have."""
    lengths = [r.measured["curve"][-1][0] for some in groups for r in some if r.measured.get("curve")]
    return [at_epoch(some, min(lengths)) for some in groups] if lengths else list(groups)


def short(results: Results, method: str, rate: float | None) -> Results:
    """Short trainings with held-out rows, for their spread."""
    return results.where(method=method, held_out=True) if rate is None else results.where(
        method=method, held_out=True, learning_rate=rate
    )  # fmt: skip


def against_dp_sgd(method: str, name: str) -> Callable[[Results], Verdict]:
    """Whether a method is above DP-SGD: at the tutorial's rate, and with a rate for each."""

    def verdict(results: Results) -> Verdict:
        rates = own_rate(results, method), own_rate(results, BASE)
        untuned = _way(results, method, COMMON, COMMON)
        tuned = _way(results, method, *rates)
        told = "each tuned" if None in rates else f"each tuned ({rates[0]:g} and {rates[1]:g})"
        edge = [m for m in (method, BASE) if rates[0] is not None and at_edge(results, m)]
        outcome = two_ways(f"{name} against DP-SGD", untuned, tuned, (name, BASE), (f"both at {COMMON:g}", told))
        if edge and outcome.word != "undecided":
            return Verdict(
                "undecided", f"{outcome.why}; the best rate of {', '.join(edge)} is at the grid's edge", outcome.arms
            )
        return outcome

    return verdict


def _way(
    results: Results, method: str, ours: float | None, base: float | None
) -> tuple[Results, Results, Sequence[Results]]:
    """Both arms at these rates, equally long, and the shorter trainings of each."""
    one, other = level(group(results, method, ours), group(results, BASE, base))
    return one, other, (short(results, method, ours), short(results, BASE, base))


def epochs_until(curve: Sequence[Sequence[float]], accuracy: float) -> float:
    """The epochs after which an accuracy is first reached; infinite where it never is.

    >>> epochs_until([[0.5, 0.7, 0.1], [1.0, 0.9, 0.2]], 0.8)
    1.0
    """
    return next((float(row[0]) for row in curve if row[1] >= accuracy), math.inf)


def sooner(results: Results) -> Verdict:
    """Figures 4 and 7: whether an accuracy that DP-SGD reaches is reached in fewer steps; untuned, and tuned."""
    told, wins, arms = [], [], []
    own = own_rate(results, ENCODED), own_rate(results, BASE)
    for how, (ours, base) in ((f"both at {COMMON:g}", (COMMON, COMMON)), ("each tuned", own)):
        groups = level(group(results, ENCODED, ours), group(results, BASE, base))
        if not all(groups):
            told.append(f"{how}: queued")
            wins.append(None)
            continue
        goal = groups[1].mean() - 0.01
        times = [sum(epochs_until(r.measured["curve"], goal) for r in some) / len(some) for some in groups]
        told.append(f"{how}: to {goal:.1%} in {times[0]:.3g} epochs, DP-SGD {times[1]:.3g}")
        wins.append(times[0] < 0.8 * times[1])
        arms += groups
    words = "; ".join(told)
    if None in wins:
        return Verdict("undecided", words, tuple(arms)) if arms else QUEUED
    word = "reproduces" if wins[1] else "holds only untuned" if wins[0] else "refuted"
    return Verdict(word, words, tuple(arms))


def other_distances(results: Results) -> Verdict:
    """Whether Kolmogorov-Smirnov's distance is the best of those tried, each at its own rate."""
    kinds = ("Gaussian, KS", "Gaussian, Wasserstein", "Gaussian, Cramér-von Mises", "Gaussian, Kuiper")
    by_kind = {kind: short(results, kind, own_rate(results, kind)) for kind in kinds}
    if not all(by_kind.values()):
        return QUEUED
    best = max(kinds, key=lambda kind: by_kind[kind].mean())
    spread = spread_of(*by_kind.values())
    words = ", ".join(f"{kind.partition(', ')[2]} {some.mean():.1%}" for kind, some in by_kind.items())
    off = by_kind[best].mean() - by_kind[kinds[0]].mean()
    arms = tuple(by_kind.values())
    if math.isnan(spread) or off <= 2 * math.sqrt(2) * spread:
        return Verdict("undecided", f"{words}: within the seeds' spread", arms)
    return Verdict("refuted", words, arms)


# --- figures 2 and 3 -------------------------------------------------------------------------------------------------


def at_budget(data: str, budget: float, later: float, accuracy: float) -> Callable[[Results], Verdict]:
    """Whether the method reaches an accuracy at a budget for which DP-SGD is said to need a `later` one."""

    def verdict(results: Results) -> Verdict:
        here = results.where(data=data)
        base = [_best(here, BASE, e) for e in (budget, later)]
        ours = _best(here, ENCODED, budget)
        if not base[0]:
            return QUEUED
        told = [f"DP-SGD {some.mean():.1%} at ε = {e:g}" for some, e in zip(base, (budget, later), strict=True) if some]
        if ours:
            told.append(f"encoded Student-t {ours.mean():.1%} at ε = {budget:g}")
        words = f"{'; '.join(told)} (best rate tried, by test accuracy: generous to both)"
        if base[0].mean() >= accuracy:
            return Verdict("refuted", f"{words}: DP-SGD has it at the smaller ε already", (base[0],))
        if not ours:
            return Verdict("undecided", f"{words}; the encoded arm is queued", (base[0],))
        wins = ours.mean() >= accuracy - 0.005 and ours.mean() > base[0].mean() + 0.005
        return Verdict("reproduces" if wins else "refuted", words, (ours, base[0]))

    return verdict


def _best(results: Results, method: str, budget: float) -> Results:
    some = whole(results.where(method=method, budget=budget))
    groups = [some.where(learning_rate=rate) for rate in some.settings("learning_rate")]
    return max(groups, key=lambda g: g.mean(), default=Results())


def dearer_points(results: Results) -> Verdict:
    """Whether each further point of accuracy costs more epsilon."""
    mnist = results.where(data="mnist") if whole(results) else results
    budgets = mnist.settings("budget")
    groups = [_best(mnist, BASE, b) if whole(results) else mnist.where(method=BASE, budget=b) for b in budgets]
    rows = sorted((r.mean("epsilon"), r.mean()) for r in groups if r)
    if len(rows) < 3:
        return QUEUED
    prices = [(b[0] - a[0]) / (b[1] - a[1]) if b[1] > a[1] else math.inf for a, b in pairwise(rows)]
    told = ", ".join(f"{a:.1%} at ε = {e:.2f}" for e, a in rows)
    return Verdict("reproduces" if prices[-1] > prices[0] else "refuted", f"DP-SGD reaches {told}", tuple(groups))


# --- figures 1 and 6, and all noises ---------------------------------------------------------------------------------


def gaussian_gradients(results: Results) -> Verdict:
    """Whether gradients look like a Gaussian's values."""
    distances, excess = results.values("distance"), results.values("kurtosis")
    if not distances or not excess:
        return QUEUED
    words = f"distance from the fitted Gaussian {min(distances):.2f} to {max(distances):.2f}, excess kurtosis "
    words += f"{min(excess):.0f} to {max(excess):.0f} (a Gaussian: 0); privacy does not depend on it"
    arms = tuple(results.where(data=data) for data in results.settings("data"))
    return Verdict("reproduces" if max(distances) < 0.05 else "refuted", words, arms)


def least_noise(results: Results) -> Verdict:
    """Whether Student-t noise is the smallest at equal budget."""
    student = results.where(law="Student-t")
    l1, l2 = student.values("l1_ratio"), student.values("l2_ratio")
    if not l1 or not l2:
        return QUEUED
    one, two = 100 * (sum(l1) / len(l1) - 1), 100 * (sum(l2) / len(l2) - 1)
    words = f"against Gaussian noise at equal budget {one:+.2f} % in l1, {two:+.1f} % in l2"
    others = [r for r in results if r.case["law"] != "Student-t" and math.isfinite(float(r.measured["l1_ratio"]))]
    smaller = any(float(r.measured["l1_ratio"]) < min(l1) for r in others)
    return Verdict("refuted" if smaller or one > -1 else "reproduces", f"{words}: no margin that matters", (student,))


def student_best(results: Results) -> Verdict:
    """Whether Student-t noise trains best of all, denoised as the paper does it."""

    def chosen(law: str) -> Results:
        return short_or_all(results, f"{law} | KS")

    by_law = {law: chosen(law) for law in results.settings("law") if chosen(law)}
    if not {"Student-t", "Gaussian"} <= set(by_law):
        return QUEUED
    gain = by_law["Student-t"].mean() - by_law["Gaussian"].mean()
    best = max(by_law, key=lambda law: by_law[law].mean())
    words = f"{points(gain)} against Gaussian at equal proven ε; best is {best}"
    higher = above(by_law["Student-t"], by_law["Gaussian"])
    arms = (by_law["Student-t"], by_law["Gaussian"])
    if higher is None:
        return Verdict("undecided", f"{words}: within the seeds' spread", arms)
    return Verdict("reproduces" if higher else "refuted", words, arms)


def short_or_all(results: Results, method: str) -> Results:
    """A method at its own rate, whatever was trained on."""
    rate = own_rate(results, method)
    return Results() if rate is None else results.where(method=method, learning_rate=rate)
