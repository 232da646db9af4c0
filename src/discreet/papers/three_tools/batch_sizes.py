"""003, figure 5 and Table 1: noise an example, and accuracy, by batch size."""

import math
from collections.abc import Sequence

from discreet.papers.experiment import ONE_SEED, Case, Experiment, Measured, Place, Results, Size, Stated, headline
from discreet.papers.three_tools.alexnet import alexnet, images
from discreet.papers.three_tools.clipping import SHORT, length_of, trained
from discreet.papers.three_tools.plans import PLANNED, SAID, constant
from discreet.papers.three_tools.verdicts import (
    ACCURACY,
    SIZE,
    compared,
    longest,
    longest_of_each,
    proven,
    said,
    shorter,
)
from discreet.papers.train_case import seeded
from discreet.papers.verdicts import QUEUED, Verdict, above
from discreet.report import Axis, Chart, Series
from discreet.stages.planning import solve


def _sizes_cases(size: Size) -> list[Case]:
    powers = range(4, 14, 3) if size == "quick" else range(4, 15)
    return [{"epsilon": epsilon, "batch_size": 2**k} for epsilon in (1.0, 4.0) for k in powers]


def _sizes_run(case: Case, place: Place) -> Measured:
    plan = solve(examples=60_000, batch_size=case["batch_size"], epochs=10, epsilon=case["epsilon"], delta=60_000**-1.1)
    noise = plan.mechanism.noise.scale
    assert noise is not None
    return {"noise": noise, "per_example": noise / case["batch_size"], "epsilon": plan.guarantee().epsilon}


def _sizes_charts(results: Results) -> Sequence[Chart]:
    lines = tuple(
        results.where(epsilon=e).line(f"epsilon {e:g}", "batch_size", "per_example", colour=i)
        for i, e in enumerate(results.settings("epsilon"))
    )
    x, y = Axis("batch size", "count", log=True), Axis("noise multiplier / batch size", "number", log=True)
    return [Chart("noise-per-example", "Noise an example, 10 epochs of 60,000", x, y, lines)]


def _dramatically(results: Results) -> Verdict:
    least, most = min(results.settings("batch_size")), max(results.settings("batch_size"))
    ratios = [
        results.where(epsilon=e, batch_size=least).mean("per_example")
        / results.where(epsilon=e, batch_size=most).mean("per_example")
        for e in results.settings("epsilon")
    ]
    if any(math.isnan(r) for r in ratios):
        return QUEUED
    words = f"{min(ratios):.0f} times less at {most:,} than at {least}"
    return Verdict("reproduces" if min(ratios) > 2 else "refuted", words, (results,))


_BATCHES = ((128, True, 0.616), (512, True, 0.642), (1024, True, 0.669), (1024, False, 0.472))


def _batches_cases(size: Size) -> list[Case]:
    if size == "full":  # half the paper's epochs, at the noise of its 60; and the spread of shorter ones
        return [
            {"batch_size": b, "scaled": scaled, "form": form, "examples": 50_000, "rate": 0.01}
            | {"epochs": epochs, "planned": PLANNED}
            for epochs in (6, 30)
            for form in ("paper", "sound")
            for b, scaled, _ in _BATCHES
        ]
    cases: list[Case] = [
        {"batch_size": b, "scaled": scaled, "form": "paper"} | length_of(size) for b, scaled, _ in _BATCHES
    ]
    if size != "quick":
        cases += [{"batch_size": b, "scaled": True, "form": "sound"} | length_of(size) for b in (128, 1024)]
    return cases


def _batches_run(case: Case, place: Place) -> Measured:
    train, test = images(case["examples"])
    length = (case["examples"], case["batch_size"], case["epochs"])
    plan = constant(*length, case["form"], planned=case.get("planned"))
    rate = case["rate"] * (case["batch_size"] / 128 if case["scaled"] else 1)
    return trained(seeded(alexnet, place), train, test, plan, place, rate) | said(case)


def _batches_charts(results: Results) -> Sequence[Chart]:
    lines = tuple(
        longest(results.where(scaled=scaled, form=form)).line(name, "batch_size", look=look, colour=i)
        for i, (scaled, form, name, look) in enumerate(
            (
                (True, "paper", "learning rate scaled, as published", "line"),
                (False, "paper", "learning rate not scaled", "points"),
                (True, "sound", "learning rate scaled, epsilon 20 proven", "dashed"),
            )
        )
        if results.where(scaled=scaled, form=form)
    )
    x = Axis("batch size", "count", log=True)
    scaled = tuple((float(b), told) for b, with_rate, told in _BATCHES if with_rate)
    printed = (
        Series("learning rate scaled, the paper's", scaled, "hollow", 0),
        Series("learning rate not scaled, the paper's", ((1024.0, 0.472),), "hollow", 1),
    )
    title = "Table 1: batch size, CIFAR-10 (JPEG copy)"
    return [Chart("batch-sizes", title, x, ACCURACY, (*lines, *printed))]


def _large(results: Results) -> Verdict:
    groups = [
        results.where(batch_size=b, scaled=s, form="paper") for b, s in ((128, True), (1024, True), (1024, False))
    ]
    if not all(groups):
        return QUEUED
    small, large, base = (longest(group) for group in groups)
    told = f"{small.mean():.1%} at 128, {large.mean():.1%} at 1,024, {base.mean():.1%} at 1,024 with the base rate"
    if len({group[0].case["epochs"] for group in (small, large, base)}) > 1:
        return Verdict("undecided", f"{told}, of unequal lengths so far", (small, large, base))
    spread = [part for group in groups for part in shorter(group)]
    wins = [above(large, other, *spread) for other in (small, base)]
    if any(win is None for win in wins):
        return Verdict("undecided", f"{told}: within the seeds' spread, or none is known", (small, large, base))
    return Verdict("reproduces" if all(wins) else "refuted", told, (small, large, base))


EXPERIMENTS = (
    Experiment(
        "figure-5",
        "Noise an example against batch size",
        "10 epochs of 60,000 examples, the noise solved by privacy-loss distributions (the paper: the moments "
        "accountant) for epsilon 1 and 4, as the paper does not say which; delta is N^-1.1. Nothing is trained.",
        _sizes_cases,
        _sizes_run,
        _sizes_charts,
        (Stated("larger batches", "dramatically less noise an example", verdict=_dramatically),),
        seeds=ONE_SEED,
    ),
    Experiment(
        "table-1",
        "Batch size against accuracy",
        SHORT,
        _batches_cases,
        _batches_run,
        _batches_charts,
        (
            *(
                Stated(
                    f"{b:,}{'' if scaled else ' (base learning rate)'}",
                    theirs,
                    SAID,
                    {"batch_size": b, "scaled": scaled, "form": "paper"},
                    {"batch_size": b, "scaled": True, "form": "sound"} if scaled and b != 512 else None,
                    verdict=compared(theirs, {"batch_size": b, "scaled": scaled, "form": "paper"}),
                    size=SIZE,
                )
                for b, scaled, theirs in _BATCHES
            ),
            headline("large batches", "beneficial if the learning rate is scaled", _large, SIZE),
        ),
        proven,
        longest_of_each,
        needs=("cifar10",),
    ),
)
