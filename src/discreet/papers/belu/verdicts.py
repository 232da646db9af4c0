"""002, what table 1 and figures 2 to 4 say, judged: at every common learning rate, and at the rate chosen for each row.

The paper names no learning rate. A row's own rate is that with the best average accuracy on held-out rows.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from discreet.accounting.guarantee import round_up
from discreet.papers.experiment import Case, Result, Results
from discreet.papers.verdicts import QUEUED, Extent, Verdict, above, reached, spread_of

SIZE = Extent(10, 60_000, 25_450, "33,130 parameters with padded pixels, which are zero")
RATE = 0.1  # the common rate of the table
ROW = ("form", "activation", "norm", "beta")
_BELU: Case = {"form": "paper", "activation": "belu"}
_RELU: Case = {"form": "clipped", "activation": "relu"}
_TANH: Case = {"form": "paper", "activation": "tanh"}
_ANSWERS = {True: "yes", False: "no", None: "unclear"}
Rows = Mapping[float, Results]  # by beta or clipping norm
Found = tuple[bool | None, str, tuple[Results, ...]]  # the answer, in words, and what it is judged by


def row_of(result: Result) -> tuple[Any, ...]:
    """Which row of the table a training is of."""
    return tuple(result.case.get(name) for name in ROW)


def on_all(results: Results) -> Results:
    """Trainings on all examples."""
    return Results(r for r in results if not r.case.get("held_out"))


def at_rate(results: Results, rate: float) -> Results:
    """Trainings on all examples at a common rate; those without a rate of their own have 0.1."""
    return Results(r for r in on_all(results) if r.case.get("rate", RATE) == rate)


def rates(results: Results) -> list[float]:
    """Common rates at which something was trained on all examples."""
    return sorted({r.case.get("rate", RATE) for r in on_all(results)})


def own_rates(results: Results) -> dict[tuple[Any, ...], float]:
    """The rate of each row that is best on held-out rows."""
    held = Results(r for r in results if r.case.get("held_out"))
    best: dict[tuple[Any, ...], tuple[float, float]] = {}
    for r in held:
        value = (float(r.measured.get("validation") or -math.inf), float(r.case["rate"]))
        best[row_of(r)] = max(best.get(row_of(r), value), value)
    return {row: rate for row, (_, rate) in best.items()}


def tuned(results: Results) -> Results:
    """Each row at its own rate, as far as that has been run on all examples."""
    chosen = own_rates(results)
    return Results(r for r in on_all(results) if chosen.get(row_of(r)) == r.case.get("rate"))


def missing(results: Results) -> list[str]:
    """Rows whose own rate has not been run on all examples."""
    there = {row_of(r) for r in tuned(results)}
    return [f"{' '.join(str(v) for v in row if v is not None)} at {rate:g}" for row, rate in own_rates(results).items()
            if row not in there]  # fmt: skip


def held_out(results: Results, row: Results) -> float:
    """What a row has on held-out rows at its rate; without any, its average on the test set."""
    case = row[0].case
    same = Results(r for r in results if r.case.get("held_out") and row_of(r) == row_of(row[0]))
    accuracy = same.where(rate=case.get("rate", RATE)).mean("validation")
    return row.mean("average") if math.isnan(accuracy) else accuracy


def at_edge(results: Results) -> list[str]:
    """Rows whose own rate is the lowest or highest that was tried with held-out rows: a better one may lie beyond."""
    held = Results(r for r in results if r.case.get("held_out"))
    edges = []
    for row, rate in own_rates(results).items():
        tried = {float(r.case["rate"]) for r in held if row_of(r) == row}
        if len(tried) < 3 or rate in (min(tried), max(tried)):
            edges.append(f"{' '.join(str(v) for v in row if v is not None)} ({rate:g})")
    return edges


def belu_by_beta(results: Results) -> Rows:
    """BELU as published."""
    belu = results.where(**_BELU)
    return {float(b): belu.where(beta=b) for b in sorted(belu.settings("beta"))}


def relu_by_norm(results: Results) -> Rows:
    """ReLU, clipped."""
    relu = results.where(**_RELU)
    return {float(c): relu.where(norm=c) for c in sorted(relu.settings("norm"))}


def judge(results: Results, holds: Callable[[Results], tuple[bool | None, str, tuple[Results, ...]]]) -> Verdict:
    """A claim at every common rate and tuned: `holds` says yes, no, or None for nothing known, with words and arms."""
    told, arms, yes, decided = [], [], False, False
    for rate in rates(results):
        answer, words, rest = holds(at_rate(results, rate))
        if words:
            told.append(f"at rate {rate:g} {_ANSWERS[answer]} ({words})")
        yes, decided = yes or bool(answer), decided or answer is not None
        arms += rest
    best, words, rest = holds(tuned(results))
    if best is None or missing(results):
        told.append(f"each at its own rate {f'unclear ({words})' if words else 'queued'}")
        return Verdict("undecided", "; ".join(told), tuple(arms)) if told and arms else QUEUED
    told.append(f"each at its own rate {'yes' if best else 'no'} ({words})")
    if edge := at_edge(results):
        told.append(f"but the rate of {', '.join(edge)} is at the edge of the grid")
        return Verdict("undecided", "; ".join(told), (*arms, *rest))
    word = "reproduces" if best else "holds only untuned" if yes else "refuted"
    return Verdict(word, "; ".join(told), (*arms, *rest))


def belu_is_best(results: Results) -> Verdict:
    """Figure 2: BELU is above tanh and above clipped ReLU, each with its best beta or norm."""

    def holds(some: Results) -> Found:
        belu, relu, tanh = belu_by_beta(some), relu_by_norm(some), some.where(**_TANH)
        if not belu or not relu or not tanh:
            return None, "", ()
        beta, norm = (max(rows, key=lambda at: held_out(results, rows[at])) for rows in (belu, relu))
        ours, others = belu[beta], (tanh, relu[norm])
        wins = [above(ours, other, name="average") for other in others]
        words = (
            f"BELU β = {beta:g} {ours.mean('average'):.1%}, tanh {tanh.mean('average'):.1%}, "
            f"ReLU c = {norm:g} {relu[norm].mean('average'):.1%}"
        )
        answer = None if any(w is None for w in wins) and not any(w is False for w in wins) else all(wins)
        return answer, words, (ours, *others)

    return judge(results, holds)


def peak_inside(results: Results) -> Verdict:
    """Figure 3: the average rises with beta up to 5 and falls after."""

    def holds(rows: Rows) -> Found:
        best = max(rows, key=lambda beta: rows[beta].mean("average"))
        first, last = min(rows), max(rows)
        rises, falls = (above(rows[best], rows[end], name="average") for end in (first, last))
        words = ", ".join(f"{rows[b].mean('average'):.1%} at β = {b:g}" for b in dict.fromkeys((first, best, last)))
        answer = False if best in (first, last) else True if rises is True and falls is True else None
        return answer, words, (rows[first], rows[best], rows[last])

    return _judge_by_beta(results, 3, holds)


def gap_closes(results: Results) -> Verdict:
    """Figure 3: the last epoch is nearer to the average as beta grows."""

    def holds(rows: Rows) -> Found:
        ends = rows[min(rows)], rows[max(rows)]
        gaps = [Results(_with_gap(r) for r in row) for row in ends]
        one, other = (gap.mean("gap") for gap in gaps)
        words = f"{100 * one:+.1f} points at β = {min(rows):g}, {100 * other:+.1f} at {max(rows):g}"
        spread = spread_of(*gaps, name="gap")
        if math.isnan(spread) or abs(abs(one) - abs(other)) <= 2 * spread * math.sqrt(2 / len(ends[0])):
            return None, words, ends
        return abs(other) < abs(one), words, ends

    return _judge_by_beta(results, 2, holds)


def _judge_by_beta(results: Results, least: int, holds: Callable[[Rows], Found]) -> Verdict:
    """What holds of BELU's results by beta, where there are enough of them."""

    def enough(some: Results) -> Found:
        rows = belu_by_beta(some)
        return holds(rows) if len(rows) >= least else (None, "", ())

    return judge(results, enough)


def _with_gap(result: Result) -> Result:
    gap = float(result.measured["accuracy"]) - float(result.measured["average"])
    return Result(result.case, result.seed, result.measured | {"gap": gap}, result.seconds)


def beats_clipping(results: Results) -> Verdict:
    """Figure 4: BELU is above ReLU clipped to alpha + beta, by more as that grows."""

    def holds(some: Results) -> Found:
        belu, relu = belu_by_beta(some), relu_by_norm(some)
        sizes = sorted({b + 1 for b in belu} & set(relu))
        if len(sizes) < 2:
            return None, "", ()
        leads = {size: belu[size - 1].mean("average") - relu[size].mean("average") for size in sizes}
        words = ", ".join(f"{100 * lead:+.1f} points at {size:g}" for size, lead in leads.items())
        first, last = sizes[0], sizes[-1]
        wins = above(belu[last - 1], relu[last], name="average")
        spread = spread_of(*belu.values(), *relu.values(), name="average")
        arms = (belu[last - 1], relu[last], belu[first - 1], relu[first])
        if wins is None or math.isnan(spread):
            return None, words, arms
        grows = leads[last] - leads[first] > 4 * spread / math.sqrt(min(len(arm) for arm in arms))
        return wins and grows, words, arms

    return judge(results, holds)


def budget(results: Results) -> Verdict:
    """Epsilon 1.10 of all private models: accounting, whatever the size."""
    clipped, belu = on_all(results).where(form="clipped"), on_all(results).where(**_BELU)
    if not clipped.all("epsilon") or not belu.all("epsilon"):
        return QUEUED
    worst = {name: max(some.all("epsilon")) for name, some in (("clipped", clipped), ("BELU", belu))}
    return Verdict(
        "refuted",
        f"it holds where gradients are clipped ({round_up(worst['clipped'])} is proven), not for BELU: α + β bounds no "
        f"gradient, and up to {worst['BELU']:,.0f} is what is proven of it",
        (clipped, belu),
    )


def printed(theirs: float, fields: Case, measure: str) -> Callable[[Results], Verdict]:
    """A number of table 1 beside ours at the common rate, and at the rate that comes closest."""

    def verdict(results: Results) -> Verdict:
        ours = at_rate(results, RATE).where(**fields)
        outcome = reached(ours, theirs, name=measure)
        if outcome.word != "refuted":
            return outcome
        every = {rate: at_rate(results, rate).where(**fields).mean(measure) for rate in rates(results)}
        near = min((r for r in every if math.isfinite(every[r])), key=lambda r: abs(every[r] - theirs))
        words = f"{outcome.why} at rate {RATE:g}; closest {every[near]:.1%} at {near:g}; the paper names no rate"
        return Verdict("undecided", words, outcome.arms)

    return verdict
